"""Rules of 2.x files for pipeline stages: how many, which layers they have, in which order they run."""

import re
from collections.abc import Iterable, Iterator
from math import gcd

from mindswap.config.findings import Finding
from mindswap.config.nodes import DocumentNode, is_int, show
from mindswap.config.problem import Level
from mindswap.policy.wording import closest_names
from mindswap.rules.context import Context2x, rule
from mindswap.units import format_count

SECTION = "parallelism"
STAGES, CHUNKS = "pipeline_parallel", "pipeline_parallel_interleave_num"
LAYERS, SCHEDULE = "pipeline_parallel_layers_per_stage", "pipeline_parallel_schedule"
SCHEDULES = ("1f1b", "interleaved_1f1b", "gpipe")
# Of 2.1.0, by `model.model_type`: other networks of it take no range of layers, or do not train in PyNative mode.
MODELS_WITHOUT_STAGES = ("qwen3",)
LAYER_RANGE = re.compile(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", re.ASCII)


@rule(Level.ERROR)
def model_without_stages(context: Context2x) -> Iterator[Finding]:
    """The model cannot be divided into pipeline stages: the PyNative Qwen3 of MindFormers 2.1.0 has none.

    MindFormers builds a stage with a range of layers, `layer_start` and `layer_end`, which this network does not take
    (TypeError). The networks of DeepSeek-V3 and V4 do.

    PASS:
        model: {model_type: deepseek_v3}
        parallelism: {pipeline_parallel: 2}

    FAIL:
        model: {model_type: qwen3}
        parallelism: {pipeline_parallel: 2}
    """
    node = context.document.get("parallelism", "pipeline_parallel")
    num_stages = context.document.count("parallelism", "pipeline_parallel")
    model = context.document.value("model", "model_type")
    if node is not None and num_stages > 1 and model in MODELS_WITHOUT_STAGES:
        message = (
            f"parallelism.pipeline_parallel: {num_stages} stages, but MindFormers 2.1.0 cannot divide {model} into "
            "stages in PyNative mode"
        )
        fix = "pipeline_parallel: 1, and fewer activations on each card by recompute, swap, tensor or context parallel"
        yield Finding(node.location, message, f"1 with {model}; more with deepseek_v3 and deepseek_v4", fix)


@rule(Level.ERROR)
def stage_layers(context: Context2x) -> Iterator[Finding]:
    """The layers cannot be divided into the pipeline stages of the file: MindFormers stops, or trains other ones.

    The stages are a whole number, and so are the chunks of each. With `auto` their product divides the layers; a list
    has one text of layers for each stage, such as '0-3', or '0-1,4-5' for two chunks. `null` is refused.

    PASS:
        model: {num_hidden_layers: 6}
        parallelism: {pipeline_parallel: 2, pipeline_parallel_layers_per_stage: ['0-1', '2-5']}

    FAIL:
        model: {num_hidden_layers: 6}
        parallelism: {pipeline_parallel: 4}
    """
    # PpLayerSetting of mindformers 2.1.0, pynative/distributed/pipeline_parallel.py.
    counts = [context.document.get(SECTION, key) for key in (STAGES, CHUNKS)]
    wrong = [
        Finding(node.location, f"{SECTION}.{key}: {show(node)} is not a number of {words}", "1 or more", f"{key}: 1")
        for node, key, words in zip(counts, (STAGES, CHUNKS), ("stages", "chunks"), strict=True)
        if node is not None and not node.is_null and not (is_int(node.value) and node.value >= 1)
    ]
    yield from wrong
    num_stages, num_chunks = (context.document.count(SECTION, key) for key in (STAGES, CHUNKS))
    if wrong or num_stages == 1:
        return
    node = context.document.get(SECTION, LAYERS)
    if node is None or node.value == "auto":
        yield from _find_indivisible(context, num_stages, num_chunks)
    else:
        yield from _find_wrong_lists(context, node, num_stages, num_chunks)


def _num_layers(context: Context2x) -> int | None:
    """Return the layers that the stages share: those for multi-token prediction are in the last stage."""
    return None if context.num_layers is None else context.num_layers - context.settings.num_mtp_layers


def _find_indivisible(context: Context2x, num_stages: int, num_chunks: int) -> Iterator[Finding]:
    num_layers, node = _num_layers(context), context.document.get(SECTION, STAGES)
    parts = num_stages * num_chunks
    if num_layers is None or node is None or num_layers % parts == 0:
        return
    chunks = f" of {num_chunks} chunks each" if num_chunks > 1 else ""
    message = f"{SECTION}.{STAGES}: {num_layers} layers cannot be divided equally into {num_stages} stages{chunks}"
    allowed = f"a divisor of {num_layers}, or {LAYERS} with the layers of each stage"
    num_fitting = gcd(num_layers // num_chunks, num_stages) if num_layers % num_chunks == 0 else 1
    yield Finding(node.location, message, allowed, f"{STAGES}: {num_fitting}")


def _find_wrong_lists(context: Context2x, node: DocumentNode, num_stages: int, num_chunks: int) -> Iterator[Finding]:
    path, example = f"{SECTION}.{LAYERS}", "'0-3'" if num_chunks == 1 else "'0-1,4-5'"
    allowed = f"auto, or a list of one text for each of {num_stages} stages, such as {example}"
    if node.items is None or len(node.items) != num_stages:
        text = f"{len(node.items)} entries" if node.items is not None else show(node)
        yield Finding(node.location, f"{path}: {text} for {num_stages} stages", allowed, f"{LAYERS}: auto")
        return
    stages: list[list[tuple[int, int]]] = []
    for item in node.items:
        of_stage = _layer_bounds(item.value)
        if len(of_stage) != num_chunks or any(first > last for first, last in of_stage):
            message = f"{path}: {show(item)} is not a text with the layers of {format_count(num_chunks, 'chunk')}"
            yield Finding(item.location, message, allowed, f"{LAYERS}: auto")
            return
        stages.append(of_stage)
    num_layers = _num_layers(context)
    in_order = [stage[chunk] for chunk in range(num_chunks) for stage in stages]  # activations pass them in this order
    wrong = None if num_layers is None else _first_misplaced(in_order, num_layers)
    if num_layers is not None and wrong is not None:
        message = f"{path}: layer {wrong} is in no stage, in two, or out of order"
        allowed = f"each of the layers 0 to {num_layers - 1} once, in the order of the stages, first chunks first"
        yield Finding(node.location, message, allowed, f"{LAYERS}: auto")


def _layer_bounds(value: object) -> list[tuple[int, int]]:
    """Return the first and the last layer of each chunk of a text such as `0-1,4-5`; empty if it is none."""
    ranges = [LAYER_RANGE.fullmatch(text) for text in value.split(",")] if isinstance(value, str) else []
    bounds = [(int(each[1]), int(each[2] or each[1])) for each in ranges if each is not None]
    return bounds if len(bounds) == len(ranges) else []


def _first_misplaced(bounds: Iterable[tuple[int, int]], num_layers: int) -> int | None:
    """Return a layer that is in no range, in two, out of order or not in the model; None if there is none."""
    expected = 0
    for first, last in bounds:
        if first != expected:
            return min(first, expected)
        expected = last + 1
    return None if expected == num_layers else min(expected, num_layers)


@rule(Level.ERROR)
def stage_schedule(context: Context2x) -> Iterator[Finding]:
    """A schedule of pipeline stages that MindFormers 2.x does not know, so it stops.

    PASS: parallelism: {pipeline_parallel: 2, pipeline_parallel_schedule: gpipe}
    FAIL: parallelism: {pipeline_parallel: 2, pipeline_parallel_schedule: zbv}
    """
    node = context.document.get(SECTION, SCHEDULE)
    if node is None or node.is_null or node.value == "" or context.document.count(SECTION, STAGES) == 1:
        return
    if not isinstance(node.value, str) or node.value.lower() not in SCHEDULES:
        message = f"{SECTION}.{SCHEDULE}: {show(node)} is not a schedule of MindFormers 2.1.0"
        fix = f"{SCHEDULE}: {closest_names(str(node.value), SCHEDULES)[0]}"
        yield Finding(node.location, message, ", ".join(SCHEDULES), fix)


@rule(Level.ERROR)
def stage_chunks(context: Context2x) -> Iterator[Finding]:
    """Mindswap's own swap, with several chunks of layers in each pipeline stage: it swaps stages of one chunk only.

    PASS:
        parallelism: {pipeline_parallel: 2}
        swap: {enable: True, layer_swap: [{layers: [0]}]}
        mindswap: {swap_engine: mindswap}

    FAIL:
        parallelism: {pipeline_parallel: 2, pipeline_parallel_interleave_num: 2}
        swap: {enable: True, layer_swap: [{layers: [0]}]}
        mindswap: {swap_engine: mindswap}
    """
    node, settings = context.document.get(SECTION, CHUNKS), context.settings
    num_chunks = context.document.count(SECTION, CHUNKS)
    is_swapped = settings.is_swap_enabled and settings.is_own_engine and context.document.count(SECTION, STAGES) > 1
    if node is not None and num_chunks > 1 and is_swapped:
        message = f"{SECTION}.{CHUNKS}: {num_chunks} chunks in each stage, but mindswap swaps stages of one chunk only"
        fix = f"{CHUNKS}: 1, or swap.enable: False and recompute instead"
        yield Finding(node.location, message, "1 with swap", fix)
