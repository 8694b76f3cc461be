"""A lower bound of the step time within a budget, by linear relaxation of swap and recompute decisions.

The linear program allows every policy more than a simulation does: fractions of tensors may be kept, swapped or
recomputed; copies wait for the link only; recomputed operators need only their inputs. Every policy satisfies the
constraints that remain, so the optimum is a lower bound of the simulated step time:

- memory: at the peak of each stage, the bytes swapped or recomputed cover the excess over the budget. The same holds at
  other points of high memory (`liveness_points`), given what every policy holds there or has gathered ahead;
- link: bytes offloaded before the peak were copied after forward of these micro-batches began, and all copies of the
  step take place within the step;
- layers: those of `layer_relaxation`;
- compute: each stage does its work, its recompute, and the waits that exist without any policy. The first backward
  begins no earlier than without copies, less the stores that forward may avoid;
- copies of weights for backward are avoided where all operators that read them are recomputed (`weight_copies`);
- pipeline: the step is at least as long as every chain of dependent passes (`pass_chains`). Violated chains are added
  as constraints until there is none.

Source:
    Relaxations of this kind bound rematerialization in Jain et al., "Checkmate" (MLSys 2020), and together with
    paging in Patil et al., "POET" (ICML 2022). Here equal layers share their variables, which changes nothing:
    if fractions of the layers solve the program, their mean does, as each constraint counts equal layers alike.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mindswap.planner.linear import UnsolvedError
from mindswap.planner.lower_bound.inputs import BoundInputs
from mindswap.planner.lower_bound.layer_relaxation import Constraint, LayerRelaxation, LinearProgram
from mindswap.planner.lower_bound.pass_chains import Chain
from mindswap.planner.problem import Allow


def min_step_ns(bound_inputs: BoundInputs, budget_bytes: int, host_bytes: int, allow: Allow) -> int | None:
    """Return a lower bound of the step time of all policies within the budgets.

    Args:
        bound_inputs: inputs of the bound.
        budget_bytes: device memory budget, static memory included.
        host_bytes: host memory budget of one card.
        allow: means that policies may use.

    Returns:
        Lower bound of the simulated time in ns; None if no policy fits.
    """
    program, min_ns = LinearProgram(), 0  # 0 is a valid bound if no method solves the program
    times = _add_step(program, bound_inputs, program.add_variable(budget_bytes), host_bytes, allow)
    with contextlib.suppress(UnsolvedError):
        while True:
            solution = program.solve(times.step_ns)
            if solution is None:
                return None
            min_ns = _floor_to_int(solution.cost)
            if bound_inputs.passes is None:
                break
            # Add the chain that is longest with the recompute times of this solution.
            chain = bound_inputs.passes.longest_chain(solution.variables[times.recompute_ns].tolist())
            constraint, limit = _chain_constraint(bound_inputs, chain, times)
            if sum(factor * solution.variables[at] for at, factor in constraint.items()) <= limit + 1:
                break
            program.add_constraint(constraint, limit)
    return min_ns


def least_budget_bytes(bound_inputs: BoundInputs, host_bytes: int, allow: Allow) -> int:
    """Return a lower bound of the device memory of all policies; arguments as of `min_step_ns`."""
    program = LinearProgram()
    budget_bytes = program.add_variable()
    _add_step(program, bound_inputs, budget_bytes, host_bytes, allow)
    with contextlib.suppress(UnsolvedError):
        if solution := program.solve(budget_bytes):
            return _floor_to_int(solution.cost)
    return 0  # without a limit to the budget everything can be kept


def _floor_to_int(cost: float) -> int:
    """Round a value of a solution down, which is accurate to less than a unit."""
    return math.floor(round(cost, 3))


@dataclass(frozen=True)
class _StepVariables:
    """Variables of the whole step."""

    step_ns: int  # step time
    recompute_ns: list[int]  # recompute time of one micro-batch on each stage
    hidden_ns: int  # time of gradient reduction that recompute on any stage hides


def _add_step(
    program: LinearProgram, bound_inputs: BoundInputs, budget_bytes: int, host_bytes: int, allow: Allow
) -> _StepVariables:
    """Add the constraints of the whole step; the budget is a variable."""
    step_ns, recompute_ns = program.add_variable(), [program.add_variable() for _ in bound_inputs.stages]
    times = _StepVariables(step_ns, recompute_ns, _add_hidden(program, bound_inputs, recompute_ns))
    if bound_inputs.passes is not None:
        program.add_constraint(*_chain_constraint(bound_inputs, bound_inputs.passes.longest, times))
    for position in range(len(bound_inputs.stages)):
        sums = _add_stage(program, bound_inputs, position, allow)
        program.add_constraint(
            {**sums.kept_bytes, budget_bytes: -1}, sums.saved_bytes - bound_inputs.stages[position].peak_bytes
        )
        for kept_bytes, point in zip(sums.kept_bytes_at, bound_inputs.stages[position].liveness_points, strict=True):
            program.add_constraint({**kept_bytes, budget_bytes: -1}, -point.fixed_bytes)
        program.add_constraint(sums.host_bytes, host_bytes)
        waits = _add_waits(program, bound_inputs, position, sums.out_before_peak_ns)
        for link_ns in (sums.out_ns, sums.back_ns, sums.both_ns):
            program.add_constraint({**link_ns, step_ns: -1})
        program.add_constraint({**sums.recompute_ns, recompute_ns[position]: -1})
        avoided = {variable: -bound_inputs.num_micro_batches * copy_ns for variable, copy_ns in sums.avoided_ns.items()}
        _add_time(program, bound_inputs, position, step_ns, recompute_ns, waits | avoided)
    return times


def _chain_constraint(bound_inputs: BoundInputs, chain: Chain, times: _StepVariables) -> tuple[Constraint, int]:
    """Return the constraint that the step takes at least as long as a chain of passes and the step overhead."""
    constraint: Constraint = {times.step_ns: -1, times.hidden_ns: -1}
    constraint |= {at: number for at, number in zip(times.recompute_ns, chain.num_backward, strict=True) if number}
    return constraint, -chain.length_ns - bound_inputs.step_overhead_ns


def _add_hidden(program: LinearProgram, bound_inputs: BoundInputs, recompute_ns: Sequence[int]) -> int:
    """Add the variable of gradient communication hidden behind recompute on some stages."""
    hidden_ns = program.add_variable(bound_inputs.gradients_ns)
    program.add_constraint({hidden_ns: 1, **dict.fromkeys(recompute_ns, -bound_inputs.num_gradient_reductions)})
    return hidden_ns


@dataclass
class _StageSums:
    """Linear expressions of one stage: memory, host memory, copy time and recompute time."""

    # kept_bytes, host_bytes: at the memory peak
    kept_bytes: Constraint = field(default_factory=dict)
    host_bytes: Constraint = field(default_factory=dict)
    # copy time before the peak, less recompute before the peak
    out_before_peak_ns: Constraint = field(default_factory=dict)
    # copy time of the whole step: offload, prefetch, both directions together
    out_ns: Constraint = field(default_factory=dict)
    back_ns: Constraint = field(default_factory=dict)
    both_ns: Constraint = field(default_factory=dict)
    recompute_ns: Constraint = field(default_factory=dict)  # recompute time of one micro-batch
    avoided_ns: Constraint = field(default_factory=dict)  # copies of weights that forward of one micro-batch avoids
    saved_bytes: int = 0  # bytes alive at the peak if everything is kept
    # at each other liveness point: bytes kept from forward to backward
    kept_bytes_at: list[Constraint] = field(default_factory=list)


def _add_stage(program: LinearProgram, bound_inputs: BoundInputs, position: int, allow: Allow) -> _StageSums:
    """Add the variables and constraints of the layers of a stage; return its sums."""
    stage, transfers = bound_inputs.stages[position], bound_inputs.transfers
    # Both directions together reach at most twice the contended bandwidth.
    rate = max(1000, 2 * transfers.contended_permille) / 1000
    sums = _StageSums(kept_bytes_at=[{} for _ in stage.liveness_points])
    for layers, num_layers in stage.layers.items():
        tensor_graph = bound_inputs.tensor_graphs[layers.kind]
        layer = LayerRelaxation(program, tensor_graph, allow)
        num_in_flight_copies = num_layers * layers.in_flight
        num_copied = num_layers * bound_inputs.num_micro_batches
        sums.saved_bytes += num_in_flight_copies * tensor_graph.saved_bytes
        num_gathered = num_layers * (layers.in_flight - layers.num_begun) * stage.is_past_forward
        num_boundary = num_layers * layers.num_waiting
        for tensor, (size, is_kept, is_swapped, is_late) in enumerate(layer.tensors):
            out_ns, back_ns = transfers.copy_out_ns(size), transfers.copy_in_ns(size)
            is_saved_name, is_gathered = tensor in tensor_graph.boundary_inputs, tensor in tensor_graph.gathered
            # The stage may hold the output for another chunk of its own; leaving it out only lowers the bound.
            is_sent = layers.is_sent and tensor in tensor_graph.outputs
            num_here = num_boundary if is_saved_name else num_in_flight_copies
            sums.kept_bytes[is_kept] = sums.kept_bytes[is_late] = (num_gathered if is_gathered else num_here) * size
            sums.host_bytes[is_swapped] = num_here * size
            sums.out_before_peak_ns[is_swapped] = num_here * out_ns
            for copied in (is_swapped, is_late):
                sums.out_ns[copied] = num_copied * out_ns
                sums.back_ns[copied] = num_copied * back_ns
                sums.both_ns[copied] = num_copied * (out_ns + back_ns) / rate
            for kept_bytes, point in zip(sums.kept_bytes_at, stage.liveness_points, strict=True):
                if not is_sent and (point.is_past_forward or not (is_gathered or is_saved_name)):
                    kept_bytes[is_kept] = num_layers * point.waiting.get(layers, 0) * size
        sums.recompute_ns[layer.recompute_ns] = num_layers
        sums.avoided_ns |= {is_avoided: num_layers * copy_ns for is_avoided, copy_ns in layer.avoided_ns.items()}
        sums.out_before_peak_ns[layer.recompute_ns] = -layers.num_begun * num_layers
    return sums


def _add_waits(
    program: LinearProgram, bound_inputs: BoundInputs, position: int, out_before_peak_ns: Constraint
) -> Constraint:
    """Add variables of the waits for offloads before the peak of each micro-batch; return them with their number.

    If the stage alternates forward and backward of each micro-batch, or is the only one, each micro-batch may wait;
    otherwise only the first one.
    """
    stage = bound_inputs.stages[position]
    windows_ns = [stage.window_ns, *stage.later_windows_ns]
    if len(bound_inputs.stages) == 1:
        windows_ns += [stage.window_ns] * (bound_inputs.num_micro_batches - len(windows_ns))
    waits: Constraint = {}
    for window_ns, number in Counter(windows_ns).items():
        wait_ns = program.add_variable()
        program.add_constraint({**out_before_peak_ns, wait_ns: -1}, window_ns)
        waits[wait_ns] = number
    return waits


def _add_time(
    program: LinearProgram,
    bound_inputs: BoundInputs,
    position: int,
    step_ns: int,
    recompute_ns: list[int],
    waits: Constraint,
) -> None:
    """Add the time of a stage: its work in sequence, followed by backward of the stages before it."""
    stage = bound_inputs.stages[position]
    earlier = range(position)
    hidden_ns = _add_hidden(program, bound_inputs, [recompute_ns[position]])
    constraint: Constraint = {
        step_ns: -1,
        recompute_ns[position]: bound_inputs.num_micro_batches,
        hidden_ns: -1,
        **waits,
    }
    # Forward of other stages, which this one waits for, may avoid stores.
    other_layers = [
        (layers, number)
        for other_stage in bound_inputs.stages
        if other_stage is not stage
        for layers, number in other_stage.layers.items()
    ]
    saved_forward_ns = sum(
        bound_inputs.tensor_graphs[layers.kind].avoided_forward_ns * layers.in_flight * number
        for layers, number in other_layers
    )
    fixed_ns = (
        max(0, stage.idle_ns - saved_forward_ns)
        + bound_inputs.num_micro_batches * stage.work_ns
        + bound_inputs.step_overhead_ns
    )
    if stage.num_chunks == 1:
        constraint |= {recompute_ns[other_stage]: 1 for other_stage in earlier}
        fixed_ns += sum(bound_inputs.stages[other_stage].backward_ns for other_stage in earlier)
    program.add_constraint(constraint, -fixed_ns)
