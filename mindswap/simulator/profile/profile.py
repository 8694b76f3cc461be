"""Profile of a real machine: kernels, copies, collectives and steps as plain data, and durations of operators."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mindswap.graph.model import TensorType
from mindswap.graph.ops import ComputeUnit, classify
from mindswap.simulator.cost.cost_table import MeasuredKey, Measurement, measured_key

MATRIX, VECTOR, NETWORK = (ComputeUnit.MATRIX,), (ComputeUnit.VECTOR,), (ComputeUnit.NETWORK,)
# Names in `Accelerator Core` (`Task Type` in op_summary). Profiles of 2023 call every kernel of an AI core AI_CORE,
# whichever units it uses. MIX_AIC and MIX_AIV use both and are called by the one that leads. All other names, such
# as AI_CPU (the processors beside the cores) and DSA_SQE (random numbers), run nothing that a figure describes.
UNITS: Mapping[str, tuple[ComputeUnit, ...]] = {
    "AI_CORE": MATRIX + VECTOR, "AIC": MATRIX, "MIX_AIC": MATRIX, "AI_VECTOR_CORE": VECTOR, "AIV": VECTOR,
    "MIX_AIV": VECTOR, "HCCL": NETWORK, "COMMUNICATION": NETWORK,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProfiledKernel:
    """One run of a kernel."""

    type: str  # kernel of CANN, e.g. `MatMulV2`
    duration_ns: int  # on the device
    inputs: tuple[TensorType, ...] | None  # None where the profile has none that can be read
    outputs: tuple[TensorType, ...] | None
    core: str = "AI_CORE"  # what ran it, as the profile calls it
    is_plain: bool = True  # every tensor is laid out as its shape says; formats such as FRACTAL_NZ split and pad it
    num_blocks: int = 0  # parts that it was split into, one for each core; 0 where the profile does not say

    @property
    def units(self) -> tuple[ComputeUnit, ...]:
        """Units that may have run it."""
        return NETWORK if self.type.lower().startswith("hcom") else UNITS.get(self.core, ())


@dataclass(frozen=True, slots=True)
class ProfiledCopy:
    """One copy between device and host; `rank` tells apart clocks of different ranks."""

    start_ns: int
    duration_ns: int
    size_bytes: int
    is_out: bool
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes that one collective sent over one kind of link."""

    op: str  # its name in the profile, such as `hcom_allReduce__271_0_1`
    link: str  # HCCS, RDMA, PCIE, SIO
    size_bytes: int  # sum over all links of this kind
    link_ns: int  # sum of the times of all links of this kind; links work side by side
    elapsed_ns: int  # from its start to its end on this rank, waiting for other ranks included


@dataclass(frozen=True, slots=True)
class Share:
    """One step in the words of step_trace_time.csv, in ns: the three parts add up to the step."""

    computing_ns: int
    exposed_communication_ns: int
    free_ns: int

    @property
    def total_ns(self) -> int:
        """Return the time of the step."""
        return self.computing_ns + self.exposed_communication_ns + self.free_ns


@dataclass(frozen=True)
class Profile:
    """Profiles of one or more ranks of the same kind of card."""

    folder: str  # where they were read
    kernels: tuple[ProfiledKernel, ...]  # every run of a kernel
    # copies between device and host whose size is known, in order of start for each rank
    copies: tuple[ProfiledCopy, ...]
    steps: tuple[Share, ...]  # each step of each rank
    peak_memory_bytes: int | None  # highest use of the memory pool; None if memory was not profiled
    notes: tuple[str, ...]  # what is missing, and what it would be good for
    transfers: tuple[Transfer, ...] = ()  # what collectives sent
    num_ranks: int = 1  # how many
    num_unsized_copies: int = 0  # copies of the trace without a size: profiler levels below Level2 leave it out
    level: str = ""  # profiler level as the profiler wrote it; empty if it did not


# Kernels -> durations of operators.


def can_measure(kernel: ProfiledKernel) -> bool:
    """It ran on the units that its operator belongs to, and its tensors are known and laid out plainly.

    A matrix product on the vector units, or the other way round, is another kernel with the same name.
    """
    if not kernel.is_plain or kernel.inputs is None or kernel.outputs is None:
        return False
    return (ComputeUnit.MATRIX if is_matrix_kernel(kernel) else ComputeUnit.VECTOR) in kernel.units


def is_matrix_kernel(kernel: ProfiledKernel) -> bool:
    """Its operator belongs on the matrix units."""
    return classify(_key_of(kernel).op).unit is ComputeUnit.MATRIX


def _key_of(kernel: ProfiledKernel) -> MeasuredKey:
    return measured_key(kernel.type, kernel.inputs or (), kernel.outputs or ())


def measure(kernels: Iterable[ProfiledKernel]) -> tuple[Measurement, ...]:
    """The median duration of each operator with the same types, the largest sum first."""
    durations: dict[MeasuredKey, list[int]] = {}
    for kernel in kernels:
        if can_measure(kernel):
            durations.setdefault(_key_of(kernel), []).append(kernel.duration_ns)
    measured = [Measurement(key, round(statistics.median(times)), len(times)) for key, times in durations.items()]
    return tuple(sorted(measured, key=lambda m: (-m.duration_ns * m.count, m.key.op, m.key.inputs, m.key.outputs)))
