"""An entry names only casts of weights that the parallel optimizer gathers: it frees nothing.

With `enable_parallel_optimizer` and several data parallel ranks a linear layer casts the part of its weight that the
rank has, and an AllGather makes the weight whole. Backward reads what the AllGather gives. MindSpore marks it as not
recomputed, and `op_swap` has no name for it. With `optimizer_level: level3` the whole weight is released in any case.

PASS:
    use_parallel:     True
    parallel:         {enable_parallel_optimizer: True}
    parallel_config:  {data_parallel: 8}
    swap_config:      {swap: True}
    recompute_config: {select_recompute: {'feed_forward\\.mul': True}}

FAIL:
    use_parallel:     True
    parallel:         {enable_parallel_optimizer: True}
    parallel_config:  {data_parallel: 8}
    swap_config:      {swap: True}
    recompute_config: {select_recompute: {'feed_forward\\.w[123]\\.cast': True}}
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.config.weight_sharding import read_weight_sharding
from mindswap.document.problem import Level, Problem
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.settings import Statement
from mindswap.policy.words import format_names

ID = "gathered-weight"
LEVEL = Level.WARNING
# Cells of MindFormers that cast their own weight.
LINEAR_CELLS = ("Linear", "ColumnParallelLinear", "RowParallelLinear")


def check(context: Context) -> Iterator[Problem]:
    """Every entry of op_swap and select_recompute all of whose operators are such casts."""
    sharding = read_weight_sharding(context.document)
    if context.coverage is None or sharding.num_ranks < 2:
        return
    for statement in (*context.settings.of("op_swap"), *context.settings.of("select_recompute")):
        named = _named(context, statement)
        if named and named == _casts(context, statement) & named:
            what = "swapped" if statement.option == "op_swap" else "computed again"
            stays = f"is never {what}" if not sharding.is_released else "is released and gathered again in any case"
            message = (
                f"{statement.pattern_path}: {format_names(sorted(named))} "
                f"{'casts a weight' if len(named) == 1 else 'cast weights'} that the parallel optimizer gathers from "
                f"{sharding.num_ranks} ranks; what backward reads is the whole weight, the output of the AllGather, "
                f"which {stays}: this frees nothing"
            )
            fix = "delete it"
            if not sharding.is_released:
                fix += "; parallel.parallel_optimizer_config: {optimizer_level: level3} releases gathered weights"
            yield Problem(statement.pattern_location, ID, LEVEL, message, fix=fix)


def _named(context: Context, statement: Statement) -> set[str]:
    assert context.coverage is not None
    kinds = context.coverage.layers_by_kind(statement.layers)
    return {name for kind in kinds for name in context.coverage.operators(statement.pattern, kind)}


def _casts(context: Context, statement: Statement) -> set[str]:
    """Casts of linear layers, in the layers of a statement."""
    assert context.coverage is not None
    kinds = context.coverage.layers_by_kind(statement.layers)
    return {name for kind in kinds for name in _casts_below(context.coverage.kinds[kind], ())}


def _casts_below(cell: CellNode, path: tuple[str, ...]) -> Iterator[str]:
    for child in cell.children:
        if child.is_primitive and child.type_name == "Cast" and cell.type_name in LINEAR_CELLS:
            yield ".".join((*path, child.name))
        yield from _casts_below(child, (*path, child.name))
