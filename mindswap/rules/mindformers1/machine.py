"""Rules for execution mode, device, compiler levels, device memory and environment variables."""

import re
from collections.abc import Iterator
from decimal import ROUND_DOWN, Decimal

from mindswap.config.card_memory import read_card_memory, read_hccl_buffer_of
from mindswap.config.device_memory import (
    ALLOWED,
    LARGEST_LIMIT_BYTES,
    PATH,
    hccl_bytes,
    is_device_memory,
    read_device_memory,
)
from mindswap.config.findings import Finding, rule
from mindswap.config.nodes import DocumentNode, show
from mindswap.config.problem import Level, Location
from mindswap.config.step_settings import (
    ASCEND,
    GRAPH,
    PYNATIVE,
    is_on_cpu,
    read_device_target,
    read_step_settings,
    uses_pynative_mode,
)
from mindswap.rules.context import Context
from mindswap.units import format_bytes, format_count, parse_bytes

# GB per unit; MindSpore's GB is a GiB.
# Key paths at which a configuration may set jit_level.
JIT_LEVEL_PATHS = (("context", "jit_config", "jit_level"), ("context", "jit_level"))
_GB_PER_UNIT = {unit: Decimal(1) for unit in ("", "G", "GB")}
_GB_PER_UNIT |= {unit: Decimal(1) / 1024 for unit in ("M", "MB")} | {unit: Decimal(1024) for unit in ("T", "TB")}
_MEMORY = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?)(?P<unit>(?:[GMT]B?)?)", re.ASCII)
# An A3 card has two dies of 64 GB; a limit up to this size can be meant as the size of a card.
LARGEST_CARD_BYTES = 128 * 2**30
LAZY_INLINE = "ENABLE_LAZY_INLINE_NO_PIPELINE"


def _find_unsupported_value(context: Context, place: tuple[str, ...], *allowed: str) -> DocumentNode | None:
    """Return the node at a key path if swap in graph mode does not support its value; None otherwise."""
    node = context.document.get(*place)
    if not context.settings.is_swap_enabled or uses_pynative_mode(context.document) or node is None or node.is_null:
        return None
    return None if node.value in allowed else node


@rule(Level.ERROR)
def context_mode(context: Context) -> Iterator[Finding]:
    """context.mode is not a mode in which mindswap swaps.

    In graph mode the compiler swaps. In PyNative mode mindswap does, on CPU. Its copies for Ascend ran in dry runs
    only, so there they must be requested with `mindswap: {stream_copies: True}`.

    PASS: context: {mode: 0}
    PASS: context: {mode: 1, device_target: CPU}
    FAIL: context: {mode: 1, device_target: Ascend}
    """
    node = context.document.get("context", "mode")  # MindFormers takes graph mode where the key is missing
    if not context.settings.is_swap_enabled or node is None:
        return
    is_mode = not isinstance(node.value, bool)
    if is_mode and node.value in GRAPH:
        return
    if not is_mode or node.value not in PYNATIVE:
        message = f"context.mode: {show(node)}, which is not a mode"
        yield Finding(node.location, message, "0 or GRAPH_MODE, 1 or PYNATIVE_MODE", "mode: 0")
        return
    if not is_on_cpu(context.document) and context.document.value("mindswap", "stream_copies") is not True:
        message = (
            f"context.mode: {show(node)} is PyNative mode, where swap_config acts on "
            f"{read_device_target(context.document)} only with mindswap.stream_copies"
        )
        allowed = "0 or GRAPH_MODE; 1 with device_target: CPU, or with mindswap: {stream_copies: True}"
        yield Finding(node.location, message, allowed, "mode: 0")


@rule(Level.WARNING)
def swap_engine(context: Context) -> Iterator[Finding]:
    """mindswap.swap_engine is in a file of MindFormers 1.9, where it has no effect.

    It chooses between the engines of MindFormers 2.x.

    PASS: mindswap: {audit_swap: True}
    FAIL: mindswap: {swap_engine: mindswap}
    """
    node = context.document.get("mindswap", "swap_engine")
    if node is not None:
        message = "mindswap.swap_engine: has no effect in a configuration of MindFormers 1.9"
        yield Finding(node.location, message, "a configuration of MindFormers 2.x", "delete it")


@rule(Level.WARNING)
def device_target(context: Context) -> Iterator[Finding]:
    """context.device_target is not Ascend: training runs, but in graph mode nothing is swapped.

    PASS: context: {device_target: "Ascend"}
    FAIL: context: {device_target: "CPU"}
    """
    node = _find_unsupported_value(context, ("context", "device_target"), ASCEND)
    if node is not None:
        message = f"context.device_target: on {show(node)} swap has no effect at run time"
        yield Finding(node.location, message, f"'{ASCEND}'", "none needed to try a configuration out")


@rule(Level.WARNING)
def optimizer_swap(context: Context) -> Iterator[Finding]:
    """optimizer.swap is on with a device target of CPU, where all optimizer states are in host memory anyway.

    Optimizers that have no states on the host are an error: [optimizer-refused](#optimizer-refused).

    PASS: optimizer: {type: AdamW, swap: True}
    FAIL: {optimizer: {type: AdamW, swap: True}, context: {device_target: CPU}}
    """
    node = context.document.get("optimizer", "swap")
    if node is not None and node.value is True and is_on_cpu(context.document):
        message = "optimizer.swap: has no effect on CPU, where all optimizer states are in host memory"
        yield Finding(node.location, message, f"device_target: {ASCEND}", "swap: False, or delete it")


@rule(Level.ERROR)
def jit_level(context: Context) -> Iterator[Finding]:
    """jit_level is neither O0 nor O1: swap exists only there.

    PASS: context: {jit_config: {jit_level: "O1"}}
    FAIL: context: {jit_config: {jit_level: "O2"}}
    """
    for place in JIT_LEVEL_PATHS:
        node = _find_unsupported_value(context, place, "O0", "O1")
        if node is not None:
            message = f"{'.'.join(place)}: {show(node)}, but swap needs O0 or O1"
            yield Finding(node.location, message, "'O0' or 'O1'", 'jit_level: "O1"')


@rule(Level.ERROR)
def memory_optimize_level(context: Context) -> Iterator[Finding]:
    """context.memory_optimize_level is not O0: the memory planner of the other levels does not support host memory.

    If the key is missing, mindswap sets O0.

    PASS: context: {memory_optimize_level: "O0"}
    FAIL: context: {memory_optimize_level: "O1"}
    """
    node = _find_unsupported_value(context, ("context", "memory_optimize_level"), "O0")
    if node is not None:
        message = f"context.memory_optimize_level: {show(node)}, but swap needs O0"
        yield Finding(node.location, message, "'O0'", 'memory_optimize_level: "O0"')


@rule(Level.ERROR)
def max_device_memory(context: Context) -> Iterator[Finding]:
    """`context.max_device_memory` has another format than MindSpore accepts, or is below the memory budget of plans.

    MindSpore accepts a string of digits and `GB`, which is GiB there. Plans and simulations use the smaller of it and
    the memory of the device; a plan for a larger `mindswap.memory` would run out of memory. `mindswap plan --memory`
    writes such a budget there.

    PASS: context: {max_device_memory: "58GB"}
    FAIL: context: {max_device_memory: "58 GiB"}
    """
    node = context.document.get(*PATH.split("."))
    if node is not None and not node.is_null and not is_device_memory(node.value):
        message = f"{PATH}: {show(node)}: MindSpore stops at it"
        yield Finding(node.location, message, ALLOWED, _suggest_memory(node.value), context.refusal_level)
    limit = read_device_memory(context.document)
    budget = context.document.get("mindswap", "memory")
    if limit is None or budget is None or not isinstance(budget.value, str):
        return
    try:
        requested_bytes = parse_bytes(budget.value)
    except ValueError:
        return  # reported with the figures of the device
    if requested_bytes > limit.size_bytes:
        allowed = format_bytes(limit.size_bytes)
        message = f"mindswap.memory: {show(budget)} is more than the {allowed} of {PATH} ({limit.location})"
        fix = f'{PATH}: "{-(-requested_bytes // 2**30)}GB", or memory: {allowed} and mindswap plan again'
        yield Finding(budget.location, message, f"at most {allowed}", fix, Level.WARNING)


@rule(Level.WARNING)
def unmanaged_device_memory(context: Context) -> Iterator[Finding]:
    """`context.max_device_memory` leaves too little memory of the card for buffers outside of MindSpore's pool.

    CANN offers 60.96 GiB of a card of 64 GB, and about 30.5 GiB of one of 32 GB (assumed, in proportion). The card is
    the one of `mindswap.device`, by default one of 64 GB. HCCL keeps two buffers of `HCCL_BUFFSIZE` (200 MB) for each
    communicator outside MindSpore's pool: where the pool may grow until they do not fit, a run ends in an out-of-memory
    error of HCCL. MindSpore stops where the limit is not below the free memory. It ignores limits above 64 GB; up to
    128 GB, the size of an A3 card of two dies, this is reported, because it can be meant as the size of a card.

    PASS: context: {max_device_memory: "58GB"}
    PASS: {context: {max_device_memory: "29GB"}, mindswap: {device: atlas_800i_a2_32g}}
    FAIL: context: {max_device_memory: "61GB"}
    FAIL: {context: {max_device_memory: "31GB"}, mindswap: {device: atlas_800i_a2_32g}}
    """
    limit, card = read_device_memory(context.document), read_card_memory(context.document)
    if limit is None or card is None or is_on_cpu(context.document) or limit.size_bytes > LARGEST_CARD_BYTES:
        return
    settings = read_step_settings(context.document)
    buffer_bytes = read_hccl_buffer_of(context.document, context.environ)
    needed_bytes = hccl_bytes(buffer_bytes, len(settings.communicators))
    most_gib = min(card.size_bytes - needed_bytes, card.limit_bytes) // 2**30
    offered = f"{format_bytes(card.size_bytes)}{' (assumed)' if card.is_assumed else ''}"
    size = f"{PATH}: {show(context.document.value(*PATH.split('.')))}"
    offered_text = f"of the {offered} that CANN offers of {card.description}"
    if limit.size_bytes > LARGEST_LIMIT_BYTES:
        message = f"{size} is more than 64GB: MindSpore ignores it and takes 15/16 of the free memory, "
        message += f"{format_bytes(card.size_bytes * 15 // 16)} {offered_text} if all is free"
    elif limit.size_bytes >= card.size_bytes:
        message = f"{size} is more than {card.description} has: CANN offers {offered}; MindSpore stops"
    elif limit.size_bytes + needed_bytes > card.size_bytes:
        names = settings.communicators
        message = f"{size} leaves {format_bytes(card.size_bytes - limit.size_bytes)} {offered_text}, HCCL takes "
        message += f"{format_bytes(needed_bytes)} for {format_count(len(names), 'communicator')} ({', '.join(names)})"
    else:
        return
    yield Finding(limit.location, message, f"at most {most_gib}GB", f'max_device_memory: "{most_gib}GB"')


def _suggest_memory(value: object) -> str:
    """Return the fix for a size in another unit, in MindSpore's format; "" if the value is not a size.

    A number without a unit and G are read as GB, which is a GiB in MindSpore.
    """
    text = re.sub(r"\s", "", str(value)).upper().replace("IB", "B")
    match = _MEMORY.fullmatch(text) if not isinstance(value, bool) else None
    if match is None:
        return ""
    gigabytes = Decimal(match["number"]) * _GB_PER_UNIT[match["unit"]]
    if not 0 < gigabytes < 10**6:
        return ""
    return f'{PATH.rpartition(".")[2]}: "{gigabytes.quantize(Decimal("0.1"), ROUND_DOWN).normalize():f}GB"'


@rule(Level.ERROR)
def lazy_inline_env(context: Context) -> Iterator[Finding]:
    """ENABLE_LAZY_INLINE_NO_PIPELINE is 0 and there is no pipeline parallelism: nothing would be swapped.

    Swap needs lazy inline, which mindswap switches on itself unless this variable forbids it.

    PASS: export ENABLE_LAZY_INLINE_NO_PIPELINE=1     (or not set)
    FAIL (parallel_config.pipeline_stage: 1): export ENABLE_LAZY_INLINE_NO_PIPELINE=0
    """
    if not context.settings.is_swap_enabled or context.settings.pipeline.num_stages > 1:
        return
    is_ascend = read_device_target(context.document) == ASCEND
    if is_ascend and context.environ.get(LAZY_INLINE, "").strip() == "0":
        message = f"{LAZY_INLINE}: 0 switches lazy inline off, and without pipeline stages swap needs it"
        yield Finding(Location("environment"), message, "1, or not set", f"export {LAZY_INLINE}=1")
