"""Any network of MindSpore -> the captured step that simulations start from."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mindspore as ms
from mindspore import nn

from mindswap.adapters.apply import iterate_primitives, read_tree
from mindswap.adapters.mindspore import compile_training_graph, find_layers, mark_lazy_inline, tag_primitives
from mindswap.errors import ApplyError, GraphError, require
from mindswap.graph.lifetime import LayerSample
from mindswap.graph.load import PATH_TAG
from mindswap.simulator.captured import CapturedStep

# Attributes that a policy sets on primitives (`Primitive._offload`, `Primitive.recompute`).
POLICY_ATTRIBUTES = ("offload", "recompute")


def capture_network(network: nn.Cell, inputs: Sequence[ms.Tensor], layers: str | None = None) -> CapturedStep:
    """Compile a network that gives a loss without swap and recompute; it is left as it was.

    `inputs` are of the right shape and dtype, their values do not matter; `layers` as for `resolve_layers`.

    Raises:
        ApplyError: if there is no such list.
        GraphError: if the compiler refuses the network, or a policy is on it.
    """
    cells = resolve_layers(network, layers)
    trees = tuple(read_tree(cell) for cell in cells)
    _refuse_policy(cells)
    with _tagged(cells), _lazily_inlined(network, cells):
        graph = compile_training_graph(network, inputs, _list_name(network, cells))
    missing = set(range(len(cells))) - {node.layer_index for node in graph.forward}
    if missing:
        raise GraphError(f"no operator of the compiled network is in layers {sorted(missing)}: are they run?")
    everything = tuple(range(len(cells)))
    return CapturedStep(LayerSample(everything, everything), trees, graph, has_all_tags=True)


def resolve_layers(network: nn.Cell, path: str | None) -> list[nn.Cell]:
    """The layers of a network, by the names from the network down to the list.

    Without a path the list is looked for as the models of MindFormers name it.

    Raises:
        ApplyError: if there is no such list.
    """
    require("network", network, nn.Cell)
    require("layers", path, str, type(None))
    if path is None:
        return list(find_layers(network))
    cell = network
    for name in path.split("."):
        children = getattr(cell, "_cells", {})
        if name not in children:
            known = ", ".join(sorted(children)) or "none"
            raise ApplyError(f"layers='{path}': {type(cell).__name__} has no cell '{name}'; it has: {known}")
        cell = children[name]
    if not hasattr(cell, "__len__"):
        raise ApplyError(f"layers='{path}' is one {type(cell).__name__}, not a list of layers")
    return list(cell)


def _list_name(network: nn.Cell, layers: Sequence[nn.Cell]) -> str:
    """Name of the list of layers, as the scopes of the compiler and the names of weights have it."""
    names = {
        name.rpartition(".")[2]
        for name, cell in network.cells_and_names()
        if isinstance(cell, nn.CellList | nn.SequentialCell) and list(cell)[:1] == list(layers)[:1]
    }
    if len(names) != 1:
        raise GraphError(f"the layers have to be in one CellList or SequentialCell; found {sorted(names) or 'none'}")
    return names.pop()


def _refuse_policy(cells: Sequence[nn.Cell]) -> None:
    for index, cell in enumerate(cells):
        for path, primitive in iterate_primitives(cell):
            found = [name for name in POLICY_ATTRIBUTES if primitive.attrs.get(name)]
            if found:
                raise GraphError(
                    f"layer {index}: {'.'.join(path)} has {found[0]} set: a step is captured without a policy\n"
                    "    fix:     capture a network that was just built"
                )


@contextmanager
def _tagged(cells: Sequence[nn.Cell]) -> Iterator[None]:
    tagged = [primitive for cell in cells for primitive in tag_primitives(cell, every_primitive=True)]
    try:
        yield
    finally:
        for primitive in tagged:
            primitive.del_prim_attr(PATH_TAG)


@contextmanager
def _lazily_inlined(network: nn.Cell, layers: Sequence[nn.Cell]) -> Iterator[None]:
    before = [(cell, getattr(cell, "_cell_init_args", "")) for _, cell in network.cells_and_names()]
    mark_lazy_inline(network, layers)
    try:
        yield
    finally:
        for cell, mark in before:
            if getattr(cell, "_cell_init_args", "") != mark:
                cell.cell_init_args = mark
