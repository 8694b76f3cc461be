"""HyperParallel's planner of activation offload: longest gap between two uses first, until the budget is met.

Source:
    mindspore-ai/hyper-parallel, `auto_parallel/hyper_offload/planning/greedy.py` (GreedyResidencyPlanner) and
    `runtime/residency.py`, 2026.
"""

from dataclasses import dataclass

import numpy as np

from mindswap.policy.model import Policy
from mindswap.simulator.program import Program
from mindswap.simulator.step_model import StepModel
from other_systems.saved import SavedTensor, find_turns, saved_tensors, swap_policy

__all__ = ["longest_gap"]


@dataclass(frozen=True)
class _Gap:
    """A tensor between its last use in forward and its first in backward, in each micro-batch.

    Attributes:
        tensor: which.
        spans: (last use, first use again), positions of operators of the stage.
    """

    tensor: SavedTensor
    spans: tuple[tuple[int, int], ...]

    @property
    def order(self) -> tuple[int, int, int]:
        """Longest first, then largest, then earliest."""
        begin, end = self.spans[0]
        return begin - end, -self.tensor.size_bytes, begin


def longest_gap(num_prefetch_ops: int, model: StepModel, budget_bytes: int) -> Policy:
    """Offloads the longest gaps until no operator has more on the device than the budget.

    How it is mapped: the original records one step and plans each tensor of it; `op_swap` treats the
    micro-batches alike, so a tensor is chosen in all of them, by its gap in the first. Gaps within forward or
    within backward (eviction in the middle of a pass) cannot be written and are left out. It starts a copy in
    at the operator that needs it, with no prefetch, and frees without waiting; `backward_prefetch` is one
    number for both, at least 1. With 1 the copies in are as late as in the original, but those out are waited
    for as well; a larger number hides both, which the original cannot.

    Args:
        num_prefetch_ops: prefetch distance of every copy.
        model: the step.
        budget_bytes: device memory, what is there all the time included.
    """
    program = model.program(Policy())
    chosen: list[SavedTensor] = []
    for stage in range(program.num_stages):
        limit_bytes = budget_bytes - model.static[stage].total_bytes
        chosen += _select(_resident_bytes(program, stage), _find_gaps(model, program, stage), limit_bytes)
    return swap_policy((tensor, num_prefetch_ops) for tensor in chosen)


def _find_gaps(model: StepModel, program: Program, stage: int) -> list[_Gap]:
    gaps = []
    for layer_index, turns in find_turns(model, program, stage).items():
        for tensor in saved_tensors(model, layer_index):
            spans = [(turn.forward + tensor.last_forward, turn.backward + tensor.first_backward) for turn in turns]
            if all(begin + 1 < end for begin, end in spans):
                gaps.append(_Gap(tensor, tuple(spans)))
    return sorted(gaps, key=lambda gap: gap.order)


def _resident_bytes(program: Program, stage: int) -> np.ndarray:
    """Activations on the device while each operator of a stage runs, if all are kept: int64, shape (num_ops,)."""
    first, end = program.stage_starts[stage], program.stage_starts[stage + 1]
    is_on_stage = program.intervals.stage == stage
    change = np.zeros(end - first + 1, np.int64)
    np.add.at(change, program.intervals.begin[is_on_stage] - first, program.intervals.size_bytes[is_on_stage])
    np.subtract.at(change, program.intervals.end[is_on_stage] - first + 1, program.intervals.size_bytes[is_on_stage])
    return np.cumsum(change)[:-1]


def _select(resident_bytes: np.ndarray, gaps: list[_Gap], limit_bytes: int) -> list[SavedTensor]:
    """Gaps that cover an operator above the limit, while there is one."""
    chosen = []
    for gap in gaps:
        if resident_bytes.max(initial=0) <= limit_bytes:
            break
        if any((resident_bytes[begin + 1 : end] > limit_bytes).any() for begin, end in gap.spans):
            chosen.append(gap.tensor)
            for begin, end in gap.spans:
                resident_bytes[begin + 1 : end] -= gap.tensor.size_bytes
    return chosen
