"""Report of activation memory as text and JSON."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mindswap.graph.analysis.liveness import Peak
from mindswap.graph.analysis.saved_tensors import LayerMemory, Names, OperatorMemory, path_from_root
from mindswap.graph.model import Graph, Node
from mindswap.policy.wording import name_indices
from mindswap.report.tables import attributes, format_table, group_equal
from mindswap.units import common_unit, format_bytes

TREATMENTS = ("kept", "swapped", "recomputed")
COLUMNS = (*TREATMENTS, "op_swap alone frees")


@dataclass(frozen=True)
class LayerMemoryReport:
    """Activation memory of all layers."""

    layers: tuple[LayerMemory, ...]  # every layer of the model, then operators outside of the layers
    peak: Peak  # highest activation memory of one micro-batch
    notes: tuple[str, ...]  # where the compiled network differs from the one that trains

    def only(self, indices: Collection[int]) -> "LayerMemoryReport":
        """Return a report of these layers and the operators outside of the layers."""
        kept = (layer for layer in self.layers if layer.layer_index is None or layer.layer_index in indices)
        return replace(self, layers=tuple(kept))

    @property
    def total(self) -> OperatorMemory:
        """Total memory of all layers in the report."""
        return _sum("step", [operator for layer in self.layers for operator in layer.operators])

    def describe_total(self) -> str:
        """Format the total, for example `1.2 GiB kept, 0 B swapped, 0 B recomputed`."""
        sizes = [getattr(self.total, f"{treatment}_bytes") for treatment in TREATMENTS]
        return ", ".join(f"{format_bytes(size)} {treatment}" for size, treatment in zip(sizes, TREATMENTS, strict=True))


def unread_copy_notes(graph: Graph, names: Callable[[Node], Names], layer_map: Mapping[int, int]) -> Iterator[str]:
    """Report activations that are offloaded but never prefetched.

    Args:
        graph: the compiled graph.
        names: names of an operator.
        layer_map: layer of the model -> representative compiled layer.
    """
    layers_by_copy: dict[str, list[int]] = {}
    for copy in graph.index.one_way_copies:
        copy_text = f"{format_bytes(copy.size_bytes)} of {names(graph.index.forward_nodes[copy.inputs[0]])}"
        layers = [index for index, position in layer_map.items() if position == copy.layer_index]
        layers_by_copy.setdefault(copy_text, []).extend(layers)
    for copy_text, layers in layers_by_copy.items():
        layers_text = f", in {'each of ' * (len(layers) > 1)}{name_indices('layer', layers)}" if layers else ""
        yield f"offloaded but never prefetched: {copy_text}{layers_text}"


def format_memory(report: LayerMemoryReport, by: str = "operator") -> str:
    """Format tables, equal layers once, with a row per "layer", "operator" or "cell"."""
    groups = group_layer_memory(report.layers)
    unit = common_unit(_weight(_sum(name, layer.operators)) for name, layer in groups)
    rows: list[tuple[str, ...]] = []
    for name, layer in groups:
        rows.append((name, *_sizes(_sum(name, layer.operators), unit)))
        if by != "layer":
            operators = rows_of(layer, by)
            largest_first = sorted(operators, key=lambda operator: -_weight(operator))
            rows += [(f"    {operator.path}", *_sizes(operator, unit)) for operator in largest_first]
    peak = report.peak
    layer_text = "" if peak.node.layer_index is None else f"layer {peak.node.layer_index}, "
    lines = [
        format_table(("one micro-batch, one rank", *COLUMNS), rows),
        "",
        f"step: {report.describe_total()}",
        f"peak of activations by lifetime: {format_bytes(peak.size_bytes)}, in "
        f"{'forward' if peak.is_forward else 'backward'} at {layer_text}{path_from_root(peak.node)}",
        *(f"note: {note}" for note in report.notes),
    ]
    return "\n".join(lines)


def memory_to_json(report: LayerMemoryReport) -> dict[str, Any]:
    """Return the report as JSON data: every layer, sizes in bytes."""

    def sums(memory: OperatorMemory) -> dict[str, int]:
        return {f"{treatment}_bytes": getattr(memory, f"{treatment}_bytes") for treatment in TREATMENTS}

    def operators(layer: LayerMemory) -> list[dict[str, Any]]:
        return [vars(operator) for operator in layer.operators]

    return {
        "layers": [
            {"layer": layer.layer_index, **sums(_sum("", layer.operators)), "operators": operators(layer)}
            for layer in report.layers
        ],
        "total": sums(report.total),
        "peak": {
            "size_bytes": report.peak.size_bytes,
            "scope": report.peak.node.scope,
            "is_forward": report.peak.is_forward,
        },
        "notes": list(report.notes),
    }


def group_layer_memory(layers: tuple[LayerMemory, ...]) -> list[tuple[str, LayerMemory]]:
    """Group layers with equal memory under one name; operators outside of the layers are last."""
    inside = {layer.layer_index: layer for layer in layers if layer.layer_index is not None}
    groups = group_equal(inside.values(), lambda layer: layer.operators, inside)
    named = [(name_indices("layer", indices), layer) for indices, layer in groups]
    return named + [("outside the layers", layer) for layer in layers if layer.layer_index is None]


def rows_of(layer: LayerMemory, by: str) -> tuple[OperatorMemory, ...]:
    """Return the rows of a layer: its operators, the sums of its cells, or its total."""
    if by == "layer":
        return (_sum("all operators", layer.operators),)
    return layer.operators if by == "operator" else tuple(_by_cell(layer.operators))


_SIZES = ("kept_bytes", "swapped_bytes", "recomputed_bytes", "swappable_bytes")


def _sum(name: str, operators: Collection[OperatorMemory]) -> OperatorMemory:
    return OperatorMemory(name, "", *(sum(getattr(operator, size) for operator in operators) for size in _SIZES))


def _by_cell(operators: Collection[OperatorMemory]) -> list[OperatorMemory]:
    cells: dict[str, list[OperatorMemory]] = {}
    for operator in operators:
        cells.setdefault(operator.path.rpartition(".")[0] or "(the layer itself)", []).append(operator)
    return [_sum(cell, members) for cell, members in cells.items()]


def _weight(operator: OperatorMemory) -> int:
    return max(operator.kept_bytes, operator.swapped_bytes, operator.recomputed_bytes)


def _sizes(operator: OperatorMemory, unit: str) -> tuple[str, ...]:
    return tuple(format_bytes(size, unit) if size else "-" for size in attributes(operator, " ".join(_SIZES)).values())
