"""Host memory that swapped activations take."""

from collections.abc import Sequence

import numpy as np

from mindswap.simulator.timeline import Timeline


def peak_host_bytes(timeline: Timeline, copies: np.ndarray) -> int:
    """Most host memory at a time: it is taken when a copy out starts and free when the tensor is back.

    assumed: what never comes back is free with its device memory; no operator has it on the host.

    Args:
        copies: which copies count: positions, or a mask of shape (num_copies,).
    """
    size_bytes, in_ns = timeline.program.copies.size_bytes[copies], timeline.program.copies.in_ns[copies]
    free_ns = np.where(in_ns > 0, timeline.in_end_ns[copies], timeline.release_ns[copies])
    times = np.concatenate([timeline.out_start_ns[copies], free_ns])
    changes = np.concatenate([size_bytes, -size_bytes])
    in_order = np.lexsort((changes, times))  # what is freed at a moment may be taken again at once
    return int(np.cumsum(changes[in_order]).max(initial=0))


def host_bytes_per_node(stage_host_bytes: Sequence[int], num_cards: int, num_cards_per_node: int) -> int:
    """Most pinned host memory of any node, when ranks are given out stage by stage, as MindSpore does.

    Pinned memory is not given back between uses, so peaks (of one card, per stage) add up.
    """
    cards_per_stage = max(1, num_cards // len(stage_host_bytes))
    per_card = [size_bytes for size_bytes in stage_host_bytes for _ in range(cards_per_stage)]
    nodes = (per_card[first : first + num_cards_per_node] for first in range(0, len(per_card), num_cards_per_node))
    return max(map(sum, nodes), default=0)
