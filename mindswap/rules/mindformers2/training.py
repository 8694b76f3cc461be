"""Rules of 2.x files for the training around the swap: number of processes, loss in pieces."""

from collections.abc import Iterator

from mindswap.config.findings import Finding
from mindswap.config.nodes import is_int, show
from mindswap.config.problem import Level
from mindswap.policy.formats.mindformers2.processes import ONE_PROCESS, find_max_processes
from mindswap.rules.context import Context2x, rule

# Of 2.1.0, by `model.model_type`: other networks of it take no range of layers, or do not train in PyNative mode.
MODELS_WITHOUT_STAGES = ("qwen3",)
SECTION_OPTIONS = {"swap": ("layer_swap", "op_swap"), "recompute": ("full_recompute_layer", "select_module")}


@rule(Level.WARNING)
def one_process(context: Context2x) -> Iterator[Finding]:
    """The batch sizes allow one process only, where MindFormers 2.1.0 applies neither swap nor recompute.

    It says nothing. There are at most `global_batch_size / local_batch_size` data parallel ranks. With `mindswap:
    {swap_engine: mindswap}` swap acts.

    PASS:
        training: {local_batch_size: 1, global_batch_size: 8}
        swap: {enable: True, layer_swap: [{layers: [0]}]}

    FAIL:
        training: {local_batch_size: 1, global_batch_size: 1}
        swap: {enable: True, layer_swap: [{layers: [0]}]}
    """
    settings = context.settings
    if find_max_processes(context.document) != 1:
        return
    for section, options in SECTION_OPTIONS.items():
        is_swap = section == "swap"
        is_on = settings.is_swap_enabled and not settings.is_own_engine if is_swap else True
        entry = context.document.entry(section)
        if entry is not None and is_on and any(settings.of(option) for option in options):
            message = f"{section}: no effect with one process, and the batch sizes allow one: {ONE_PROCESS}"
            fix = "a larger training.global_batch_size" + (", or mindswap: {swap_engine: mindswap}" if is_swap else "")
            yield Finding(entry.location, message, "two processes or more", fix)


@rule(Level.ERROR)
def chunk_loss(context: Context2x) -> Iterator[Finding]:
    """`chunk_loss_num` is no number of pieces, or stands next to `calculate_per_token_loss`, which MindFormers refuses.

    PASS: model: {chunk_loss_num: 4}
    FAIL: model: {chunk_loss_num: 4, calculate_per_token_loss: True}
    """
    node = context.document.get("model", "chunk_loss_num")
    if node is None:
        return
    if not is_int(node.value) or node.value < 0:
        message = f"model.chunk_loss_num: {show(node)} is not a number of pieces"
        yield Finding(node.location, message, "0 or 1 for the loss in one piece, 2 or more for pieces", "4")
    elif node.value > 1 and context.document.value("model", "calculate_per_token_loss") is True:
        message = f"model.chunk_loss_num: {node.value}: MindFormers refuses it with calculate_per_token_loss: True"
        yield Finding(node.location, message, "one of the two", "calculate_per_token_loss: False")


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
    """The layers cannot be distributed over the pipeline stages: not divisible, or not one entry for each stage.

    With `auto`, the default, all stages have equally many layers. Otherwise `pipeline_parallel_layers_per_stage` has an
    entry for each stage, with a range for each of its chunks. `null` is refused.

    PASS (num_hidden_layers: 4):
        model: {model_type: deepseek_v3}
        parallelism: {pipeline_parallel: 2, pipeline_parallel_layers_per_stage: ['0-2', '3']}

    FAIL (num_hidden_layers: 4):
        model: {model_type: deepseek_v3}
        parallelism: {pipeline_parallel: 3, pipeline_parallel_layers_per_stage: auto}
    """
    document = context.document
    count = document.count("parallelism", "pipeline_parallel")
    node, key = document.get("parallelism", "pipeline_parallel"), "pipeline_parallel_layers_per_stage"
    if node is None or count < 2:
        return
    setting = document.get("parallelism", key)
    if setting is not None and setting.value != "auto":
        found = f"{len(setting.items or ())} entries" if setting.items is not None else show(setting)
        if len(setting.items or ()) != count:
            message = f"parallelism.{key}: {found} for {count} pipeline stages"
            yield Finding(setting.location, message, f"auto, or a list with {count} entries", "auto")
        return
    num_chunks = count * document.count("parallelism", "pipeline_parallel_interleave_num")
    num_layers = (context.num_layers or 0) - context.settings.num_mtp_layers
    if num_layers % num_chunks:
        message = f"parallelism.pipeline_parallel: {num_layers} layers cannot be divided equally by {num_chunks}"
        fix = f"{key}: [...], with a range of layers for each of the {count} stages"
        yield Finding(node.location, message, f"a divisor of {num_layers} with {key}: auto", fix)
