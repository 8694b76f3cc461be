"""MindSpore HyperOffload: tensors that are not used for long leave the device.

Source:
    MindSpore 2.10, `graph/_parse/compile_config.py` for the options and their defaults;
    `hierarchical_memory.cc`, the form in which the strategy was first published, for the selection.
"""

from dataclasses import dataclass

from mindswap.policy.model import Policy
from mindswap.simulator.program import Program
from mindswap.simulator.step_model import StepModel
from other_systems.saved import SavedTensor, find_turns, saved_tensors, swap_policy

__all__ = ["DistanceOptions", "hyper_offload"]


@dataclass(frozen=True)
class DistanceOptions:
    """Options of the distance strategy with their defaults.

    Attributes:
        select_distance: a tensor leaves if more operators than this lie between two of its uses.
        select_num: no more tensors than this, the first in execution order.
        prefetch_distance: operators before the next use at which the copy in starts.
        release_distance: operators behind the last use in forward at which the memory is freed.
        is_adaptive: take for these distances the time of the copies, in kernels.
        d2h_bytes_per_s, h2d_bytes_per_s: bandwidths that this assumes.
        kernel_ns: time of a kernel that this assumes.
    """

    select_distance: int = 100
    select_num: int = 100
    prefetch_distance: int = 50
    release_distance: int = 0
    is_adaptive: bool = False
    d2h_bytes_per_s: int = 20 * 10**9
    h2d_bytes_per_s: int = 55 * 10**9
    kernel_ns: int = 400_000

    def distance(self, size_bytes: int) -> int:
        """The longer of both distances, in operators: `backward_prefetch` is one number for both."""
        if not self.is_adaptive:
            return max(1, self.prefetch_distance, self.release_distance)
        slower = min(self.d2h_bytes_per_s, self.h2d_bytes_per_s)
        return max(1, -(-size_bytes * 10**9 // (slower * self.kernel_ns)))


def hyper_offload(options: DistanceOptions, model: StepModel, budget_bytes: int) -> Policy:
    """The distance strategy: it knows no budget, and offloads what lies unused for more than 100 operators.

    How it is mapped: HyperOffload decides for each tensor of the whole graph and can offload between any two
    uses. `op_swap` offloads between the last use in forward and the first in backward, for all micro-batches
    alike, so the first micro-batch decides, and `select_num` counts tensors of one micro-batch on each pipeline
    stage. Tensors outside the layers have no name and stay. HyperOffload frees right after the last use in
    forward (release distance 0), which stalls until the copy has ended; `backward_prefetch` frees three times as
    many operators later as it prefetches earlier, so the longer distance is taken for both. Adaptive distances are of
    its second strategy, which offloads around the peak; how that scores tensors is not published, so they are
    tried with this one.
    """
    program = model.program(Policy())
    chosen: list[SavedTensor] = []
    for stage in range(program.num_stages):
        chosen += _select(options, model, program, stage)
    return swap_policy((tensor, options.distance(tensor.size_bytes)) for tensor in chosen)


def _select(options: DistanceOptions, model: StepModel, program: Program, stage: int) -> list[SavedTensor]:
    """Tensors of one stage, in execution order."""
    selected = []
    for layer_index, turns in sorted(find_turns(model, program, stage).items(), key=lambda item: item[1][0].forward):
        for tensor in saved_tensors(model, layer_index):
            unused = turns[0].backward + tensor.first_backward - turns[0].forward - tensor.last_forward
            if unused > options.select_distance:
                selected.append(tensor)
    return selected[: options.select_num]
