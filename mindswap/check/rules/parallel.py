"""Rules for parallel settings: the parallel optimizer, the schedule of a pipeline, sequences in pieces."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mindswap.check.context import Context
from mindswap.config.nodes import is_whole_number, show
from mindswap.config.pipeline import HALVES_KEY, SCHEDULER_PATH, SCHEDULERS, find_sequence_faults
from mindswap.config.problem import Level
from mindswap.config.rules import Finding, rule
from mindswap.config.step import LAYERS_NOT_INLINED, MOST_INLINED_MICRO_BATCHES, read_step_settings
from mindswap.config.weight_sharding import (
    OPTIMIZER_CONFIG,
    OPTIMIZER_LEVELS,
    num_sharing_ranks,
    read_weight_sharding,
)
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import Layers
from mindswap.policy.words import closest_names, format_layers, format_names

# What MindSpore accepts (parallel/_auto_parallel_context.py, `set_parallel_optimizer_config`).
OPTIMIZER_VALUES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "gradient_accumulation_shard": ("True or False", lambda value: isinstance(value, bool)),
    "parallel_optimizer_threshold": (
        "an integer, 0 or more (KiB)",
        lambda value: is_whole_number(value) and value >= 0,
    ),
    "optimizer_weight_shard_size": (
        "-1, or an integer of 1 or more (ranks)",
        lambda value: is_whole_number(value) and (value == -1 or value >= 1),
    ),
    "optimizer_level": (", ".join(OPTIMIZER_LEVELS), lambda value: value in OPTIMIZER_LEVELS),
}
# Cells of MindFormers that cast their own weight.
LINEAR_CELLS = ("Linear", "ColumnParallelLinear", "RowParallelLinear")


@rule(Level.ERROR)
def parallel_optimizer(context: Context) -> Iterator[Finding]:
    """A setting of `parallel.parallel_optimizer_config` that MindSpore refuses or leaves without effect.

    PASS: parallel: {parallel_optimizer_config: {optimizer_level: level2, parallel_optimizer_threshold: 64}}
    FAIL (there is no level4): parallel: {parallel_optimizer_config: {optimizer_level: level4}}
    """
    section = context.document.get(*OPTIMIZER_CONFIG)
    if section is None or section.is_null:
        return
    level, path = context.error_with_swap, ".".join(OPTIMIZER_CONFIG)
    if section.entries is None:
        yield Finding(section.location, f"{path}: {show(section)} is {section.kind}", "a mapping", level=level)
        return
    for entry in section.unique_entries():
        key = str(entry.key)
        if key not in OPTIMIZER_VALUES:
            fix = f"{closest_names(key, OPTIMIZER_VALUES)[0]}: ..."
            yield Finding(entry.location, f"{path}.{key}: unknown key", ", ".join(OPTIMIZER_VALUES), fix, level)
        elif not OPTIMIZER_VALUES[key][1](entry.value.value):
            message = f"{path}.{key}: {show(entry.value)} does not fit"
            fix = f"delete it: MindSpore has a {key} of its own"
            yield Finding(entry.value.location, message, OPTIMIZER_VALUES[key][0], fix, level)
    chosen, shard = section.get("optimizer_level"), section.get("gradient_accumulation_shard")
    if chosen is not None and shard is not None and chosen.value in ("level1", "level3"):
        message = f"{path}.gradient_accumulation_shard: MindSpore takes it with optimizer_level: level2 only"
        yield Finding(shard.location, message, fix="delete it; level2 means True, level1 False", level=level)
    if chosen is not None and shard is not None and chosen.value == "level2" and shard.value is False:
        message = f"{path}.gradient_accumulation_shard: False has no effect, optimizer_level: level2 sets it to True"
        yield Finding(shard.location, message, fix="delete it, or optimizer_level: level1", level=Level.WARNING)
    # MindSpore cuts weights over all ranks that share them where the size does not divide their number.
    size, used = section.get("optimizer_weight_shard_size"), read_weight_sharding(context.document).num_ranks
    if size is not None and used > 1 and is_whole_number(size.value) and size.value >= 1 and size.value != used:
        message = f"{path}.optimizer_weight_shard_size: {size.value} has no effect, weights are cut over {used} ranks"
        allowed = f"-1, or a divisor of {num_sharing_ranks(context.document)} from 2 on"
        fix = "optimizer_weight_shard_size: -1, which does the same"
        yield Finding(size.location, message, allowed, fix, Level.WARNING)


@rule(Level.WARNING)
def many_micro_batches(context: Context) -> Iterator[Finding]:
    """Swap in a pipeline of more than 64 micro-batches: the compile stops, or copies come back late.

    MindSpore 2.9 inlines the layers of up to 64 micro-batches. Of more, backward of a layer is a function of its own:
    `backward_prefetch` reaches no further, and larger ones stop the compile (Graph cycle exists; The pointer[pre_node]
    is null). In dry runs of a Llama2-70B 64 compile, 65 do not, and 96 do with `backward_prefetch: 5`.

    PASS:
        swap_config:     {swap: True, default_prefetch: 10}
        parallel_config: {pipeline_stage: 4, micro_batch_num: 64}

    FAIL:
        swap_config:     {swap: True, default_prefetch: 10}
        parallel_config: {pipeline_stage: 4, micro_batch_num: 128}
    """
    settings, node = read_step_settings(context.document), context.document.get("parallel_config", "micro_batch_num")
    if node is None or settings.inlines_layers or not context.settings.swap:
        return
    fix = f"up to {MOST_INLINED_MICRO_BATCHES} micro-batches, of more samples each; or recompute in place of swap"
    yield Finding(node.location, f"parallel_config.micro_batch_num: {show(node)}: {LAYERS_NOT_INLINED}", fix=fix)


# Cells that do not run again in halves of a layer, each of these together; the whole of which the last layer compiles
# all the same; and what MindSpore says.
NOT_AGAIN_IN_HALVES = (
    (("feed_forward",), "stage", "Graph cycle exists"),
    (("feed_forward.w1", "feed_forward.w3"), "model", "input1.shape and input2.shape need to broadcast"),
)


@rule(Level.WARNING)
def interleaved_cell(context: Context) -> Iterator[Finding]:
    """Recompute of a cell that `fine_grain_interleave: 2` computes in two halves: the compile stops.

    In MindSpore's dry run `feed_forward` does not compile ("Graph cycle exists") but in the last layer of a stage, and
    where the whole layer is swapped as well; `feed_forward.w1` and `feed_forward.w3` together do not ("need to
    broadcast") but in the last layer of the model. The operators in them do compile, and so do whole layers.

    PASS:
        parallel_config:  {model_parallel: 8, use_seq_parallel: True}
        model:            {model_config: {fine_grain_interleave: 2}}
        swap_config:      {swap: True}
        recompute_config: {select_recompute: ['feed_forward\\.mul', 'feed_forward\\.w[13]\\.matmul']}

    FAIL:
        parallel_config:  {model_parallel: 8, use_seq_parallel: True}
        model:            {model_config: {fine_grain_interleave: 2}}
        swap_config:      {swap: True}
        recompute_config: {select_recompute: ['feed_forward']}
    """
    settings, coverage, num_layers = read_step_settings(context.document), context.coverage, context.num_layers
    if coverage is None or num_layers is None or not settings.computes_halves:
        return
    named: dict[int, set[str]] = {}  # cells of each layer
    named_by = {}
    for statement in context.settings.of("select_recompute"):
        for kind, indices in coverage.layers_by_kind(statement.layers).items():
            matches = coverage.matches(statement.pattern, kind) if statement.pattern else ()
            cells = {".".join(match.path) for match in matches if not match.node.is_primitive}
            named_by.update(dict.fromkeys(cells, statement))
            for index in indices:
                named.setdefault(index, set()).update(cells)
    stages = [settings.pipeline.stage_layers(stage, num_layers) for stage in range(settings.pipeline.num_stages)]
    last = {"stage": {layers[-1] for layers in stages if layers}, "model": {num_layers - 1}}
    for together, whole, fault in NOT_AGAIN_IN_HALVES:
        layers = [index for index, cells in named.items() if index not in last[whole] and cells.issuperset(together)]
        if layers:
            statement = named_by[together[-1]]
            message = (
                f"{statement.pattern_path}: MindSpore 2.9 does not compile recompute of {format_names(together)} in "
                f"{format_layers(Layers(layers))}, which {HALVES_KEY} computes in halves: {fault}"
            )
            fix = f"name operators (feed_forward\\.mul, feed_forward\\.w1\\.matmul), whole layers, or {HALVES_KEY}: 1"
            yield Finding(statement.pattern_location, message, fix=fix)


@rule(Level.WARNING)
def gathered_weight(context: Context) -> Iterator[Finding]:
    """An entry names only casts of weights that the parallel optimizer gathers: it frees nothing.

    With `enable_parallel_optimizer` and several data parallel ranks a linear layer casts the part of its weight that
    the rank has, and an AllGather makes the weight whole. Backward reads what the AllGather gives. MindSpore marks it
    as not recomputed, and `op_swap` has no name for it. With `optimizer_level: level3` the whole weight is released in
    any case. With swap on one stage and one micro-batch the weight is gathered as it is stored, and its cast stands
    behind: it can be swapped, but to compute it again holds what was gathered, which is larger.

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
    sharding = read_weight_sharding(context.document)
    coverage = context.coverage
    if coverage is None or sharding.num_ranks < 2:
        return
    is_cast_behind = sharding.is_cast_behind and not sharding.is_released
    swaps = () if is_cast_behind else context.settings.of("op_swap")
    for statement in (*swaps, *context.settings.of("select_recompute")):
        kinds = coverage.layers_by_kind(statement.layers)
        named = {name for kind in kinds for name in coverage.operators(statement.pattern, kind)}
        casts = {name for kind in kinds for name in _primitives(coverage.kinds[kind], LINEAR_CELLS, "Cast")}
        if named and named <= casts:
            what = "swapped" if statement.option == "op_swap" else "computed again"
            stays = f"is never {what}" if not sharding.is_released else "is released and gathered again in any case"
            if is_cast_behind:
                stays = "stays for it as it is stored, which is no less"
            message = (
                f"{statement.pattern_path}: {format_names(sorted(named))} "
                f"{'casts a weight' if len(named) == 1 else 'cast weights'} that the parallel optimizer gathers from "
                f"{sharding.num_ranks} ranks; what backward reads is the whole weight, the output of the AllGather, "
                f"which {stays}: this frees nothing"
            )
            fix = "delete it"
            if not sharding.is_released:
                fix += "; parallel.parallel_optimizer_config: {optimizer_level: level3} releases gathered weights"
            yield Finding(statement.pattern_location, message, fix=fix)


def _primitives(cell: CellNode, cells: Sequence[str], kind: str, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Paths of the primitives of a type that cells of some types have themselves."""
    for child in cell.children:
        if child.is_primitive and child.type_name == kind and cell.type_name in cells:
            yield ".".join((*path, child.name))
        yield from _primitives(child, cells, kind, (*path, child.name))


@rule(Level.WARNING)
def optimizer_comm_recompute(context: Context) -> Iterator[Finding]:
    """`parallel_optimizer_comm_recompute: True` has no effect: MindSpore 2.9 only logs that zero3 replaces it.

    With `optimizer_level: level3` (zero3) weights that the parallel optimizer cuts are released after forward and
    gathered again for backward, in recomputed layers and in all others.

    PASS:
        parallel: {parallel_optimizer_config: {optimizer_level: level3}}
        swap_config: {swap: True}

    FAIL:
        swap_config: {swap: True}
        recompute_config: {recompute: True, parallel_optimizer_comm_recompute: True}
    """
    # nn/cell.py of mindspore 2.9.0, `recompute`: a warning, and nothing calls `_parallel_optimizer_comm_recompute`.
    node = context.document.get("recompute_config", "parallel_optimizer_comm_recompute")
    if not context.settings.is_swap_enabled or node is None or node.value is not True:
        return
    sharding = read_weight_sharding(context.document)
    fix = "delete it; parallel_optimizer_config: {optimizer_level: level3} gathers weights again in backward"
    if sharding.is_released:
        fix = "delete it; optimizer_level: level3 gathers weights again in backward already"
    elif sharding.num_ranks < 2:
        fix = "delete it; the parallel optimizer gathers no weights here"
    path = "recompute_config.parallel_optimizer_comm_recompute"
    message = f"{path}: has no effect, MindSpore 2.9 only logs that zero3 replaces it"
    yield Finding(node.location, message, "False", fix)


@rule(Level.WARNING)
def comm_recompute(context: Context) -> Iterator[Finding]:
    """`select_comm_recompute` names no operator that gathers: in Llama that is the reshape of a linear layer.

    MindSpore 2.9.0 gathers in place of a reshape there, and asks this reshape alone whether the gather runs again. So
    say dry runs of sequence parallel: `.*\\.norm`, which `True` stands for, changes nothing (docs/dryrun_set.md).

    PASS:
        swap_config:      {swap: True}
        recompute_config: {select_comm_recompute: ['attention\\.w[qkv]\\.reshape', 'feed_forward\\.w[13]\\.reshape']}

    FAIL:
        swap_config:      {swap: True}
        recompute_config: {select_comm_recompute: True}
    """
    coverage = context.coverage
    for statement in context.settings.of("select_comm_recompute") if coverage is not None else ():
        assert coverage is not None
        kinds = coverage.layers_by_kind(statement.layers)
        named = {name for kind in kinds for name in coverage.operators(statement.pattern, kind)}
        reshapes = {name for kind in kinds for name in _primitives(coverage.kinds[kind], ("Linear",), "Reshape")}
        if named and reshapes and not named & reshapes:
            message = (
                f"{statement.pattern_path}: {format_names(sorted(named))}: no gather is before these, nothing is freed"
            )
            fix = f"delete it, or name the reshapes of linear layers that read what a norm gives: {sorted(reshapes)[0]}"
            yield Finding(statement.pattern_location, message, fix=fix)


@rule(Level.ERROR)
def pipeline_scheduler(context: Context) -> Iterator[Finding]:
    """A pipeline_scheduler that MindSpore does not know, or that it takes with pipeline_interleave only.

    PASS: parallel: {pipeline_config: {pipeline_interleave: True, pipeline_scheduler: seqpipe}}

    FAIL (there is no zero_bubble_h):
        parallel:
          pipeline_config: {pipeline_interleave: True, pipeline_scheduler: zero_bubble_h}
    """
    # As `set_pipeline_config` of MindSpore 2.9.0 judges it (parallel/_auto_parallel_context.py).
    node = context.document.get(*SCHEDULER_PATH)
    if node is None or node.is_null:
        return
    path, name = ".".join(SCHEDULER_PATH), show(node)
    interleave = context.document.get(*SCHEDULER_PATH[:-1], "pipeline_interleave")
    if node.value not in SCHEDULERS:
        message = f"{path}: {name} is not a schedule of MindSpore"
        fix = f"pipeline_scheduler: {closest_names(str(node.value), SCHEDULERS)[0]}"
        yield Finding(node.location, message, ", ".join(SCHEDULERS), fix, context.error_with_swap)
    elif interleave is not None and interleave.value is False and node.value != "1f1b":
        message = f"{path}: MindSpore takes {name} with pipeline_interleave: True only"
        yield Finding(node.location, message, "1f1b", "pipeline_interleave: True", context.error_with_swap)


@rule(Level.ERROR)
def sequence_pieces(context: Context) -> Iterator[Finding]:
    """Sequences are cut (`seq_split_num`) where MindFormers does not take that, or beside recompute of whole layers.

    PASS: parallel_config: {pipeline_stage: 2, seq_split_num: 4}
    FAIL (there is no pipeline): parallel_config: {pipeline_stage: 1, seq_split_num: 4}
    """
    # What MindFormers 1.9.0 refuses (base_trainer.py, models/llama), and what it would compute wrong with swap on.
    for fault in find_sequence_faults(context.document):
        yield replace(fault, level=context.error_with_swap)
