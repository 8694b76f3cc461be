"""Cells that call functions: operators without a name, recomputed only with the cell, or with one around it.

Recompute of a cell leaves its outputs out, so a function that makes one of these is recomputed with the smallest cell
around it that reads the output, which may be the layer.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from mindswap.graph.layer_paths import has_scope
from mindswap.graph.model import Node
from mindswap.graph.ops import REDISTRIBUTION_OPS, VIEW_OPS, is_kernel
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.storage import classify_saved
from mindswap.planner.lower_bound.tensor_reads import closure, find_holder_names, storages
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
    of_weights: frozenset[int] = frozenset()  # freed outputs of operators that read weights only
    path: str = ""  # of the cell below the layer; "" for the layer itself

    def without(self, ops: Iterable[int]) -> "RecomputedCell":
        """Return the cell without some functions, which do not depend on it."""
        return replace(self, functions=self.functions.difference(ops))

    def recomputed_before(
        self, read_before: Set[int], producers: Sequence[int], reads: Iterable[tuple[int, int]]
    ) -> frozenset[int]:
        """Return the operators recomputed before the gap, given the tensors that backward reads before it.

        The cell's outputs are freed, so backward recomputes their producers and, transitively, the producers of their
        inputs.
        """
        freed = self.tensors | self.of_weights
        inputs: dict[int, set[int]] = {}
        for op, tensor in reads:
            if tensor in freed:
                inputs.setdefault(op, set()).add(producers[tensor])
        return closure((producers[tensor] for tensor in self.tensors & read_before), inputs)


def find_recomputed_cells(
    model: StepModel,
    layer_ops: Sequence[Node],
    tensors: Mapping[tuple[str, int], int],
    producers: Sequence[int],
    reads: Iterable[tuple[int, int]],
    holders: Mapping[int, Sequence[Node]],
) -> Iterable[RecomputedCell]:
    """Yield `TensorGraph.recomputed_cells`.

    Operators that read weights only are recomputed with the cell in a step with swap only (`simulator.segment_reader`).

    Args:
        model: step model.
        layer_ops: operators of the layer.
        tensors: (name, output index) -> index of the tensor.
        producers: producer of each tensor.
        reads: (operator, tensor) pairs.
        holders: holders of each tensor.
    """
    if model.layers.reads_caches:
        return

    @functools.cache
    def recomputed_with(cell: str) -> frozenset[str]:
        entries = (OpRecompute(exact_pattern(cell), ALL_LAYERS),) if cell else ()
        policy = Policy(True, select_recompute=entries, layer_recompute=NO_LAYERS if cell else ALL_LAYERS)
        layer_index = model.captured.sample.layer_map.index(layer_ops[0].layer_index)
        graph = model.layers.rewritten(policy, layer_index)
        return frozenset(node.name for node in graph.forward if node.is_recomputed)

    ops_with_inputs = {op for op, _ in reads}
    functions: dict[str, set[int]] = {}
    for op, node in enumerate(layer_ops):
        is_of_cell = has_scope(node) and not is_gathering(node) and node.op not in REDISTRIBUTION_OPS
        if is_of_cell and not model.names.can_name(node):
            cell = node.cell_path
            while cell and node.name not in recomputed_with(cell):
                cell = cell.rpartition(".")[0]
            functions.setdefault(cell, set()).add(op)
    for cell, op in _read_by_functions(model, layer_ops):
        functions.setdefault(cell, set()).add(op)
    views, held = _views(model, layer_ops, tensors), _held_views(model, layer_ops, tensors)
    for cell in (*views, *held):
        functions.setdefault(cell, set())
    for cell, ops in functions.items():
        recomputed = recomputed_with(cell)
        freed = {
            tensor
            for tensor, nodes in holders.items()
            if producers[tensor] < len(layer_ops) and recomputed.issuperset(node.name for node in nodes)
        }
        ops_of_cell = frozenset(op for op, node in enumerate(layer_ops) if node.name in recomputed)
        kept_inputs = {
            (op, tensor)
            for op, tensor in reads
            if op in ops_of_cell and _is_held_nameless(model, (n for n in holders[tensor] if n.name not in recomputed))
        }
        with_inputs = {tensor for tensor in freed if producers[tensor] in ops_with_inputs}
        yield RecomputedCell(
            frozenset(ops),
            ops_of_cell,
            frozenset(with_inputs),
            frozenset(views.get(cell, ())),
            frozenset(held.get(cell, ())),
            frozenset(kept_inputs),
            frozenset(freed - with_inputs),
            cell,
        )


def _function_cell(model: StepModel, node: Node) -> str | None:
    """Return the cell with which an unnamed view or operator is recomputed; None for others."""
    is_unnamed = (node.op in VIEW_OPS or is_kernel(node.op)) and node.op not in REDISTRIBUTION_OPS
    is_unnamed = is_unnamed and has_scope(node) and not is_gathering(node) and not model.names.can_name(node)
    # Of two consecutive reshapes the compiler keeps one, in the cell of the second.
    is_unnamed = is_unnamed and any(name.rpartition(".")[0] == node.cell_path for name in model.names(node))
    return node.cell_path if is_unnamed and node.attributes.get("recompute") is not True else None


def _read_by_functions(model: StepModel, layer_ops: Iterable[Node]) -> Iterable[tuple[str, int]]:
    """Yield (cell, operator) for operators of the layer that only functions of that cell read.

    Only these functions need their outputs in backward, so they are recomputed with the cell, named or not.
    """
    graph = model.captured.graph
    holder_names = find_holder_names(graph)
    for op, node in enumerate(layer_ops):
        readers = graph.index.forward_readers.get(node.name, ())
        cells = {_function_cell(model, reader) for reader in readers if reader.layer_index == node.layer_index}
        is_inner = node.name not in holder_names and all(reader.layer_index == node.layer_index for reader in readers)
        yield from ((cell, op) for cell in cells if cell is not None and is_inner and len(cells) == 1)


def _views(
    model: StepModel, layer_ops: Iterable[Node], tensors: Mapping[tuple[str, int], int]
) -> dict[str, set[tuple[int, int]]]:
    """Return `RecomputedCell.views` by cell."""
    graph = model.captured.graph
    views_of_cell: dict[str, set[tuple[int, int]]] = {}
    for op, node in enumerate(layer_ops):
        for name in node.inputs:
            view = graph.index.forward_nodes.get(name)
            if view is None or view.op not in VIEW_OPS or view.layer_index != node.layer_index:
                continue
            cell = _function_cell(model, view)
            if cell is not None:
                read = {tensors[key] for key in storages(graph, (name,)) if key in tensors}
                views_of_cell.setdefault(cell, set()).update((op, tensor) for tensor in read)
    return views_of_cell


def _held_views(
    model: StepModel, layer_ops: Sequence[Node], tensors: Mapping[tuple[str, int], int]
) -> dict[str, set[int]]:
    """Return `RecomputedCell.held` by cell."""
    held_in_cell: dict[str, set[int]] = {}
    for entry in classify_saved(model.captured.graph):
        key = entry.storage.name, entry.storage.output_index
        for view in entry.holders if key in tensors else ():
            is_view = view.op in VIEW_OPS and view.layer_index == layer_ops[0].layer_index
            if is_view and (cell := _function_cell(model, view)) is not None:
                held_in_cell.setdefault(cell, set()).add(tensors[key])
    return held_in_cell


def _is_held_nameless(model: StepModel, holders: Iterable[Node]) -> bool:
    """Return whether there are holders, and none has a name."""
    owners = [model.captured.graph.owner(node) for node in holders]
    return bool(owners) and not any(map(model.names.can_name, owners))
