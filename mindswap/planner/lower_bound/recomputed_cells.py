"""Cells that call functions: operators without a name, recomputed only with the cell, or with one around it.

Recompute of a cell leaves its outputs out, so a function that makes one of these is recomputed with the smallest cell
around it that reads the output, which may be the layer.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mindswap.graph.layer_paths import has_scope
from mindswap.graph.model import Node
from mindswap.graph.ops import REDISTRIBUTION_OPS, VIEW_OPS, is_kernel
from mindswap.graph.passes.gather import is_gathering
from mindswap.planner.lower_bound.captured_layer import CapturedLayer
from mindswap.policy.cell_tree import exact_pattern
from mindswap.policy.model import ALL_LAYERS, NO_LAYERS, OpRecompute, Policy
from mindswap.simulator.step_model import StepModel


@dataclass(frozen=True)
class RecomputedCell:
    """A cell that calls functions: they have no names, so only recompute of the cell, or one around it, runs them."""

    functions: frozenset[int]  # operators that are recomputed with the cell only
    ops: frozenset[int]  # all operators recomputed with the cell, if something reads them
    tensors: frozenset[int]  # outputs of these that are freed
    # (operator, tensor): the operator reads the tensor through a view that is a function of the cell. If the operator
    # is recomputed without the cell, backward holds the view, so the tensor is kept: no name swaps it
    views: frozenset[tuple[int, int]] = frozenset()
    # tensors that backward holds through such a view: kept unless the cell is recomputed
    held: frozenset[int] = frozenset()
    # (operator, tensor): the operator is recomputed with the cell, and outside of it the tensor is held under no name,
    # so it is kept for that
    inputs: frozenset[tuple[int, int]] = frozenset()
    path: str = ""  # of the cell below the layer; "" for the layer itself

    def without(self, ops: Iterable[int]) -> "RecomputedCell":
        """Return the cell without some functions, which do not depend on it."""
        return replace(self, functions=self.functions.difference(ops))


def find_recomputed_cells(layer: CapturedLayer) -> Iterable[RecomputedCell]:
    """Yield `TensorGraph.recomputed_cells`.

    Operators that read weights only are recomputed with the cell in a step with swap only (`simulator.segment_reader`).
    """
    model = layer.model
    if model.layers.reads_caches:
        return

    @functools.cache
    def recomputed_with(cell: str) -> frozenset[str]:
        entries = (OpRecompute(exact_pattern(cell), ALL_LAYERS),) if cell else ()
        policy = Policy(True, select_recompute=entries, layer_recompute=NO_LAYERS if cell else ALL_LAYERS)
        graph = model.layers.rewritten(policy, layer.layer_index)
        return frozenset(node.name for node in graph.forward if node.is_recomputed)

    ops_with_inputs = {op for op, _ in layer.reads}
    functions: dict[str, set[int]] = {}
    for op, node in enumerate(layer.nodes):
        is_of_cell = has_scope(node) and not is_gathering(node) and node.op not in REDISTRIBUTION_OPS
        if is_of_cell and not model.names.can_name(node):
            cell = node.cell_path
            while cell and node.name not in recomputed_with(cell):
                cell = cell.rpartition(".")[0]
            functions.setdefault(cell, set()).add(op)
    for cell, op in _read_by_functions(layer):
        functions.setdefault(cell, set()).add(op)
    views, held = _views(layer), _held_views(layer)
    for cell in (*views, *held):
        functions.setdefault(cell, set())
    for cell, ops in functions.items():
        recomputed = recomputed_with(cell)
        freed = frozenset(
            tensor
            for tensor, nodes in layer.holders.items()
            if tensor not in layer.boundary_inputs and recomputed.issuperset(node.name for node in nodes)
        )
        ops_of_cell = frozenset(op for op, node in enumerate(layer.nodes) if node.name in recomputed)
        kept_inputs = frozenset(
            (op, tensor)
            for op, tensor in layer.reads
            if op in ops_of_cell and _is_nameless(model, (n for n in layer.holders[tensor] if n.name not in recomputed))
        )
        with_inputs = frozenset(tensor for tensor in freed if layer.producers[tensor] in ops_with_inputs)
        yield RecomputedCell(
            functions=frozenset(ops),
            ops=ops_of_cell,
            tensors=with_inputs,
            views=frozenset(views.get(cell, ())),
            held=frozenset(held.get(cell, ())),
            inputs=kept_inputs,
            path=cell,
        )


def _function_cell(layer: CapturedLayer, node: Node) -> str | None:
    """Return the cell with which an unnamed view or operator of the layer is recomputed; None for others."""
    names = layer.model.names
    is_unnamed = (node.op in VIEW_OPS or is_kernel(node.op)) and node.op not in REDISTRIBUTION_OPS
    is_unnamed = is_unnamed and node.layer_index == layer.kind and has_scope(node)
    is_unnamed = is_unnamed and not is_gathering(node) and not names.can_name(node)
    # Of two consecutive reshapes the compiler keeps one, in the cell of the second.
    is_unnamed = is_unnamed and any(name.rpartition(".")[0] == node.cell_path for name in names(node))
    return node.cell_path if is_unnamed and node.attributes.get("recompute") is not True else None


def _read_by_functions(layer: CapturedLayer) -> Iterable[tuple[str, int]]:
    """Yield (cell, operator) for operators of the layer that only functions of that cell read.

    Only these functions need their outputs in backward, so they are recomputed with the cell, named or not.
    """
    for op, node in enumerate(layer.nodes):
        readers = layer.graph.index.forward_readers.get(node.name, ())
        cells = {_function_cell(layer, reader) for reader in readers}
        is_inner = all(reader.layer_index == layer.kind for reader in readers)
        if is_inner and node.name not in layer.holder_names and len(cells) == 1 and (cell := cells.pop()) is not None:
            yield cell, op


def _views(layer: CapturedLayer) -> dict[str, set[tuple[int, int]]]:
    """Return `RecomputedCell.views` by cell."""
    views_of_cell: dict[str, set[tuple[int, int]]] = {}
    for op, node in enumerate(layer.nodes):
        for view in filter(None, map(layer.graph.index.forward_nodes.get, node.inputs)):
            if view.op in VIEW_OPS and (cell := _function_cell(layer, view)) is not None:
                read = layer.find((view.name,))
                views_of_cell.setdefault(cell, set()).update((op, tensor) for tensor in read)
    return views_of_cell


def _held_views(layer: CapturedLayer) -> dict[str, set[int]]:
    """Return `RecomputedCell.held` by cell."""
    held_in_cell: dict[str, set[int]] = {}
    for tensor, views in layer.views.items():
        for view in views:
            if view.op in VIEW_OPS and (cell := _function_cell(layer, view)) is not None:
                held_in_cell.setdefault(cell, set()).add(tensor)
    return held_in_cell


def _is_nameless(model: StepModel, holders: Iterable[Node]) -> bool:
    """Return whether there are holders, and none has a name."""
    owners = [model.captured.graph.owner(node) for node in holders]
    return bool(owners) and not any(map(model.names.can_name, owners))
