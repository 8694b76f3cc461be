"""Rules of 2.x files for the training around the swap: number of processes, loss in pieces."""

from collections.abc import Iterator

from mindswap.config.findings import Finding
from mindswap.config.nodes import is_int, show
from mindswap.config.problem import Level
from mindswap.policy.formats.mindformers2.processes import ONE_PROCESS, find_max_processes
from mindswap.rules.context import Context2x, rule

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
def no_shards(context: Context2x) -> Iterator[Finding]:
    """`data_parallel_shard: 0`: MindFormers 2.1.0 divides by it and stops. A negative size means all ranks.

    PASS: parallelism: {data_parallel_shard: -1}
    FAIL: parallelism: {data_parallel_shard: 0}
    """
    node = context.document.get("parallelism", "data_parallel_shard")
    if node is not None and is_int(node.value) and node.value == 0:
        message = "parallelism.data_parallel_shard: 0: MindFormers divides the data parallel ranks by it, and stops"
        allowed = "-1 for all data parallel ranks, or the number of ranks that share weights and states"
        yield Finding(node.location, message, allowed, "-1")


# What the optimizers of MindFormers 2.1.0 in PyNative mode do with settings for states on the host (their __init__).
STATES_ON_HOST = {
    ("AdamW", "swap"): "ignores it silently",
    ("AdamW", "enable_cpu_offload"): "stops: Not support enable_cpu_offload.",
    ("Muon", "swap"): "stops: Muon does not support swap.",
    ("Muon", "enable_cpu_offload"): "ignores it silently",
}


@rule(Level.ERROR)
def states_on_host(context: Context2x) -> Iterator[Finding]:
    """Optimizer states on the host: no optimizer of MindFormers 2.1.0 in PyNative mode has that.

    PASS: optimizer: {type: AdamW}
    FAIL: optimizer: {type: AdamW, swap: True}
    """
    optimizer = context.document.value("optimizer", "type") or "AdamW"
    for (name, key), effect in STATES_ON_HOST.items():
        node = context.document.get("optimizer", key)
        if name == optimizer and node is not None and node.value:
            message = f"optimizer.{key}: {show(node)}: {name} of MindFormers 2.1.0 {effect}"
            yield Finding(node.location, message, "states on the card", f"{key}: False")
