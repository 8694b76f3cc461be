"""What `mindswap:` of a configuration says about the device that a step is simulated on.

mindswap: {device: atlas_800t_a2, memory: 54GiB, d2h: 20GB/s, calibration: device.yaml}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mindswap.config.nodes import Document, DocumentNode, key_text, show
from mindswap.config.problem import Level, Problem
from mindswap.policy.schema import MINDSWAP_KEYS
from mindswap.policy.settings import UnknownKey
from mindswap.simulator.cost.device_file import list_devices
from mindswap.simulator.cost.figures import parse_option
from mindswap.simulator.cost.hardware import OPTIONS

SECTION = "mindswap"


@dataclass(frozen=True)
class CostSettings:
    """The device as a configuration states it."""

    device: str | None = None  # name or file; None if it is not said. A calibration is a device file as well
    is_calibration: bool = False  # `device` was given as `calibration`
    overrides: Mapping[str, str] = field(default_factory=dict)  # figures to replace, for `load_device`
    problems: tuple[Problem, ...] = ()  # what is wrong; values with a problem are left out


def read_cost_settings(document: Document) -> CostSettings:
    """Read the section; file names in it are relative to the file that names them."""
    section = document.get(SECTION)
    if section is None or section.is_null:
        return CostSettings()
    if section.entries is None:
        return CostSettings(problems=(_misfit(section, SECTION, "a mapping"),))
    files: dict[str, str] = {}
    overrides: dict[str, str] = {}
    problems: list[Problem] = []
    for entry in section.unique_entries():
        path = f"{SECTION}.{key_text(entry.key)}"
        if entry.key not in MINDSWAP_KEYS:
            problems.append(_unknown_key(UnknownKey(path, entry, MINDSWAP_KEYS, is_in_entry=False)))
        elif entry.value.is_null:
            continue
        elif entry.key in ("device", "calibration"):
            name = _read_device(entry.value)
            if name is None:
                allowed = f"{', '.join(list_devices())}, or a .yaml file"
                problems.append(_misfit(entry.value, path, allowed))
            else:
                files[str(entry.key)] = name
        elif entry.key in OPTIONS:
            text = "" if entry.value.value is None else str(entry.value.value)
            try:
                parse_option(OPTIONS[str(entry.key)], text)
                overrides[str(entry.key)] = text
            except ValueError as error:
                problems.append(_misfit(entry.value, path, str(error)))
    if len(files) == 2:
        where = section.get("calibration")
        assert where is not None
        message = f"{SECTION}.calibration: stands beside {SECTION}.device"
        allowed = "one of them: a calibration is a device file"
        problems.append(Problem(where.location, "wrong-type", Level.ERROR, message, allowed, "delete device"))
    device = files.get("calibration", files.get("device"))
    return CostSettings(device, "calibration" in files, overrides, tuple(problems))


def _read_device(node: DocumentNode) -> str | None:
    """A known name as it is, a file as a path from here; None for anything else."""
    if not isinstance(node.value, str) or not node.value.strip():
        return None
    if node.value in list_devices():
        return node.value
    if Path(node.value).suffix not in (".yaml", ".yml"):
        return None
    return str(Path(node.location.file).parent / node.value) if node.location.line else node.value


def _misfit(node: DocumentNode, path: str, allowed: str) -> Problem:
    is_bare = isinstance(node.value, (int, float)) and not isinstance(node.value, bool) and "unit" in allowed
    what = "has no unit" if is_bare else "cannot be used here"
    return Problem(node.location, "wrong-type", Level.ERROR, f"{path}: {show(node)} {what}", allowed)


def _unknown_key(key: UnknownKey) -> Problem:
    message = f"{key.path}: no such key"
    return Problem(key.entry.location, "unknown-key", Level.ERROR, message, ", ".join(key.known), key.fix())
