"""How much of the exchange of gradients between data parallel ranks backward does not hide. Pure."""

from collections.abc import Sequence

import numpy as np

from mindswap.simulate.program import OpKind
from mindswap.simulate.timeline import Timeline

__all__ = ["backward_by_section_ns", "exposed_exchange_ns"]


def backward_by_section_ns(timeline: Timeline, stage: int, num_sections: int) -> list[int]:
    """Compute time of backward of the last micro-batch on a stage, by section of the model."""
    program = timeline.program
    which = slice(int(program.stage_starts[stage]), int(program.stage_starts[stage + 1]))
    ops = program.ops
    layer, micro_batch = ops.layer[which], ops.micro_batch[which]
    last = np.max(micro_batch) // program.num_sequences * program.num_sequences  # pieces go back in reverse
    chosen = (ops.kind[which] == OpKind.BACKWARD) & (micro_batch == last) & (layer >= 0)
    durations = np.bincount(layer[chosen] + 1, ops.duration_ns[which][chosen], num_sections)
    return [int(duration) for duration in durations]


def exposed_exchange_ns(exchange_ns: Sequence[int], backward_ns: Sequence[int]) -> int:
    """Time behind backward until all gradients are exchanged.

    The gradients of a section go out when its backward has ended, one after the other on one network.

        backward    | layer 2 | layer 1 | layer 0 |
        exchange              | 2 2 |   | 1 1 1 1 1 | 0 0 |
                                                  |exposed|

    Args:
        exchange_ns: time of exchanging the gradients of each section, in order of forward.
        backward_ns: backward of the last micro-batch of each section.
    """
    end = -sum(backward_ns)
    for section in range(len(exchange_ns) - 1, -1, -1):
        if exchange_ns[section]:
            end = max(end, -sum(backward_ns[:section])) + exchange_ns[section]
    return max(end, 0)
