"""Settings of a truncated model: the keys of the configuration, with the layers that remain.

Every key keeps its place and its form: lists of layers have the new indices of the layers that remain, counts per stage
(`recompute_config` with swap off) count those of each chunk. Entries of layers that do not remain are dropped.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindswap.config.nodes import Document, DocumentNode, to_data
from mindswap.config.pipeline_layout import Layout, Pipeline, read_pipeline
from mindswap.policy.formats.mindformers1.read import is_swap_enabled
from mindswap.policy.formats.mindformers1.read_parts import Parts, is_range
from mindswap.policy.formats.mindformers1.schema import ENTRY_KEYS, SELECT_OPTIONS
from mindswap.policy.formats.mindformers1.stage_counts import read_counts

OWN_SECTION, OUTPUT_KEY = "mindswap", "output_recompute"
# Keys of `model.model_config` with one value for each layer of the model.
PER_LAYER_KEYS = ("moe_layer_freq", "layer_types")


def truncated_layer_classes(model_config: Mapping[str, Any], kept: Sequence[int]) -> dict[str, Any]:
    """Return the keys of `model_config` that decide which layers have experts, for the layers that remain.

    The first `first_k_dense_replace` layers have none; `moe_layer_freq` is the distance between layers with experts, or
    a list of 0 and 1.

    Args:
        model_config: the section of the full model.
        kept: indices of the layers that remain.
    """
    changes: dict[str, Any] = {}
    if num_dense := model_config.get("first_k_dense_replace"):
        changes["first_k_dense_replace"] = sum(index < num_dense for index in kept)
    for key in PER_LAYER_KEYS:
        values = model_config.get(key)
        if isinstance(values, int) and values > 1:
            values = [int(index % values == 0) for index in range(max(kept) + 1)]
        if isinstance(values, list) and len(values) > max(kept):
            changes[key] = [values[index] for index in kept]
    return changes


def truncated_layout(layout: Layout, kept: Sequence[int]) -> Layout:
    """Return the stages and chunks of the layers that remain: each layer stays in its chunk of its stage."""
    sizes = [[0] * len(row) for row in layout.sizes]
    for cell in layout.cells():
        sizes[cell.chunk][cell.position] = sum(index in cell.layers for index in kept)
    return Layout(tuple(map(tuple, sizes)), len(kept), layout.is_zero_bubble_v)


def truncated_offset(pipeline: Pipeline, num_layers: int, kept: Sequence[int]) -> int | list[int] | list[list[int]]:
    """Return the `offset` with which each remaining layer stays in its chunk of its stage; 0 if all have as many."""
    offset = pipeline.offset_of(truncated_layout(pipeline.layout(num_layers), kept))
    rows = [row if isinstance(row, list) else [row] for row in offset]
    return offset if any(map(any, rows)) else 0


def truncated_sections(document: Document, num_layers: int, kept: Sequence[int]) -> dict[str, Any]:
    """Return `swap_config`, `recompute_config` and `mindswap` of a truncated model, where the configuration has them.

    Args:
        document: a valid configuration.
        num_layers: layers of the full model.
        kept: indices of the layers that remain, ascending.

    Raises:
        LayoutError: the layers cannot be distributed as configured.
    """
    return _Truncation(document, num_layers, tuple(kept)).sections()


@dataclass(frozen=True)
class _Truncation:
    document: Document
    num_layers: int
    kept: tuple[int, ...]

    def sections(self) -> dict[str, Any]:
        is_swapping = is_swap_enabled(self.document)
        sections: dict[str, Any] = {}
        for name in ("swap_config", "recompute_config", OWN_SECTION):
            node = self.document.get(name)
            if node is not None and node.entries:
                sections[name] = _data_of(node)
        if is_swapping:
            self._truncate_swap(sections["swap_config"])
            self._truncate_output(sections)
        if "recompute_config" in sections:
            sections["recompute_config"] |= self._recompute(self._indices if is_swapping else self._counts)
        return sections

    def _truncate_swap(self, section: dict[str, Any]) -> None:
        for key in ("layer_swap", "op_swap"):
            node = self.document.get("swap_config", key)
            if node is None or node.is_null:
                continue
            is_by_name = bool(node.entries) and not any(node.entry(name) for name in ENTRY_KEYS["op_swap"])
            if is_by_name:  # {op_name: [{backward_prefetch, layers}, ...]}
                entries = {entry.key: self._entries(entry.value) for entry in node.unique_entries()}
                section[key] = {name: value for name, value in entries.items() if value}
            else:
                section[key] = self._entries(node)

    def _entries(self, node: DocumentNode) -> list[dict[Any, Any]]:
        """Return the entries of a list, or of the mapping in place of one, that have layers."""
        entries = []
        for entry in (node,) if node.entries is not None else node.items or ():
            layers = entry.get("layers")
            if layers is not None and (indices := self._indices(layers)):
                entries.append(_data_of(entry) | {"layers": indices})
        return entries

    def _truncate_output(self, sections: dict[str, Any]) -> None:
        node = self.document.get(OWN_SECTION, OUTPUT_KEY)
        if node is not None and not node.is_null:
            sections[OWN_SECTION][OUTPUT_KEY] = self._indices(node) or False

    def _recompute(self, truncate: Callable[[DocumentNode], object]) -> dict[str, Any]:
        """Return the keys of `recompute_config` that name layers."""
        changes: dict[str, Any] = {}
        for key in ("recompute", *SELECT_OPTIONS):
            node = self.document.get("recompute_config", key)
            if node is None or node.is_null:
                continue
            if node.entries is not None:
                layers = {entry.key: truncate(entry.value) for entry in node.unique_entries()}
                changes[key] = {pattern: value for pattern, value in layers.items() if value or value is False}
            elif not any(isinstance(item.value, str) and not is_range(item) for item in node.items or ()):
                changes[key] = truncate(node) or False
        return changes

    def _indices(self, node: DocumentNode) -> object:
        """Return the new indices of the layers of a node; a bool as it is."""
        if isinstance(node.value, bool):
            return node.value
        layers, _ = Parts(self.num_layers).layers(node, "")
        return [new for new, old in enumerate(self.kept) if old in layers]

    def _counts(self, node: DocumentNode) -> object:
        """Return the counts of a node per stage, or per chunk and stage; a bool as it is."""
        if isinstance(node.value, bool) or node.items is None:
            return to_data(node)
        layout = read_pipeline(self.document).layout(self.num_layers)
        counts = read_counts(node, layout).rows
        rows = [[0] * len(row) for row in layout.sizes]
        for cell in layout.cells():
            count = counts[cell.chunk][cell.position] if cell.position < len(counts[cell.chunk]) else 0
            counted = cell.layers[: max(0, count)]
            rows[cell.chunk][cell.position] = sum(index in counted for index in self.kept)
        if layout.is_zero_bubble_v:
            rows[1].reverse()  # as `read_counts` reads it
        return rows if len(rows) > 1 else rows[0]


def _data_of(node: DocumentNode) -> dict[Any, Any]:
    data = to_data(node)
    return dict(data) if isinstance(data, dict) else {}
