"""Device files -> Device. Strict: whatever is wrong is listed at once, with file, line and key."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from mindswap.cost.figures import FIGURES, OPTIONS, checked, parse_option, to_integer, unit_keys
from mindswap.cost.hardware import SET_BY_USER, Device, Link, Network
from mindswap.document.nodes import Document, Entry, Node, key_text, show
from mindswap.document.parse import parse_file
from mindswap.errors import CostError
from mindswap.policy.words import closest_names
from mindswap.units import format_bytes, parse_bytes

__all__ = ["DEFAULT_DEVICE", "MEASURED_KEYS", "figure_values", "find_device_file", "list_devices", "load_device",
           "with_figures"]  # fmt: skip

DEFAULT_DEVICE = "atlas_800t_a2"
FOLDER = Path(__file__).parents[1] / "data" / "hardware"
DTYPES = ("float16", "bfloat16", "float32")
OP_KINDS = ("matrix", "vector", "communication")
RATES = ("norm", "norm_grad", "softmax", "activation", "activation_grad")
EFFICIENCIES = ("d2h_efficiency", "h2d_efficiency")
# What `mindswap calibrate` adds; read by `cost.measured`.
MEASURED_KEYS = ("calibration", "measured")


def list_devices() -> tuple[str, ...]:
    """Names of the devices that come with mindswap."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def find_device_file(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of a device.

    Raises:
        CostError: if there is none; the text lists the known names.
    """
    text = os.fspath(name_or_path)
    if text in list_devices():
        return FOLDER / f"{text}.yaml"
    path = Path(text)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return path
    closest = closest_names(text, list_devices(), max_distance=min(len(text) // 2, 6))
    hint = f"; did you mean {closest[0]}?" if closest else ""
    raise CostError(f"device '{text}': no such device{hint}\n    known: {', '.join(list_devices())}, or a .yaml file")


def load_device(
    name_or_path: str | os.PathLike[str] = DEFAULT_DEVICE, overrides: Mapping[str, str] | None = None
) -> Device:
    """A device, by its name or from a file.

    Args:
        name_or_path: one of `list_devices()`, or a file of the same form.
        overrides: figures to replace: name in `figures.OPTIONS` -> value with its unit, such as
            `{"d2h": "20GB/s", "memory": "54GiB"}`.

    Raises:
        CostError: with everything that is wrong.
    """
    path = find_device_file(name_or_path)
    document = parse_file(os.fspath(path))
    reader = _Reader(document)
    reader.read()
    reader.override(overrides or {})
    reader.judge()
    if reader.wrong:
        raise CostError("\n".join(reader.wrong))
    return _build(path.stem, reader)


class _Reader:
    """Values of a file by figure, and what is wrong with it."""

    def __init__(self, document: Document):
        self.document = document
        self.title = ""
        self.values: dict[str, int] = {}
        self.efficiencies: dict[str, tuple[tuple[int, int], ...]] = dict.fromkeys(EFFICIENCIES, ())
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
                self.sources[figure.name] = "assumed: the file does not say it"
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
        usable, whole = self.values.get("usable_memory", 0), self.values.get("device_memory", 0)
        if usable > whole > 0:
            self.wrong.append(f"memory: {format_bytes(usable)} is more than the {format_bytes(whole)} of the device")

    def _read_entry(self, entry: Entry) -> None:
        key = entry.key
        if key == "title" and isinstance(entry.value.value, str):
            self.title = entry.value.value
        elif key in EFFICIENCIES:
            self._read_efficiency(str(key), entry.value)
        elif key in self._figure_of:
            self._read_figure(str(key), entry.value)
        elif key not in MEASURED_KEYS:
            known = ("title", *EFFICIENCIES, *self._figure_of)
            closest = ", ".join(closest_names(key_text(key), known, limit=3))
            self._complain(entry, f"{key_text(key)}: no such key, or no such unit; closest: {closest}")

    def _read_figure(self, key: str, node: Node) -> None:
        figure = self._figure_of[key]
        if figure.name in self.sources:
            self._complain(node, f"{key}: {figure.name} is given twice")
        value = self._value_and_source(key, figure.name, node)
        if value is None:
            return
        number = value.value
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            self._complain(value, f"{key}: {show(value)} is no number")
            return
        try:
            integer = to_integer(figure, Decimal(repr(number)), unit_keys(figure)[key])
            self.values[figure.name] = checked(figure, integer)
        except ValueError as error:
            self._complain(value, f"{key}: {show(value)}: {error}")

    def _read_efficiency(self, key: str, node: Node) -> None:
        value = self._value_and_source(key, key, node)
        if value is None:
            return
        steps = []
        try:
            for step in value.items or ():
                size, fraction = (item.value for item in step.items or ())
                steps.append((parse_bytes(size), int(Decimal(repr(fraction)) * 1000)))
            is_rising = steps == sorted(set(steps)) and all(0 < permille <= 1000 for _, permille in steps)
        except (ValueError, TypeError, ArithmeticError):
            is_rising = False
        if not is_rising or not steps:
            self._complain(
                value, f"{key}: {show(value)}: write rising sizes with fractions: [[64KiB, 0.3], [1MiB, 0.8]]"
            )
        self.efficiencies[key] = tuple(steps)

    def _value_and_source(self, key: str, name: str, node: Node) -> Node | None:
        """The value of `{value: ..., source: ...}`; a complaint if it is no such pair."""
        value, source = node.get("value"), node.get("source")
        self.sources[name] = ""
        keys = {entry.key for entry in node.entries or ()}
        if value is None or source is None or keys != {"value", "source"} or not isinstance(source.value, str):
            self._complain(node, f"{key}: write {{value: NUMBER, source: 'where it is from'}}")
            return None
        self.sources[name] = source.value
        return value

    def _complain(self, where: Node | Entry, text: str) -> None:
        self.wrong.append(f"{where.location}: {text}")


@dataclass(frozen=True)
class _Replaced:
    """What `_build` takes, of a device with other figures."""

    title: str
    values: Mapping[str, int]
    efficiencies: Mapping[str, tuple[tuple[int, int], ...]]
    sources: dict[str, str]


def with_figures(device: Device, values: Mapping[str, int], sources: Mapping[str, str] | None = None) -> Device:
    """The device with other figures, by their names in `FIGURES`; a new bandwidth of a link takes its efficiencies."""
    links = zip(EFFICIENCIES, (device.offload, device.prefetch), strict=True)
    efficiencies = {name: () if name.removesuffix("_efficiency") in values else link.efficiency for name, link in links}
    kept = {name: text for name, text in device.sources.items() if efficiencies.get(name, True)}
    return _build(
        device.name,
        _Replaced(device.title, {**figure_values(device), **values}, efficiencies, {**kept, **(sources or {})}),
    )


def _build(name: str, reader: _Reader | _Replaced) -> Device:
    value = reader.values
    return Device(
        name=name,
        title=reader.title or name,
        peak_flops={dtype: value[f"matrix_{dtype}"] for dtype in DTYPES},
        vector_flops={dtype: value[f"vector_{dtype}"] for dtype in DTYPES},
        compute_permille=value["compute_fraction"],
        weight_gradient_permille=value["weight_gradient_fraction"],
        num_matrix_cores=value["num_matrix_cores"],
        attention_permille=value["attention_fraction"],
        attention_grad_permille=value["attention_grad_fraction"],
        memory_bandwidth_bytes_per_s=value["memory_bandwidth"],
        memory_permille=value["memory_bandwidth_fraction"],
        cache_bytes=value["cache_size"],
        cache_bandwidth_bytes_per_s=value["cache_bandwidth"],
        vector_rates={kind: value[f"{kind}_rate"] for kind in RATES},
        op_latency_ns={kind: value[f"{kind}_op_latency"] for kind in OP_KINDS},
        memory_bytes=value["device_memory"],
        usable_memory_bytes=value["usable_memory"],
        margin_permille=value["margin"],
        hccl_buffer_bytes=value["hccl_buffer"],
        kernel_workspace_bytes=value["kernel_workspace"],
        pool_alignment_bytes=value["pool_alignment"],
        offload=Link(value["d2h"], value["d2h_latency"], reader.efficiencies["d2h_efficiency"]),
        prefetch=Link(value["h2d"], value["h2d_latency"], reader.efficiencies["h2d_efficiency"]),
        contended_permille=value["contended_fraction"],
        num_cards_per_node=value["num_cards_per_node"],
        host_memory_bytes=value["host_memory"],
        host_bandwidth_bytes_per_s=value["host_bandwidth"],
        intranode=Network(
            value["intranode_bandwidth"],
            value["intranode_latency"],
            value["collective_fraction"],
            value["num_mesh_cards"],
        ),
        internode=Network(value["internode_bandwidth"], value["internode_latency"], value["internode_fraction"]),
        sources=reader.sources,
    )


def figure_values(device: Device) -> dict[str, int]:
    """Every figure of a device by its name in `FIGURES`, each in its smallest unit: what `_build` takes."""
    return {
        **{f"matrix_{dtype}": device.peak_flops[dtype] for dtype in DTYPES},
        **{f"vector_{dtype}": device.vector_flops[dtype] for dtype in DTYPES},
        "compute_fraction": device.compute_permille,
        "weight_gradient_fraction": device.weight_gradient_permille,
        "num_matrix_cores": device.num_matrix_cores,
        "attention_fraction": device.attention_permille,
        "attention_grad_fraction": device.attention_grad_permille,
        "memory_bandwidth": device.memory_bandwidth_bytes_per_s,
        "memory_bandwidth_fraction": device.memory_permille,
        "cache_size": device.cache_bytes,
        "cache_bandwidth": device.cache_bandwidth_bytes_per_s,
        **{f"{kind}_rate": device.vector_rates[kind] for kind in RATES},
        **{f"{kind}_op_latency": device.op_latency_ns[kind] for kind in OP_KINDS},
        "device_memory": device.memory_bytes,
        "usable_memory": device.usable_memory_bytes,
        "margin": device.margin_permille,
        "hccl_buffer": device.hccl_buffer_bytes,
        "kernel_workspace": device.kernel_workspace_bytes,
        "pool_alignment": device.pool_alignment_bytes,
        "d2h": device.offload.bandwidth_bytes_per_s,
        "d2h_latency": device.offload.latency_ns,
        "h2d": device.prefetch.bandwidth_bytes_per_s,
        "h2d_latency": device.prefetch.latency_ns,
        "contended_fraction": device.contended_permille,
        "num_cards_per_node": device.num_cards_per_node,
        "host_memory": device.host_memory_bytes,
        "host_bandwidth": device.host_bandwidth_bytes_per_s,
        "intranode_bandwidth": device.intranode.bandwidth_bytes_per_s,
        "intranode_latency": device.intranode.latency_ns,
        "num_mesh_cards": device.intranode.num_mesh_cards,
        "internode_bandwidth": device.internode.bandwidth_bytes_per_s,
        "internode_latency": device.internode.latency_ns,
        "collective_fraction": device.intranode.efficiency_permille,
        "internode_fraction": device.internode.efficiency_permille,
    }
