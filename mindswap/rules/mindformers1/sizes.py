"""Rule for numbers that decide how much is built of a configuration."""

from collections.abc import Iterator

from mindswap.config.findings import Finding, rule
from mindswap.config.limits import GRAPH_LIMITS, find_excess
from mindswap.config.problem import Level
from mindswap.rules.context import Context


@rule(Level.ERROR)
def too_large(context: Context) -> Iterator[Finding]:
    """A number of layers, stages, micro-batches, cards, experts or tokens is beyond any model and machine.

    The network, the step and its data are built in this size, so such a number is refused before.

    PASS: parallel_config: {micro_batch_num: 64}
    FAIL: parallel_config: {micro_batch_num: 64000000000}
    """
    yield from find_excess(context.document, GRAPH_LIMITS)
