"""Findings about what is installed, and about environment variables."""

import re
from collections.abc import Iterator

from mindswap.check.doctor.installed import describe_pair, is_known_pair
from mindswap.check.doctor.model import Diagnosis, MachineFacts, error, warning

_PYTHONS = ((3, 11), (3, 12))
# Left behind by a launcher, or exported by hand: then no worker of msrun is what it thinks it is.
_WORKER_VARIABLES = ("MS_ROLE", "MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT")
_PACKAGES = ("numpy", "scipy", "highspy", "numba", "PyYAML", "regex", "tqdm")
_INTERFACE_VARIABLES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def find_in_software(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Versions that do not go together, and what is not there."""
    software = facts.software
    mindspore, mindformers = software.version("mindspore"), software.version("mindformers")
    if software.python not in _PYTHONS:
        yield (warning if mindspore else error)(
            "python",
            f"Python {'.'.join(map(str, software.python))}",
            "MindSpore has wheels for Python 3.9 to 3.12, mindswap needs 3.11 or later, and is tested on 3.11",
            "an environment of Python 3.11",
        )
    missing = [name for name in _PACKAGES if not software.version(name)]
    if missing:
        yield error(
            "packages",
            f"not installed: {', '.join(missing)}",
            "mindswap cannot plan or simulate without them",
            f"pip install {' '.join(missing)}",
        )
    if not mindspore or not mindformers:
        absent = [name for name, found in (("mindspore", mindspore), ("mindformers", mindformers)) if not found]
        yield error(
            "not-installed",
            f"not installed: {', '.join(absent)}",
            "check, explain and convert work without; run, verify, inspect, simulate and plan do not",
            "pip install mindspore==2.9.0 mindformers==1.9.0; on Ascend the MindSpore that matches your CANN, then "
            "mindformers 1.9.0",
        )
    elif not is_known_pair(mindformers, mindspore):
        yield error(
            "version-pair",
            f"mindformers {mindformers} with mindspore {mindspore}",
            "this pair was never tried: hooks may meet other functions than they expect",
            describe_pair(mindformers),
        )
    yield from _find_cann(facts)
    yield from _find_stale(facts)


def _find_cann(facts: MachineFacts) -> Iterator[Diagnosis]:
    software = facts.software
    if software.cann and software.cann_of_mindspore and _minor(software.cann) not in software.cann_of_mindspore:
        yield error(
            "cann-version",
            f"CANN {software.cann} ({software.cann_folder}) with mindspore {software.version('mindspore')}",
            f"this MindSpore is made for CANN {', '.join(software.cann_of_mindspore)} (its own list); "
            "with another it stops, or operators are missing",
            "install the MindSpore that matches: https://www.mindspore.cn/install",
        )
    if software.num_cards and not software.cann:
        yield error(
            "cann-missing",
            f"{software.num_cards} cards, and no CANN in {software.cann_folder or 'ASCEND_HOME_PATH'}",
            "without it MindSpore knows the CPU only",
            "install CANN, and: source /usr/local/Ascend/ascend-toolkit/set_env.sh",
        )
    if software.cann and not software.driver:
        yield warning(
            "driver-missing",
            f"CANN {software.cann}, and no driver in /usr/local/Ascend/driver",
            "without the driver (in a container: its folder from the host) no card can be used",
            "install the driver, or start the container with -v /usr/local/Ascend/driver:/usr/local/Ascend/driver",
        )


def _find_stale(facts: MachineFacts) -> Iterator[Diagnosis]:
    """The mindswap that workers import is the first on their path: another one than this is a trap."""
    software = facts.software
    copies = software.packages.get("mindswap", ())
    others = [copy for copy in copies if copy.version != software.own_version]
    if others:
        found = ", ".join(f"{copy.version} in {copy.folder}" for copy in others)
        yield error(
            "stale-plugin",
            f"mindswap {software.own_version} runs from {software.own_folder}, and there is also {found}",
            "workers may import the other one: what is checked here is not what trains",
            "pip uninstall mindswap, until it says that there is none; then install the one you want",
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def find_in_environment(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Variables that change what a training does, without a word in its log."""
    environ, machine = facts.environ, facts.machine
    if environ.get("ENABLE_LAZY_INLINE_NO_PIPELINE", "").strip() == "0":
        yield error(
            "lazy-inline-env",
            "ENABLE_LAZY_INLINE_NO_PIPELINE=0",
            "it forbids lazy_inline without pipeline stages, and outside of lazy_inline nothing is swapped",
            "unset ENABLE_LAZY_INLINE_NO_PIPELINE",
        )
    left = [name for name in _WORKER_VARIABLES if environ.get(name)]
    if left:
        yield error(
            "worker-variables",
            ", ".join(f"{name}={environ[name]}" for name in left),
            "they are of a worker of msrun: a process that starts with them waits for a scheduler that is not there",
            f"unset {' '.join(left)}",
        )
    if environ.get("MS_SIMULATION_LEVEL"):
        yield warning(
            "simulation-level",
            f"MS_SIMULATION_LEVEL={environ['MS_SIMULATION_LEVEL']}",
            "MindSpore then compiles and trains nothing: a dry run",
            "unset MS_SIMULATION_LEVEL",
        )
    for name in _INTERFACE_VARIABLES:
        # "=eth0" is exactly this one, "eth" all that begin so, "^eth" none of these.
        wanted = [part.lstrip("=") for part in environ.get(name, "").split(",") if part and not part.startswith("^")]
        missing = [part for part in wanted if not any(found.startswith(part) for found in machine.interfaces)]
        if wanted and len(missing) == len(wanted) and machine.interfaces:
            yield error(
                "network-interface",
                f"{name}={environ[name]}, and this machine has {', '.join(sorted(machine.interfaces))}",
                "workers wait for each other until the time-out",
                f"export {name}=one of these, or unset it",
            )
    timeout = environ.get("HCCL_CONNECT_TIMEOUT", "")
    if timeout and (not re.fullmatch(r"\d{1,6}", timeout) or not 120 <= int(timeout) <= 7200):
        yield error(
            "hccl-timeout",
            f"HCCL_CONNECT_TIMEOUT={timeout}",
            "HCCL takes 120 to 7200 seconds (CANN: environment variables of HCCL) and stops at anything else",
            "export HCCL_CONNECT_TIMEOUT=1200",
        )
