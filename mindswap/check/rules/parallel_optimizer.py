"""A setting of `parallel.parallel_optimizer_config` that MindSpore refuses or leaves without effect.

PASS:
    parallel:
      parallel_optimizer_config: {optimizer_level: level2, parallel_optimizer_threshold: 64}

FAIL (there is no level4):
    parallel:
      parallel_optimizer_config: {optimizer_level: level4}
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.config.weight_sharding import (
    OPTIMIZER_CONFIG,
    OPTIMIZER_LEVELS,
    is_whole_number,
    num_sharing_ranks,
    read_weight_sharding,
)
from mindswap.document.nodes import Node, show
from mindswap.document.problem import Level, Problem
from mindswap.policy.words import closest_names

ID = "parallel-optimizer"
LEVEL = Level.ERROR
# What MindSpore accepts (parallel/_auto_parallel_context.py, `set_parallel_optimizer_config`).
ALLOWED = {
    "gradient_accumulation_shard": "True or False",
    "parallel_optimizer_threshold": "an integer, 0 or more (KiB)",
    "optimizer_weight_shard_size": "-1, or an integer of 1 or more (ranks)",
    "optimizer_level": ", ".join(OPTIMIZER_LEVELS),
}


def check(context: Context) -> Iterator[Problem]:
    """Every value that does not fit, and what has no effect."""
    section = context.document.get(*OPTIMIZER_CONFIG)
    if section is None or section.is_null:
        return
    # With swap off the run is MindFormers' own affair: nothing here may stop it.
    level = LEVEL if context.settings.is_swap_enabled else Level.WARNING
    path = ".".join(OPTIMIZER_CONFIG)
    if section.entries is None:
        yield Problem(section.location, ID, level, f"{path}: {show(section)} is {section.kind}", "a mapping")
        return
    for entry in section.unique_entries():
        key = str(entry.key)
        if key not in ALLOWED:
            fix = f"{closest_names(key, ALLOWED)[0]}: ..."
            yield Problem(entry.location, ID, level, f"{path}.{key}: unknown key", ", ".join(ALLOWED), fix)
        elif not _fits(key, entry.value):
            message = f"{path}.{key}: {show(entry.value)} does not fit"
            yield Problem(entry.value.location, ID, level, message, ALLOWED[key])
    chosen, shard = section.get("optimizer_level"), section.get("gradient_accumulation_shard")
    if chosen is not None and shard is not None and chosen.value != "level2" and _fits("optimizer_level", chosen):
        message = f"{path}.gradient_accumulation_shard: MindSpore takes it with optimizer_level: level2 only"
        yield Problem(shard.location, ID, level, message, fix="delete it; level2 means True, level1 False")
    yield from _idle_shard_size(context, section, path)


def _fits(key: str, node: Node) -> bool:
    value = node.value
    if key == "gradient_accumulation_shard":
        return isinstance(value, bool)
    if key == "optimizer_level":
        return value in OPTIMIZER_LEVELS
    if not is_whole_number(value):
        return False
    return value >= 0 if key == "parallel_optimizer_threshold" else value == -1 or value >= 1


def _idle_shard_size(context: Context, section: Node, path: str) -> Iterator[Problem]:
    """MindSpore cuts weights over all ranks that share them where the size does not divide their number."""
    node = section.get("optimizer_weight_shard_size")
    used = read_weight_sharding(context.document).num_ranks
    if node is None or used < 2 or not is_whole_number(node.value) or node.value in (-1, used) or node.value < 1:
        return
    message = f"{path}.optimizer_weight_shard_size: {node.value} has no effect, weights are cut over {used} ranks"
    allowed = f"-1, or a divisor of {num_sharing_ranks(context.document)} from 2 on"
    yield Problem(node.location, ID, Level.WARNING, message, allowed)
