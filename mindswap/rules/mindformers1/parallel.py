"""Rules for parallel settings: the parallel optimizer, the pipeline schedule, sequence pieces."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from mindswap.config.findings import Finding, rule
from mindswap.config.nodes import Document, DocumentNode, is_int, show
from mindswap.config.pipeline_layout import SCHEDULER_PATH, SCHEDULERS
from mindswap.config.problem import Level
from mindswap.config.sequence_pieces import HALVES_KEY, find_sequence_problems
from mindswap.config.step_settings import LAYERS_NOT_INLINED, MAX_INLINED_MICRO_BATCHES, read_step_settings
from mindswap.config.weight_sharding import (
    OPTIMIZER_CONFIG,
    OPTIMIZER_LEVELS,
    num_replica_ranks,
    read_weight_sharding,
    shards_weights,
)
from mindswap.policy.model import Layers
from mindswap.policy.wording import closest_names, format_layers, format_names
from mindswap.rules.context import Context

# Allowed values in words, and their test (parallel/_auto_parallel_context.py, `set_parallel_optimizer_config`).
OPTIMIZER_VALUES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "gradient_accumulation_shard": ("True or False", lambda value: isinstance(value, bool)),
    "parallel_optimizer_threshold": (
        "an integer, 0 or more (KiB)",
        lambda value: is_int(value) and value >= 0,
    ),
    "optimizer_weight_shard_size": (
        "-1, or an integer of 1 or more (ranks)",
        lambda value: is_int(value) and (value == -1 or value >= 1),
    ),
    "optimizer_level": (", ".join(OPTIMIZER_LEVELS), lambda value: value in OPTIMIZER_LEVELS),
}


@rule(Level.ERROR)
def parallel_optimizer(context: Context) -> Iterator[Finding]:
    """A setting of `parallel.parallel_optimizer_config` that MindSpore refuses or leaves without effect.

    PASS: parallel: {parallel_optimizer_config: {optimizer_level: level2, parallel_optimizer_threshold: 64}}
    FAIL (there is no level4): parallel: {parallel_optimizer_config: {optimizer_level: level4}}
    """
    section = context.document.get(*OPTIMIZER_CONFIG)
    if section is None or section.is_null or not context.document.is_parallel:
        return
    path = ".".join(OPTIMIZER_CONFIG)
    if section.entries is None:
        message = f"{path}: {show(section)} is {section.kind}"
        yield Finding(section.location, message, "a mapping", level=context.refusal_level)
        return
    yield from _invalid_optimizer_keys(section, context.refusal_level)
    yield from _conflicting_accumulation(section, context.refusal_level)
    yield from _ineffective_shard_size(context.document, section)


def _invalid_optimizer_keys(section: DocumentNode, level: Level) -> Iterator[Finding]:
    """Yield findings about unknown keys and invalid values."""
    path = ".".join(OPTIMIZER_CONFIG)
    for entry in section.unique_entries():
        key = str(entry.key)
        if key not in OPTIMIZER_VALUES:
            fix = f"{closest_names(key, OPTIMIZER_VALUES)[0]}: {show(entry.value)}"
            yield Finding(entry.location, f"{path}.{key}: unknown key", ", ".join(OPTIMIZER_VALUES), fix, level)
        elif not OPTIMIZER_VALUES[key][1](entry.value.value):
            message = f"{path}.{key}: {show(entry.value)} does not fit"
            fix = f"delete it: MindSpore has a {key} of its own"
            yield Finding(entry.value.location, message, OPTIMIZER_VALUES[key][0], fix, level)


def _conflicting_accumulation(section: DocumentNode, refusal_level: Level) -> Iterator[Finding]:
    """Yield a finding if gradient_accumulation_shard contradicts optimizer_level."""
    chosen, shard = section.get("optimizer_level"), section.get("gradient_accumulation_shard")
    if chosen is None or shard is None:
        return
    path = ".".join((*OPTIMIZER_CONFIG, "gradient_accumulation_shard"))
    if chosen.value in ("level1", "level3"):
        message = f"{path}: MindSpore takes it with optimizer_level: level2 only"
        yield Finding(shard.location, message, fix="delete it; level2 means True, level1 False", level=refusal_level)
    elif chosen.value == "level2" and shard.value is False:
        message = f"{path}: False has no effect, optimizer_level: level2 sets it to True"
        yield Finding(shard.location, message, fix="delete it, or optimizer_level: level1", level=Level.WARNING)


def _ineffective_shard_size(document: Document, section: DocumentNode) -> Iterator[Finding]:
    """Yield a finding if optimizer_weight_shard_size is not the number of ranks that share a weight."""
    size, num_ranks = section.get("optimizer_weight_shard_size"), num_replica_ranks(document)
    if size is None or not is_int(size.value) or size.value < 1 or not shards_weights(document):
        return
    num_shards = read_weight_sharding(document).num_ranks
    if num_ranks > 1 and size.value != num_shards:
        effect = f"has no effect, weights are sharded over {num_shards} ranks"
        fix = "optimizer_weight_shard_size: -1, which does the same"
        if num_shards == 1:
            effect = f"does not divide {num_ranks} ranks, so no weight is sharded"
            fix = "optimizer_weight_shard_size: -1"
        message = f"{'.'.join(OPTIMIZER_CONFIG)}.optimizer_weight_shard_size: {size.value} {effect}"
        yield Finding(size.location, message, f"-1, or a divisor of {num_ranks} from 2 on", fix, Level.WARNING)


@rule(Level.WARNING)
def many_micro_batches(context: Context) -> Iterator[Finding]:
    """Swap in a pipeline of more than 64 micro-batches: the compile stops, or prefetches start late.

    MindSpore 2.9 inlines the layers of up to 64 micro-batches. With more, backward of a layer is a separate function:
    `backward_prefetch` cannot cross it, and larger distances stop the compile (Graph cycle exists; The
    pointer[pre_node] is null). In dry runs of a Llama2-70B 64 compile, 65 do not, and 96 do with
    `backward_prefetch: 5`.

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
    fix = f"up to {MAX_INLINED_MICRO_BATCHES} micro-batches, of more samples each; or recompute in place of swap"
    yield Finding(node.location, f"parallel_config.micro_batch_num: {show(node)}: {LAYERS_NOT_INLINED}", fix=fix)


class UnsupportedCells(NamedTuple):
    """Cells that MindSpore cannot recompute in interleaved halves."""

    cells: tuple[str, ...]  # cells that are recomputed together
    scope: str  # the last layer of this scope compiles: each `stage`, or the `model`
    error: str  # message of MindSpore


UNSUPPORTED_IN_HALVES = (
    UnsupportedCells(("feed_forward",), "stage", "Graph cycle exists"),
    UnsupportedCells(
        ("feed_forward.w1", "feed_forward.w3"), "model", "input1.shape and input2.shape need to broadcast"
    ),
)


@rule(Level.WARNING)
def interleaved_cell(context: Context) -> Iterator[Finding]:
    r"""Recompute of a cell that `fine_grain_interleave: 2` computes in two halves: the compile stops.

    In MindSpore's dry run `feed_forward` compiles only in the last layer of a stage, and where the full layer is
    swapped as well (else "Graph cycle exists"). `feed_forward.w1` and `feed_forward.w3` together compile only in the
    last layer of the model (else "need to broadcast"). Recompute of operators in them, and of full layers, compiles.

    PASS:
        parallel_config:  {model_parallel: 8, use_seq_parallel: True}
        model:            {model_config: {fine_grain_interleave: 2}}
        swap_config:      {swap: True}
        recompute_config: {select_recompute: ['feed_forward\.mul', 'feed_forward\.w[13]\.matmul']}

    FAIL:
        parallel_config:  {model_parallel: 8, use_seq_parallel: True}
        model:            {model_config: {fine_grain_interleave: 2}}
        swap_config:      {swap: True}
        recompute_config: {select_recompute: ['feed_forward']}
    """
    settings, coverage, num_layers = read_step_settings(context.document), context.coverage, context.num_layers
    if coverage is None or num_layers is None or not settings.has_interleaved_halves:
        return
    cells_by_layer: dict[int, set[str]] = {}  # cells of each layer
    statement_of_cell = {}
    for statement in context.settings.of("select_recompute"):
        for layer_class, indices in coverage.layers_by_class(statement.layers).items():
            matches = coverage.matches(statement.pattern, layer_class) if statement.pattern else ()
            cells = {".".join(match.path) for match in matches if not match.node.is_primitive}
            statement_of_cell.update(dict.fromkeys(cells, statement))
            for index in indices:
                cells_by_layer.setdefault(index, set()).update(cells)
    stages = [settings.pipeline.stage_layers(stage, num_layers) for stage in range(settings.pipeline.num_stages)]
    last = {"stage": {layers[-1] for layers in stages if layers}, "model": {num_layers - 1}}
    for unsupported in UNSUPPORTED_IN_HALVES:
        layers = [
            index
            for index, cells in cells_by_layer.items()
            if index not in last[unsupported.scope] and cells.issuperset(unsupported.cells)
        ]
        if layers:
            statement = statement_of_cell[unsupported.cells[-1]]
            names = format_names(unsupported.cells)
            message = (
                f"{statement.pattern_path}: MindSpore 2.9 does not compile recompute of {names} in "
                f"{format_layers(Layers(layers))}, which {HALVES_KEY} computes in halves: {unsupported.error}"
            )
            fix = f"name operators (feed_forward\\.mul, feed_forward\\.w1\\.matmul), whole layers, or {HALVES_KEY}: 1"
            yield Finding(statement.pattern_location, message, fix=fix)


@rule(Level.ERROR)
def pipeline_scheduler(context: Context) -> Iterator[Finding]:
    """A pipeline_scheduler that MindSpore does not know, or that it takes with pipeline_interleave only.

    PASS: parallel: {pipeline_config: {pipeline_interleave: True, pipeline_scheduler: seqpipe}}

    FAIL (there is no zero_bubble_h):
        parallel:
          pipeline_config: {pipeline_interleave: True, pipeline_scheduler: zero_bubble_h}
    """
    # As in `set_pipeline_config` of MindSpore 2.9.0 (parallel/_auto_parallel_context.py).
    node = context.document.get(*SCHEDULER_PATH)
    if node is None or node.is_null or not context.document.is_parallel:
        return
    path, name = ".".join(SCHEDULER_PATH), show(node)
    interleave = context.document.get(*SCHEDULER_PATH[:-1], "pipeline_interleave")
    if node.value not in SCHEDULERS:
        message = f"{path}: {name} is not a schedule of MindSpore"
        fix = f"pipeline_scheduler: {closest_names(str(node.value), SCHEDULERS)[0]}"
        yield Finding(node.location, message, ", ".join(SCHEDULERS), fix, context.refusal_level)
    elif interleave is not None and interleave.value is False and node.value != "1f1b":
        message = f"{path}: MindSpore takes {name} with pipeline_interleave: True only"
        yield Finding(node.location, message, "1f1b", "pipeline_interleave: True", context.refusal_level)


@rule(Level.ERROR)
def sequence_pieces(context: Context) -> Iterator[Finding]:
    """Sequences are split (`seq_split_num`) where MindFormers refuses it, or together with recompute of full layers.

    PASS: parallel_config: {pipeline_stage: 2, seq_split_num: 4}
    FAIL (there is no pipeline): parallel_config: {pipeline_stage: 1, seq_split_num: 4}
    """
    # Settings that MindFormers 1.9.0 refuses (base_trainer.py, models/llama), or computes incorrectly with swap on.
    for finding in find_sequence_problems(context.document):
        yield replace(finding, level=context.refusal_level)
