"""Swap is enabled with pipeline stages: MindFormers 2.x refuses that.

PASS:
    parallelism: {pipeline_parallel: 1}
    swap: {enable: True, layer_swap: [{layers: [0]}]}

FAIL:
    parallelism: {pipeline_parallel: 2}
    swap: {enable: True, layer_swap: [{layers: [0]}]}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-pipeline"
LEVEL = Level.ERROR

PATH = ("parallelism", "pipeline_parallel")


def check(context: Context) -> Iterator[Problem]:
    """The number of stages."""
    node = context.document.get("parallelism", "pipeline_parallel")
    if context.settings.is_swap_enabled and node is not None and context.document.count(*PATH) > 1:
        message = f"parallelism.pipeline_parallel: {node.value} stages, but swap works without stages only"
        fix = "pipeline_parallel: 1, or swap.enable: False and recompute instead"
        yield Problem(node.location, ID, LEVEL, message, "1 with swap", fix)
