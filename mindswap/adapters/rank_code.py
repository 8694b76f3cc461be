"""Cells of the newer models that are written for one rank, turned to whole tensors with strategies.

`Morph` lets a model give MindSpore a function that runs after the tensors are cut: with sizes of one rank and
communication of its own. The frontend alone cuts nothing, so such a function would meet whole tensors. Here its sizes
become those of whole tensors, and the operators inside get the strategies that the model gave to the Morph around
them. Its conditions stay as they were decided when the Morph was made, so its communication stays too.
"""

from collections.abc import Callable

from mindspore import nn
from mindspore.ops.operations import Morph

from mindswap.adapters.experts import turn_experts, turn_moe_layer
from mindswap.errors import GraphError
from mindswap.graph.sharding.splits import LOCAL_MARK, read_strategy


def use_whole_tensors(network: nn.Cell) -> None:
    """Turn every Morph of a network that was built in a parallel mode.

    Raises:
        GraphError: if it has one whose function is not known here.
    """
    for path, cell in network.cells_and_names():
        morphs = [name for name, primitive in cell._primitives.items() if isinstance(primitive, Morph)]
        if not morphs:
            continue
        turn = TURNS.get(type(cell).__name__)
        if turn is None:
            raise GraphError(
                f"--rank: {path}.{morphs[0]} of {type(cell).__name__} is a function for one rank (Morph) that "
                "mindswap does not know, so its sizes per rank are not known; leave out --rank for one rank that has "
                "the whole model"
            )
        turn(cell)


def _turn_linear(cell: nn.Cell) -> None:
    """(rows, in) times (out, in) transposed, and a bias: `Morph` has the strategy of (seq, batch, in) for the rows."""
    has_bias = cell.has_bias and not cell.skip_bias_add
    morph = cell.morphed_forward_with_bias if has_bias else cell.morphed_forward
    (seq, batch, columns), weight, *bias = read_strategy(morph.attrs)
    rows = seq * batch
    cell.matmul.add_prim_attr("in_strategy", ((rows, columns), weight))
    if has_bias:
        cell.add.add_prim_attr("in_strategy", ((rows, *bias[0]), *bias))
    _keep_local(cell)


def _turn_row_linear(cell: nn.Cell) -> None:
    """The same with the sum over all ranks, of which a ReduceScatter leaves each rank its part of the rows."""
    num_ranks, cell.tp = cell.tp, 1
    cell.input_size_per_partition = cell.input_size
    _turn_linear(cell)
    if num_ranks > 1 and cell.sequence_parallel:
        rows = cell.matmul.attrs["in_strategy"][0][0]
        cell.reduce_scatter.add_prim_attr("rank_size", 1)  # the compiler divides the rows by it
        cell.reduce_scatter.add_prim_attr("in_strategy", ((rows, 1),))
        cell.reduce_scatter.add_prim_attr("out_strategy", ((rows * num_ranks, 1),))


def _keep_local(cell: nn.Cell) -> None:
    """A reshape inside a Morph is of what a rank has; so is one that a product inside it reads."""
    cell.reshape.add_prim_attr(LOCAL_MARK, True)
    if hasattr(cell, "matmul"):
        cell.matmul.add_prim_attr(LOCAL_MARK, True)


# Class of a cell -> what it takes; names of mindformers 1.9.0.
TURNS: dict[str, Callable[[nn.Cell], None]] = {
    "ColumnParallelLinear": _turn_linear,
    "FFNGroupedGEMM": turn_experts,
    "GPTModel": _keep_local,
    "LinearNoTP": _turn_linear,
    "MoELayer": turn_moe_layer,
    "MultiTokenPredictionBlock": _keep_local,
    "MtpSharedVocabParallelEmbedding": _keep_local,
    "PreprocessLabelsAndMasks": _keep_local,
    "RowParallelLinear": _turn_row_linear,
    "SequenceParallelLinear": _turn_linear,
    "VocabParallelEmbedding": _keep_local,
}
