"""Device files -> Device. Strict: whatever is wrong is listed at once, with file, line and key."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from mindswap.config.nodes import Document, DocumentNode, MappingEntry, key_text, show
from mindswap.config.parse import parse_file
from mindswap.config.problem import Level, Problem
from mindswap.errors import CostError
from mindswap.files import DATA, file_name
from mindswap.policy.formats.mindformers1.schema import MINDSWAP_KEYS, SECTION_OF_KEY
from mindswap.policy.formats.mindformers1.settings import UnknownKey
from mindswap.policy.wording import closest_names
from mindswap.simulator.cost.hardware import (
    FIGURES,
    OPTIONS,
    SET_BY_USER,
    Device,
    checked,
    make_device,
    parse_option,
    to_integer,
    unit_keys,
)
from mindswap.units import format_bytes

DEFAULT_DEVICE = "atlas_800t_a2"
FOLDER = DATA / "hardware"
# Keys that `mindswap calibrate` adds; `simulator.cost.calibration_file` reads them.
MEASURED_KEYS = ("calibration", "measured")


def list_devices() -> tuple[str, ...]:
    """Return the names of the devices that come with mindswap."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def find_device_file(name_or_path: str | os.PathLike[str]) -> Path:
    """Return the file of a device.

    Args:
        name_or_path: name of a shipped device, or path of a device file.

    Raises:
        CostError: if there is none; the text lists the known names.
    """
    text = file_name(name_or_path)
    if text in list_devices():
        return FOLDER / f"{text}.yaml"
    path = Path(text)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return path
    closest = closest_names(text, list_devices(), min_similarity=0.65)
    hint = f"; did you mean {closest[0]}?" if closest else ""
    raise CostError(f"device '{text}': no such device{hint}\n    known: {', '.join(list_devices())}, or a .yaml file")


def load_device(
    name_or_path: str | os.PathLike[str] = DEFAULT_DEVICE, overrides: Mapping[str, str] | None = None
) -> Device:
    """Load a device by its name or from a file.

    Args:
        name_or_path: one of `list_devices()`, or a file of the same form.
        overrides: figures to replace: name in `hardware.OPTIONS` -> value with its unit, such as
            `{"d2h": "20GB/s", "memory": "54GiB"}`.

    Raises:
        CostError: if the device is unknown or invalid; the text lists all problems.
    """
    path = find_device_file(name_or_path)
    document = parse_file(os.fspath(path))
    reader = _DeviceReader(document)
    reader.read()
    reader.override(overrides or {})
    reader.judge()
    if reader.wrong:
        raise CostError("\n".join(reader.wrong))
    return make_device(path.stem, reader.title or path.stem, reader.values, reader.sources)


class _DeviceReader:
    """Reader of a device file: values by figure, and all problems."""

    def __init__(self, document: Document):
        self.document = document
        self.title = ""
        self.values: dict[str, int] = {}
        self.sources: dict[str, str] = {}
        self.wrong: list[str] = []
        self._figure_of = {key: figure for figure in FIGURES.values() for key in unit_keys(figure)}

    def read(self) -> None:
        for problem in self.document.problems:
            self.wrong.append(f"{problem.location}: {problem.message}")
        for duplicate in self.document.duplicates:
            self.wrong.append(f"{duplicate.location}: {duplicate.path}: appears twice")
        if self.document.root is None:
            return
        entries = tuple(self.document.root.unique_entries())
        if entries and not any(entry.key == "title" or entry.key in self._figure_of for entry in entries):
            self._complain(
                self.document.root,
                f"this is no device file\n    allowed: {', '.join(list_devices())}, or a "
                f"file like {FOLDER / 'generic.yaml'}",
            )
            return
        for entry in entries:
            self._read_entry(entry)
        for figure in FIGURES.values():
            if figure.name not in self.sources and figure.default is not None:
                self.values[figure.name] = figure.default
                self.sources[figure.name] = "assumed: the file does not specify it"
            elif figure.name not in self.sources:
                self._complain(self.document.root, f"missing: {' or '.join(list(unit_keys(figure))[-3:])}")

    def override(self, overrides: Mapping[str, str]) -> None:
        for name, text in overrides.items():
            if name not in OPTIONS:
                closest = closest_names(name, OPTIONS)[0]
                self.wrong.append(f"{name}: no such figure of a device; closest: {closest}")
                continue
            figure = OPTIONS[name]
            try:
                self.values[figure.name] = parse_option(figure, text)
            except ValueError as error:
                self.wrong.append(f"{name}: {error}")
            self.sources[figure.name] = SET_BY_USER

    def judge(self) -> None:
        """Figures that do not go together."""
        if self.values.get("cache_size") and self.values.get("cache_bandwidth") == 0:
            self.wrong.append("cache_bandwidth: 0 goes only with a cache_size of 0")
        usable, total = self.values.get("usable_memory", 0), self.values.get("device_memory", 0)
        if usable > total > 0:
            self.wrong.append(f"memory: {format_bytes(usable)} is more than the {format_bytes(total)} of the device")

    def _read_entry(self, entry: MappingEntry) -> None:
        key = entry.key
        if key == "title" and isinstance(entry.value.value, str):
            self.title = entry.value.value
        elif key in self._figure_of:
            self._read_figure(str(key), entry.value)
        elif key not in MEASURED_KEYS:
            known_keys = ("title", *self._figure_of)
            closest = ", ".join(closest_names(key_text(key), known_keys, limit=3))
            self._complain(entry, f"{key_text(key)}: no such key, or no such unit; closest: {closest}")

    def _read_figure(self, key: str, node: DocumentNode) -> None:
        figure = self._figure_of[key]
        if figure.name in self.sources:
            self._complain(node, f"{key}: {figure.name} is given twice")
        value, source = node.get("value"), node.get("source")
        self.sources[figure.name] = ""
        keys = {entry.key for entry in node.entries or ()}
        if value is None or source is None or keys != {"value", "source"} or not isinstance(source.value, str):
            self._complain(node, f"{key}: write {{value: NUMBER, source: 'where it is from'}}")
            return
        self.sources[figure.name] = source.value
        number = value.value
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            self._complain(value, f"{key}: {show(value)} is no number")
            return
        try:
            integer = to_integer(figure, Decimal(repr(number)), unit_keys(figure)[key])
            self.values[figure.name] = checked(figure, integer)
        except ValueError as error:
            self._complain(value, f"{key}: {show(value)}: {error}")

    def _complain(self, node: DocumentNode | MappingEntry, text: str) -> None:
        self.wrong.append(f"{node.location}: {text}")


# Device settings of a step in the section `mindswap:` of a configuration.
#
# mindswap: {device: atlas_800t_a2, memory: 54GiB, d2h: 20GB/s, calibration: device.yaml}

SECTION = "mindswap"


@dataclass(frozen=True)
class CostSettings:
    """The device as a configuration states it."""

    device: str | None = None  # name or file; None if there is no entry. A calibration is a device file as well
    is_calibration: bool = False  # `device` is the value of the key `calibration`
    overrides: Mapping[str, str] = field(default_factory=dict)  # figures to replace, for `load_device`
    problems: tuple[Problem, ...] = ()  # all problems; values with a problem are ignored


def read_cost_settings(document: Document) -> CostSettings:
    """Read the section; file names in it are relative to the file that names them."""
    section = document.get(SECTION)
    if section is None or section.is_null:
        return CostSettings()
    if section.entries is None:
        return CostSettings(problems=(_misfit(section, SECTION, "a mapping"),))
    reader = _SettingsReader()
    for entry in section.unique_entries():
        reader.read(entry)
    files, problems = reader.files, reader.problems
    if len(files) == 2:
        calibration = section.get("calibration")
        if calibration is None:
            raise AssertionError("two device files without `calibration`")
        message = f"{SECTION}.calibration: is given together with {SECTION}.device"
        allowed = "one of them: a calibration is a device file"
        problems.append(Problem(calibration.location, "wrong-type", Level.ERROR, message, allowed, "delete device"))
    device = files.get("calibration", files.get("device"))
    return CostSettings(device, "calibration" in files, reader.overrides, tuple(problems))


@dataclass(eq=False)
class _SettingsReader:
    """Settings read from entries of the section, and the problems of these."""

    files: dict[str, str] = field(default_factory=dict)  # `device` and `calibration`
    overrides: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def read(self, entry: MappingEntry) -> None:
        """Read one entry."""
        path = f"{SECTION}.{key_text(entry.key)}"
        if entry.key not in MINDSWAP_KEYS:
            self.problems.append(_unknown_key(UnknownKey(path, entry, MINDSWAP_KEYS, is_in_entry=False)))
        elif entry.value.is_null:
            return
        elif entry.key in ("device", "calibration"):
            self._read_file(str(entry.key), entry.value, path)
        elif entry.key in OPTIONS:
            self._read_option(str(entry.key), entry.value, path)

    def _read_file(self, key: str, node: DocumentNode, path: str) -> None:
        name = _read_device(node)
        if name is None:
            self.problems.append(_misfit(node, path, f"{', '.join(list_devices())}, or a .yaml file"))
        else:
            self.files[key] = name

    def _read_option(self, key: str, node: DocumentNode, path: str) -> None:
        text = "" if node.value is None else str(node.value)
        try:
            parse_option(OPTIONS[key], text)
        except ValueError as error:
            self.problems.append(_misfit(node, path, str(error)))
        else:
            self.overrides[key] = text


def _read_device(node: DocumentNode) -> str | None:
    """Return the name of a shipped device unchanged, a file as a path from here; None for any other value."""
    if not isinstance(node.value, str) or not node.value.strip():
        return None
    if node.value in list_devices():
        return node.value
    if Path(node.value).suffix not in (".yaml", ".yml"):
        return None
    return str(Path(node.location.file).parent / node.value) if node.location.line else node.value


def _misfit(node: DocumentNode, path: str, allowed: str) -> Problem:
    is_bare = isinstance(node.value, (int, float)) and not isinstance(node.value, bool) and "unit" in allowed
    complaint = "has no unit" if is_bare else "cannot be used here"
    return Problem(node.location, "wrong-type", Level.ERROR, f"{path}: {show(node)} {complaint}", allowed)


def _unknown_key(key: UnknownKey) -> Problem:
    message = f"{key.path}: no such key"
    return Problem(
        key.entry.location, "unknown-key", Level.ERROR, message, ", ".join(key.allowed_keys), key.fix(SECTION_OF_KEY)
    )
