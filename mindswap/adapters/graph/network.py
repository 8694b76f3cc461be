"""Capture of any MindSpore network as the step from which simulations start."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import mindspore as ms
from mindspore import nn
from mindspore.ops.operations import Morph

from mindswap.adapters.graph.apply import iterate_primitives, read_tree
from mindswap.adapters.graph.mindspore import compile_training_graph, find_layers, mark_lazy_inline, tag_primitives
from mindswap.errors import ApplyError, GraphError, require
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.load import PATH_TAG
from mindswap.graph.sharding.splits import LOCAL_MARK, read_strategy
from mindswap.simulator.captured_step import CapturedStep

if TYPE_CHECKING:
    from mindswap.adapters.graph.expert_exchange import ExchangeSizes

# Attributes that a policy sets on primitives (`Primitive._offload`, `Primitive.recompute`).
POLICY_ATTRIBUTES = ("offload", "recompute")


def capture_network(network: nn.Cell, inputs: Sequence[ms.Tensor], layers: str | None = None) -> CapturedStep:
    """Compile a network that returns a loss, without swap and recompute; the network is not changed.

    Args:
        network: the network.
        inputs: tensors of the right shape and dtype; their values do not matter.
        layers: see `resolve_layers`.

    Raises:
        ApplyError: if there is no such list of layers.
        GraphError: if the compiler refuses the network, or a policy is set on it.
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
    """Return the layers of a network.

    Args:
        network: the network.
        path: names from the network down to the list, joined with dots; None searches the names that models of
            MindFormers use.

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
            child_names = ", ".join(sorted(children)) or "none"
            raise ApplyError(f"layers='{path}': {type(cell).__name__} has no cell '{name}'; it has: {child_names}")
        cell = children[name]
    if not hasattr(cell, "__len__"):
        raise ApplyError(f"layers='{path}' is one {type(cell).__name__}, not a list of layers")
    return list(cell)


def _list_name(network: nn.Cell, layers: Sequence[nn.Cell]) -> str:
    """Return the name of the list of layers, as it occurs in scopes of the compiler and names of weights."""
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
            settings = [name for name in POLICY_ATTRIBUTES if primitive.attrs.get(name)]
            if settings:
                raise GraphError(
                    f"layer {index}: {'.'.join(path)} has {settings[0]} set: a step is captured without a policy\n"
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


# Conversion of newer models' cells that are written for one rank to unsharded tensors with strategies.
#
# `Morph` lets a model define a function that runs after MindSpore has sharded the tensors, with the sizes of one rank
# and explicit communication. The frontend alone shards nothing, so such a function would receive unsharded tensors.
# Here its sizes are changed to unsharded ones, and its operators get the strategies of the Morph. Conditions were
# evaluated when the Morph was created, so its communication remains.


def use_full_tensors(network: nn.Cell, sizes: "ExchangeSizes") -> None:
    """Convert every Morph of a network that was built in a parallel mode.

    Args:
        network: the network.
        sizes: sizes of the exchange between its experts.

    Raises:
        GraphError: if the function of a Morph is unknown.
    """
    for path, cell in network.cells_and_names():
        morphs = [name for name, primitive in cell._primitives.items() if isinstance(primitive, Morph)]
        if not morphs:
            continue
        class_name = type(cell).__name__
        if class_name == EXPERTS_CLASS:
            _globalize_experts(cell, sizes)
        elif class_name in GLOBALIZERS:
            GLOBALIZERS[class_name](cell)
        else:
            raise GraphError(
                f"--rank: {path}.{morphs[0]} of {class_name} is a function for one rank (Morph) that "
                "mindswap does not know, so its sizes per rank are not known; leave out --rank for one rank that has "
                "the whole model"
            )


def _globalize_linear(cell: nn.Cell) -> None:
    """Convert (rows, in) x (out, in)^T + bias; the strategy of the Morph is for (seq, batch, in) instead of rows."""
    has_bias = cell.has_bias and not cell.skip_bias_add
    morph = cell.morphed_forward_with_bias if has_bias else cell.morphed_forward
    (seq, batch, columns), weight, *bias = read_strategy(morph.attrs)
    rows = seq * batch
    cell.matmul.add_prim_attr("in_strategy", ((rows, columns), weight))
    if has_bias:
        cell.add.add_prim_attr("in_strategy", ((rows, *bias[0]), *bias))
    _keep_local(cell)


def _globalize_row_linear(cell: nn.Cell) -> None:
    """Convert a linear layer with a sum over all ranks, which a ReduceScatter distributes by rows."""
    num_ranks, cell.tp = cell.tp, 1
    cell.input_size_per_partition = cell.input_size
    _globalize_linear(cell)
    if num_ranks > 1 and cell.sequence_parallel:
        rows = cell.matmul.attrs["in_strategy"][0][0]
        cell.reduce_scatter.add_prim_attr("rank_size", 1)  # the compiler divides the rows by it
        cell.reduce_scatter.add_prim_attr("in_strategy", ((rows, 1),))
        cell.reduce_scatter.add_prim_attr("out_strategy", ((rows * num_ranks, 1),))


def _keep_local(cell: nn.Cell) -> None:
    """Mark reshapes inside a Morph, and matrix products that read them, as local to a rank."""
    cell.reshape.add_prim_attr(LOCAL_MARK, True)
    if hasattr(cell, "matmul"):
        cell.matmul.add_prim_attr(LOCAL_MARK, True)


# Cells of MindFormers, imported on demand: its import writes `output/log` into the working folder, and fails if that is
# not writable. Other networks do not need it.


def _globalize_experts(cell: nn.Cell, sizes: "ExchangeSizes") -> None:
    from mindswap.adapters.graph.experts import globalize_experts

    globalize_experts(cell, sizes)


def _globalize_moe_layer(cell: nn.Cell) -> None:
    from mindswap.adapters.graph.experts import globalize_moe_layer

    globalize_moe_layer(cell)


# Classes of cells with their conversion; names of mindformers 1.9.0.
EXPERTS_CLASS = "FFNGroupedGEMM"
GLOBALIZERS: dict[str, Callable[[nn.Cell], None]] = {
    "ColumnParallelLinear": _globalize_linear,
    "GPTModel": _keep_local,
    "LinearNoTP": _globalize_linear,
    "MoELayer": _globalize_moe_layer,
    "MultiTokenPredictionBlock": _keep_local,
    "MtpSharedVocabParallelEmbedding": _keep_local,
    "PreprocessLabelsAndMasks": _keep_local,
    "RowParallelLinear": _globalize_row_linear,
    "SequenceParallelLinear": _globalize_linear,
    "VocabParallelEmbedding": _keep_local,
}
