"""A pipeline_scheduler that MindSpore does not know, or that it takes with pipeline_interleave only.

PASS:
    parallel:
      pipeline_config: {pipeline_interleave: True, pipeline_scheduler: seqpipe}

FAIL (there is no zero_bubble_h):
    parallel:
      pipeline_config: {pipeline_interleave: True, pipeline_scheduler: zero_bubble_h}
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.config.pipeline import SCHEDULER_PATH, SCHEDULERS
from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.policy.words import closest_names

ID = "pipeline-scheduler"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """The name, as `set_pipeline_config` of MindSpore 2.9.0 judges it (parallel/_auto_parallel_context.py)."""
    node = context.document.get(*SCHEDULER_PATH)
    if node is None or node.is_null:
        return
    # With swap off the run is MindFormers' own affair: nothing here may stop it.
    level = LEVEL if context.settings.is_swap_enabled else Level.WARNING
    path = ".".join(SCHEDULER_PATH)
    if node.value not in SCHEDULERS:
        fix = f"pipeline_scheduler: {closest_names(str(node.value), SCHEDULERS)[0]}"
        yield Problem(
            node.location, ID, level, f"{path}: {show(node)} is no schedule of MindSpore", ", ".join(SCHEDULERS), fix
        )
        return
    interleave = context.document.get(*SCHEDULER_PATH[:-1], "pipeline_interleave")
    if interleave is not None and interleave.value is False and node.value != "1f1b":
        message = f"{path}: MindSpore takes {show(node)} with pipeline_interleave: True only"
        yield Problem(node.location, ID, level, message, "1f1b", "pipeline_interleave: True")
