"""The step of a configuration run under its policy, and held against the plain one and MindSpore's own."""

from collections.abc import Mapping

import numpy as np

from mindswap.adapters.quiet import quiet
from mindswap.policy.model import Policy
from mindswap.rules.checker import load_policy
from tests.executed.compare import Execution, Witness, compare_runs, make_reference, relative_difference
from tests.executed.kernels import CpuKernels, Runnable, compile_runnable, eager, make_values, run_by_mindspore
from tests.executed.load_code import Instruction, StepCode
from tests.executed.run import Executed, run_step
from tests.executed.timetable import StepTimetable, make_timetable

PLAIN = Policy(is_swap_enabled=True)


def execute_config(path: str) -> Execution:
    """Run the step of a configuration on CPU; with MindSpore's own run of it where it trains there."""
    with quiet():
        plain, values, run, _, _ = _run(path, PLAIN)
        witness = _ask_mindspore(path, plain, values, run)
        reference = make_reference([parameter for parameter, _ in plain.code.weights.values()], run, witness)
        swapped, _, run, timetable, kernels = _run(path, load_policy(path))
    different, is_loss_equal, is_finite = compare_runs(run, reference)
    return Execution(
        num_forward=timetable.num_forward,
        num_backward=len(timetable.operators) - timetable.num_forward,
        num_gradients=len(run.gradients),
        different=different,
        is_loss_equal=is_loss_equal,
        is_finite=is_finite,
        misreads=tuple(f"{each.position} {each.reader.name} reads {each.buffer}" for each in run.misreads),
        num_copies=sum(len(at) for at in timetable.fetches),
        offloaded_bytes=run.offloaded_bytes,
        peak_bytes=max(run.curve_bytes, default=0),
        plain_peak_bytes=reference.peak_bytes,
        stand_ins=dict(kernels.stand_ins),
        in_float32=dict(kernels.in_float32),
        witness=witness,
        num_one_way=len(swapped.graph.index.one_way_copies),
    )


def _run(path: str, policy: Policy) -> tuple[Runnable, Mapping[str, np.ndarray], Executed, StepTimetable, CpuKernels]:
    compiled = compile_runnable(path, policy)
    values, timetable = make_values(compiled), make_timetable(compiled.graph, result_names(compiled.code))
    kernels = CpuKernels()
    with eager():
        run = run_step(compiled.graph, compiled.code, timetable, values, kernels)
    return compiled, values, run, timetable, kernels


def result_names(code: StepCode) -> tuple[str, ...]:
    """Values that backward returns: gradients of the weights, and what it gives for its other parameters."""
    for entry in code.backward.instructions:
        if isinstance(entry, Instruction) and entry.name == code.backward.output and entry.op == "MakeTuple":
            return entry.inputs
    return (code.backward.output,)


def _ask_mindspore(path: str, plain: Runnable, values: Mapping[str, np.ndarray], reference: Executed) -> Witness:
    try:
        loss, gradients = run_by_mindspore(path, plain, values)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip(" -\t")), type(error).__name__)
        return Witness(failure=reason)
    pairs = list(zip(reference.gradients, gradients, strict=True))
    return Witness(
        is_loss_equal=reference.loss is not None and reference.loss.tobytes() == loss.tobytes(),
        num_equal=sum(own.tobytes() == other.tobytes() for own, other in pairs),
        relative_difference=max((relative_difference(own, other) for own, other in pairs), default=0.0),
    )
