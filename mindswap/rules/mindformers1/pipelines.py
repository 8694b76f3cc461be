"""Rule for pipeline settings at which MindFormers or MindSpore stop."""

from collections.abc import Iterator

from mindswap.config.findings import Finding, rule
from mindswap.config.problem import Level
from mindswap.rules.context import Context
from mindswap.rules.parts import Part
from mindswap.rules.refusals import Refusal, find_refusals, is_bool, of_parts, typed
from mindswap.rules.values import Values

CONFIG, CONFIG_KEYS = "parallel.pipeline_config", frozenset({"pipeline_interleave", "pipeline_scheduler"})
SCHEDULER, INTERLEAVE = f"{CONFIG}.pipeline_scheduler", f"{CONFIG}.pipeline_interleave"
STAGES, MICRO_BATCHES = "parallel_config.pipeline_stage", "parallel_config.micro_batch_num"
PIECES = "parallel_config.seq_split_num"


def _is_zero_bubble(v: Values) -> bool:
    return v.scheduler == "zero_bubble_v"


def _is_interleaved(v: Values) -> bool:
    return v(INTERLEAVE) is True and v.chunks > 1


def _has_seqvpp_pieces(v: Values) -> bool:
    """Return whether pieces of sequences run in the order of seqvpp, which MindSpore takes for several chunks only."""
    return v.is_split and v.scheduler == "seqvpp" and _is_interleaved(v) and v.pieces > 1


def _has_batches(v: Values) -> bool:
    """Return whether a pipeline runs, and the number of micro-batches is known."""
    return v.is_split and (v.is_complete or v.is_written(MICRO_BATCHES))


def _counts_stages_only(v: Values) -> bool:
    """Return whether recompute is one list of counts, where zero_bubble_v takes one for each chunk."""
    recompute = v("recompute_config.recompute")
    if v.is_swap_enabled or not isinstance(recompute, list):
        return False
    return all(isinstance(item, int) for item in recompute) or len(recompute) < 2


def _counts_layers(v: Values) -> bool:
    """Return whether the class of the model compares its layers with the stages (`check_pipeline_stage`)."""
    words = f"{v('model.architectures')} {v('model.model_type')}".lower()
    return v.is_newer and v.is_split and ("deepseek" in words or "telechat" in words)


def _has_other_chunks(v: Values) -> bool:
    """Return whether zero_bubble_v runs with another number of chunks than two."""
    is_determined = v.is_complete or v.is_written("model.chunks") or v.is_written("model.layers")
    return v.is_split and _is_zero_bubble(v) and is_determined and v.chunks != 2


REFUSALS = (
    Refusal(
        "seqvpp-pieces",
        SCHEDULER,
        lambda v: v.scheduler == "seqvpp" and v("parallel_config.seq_split_num", 1) == 1,
        "MindFormers takes seqvpp with seq_split_num above 1 only",
        fix="pipeline_scheduler: seqpipe, or seq_split_num: 2",
        is_always_read=True,
    ),
    Refusal(
        "seqvpp-stages",
        PIECES,
        lambda v: _has_seqvpp_pieces(v) and 1 < v.stages < v.pieces,
        lambda v: f"MindSpore's seqvpp takes at most as many pieces as stages, {v.stages}",
        allowed=lambda v: f"2 to {v.stages}",
        fix=lambda v: f"{{key}}: {v.stages}",
    ),
    Refusal(
        "interleaved-micro-batches",
        (MICRO_BATCHES, STAGES),
        # In a dry run, 2 micro-batches on 4 stages compile without pipeline_interleave.
        lambda v: _has_batches(v) and _is_interleaved(v) and v.scheduler == "1f1b" and v.micro_batches < v.stages,
        lambda v: f"the interleaved pipeline of {v.stages} stages takes {v.stages} micro-batches or more",
        allowed=lambda v: f"{v.stages} or more",
        fix=lambda v: f"micro_batch_num: {v.stages}",
    ),
    Refusal(
        "seqvpp-micro-batches",
        (MICRO_BATCHES, PIECES),
        lambda v: _has_batches(v) and _has_seqvpp_pieces(v) and v.micro_batches * v.pieces < v.stages,
        lambda v: f"seqvpp takes micro-batches x pieces of {v.stages} or more, one for each stage",
        allowed=lambda v: f"{-(-v.stages // v.pieces)} or more",
        fix=lambda v: f"micro_batch_num: {-(-v.stages // v.pieces)}",
    ),
    Refusal(
        "zero-bubble-micro-batches",
        (MICRO_BATCHES, SCHEDULER),
        lambda v: _has_batches(v) and _is_zero_bubble(v) and v.stages > 1 and v.micro_batches < 2 * v.stages,
        lambda v: f"zero_bubble_v takes two micro-batches or more for each of the {v.stages} stages",
        allowed=lambda v: f"{2 * v.stages} or more",
        fix=lambda v: f"micro_batch_num: {2 * v.stages}, or pipeline_scheduler: 1f1b",
    ),
    Refusal(
        "zero-bubble-chunks",
        ("model.chunks", SCHEDULER),
        _has_other_chunks,
        "zero_bubble_v takes two chunks for each stage",
        allowed="pp_interleave_num: 2",
        fix="pp_interleave_num: 2, or pipeline_scheduler: 1f1b",
    ),
    Refusal(
        "zero-bubble-stages",
        SCHEDULER,
        lambda v: v.is_split and _is_zero_bubble(v) and v.stages < 2 and (v.is_complete or v.is_written(STAGES)),
        "zero_bubble_v needs two pipeline stages or more",
        allowed="pipeline_stage: 2 or more",
        fix="pipeline_scheduler: 1f1b",
    ),
    Refusal(
        "zero-bubble-recompute",
        "recompute_config.recompute",
        # `stage-recompute` reports it where the number of layers is known.
        lambda v: (
            v.is_parallel and v.is_newer and _is_zero_bubble(v) and not v("model.layers") and _counts_stages_only(v)
        ),
        "with zero_bubble_v MindFormers takes a list of counts for each of the two chunks",
        allowed="True, False, or [[counts of chunk 0], [counts of chunk 1]]",
        fix=lambda v: f"recompute: [{[0] * v.stages}, {[0] * v.stages}], with the counts that are meant",
    ),
    Refusal(
        "zero-bubble-sparse-attention",
        SCHEDULER,
        lambda v: v.is_newer and _is_zero_bubble(v) and v("model.experimental_attention_variant") == "dsa",
        "MindFormers refuses zero_bubble_v for DeepSeek sparse attention (dsa)",
        fix="pipeline_scheduler: 1f1b",
    ),
    Refusal(
        "pipeline-mode",
        "parallel.parallel_mode",
        lambda v: not v.is_split and v.stages > 1,
        lambda v: f"a pipeline of {v.stages} stages runs in semi-auto or auto parallel mode only",
        allowed="1 or SEMI_AUTO_PARALLEL, 2 or AUTO_PARALLEL",
        fix="{key}: 1",
    ),
    Refusal(
        "pipeline-config-keys",
        CONFIG,
        lambda v: v.is_complete and isinstance(v(CONFIG), dict) and not set(v(CONFIG)) >= CONFIG_KEYS,
        "MindSpore reads both pipeline_interleave and pipeline_scheduler, and one of them is missing",
        fix="{key}: {pipeline_interleave: True, pipeline_scheduler: 1f1b}",
    ),
    of_parts(
        "pipeline-config-unknown",
        CONFIG,
        lambda v: [Part((key,), is_key=True) for key in v(CONFIG) if key not in CONFIG_KEYS],
        "MindSpore does not know this key",
        "pipeline_interleave, pipeline_scheduler",
        "delete it",
    ),
    typed(INTERLEAVE, is_bool, "True or False", "{key}: True"),
    typed(CONFIG, lambda value: isinstance(value, dict), "a mapping", "delete it"),
    Refusal(
        "interleave-lazy-inline",
        "model.disable_lazy_inline",
        lambda v: v.is_split and v.stages > 1 and _is_interleaved(v) and v("model.disable_lazy_inline") is True,
        "MindSpore interleaves chunks of a pipeline with lazy inline only",
        "False",
        "{key}: False",
    ),
    Refusal(
        "automatic-stages",
        "parallel.auto_pipeline",
        lambda v: bool(v("parallel.auto_pipeline")),
        "MindFormers 1.9 does not choose the number of stages",
        allowed="False",
        fix="{key}: False",
    ),
    Refusal(
        "layers-below-stages",
        STAGES,
        lambda v: _counts_layers(v) and v("model.layers") + v("model.prediction_layers", 0) < v.stages,
        lambda v: f"the model has fewer layers, {v('model.layers') + v('model.prediction_layers', 0)}, than stages",
        fix=lambda v: f"{{key}}: {v('model.layers') + v('model.prediction_layers', 0)} or fewer",
    ),
    Refusal(
        "layers-below-chunks",
        ("model.chunks", STAGES),
        lambda v: (
            _counts_layers(v)
            and v(INTERLEAVE) is True
            and v("model.layers") + v("model.prediction_layers", 0) < v.chunks * v.stages
        ),
        lambda v: f"the model has fewer layers than chunks on all stages, {v.chunks * v.stages}",
        fix="fewer stages or chunks",
    ),
    Refusal(
        "batch-interleave",
        "micro_batch_interleave_num",
        lambda v: v.is_newer and v("micro_batch_interleave_num", 1) > 1,
        "MindFormers 1.9 refuses it for newer models (use_legacy: False)",
        allowed="1",
        fix="{key}: 1",
    ),
    Refusal(
        "dynamic-batch-pieces",
        PIECES,
        lambda v: v.pieces > 1 and bool(v("train_dataset.dynamic_batch")),
        "MindFormers refuses pieces of sequences with train_dataset.dynamic_batch",
        allowed="1",
        fix="{key}: 1",
    ),
)


@rule(Level.ERROR)
def pipeline_refused(context: Context) -> Iterator[Finding]:
    """Pipeline settings at which MindFormers or MindSpore stop: too few micro-batches, chunks or stages for a schedule.

    All conditions are in docs/internals/upstream_checks.md, each with the place that tests it. As everywhere, a run
    with swap off gets a warning, and MindFormers stops it.

    PASS (pp_interleave_num: 2, pipeline_interleave: True): parallel_config: {pipeline_stage: 4, micro_batch_num: 4}
    FAIL (pp_interleave_num: 2, pipeline_interleave: True): parallel_config: {pipeline_stage: 4, micro_batch_num: 2}
    """
    yield from find_refusals(context, REFUSALS)
