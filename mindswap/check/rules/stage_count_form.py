"""A recompute option counts layers per pipeline stage, but with swap on it takes layer indices.

With swap off, `recompute: [2, 1]` means 2 layers of stage 0 and 1 of stage 1. With swap on it would
mean layers 2 and 1. Lists that cannot be indices are refused: lists of lists, lists with a bool, and
one number per stage (of several) of which one is no layer or stands twice.

PASS (swap on):
    recompute_config:
      recompute: [0, 1, 4]

FAIL (swap on; two lists of stages):
    recompute_config:
      recompute: [[2, 1], [1, 0]]
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.policy.words import last_key
from mindswap.stage.counts import layers_of_stage_counts

ID = "stage-count-form"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every list of stage counts, with the indices it stands for."""
    settings = context.settings
    for counts in settings.stage_counts:
        layers = layers_of_stage_counts(counts.node, settings.pipeline, settings.num_layers)
        if layers is None:
            fix = "write the indices of the layers, counted from 0 over all stages"
        else:
            fix = f"{last_key(counts.path)}: {list(layers) if layers else False}"
        message = f"{counts.path}: {show(counts.node)} counts layers per pipeline stage, but swap is on"
        yield Problem(counts.node.location, ID, LEVEL, message, "True, False, or a list of layer indices", fix)
