"""Operators of backward that need no gradient, and that MindSpore's backend runs in forward for that reason.

Of a step of one micro-batch the backend has one order of execution for forward and backward. Single kernels
(`jit_level: O0`) that need no gradient are then launched as soon as they are ready:

- a recomputed operator whose first reader in backward is a view. recompute.cc lets a copy wait for what its first
  reader reads besides, which of a view is nothing;
- zeros to which the gradients of `IndexSelect` are added. They are ready at any time; in dry runs those of the first
  operator that selects tokens for experts are there from its forward on, most others from backward on.

In dry runs of layers with swap they run in backward. See docs/internals/notes.md#operators-of-backward-in-forward.
"""

from collections.abc import Iterator
from dataclasses import replace

from mindswap.graph.model import Graph, Node, Saved
from mindswap.graph.ops import COMPILER_OPS, VIEW_OPS

ZEROS_SUFFIX = ":zeros"
TIES = VIEW_OPS & COMPILER_OPS  # let an operator wait for another
VIEW_SUFFIX = "View"  # of a kernel that returns a view: TransposeExtView


def run_early(graph: Graph) -> Graph:
    """Return the graph with these operators in forward.

    A recomputed operator is replaced by the output of its original, which is as large and lives as long.

    Args:
        graph: a step of one micro-batch at `jit_level: O0`.
    """
    if any(node.op == "MoveTo" for node in graph.forward):
        return graph
    copies = {node.name: node for node in _untied_copies(graph)}
    zeros = {gradient.name: select for gradient, select in _early_sums(graph)}
    if not copies and not zeros:
        return graph
    forward: list[Node] = []
    made = {select.name: _zeros_of(select) for select in zeros.values()}
    for node in graph.forward:
        forward += [node, made[node.name]] if node.name in made else [node]
    backward = []
    for node in graph.backward:
        if node.name in zeros:
            node = replace(node, inputs=(*node.inputs, made[zeros[node.name].name].name))
        backward += [] if node.name in copies else [node]
    saved = [Saved(node.origin, name) for name, node in copies.items()]
    saved += [Saved(node.name, node.name) for node in made.values()]
    return replace(graph, forward=tuple(forward), backward=tuple(backward), saved=(*graph.saved, *saved))


def _untied_copies(graph: Graph) -> Iterator[Node]:
    """Yield recomputed operators on saved values whose first reader is a view."""
    nodes = {node.name: node for node in graph.backward}
    first_reader: dict[str, Node] = {}
    for node in graph.backward:
        for name in node.inputs:
            first_reader.setdefault(name, node)
    for node in graph.backward:
        reader = first_reader.get(node.name)
        if not node.is_duplicate or node.origin not in graph.index.forward_nodes or reader is None:
            continue
        operands = [nodes[name] for name in node.inputs if name in nodes]
        is_tied_only = all(each.op in TIES and each.inputs[0] not in nodes for each in operands)
        if operands and is_tied_only and reader.op.endswith(VIEW_SUFFIX):
            yield node


def _early_sums(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield a sum by indices in backward for each layer, with the forward operator whose gradient it is.

    Of several in a layer it is that of the first one in forward.
    """
    selects = {node.inputs[1]: node for node in graph.forward if node.op == "IndexSelect"}
    position = {node.name: at for at, node in enumerate(graph.forward)}
    first: dict[tuple[int | None, str], tuple[Node, Node]] = {}
    for node in graph.backward:
        names = [graph.index.forward_names.get(name, "") for name in node.inputs[1:2]]
        select = selects.get(names[0]) if node.op == "UnsortedSegmentSum" and names else None
        if select is None:
            continue
        key = (select.layer_index, select.cell_path if select.layer_index is None else "")
        if key not in first or position[select.name] < position[first[key][1].name]:
            first[key] = (node, select)
    yield from first.values()


def _zeros_of(select: Node) -> Node:
    return replace(
        select, name=select.name + ZEROS_SUFFIX, op="Zeros", inputs=(), outputs=select.outputs, attributes={}, paths=()
    )
