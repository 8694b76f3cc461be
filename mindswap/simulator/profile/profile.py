"""Profile of a real machine as plain data: kernels, copies, collectives, steps, and durations of operators."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mindswap.graph.model import TensorType
from mindswap.graph.ops import ComputeUnit, classify
from mindswap.simulator.cost.cost_table import MeasuredKey, Measurement, measured_key

MATRIX, VECTOR, NETWORK = (ComputeUnit.MATRIX,), (ComputeUnit.VECTOR,), (ComputeUnit.NETWORK,)
# Names in `Accelerator Core` (`Task Type` in op_summary). Profiles of 2023 call every kernel of an AI core AI_CORE,
# whichever units it uses. MIX_AIC and MIX_AIV use both and are called by the one that leads. All other names, such
# as AI_CPU (CPU cores of the device) and DSA_SQE (random numbers), run nothing that a figure describes.
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
    core: str = "AI_CORE"  # type of core, as the profile names it
    is_plain: bool = True  # all tensors have plain layouts; formats such as FRACTAL_NZ are tiled and padded
    num_blocks: int = 0  # blocks of the launch, one for each core; 0 if the profile has no such column

    @property
    def units(self) -> tuple[ComputeUnit, ...]:
        """Units that may have run it."""
        return NETWORK if self.type.lower().startswith("hcom") else UNITS.get(self.core, ())


@dataclass(frozen=True, slots=True)
class ProfiledCopy:
    """One copy between device and host; ranks have different clocks, so `rank` tells them apart."""

    start_ns: int
    duration_ns: int
    size_bytes: int
    is_out: bool
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes that one collective transferred over one kind of link."""

    op: str  # its name in the profile, such as `hcom_allReduce__271_0_1`
    link: str  # HCCS, RDMA, PCIE, SIO
    size_bytes: int  # sum over all links of this kind
    link_ns: int  # sum of the times of all links of this kind; links work in parallel
    elapsed_ns: int  # from start to end on this rank, including waits for other ranks


@dataclass(frozen=True, slots=True)
class Share:
    """One step as in step_trace_time.csv, in ns; the three parts add up to the step."""

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

    folder: str  # folder of the files
    kernels: tuple[ProfiledKernel, ...]  # all runs of kernels
    # copies between device and host with known size, by start time for each rank
    copies: tuple[ProfiledCopy, ...]
    steps: tuple[Share, ...]  # all steps of all ranks
    peak_memory_bytes: int | None  # peak use of the memory pool; None if memory was not profiled
    notes: tuple[str, ...]  # missing data, and its effect
    transfers: tuple[Transfer, ...] = ()  # transfers of collectives
    num_ranks: int = 1  # number of ranks
    num_unsized_copies: int = 0  # copies without a size: only profiler level Level2 records it
    level: str = ""  # profiler level as the profiler wrote it; empty if it did not


# Durations of operators from kernels.


def can_measure(kernel: ProfiledKernel) -> bool:
    """Return whether a kernel can be matched to an operator.

    It ran on the units of its operator, and its tensors are known and have plain layouts. A matrix product on the
    vector units, or the reverse, is a different kernel with the same name.
    """
    if not kernel.is_plain or kernel.inputs is None or kernel.outputs is None:
        return False
    return (ComputeUnit.MATRIX if is_matrix_kernel(kernel) else ComputeUnit.VECTOR) in kernel.units


def is_matrix_kernel(kernel: ProfiledKernel) -> bool:
    """Return whether its operator runs on the matrix units."""
    return classify(_key_of(kernel).op).unit is ComputeUnit.MATRIX


def _key_of(kernel: ProfiledKernel) -> MeasuredKey:
    return measured_key(kernel.type, kernel.inputs or (), kernel.outputs or ())


def measure(kernels: Iterable[ProfiledKernel]) -> tuple[Measurement, ...]:
    """Compute the median duration of each operator with equal types, in descending order of total time."""
    durations: dict[MeasuredKey, list[int]] = {}
    for kernel in kernels:
        if can_measure(kernel):
            durations.setdefault(_key_of(kernel), []).append(kernel.duration_ns)
    measured = [Measurement(key, round(statistics.median(times)), len(times)) for key, times in durations.items()]
    return tuple(sorted(measured, key=lambda m: (-m.duration_ns * m.count, m.key.op, m.key.inputs, m.key.outputs)))
