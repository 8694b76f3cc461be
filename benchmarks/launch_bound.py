"""How long a published step takes if its host launches kernel after kernel: an experiment, no part of the simulator.

    python benchmarks/published.py --launch-us 15

The host needs a fixed time for each kernel and runs ahead of the device; a device that has done all that was launched
waits. Once in a step the host waits for the device: `if not overflow:` of MindFormers' wrapper cells reads a flag of
the device before the optimizer. Only steps of one pipeline stage: others have the same kernels in much longer steps.

At `jit_level: O2` the host launches the whole graph at once, so these steps stay as they are.
"""

from collections.abc import Iterable

from mindswap.features.step import Step
from mindswap.simulator.cost.step_terms import optimize_ns
from mindswap.simulator.program import NO_OP, OpKind, Program
from mindswap.simulator.step_model import StepModel

__all__ = ["launch_bound_ns", "launched_end_ns", "optimizer_wait_ns"]

# Kernels of AdamW for each weight, in the order of execution of dry runs (docs/internals/notes.md#launches-of-a-step).
NUM_ADAMW_KERNELS = {"O0": 19, "O1": 10}
# Host time of a collective: `hcom_*` in api_statistic.csv of profile C (docs/device_figures.md#host-times).
COLLECTIVE_NS = 300_000


def launch_bound_ns(loaded: Step, model: StepModel, launch_us: int) -> int:
    """Return what a launch-bound host adds to a simulated step without swap, in ns.

    Args:
        loaded: configuration of the step.
        model: its model; nothing is added to one of several pipeline stages.
        launch_us: host time for each kernel, in us; 0 adds nothing.
    """
    level = str(loaded.document.value("context", "jit_config", "jit_level"))
    if not launch_us or model.settings.pipeline.num_stages > 1 or level not in NUM_ADAMW_KERNELS:
        return 0
    timeline, launch_ns = model.simulate(loaded.policy).timeline, 1000 * launch_us
    added_ns = launched_end_ns(timeline.program, launch_ns, COLLECTIVE_NS) - timeline.step_time_ns
    weights = [weight for weight in model.weights.parameters[0] if weight.is_trained]
    updates_ns = [optimize_ns([weight], model.settings, model.costs.device) for weight in weights]
    return added_ns + optimizer_wait_ns(updates_ns, NUM_ADAMW_KERNELS[level] * launch_ns)


def launched_end_ns(program: Program, launch_ns: int, collective_ns: int) -> int:
    """Return the end of the last operator if each starts no earlier than it was launched, in ns.

    Args:
        program: operators of one stage; copies are ignored.
        launch_ns: host time of a compute operator; an operator without duration has no kernel.
        collective_ns: host time of an operator outside the compute stream.
    """
    ops = program.ops
    free_ns: dict[OpKind | None, int] = {}  # end of the last operator of each stream
    end_ns, host_ns = [0] * len(ops), 0
    columns = zip(ops.duration_ns.tolist(), ops.kind.tolist(), ops.wait_op.tolist(), strict=True)
    for position, (duration_ns, number, wait_op) in enumerate(columns):
        kind = OpKind(number)
        stream = None if not kind.is_communication else max(kind, OpKind.SEND)
        host_ns += collective_ns if kind.is_communication else launch_ns if duration_ns else 0
        start_ns = max(free_ns.get(stream, 0), host_ns, 0 if wait_op == NO_OP else end_ns[wait_op])
        free_ns[stream] = end_ns[position] = start_ns + duration_ns
    return max(end_ns, default=0)


def optimizer_wait_ns(updates_ns: Iterable[int], launch_ns: int) -> int:
    """Return how long the device waits for launches of the optimizer, which begins with an empty queue, in ns.

    Args:
        updates_ns: device time of the update of each weight.
        launch_ns: host time of one update.
    """
    end_ns = host_ns = work_ns = 0
    for update_ns in updates_ns:
        host_ns += launch_ns
        end_ns = max(end_ns + update_ns, host_ns)
        work_ns += update_ns
    return end_ns - work_ns
