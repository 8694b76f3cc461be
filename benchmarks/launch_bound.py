"""How long a published step takes if its host launches kernel after kernel: an experiment, no part of the simulator.

    python benchmarks/published.py --launch-us 15

The host needs a fixed time for each kernel of forward and backward and runs ahead of the device; a device that has done
all that was launched waits. Only steps of one pipeline stage: others have the same kernels in much longer steps. That
the device waits for launches of the optimizer is part of the simulator (`optimize_ns`).

At `jit_level: O2` the host launches the whole graph at once, so these steps stay as they are.
"""

from mindswap.features.step import Step
from mindswap.simulator.program import NO_OP, OpKind, Program
from mindswap.simulator.step_model import StepModel

__all__ = ["launch_bound_ns", "launched_end_ns"]

# Host time of a collective: `hcom_*` in api_statistic.csv of profile C (docs/device_figures.md#host-times).
COLLECTIVE_NS = 300_000


def launch_bound_ns(loaded: Step, model: StepModel, launch_us: int) -> int:
    """Return what a launch-bound host adds to forward and backward of a simulated step without swap, in ns.

    Args:
        loaded: configuration of the step.
        model: its model; nothing is added to one of several pipeline stages.
        launch_us: host time for each kernel, in us; 0 adds nothing.
    """
    if not launch_us or model.settings.pipeline.num_stages > 1 or model.settings.is_launched_at_once:
        return 0
    timeline = model.simulate(loaded.policy).timeline
    return launched_end_ns(timeline.program, 1000 * launch_us, COLLECTIVE_NS) - timeline.step_time_ns


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
