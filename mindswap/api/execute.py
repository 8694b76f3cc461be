"""`mindswap verify --execute`: run the compiled step, and hold it against the plain one and the simulator."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mindswap.adapters.quiet import quiet
from mindswap.api.cache import POLICY_SECTIONS, asks_for_stand_ins, cached_result
from mindswap.api.step import load_step
from mindswap.check.doctor.software import require_mindformers
from mindswap.config.nodes import Document
from mindswap.graph.execute.compare import (
    Execution,
    Reference,
    Witness,
    compare_runs,
    make_reference,
    relative_difference,
)
from mindswap.graph.execute.run import Executed, run_step
from mindswap.graph.execute.small_copy import small_copy
from mindswap.graph.execute.timetable import StepTimetable, make_timetable
from mindswap.graph.load_code import Instruction, StepCode
from mindswap.policy.model import Policy
from mindswap.simulator.memory import simulate_instant

if TYPE_CHECKING:
    from mindswap.adapters.execute import Runnable


def execute_config(config_path: str, document: Document, policy: Policy, use_cache: bool = True) -> Execution:
    """Run the step of a configuration under a policy on CPU.

    Args:
        config_path: MindFormers YAML.
        document: the same, read.
        policy: in layer indices; recompute counts also where swap is off.
        use_cache: False captures the step for the simulator again, and runs it without a policy again.

    Raises:
        GraphError: if the network cannot be compiled, or an operator cannot be run.
        SimulationError: if the simulator does not know such a policy.
    """
    require_mindformers()
    acting = replace(policy, is_swap_enabled=True)
    with _runnable_config(config_path, document) as (path, notes):
        model = load_step(path, use_cache=use_cache).model
        simulated = simulate_instant(model.blocks(acting))
        alignment_bytes = model.costs.device.pool_alignment_bytes
        reference = _reference(path, document, alignment_bytes, use_cache)
        with quiet():
            from mindswap.adapters.execute import CpuKernels, compile_runnable, eager, make_values

            swapped = compile_runnable(path, acting)
            keys = tuple(zip(simulated.ops, simulated.is_again, strict=True))[simulated.num_forward :]
            timetable = make_timetable(swapped.graph, result_names(swapped.code), keys)
            kernels = CpuKernels()
            with eager():
                values = make_values(swapped)
                run = run_step(swapped.graph, swapped.code, timetable, values, kernels, alignment_bytes)
    different, is_loss_equal, is_finite = compare_runs(run, reference)
    return Execution(
        num_forward=timetable.num_forward,
        num_backward=len(timetable.operators) - timetable.num_forward,
        num_gradients=len(run.gradients),
        different=different,
        is_loss_equal=is_loss_equal,
        is_finite=is_finite,
        misreads=tuple(_describe_misreads(run, timetable)),
        num_copies=sum(len(at) for at in timetable.fetches),
        offloaded_bytes=run.offloaded_bytes,
        peak_bytes=max(run.curve_bytes, default=0),
        plain_peak_bytes=reference.peak_bytes,
        stand_ins=dict(kernels.stand_ins),
        in_float32=dict(kernels.in_float32),
        num_repeats=timetable.num_repeats,
        num_moved=timetable.num_moved,
        notes=notes,
        witness=reference.witness,
        num_one_way=len(swapped.graph.index.one_way_copies),
    )


def _reference(path: str, document: Document, alignment_bytes: int, use_cache: bool) -> Reference:
    """The run without swap and recompute, and MindSpore's own; the same for all policies of a network."""

    def make() -> Reference:
        with quiet():
            from mindswap.adapters.execute import CpuKernels, compile_runnable, eager, make_values

            plain = compile_runnable(path, Policy(is_swap_enabled=True))
            values, timetable = make_values(plain), make_timetable(plain.graph, result_names(plain.code))
            with eager():
                run = run_step(plain.graph, plain.code, timetable, values, CpuKernels(), alignment_bytes)
            witness = _ask_mindspore(path, plain, values, run) if asks_for_stand_ins(document) else None
        return make_reference([parameter for parameter, _ in plain.code.weights.values()], run, witness)

    return cached_result(
        document,
        Policy(),
        (Reference, Witness),
        make,
        use_cache,
        without=POLICY_SECTIONS,
        ask="reference",
        alignment_bytes=alignment_bytes,
        runs_on_cpu=asks_for_stand_ins(document),
    )


@contextmanager
def _runnable_config(config_path: str, document: Document) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A configuration that can be run here, and what was changed in it."""
    small, notes = small_copy(document.data())
    if small is None:
        yield str(Path(config_path).resolve()), ()
        return
    from mindswap.adapters.config_file import write_config

    with tempfile.TemporaryDirectory(prefix="mindswap-") as folder:
        yield str(write_config(small, Path(folder) / Path(config_path).name)), notes


def result_names(code: StepCode) -> tuple[str, ...]:
    """Values that backward returns: gradients of the weights, and what it gives for its other parameters."""
    for entry in code.backward.instructions:
        if isinstance(entry, Instruction) and entry.name == code.backward.output and entry.op == "MakeTuple":
            return entry.inputs
    return (code.backward.output,)


def _ask_mindspore(path: str, plain: "Runnable", values: Mapping[str, np.ndarray], reference: Executed) -> Witness:
    from mindswap.adapters.execute import run_by_mindspore

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


def _describe_misreads(run: Executed, timetable: StepTimetable) -> Iterator[str]:
    makers = {buffer: op.node for op in timetable.operators for buffer in op.makes if buffer is not None}
    for misread in run.misreads[:5]:
        maker = makers.get(misread.buffer)
        of_what = f"what {maker.cell_path} {maker.op} made" if maker is not None else "a copy"
        when = "after it was given back" if misread.was_taken else "before it was back"
        reader = misread.reader
        yield f"operator {misread.position} ({reader.cell_path} {reader.op}) reads {of_what} {when}"
    if len(run.misreads) > 5:
        yield f"... and {len(run.misreads) - 5} more"
