"""Report of `mindswap doctor` as text and JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mindswap.config.problem import Level
from mindswap.report.problems import escape
from mindswap.report.tables import attributes
from mindswap.rules.machine.facts import Diagnosis, MachineFacts
from mindswap.rules.machine.software import TRAINER_VERSIONS
from mindswap.system.disk_cache import MAX_CACHE_BYTES
from mindswap.units import format_bytes, format_count
from mindswap.version import __version__

_SHOWN_OF_MACHINE = "host_bytes memlock_bytes shm_bytes num_numa_nodes num_processors cache_folder cache_bytes"
_TEXT_COMMANDS = "check, explain, convert, calibrate, status"
_COMMANDS_2X = "check, explain, convert, plan --trace"
_TRAINER_COMMANDS = ("dryrun", "verify", "simulate", "compare", "inspect", "plan", "trace", "run")
_COMPILING_COMMANDS = "run, verify, inspect, simulate, compare, plan, dryrun, prove"


def format_doctor(facts: MachineFacts, findings: Sequence[Diagnosis]) -> str:
    """Format the facts, then problem, reason and fix of each finding."""
    software, host_bytes = facts.software, facts.machine.host_bytes
    available = "unknown" if host_bytes is None else format_bytes(host_bytes)
    cann = f"CANN {software.cann}" if software.cann else "no CANN"
    driver = f"driver {software.driver}" if software.driver else "no driver"
    lines = [
        f"python {'.'.join(map(str, software.python))}, {_versions(facts)}",
        f"{cann}, {driver}, {software.num_cards} cards; host memory available: {available}",
        f"works here: {_works(facts)}",
        f"files of MindFormers 2.x (PyNative): {_works_2x(facts)}",
        f"cache: {format_bytes(facts.machine.cache_bytes)} of at most {format_bytes(MAX_CACHE_BYTES)}"
        f" in {facts.machine.cache_folder}",
    ]
    for finding in findings:
        lines += ["", f"{finding.severity.value}: {finding.what} [{finding.check}]"]
        lines += [f"    why:     {finding.why}", f"    fix:     {finding.fix}"]
    num_errors = sum(finding.severity is Level.ERROR for finding in findings)
    num_warnings = len(findings) - num_errors
    counts = f"{format_count(num_errors, 'error')}, {format_count(num_warnings, 'warning')}"
    lines += ["", counts if findings else "nothing found"]
    return "\n".join(map(escape, lines))


def doctor_to_json(facts: MachineFacts, findings: Sequence[Diagnosis]) -> dict[str, Any]:
    """Return facts and findings as JSON data; sizes in bytes, null for unlimited or unknown."""
    software = facts.software
    return {
        "mindswap": __version__,
        "findings": [{**asdict(finding), "severity": finding.severity.value} for finding in findings],
        "software": {
            "python": ".".join(map(str, software.python)),
            "mindspore": software.version("mindspore") or None,
            "mindformers": software.version("mindformers") or None,
            "cann": software.cann or None,
            "driver": software.driver or None,
            "num_cards": software.num_cards,
        },
        "machine": attributes(facts.machine, _SHOWN_OF_MACHINE),
        "job": asdict(facts.job) if facts.job else None,
    }


def _versions(facts: MachineFacts) -> str:
    versions = [f"mindswap {facts.software.mindswap_version}"]
    for name in ("mindspore", "mindformers"):
        version = facts.software.version(name)
        versions.append(f"{name} {version}" if version else f"no {name}")
    return ", ".join(versions)


def _works_2x(facts: MachineFacts) -> str:
    """Format the commands that read files of MindFormers 2.x here."""
    versions = tuple(facts.software.version(name) for name in ("mindformers", "mindspore"))
    if versions == TRAINER_VERSIONS:
        return ", ".join((_COMMANDS_2X, *_TRAINER_COMMANDS))
    needed = " with mindspore ".join(TRAINER_VERSIONS)
    *others, last = _TRAINER_COMMANDS
    return f"{_COMMANDS_2X}; {', '.join(others)} and {last} need mindformers {needed} (docs/versions.md)"


def _works(facts: MachineFacts) -> str:
    can_compile = facts.software.version("mindspore") and facts.software.version("mindformers")
    return f"{_TEXT_COMMANDS}, {_COMPILING_COMMANDS}" if can_compile else f"{_TEXT_COMMANDS}; not {_COMPILING_COMMANDS}"
