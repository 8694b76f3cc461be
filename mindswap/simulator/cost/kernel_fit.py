"""Figures of kernels from measured times.

Which kernels a figure is for is not written down again: a figure is fitted to the operators whose time, by the
model, is twice as long with half of it. The fit leaves the least sum of errors without sign.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mindswap.graph.model import Node, TensorType
from mindswap.graph.ops import COUNTED_OPS, ComputeUnit, OpClass, classify, is_kernel
from mindswap.graph.work import MASK_DTYPES, Work, count_work
from mindswap.simulator.cost.hardware import FIGURES, Device, FigureKind, figure_values, with_figures
from mindswap.simulator.cost.profile import Engine, ProfiledKernel
from mindswap.simulator.cost.table import MeasuredKey, Measurement, measured_key, operator_ns, types_of

# Kernels of a profile -> operators of the model with their work, as far as a profile shows it.

# Layouts by number, and where batch and sequence are in them (FASInputLayoutMode of MindSpore): BSH, BNSD, SBH, BSND.
ATTENTION_LAYOUTS = ((0, 3, 0, 1), (2, 3, 1, 0), (1, 4, 0, 2), (3, 4, 0, 1))
CAUSAL = 2
# Pairs of a mask are counted one query after another.
MAX_SEQUENCE = 2**22


@dataclass(frozen=True)
class Sample:
    """An operator that was measured, as the model sees it."""

    measurement: Measurement  # its durations
    kind: OpClass
    node: Node
    work: Work

    @property
    def is_matrix(self) -> bool:
        return self.kind.unit is ComputeUnit.MATRIX


def can_measure(kernel: ProfiledKernel) -> bool:
    """Whether it ran on the units that its operator belongs to, and its tensors are known and laid out plainly.

    A matrix product on the vector units, or the other way round, is another kernel with the same name.
    """
    if not kernel.is_plain or kernel.inputs is None or kernel.outputs is None:
        return False
    return kernel.engine in (Engine.CORE, Engine.MATRIX if is_matrix_kernel(kernel) else Engine.VECTOR)


def is_matrix_kernel(kernel: ProfiledKernel) -> bool:
    """Whether its operator belongs on the matrix units."""
    return classify(key_of(kernel).op).unit is ComputeUnit.MATRIX


def key_of(kernel: ProfiledKernel) -> MeasuredKey:
    """Under which operator it is known."""
    return measured_key(kernel.type, kernel.inputs or (), kernel.outputs or ())


def measure(kernels: Iterable[ProfiledKernel]) -> tuple[Measurement, ...]:
    """The middle duration of each operator with the same types, the largest sum first."""
    durations: dict[MeasuredKey, list[int]] = {}
    for kernel in kernels:
        if can_measure(kernel):
            durations.setdefault(key_of(kernel), []).append(kernel.duration_ns)
    measured = [Measurement(key, round(statistics.median(times)), len(times)) for key, times in durations.items()]
    return tuple(sorted(measured, key=lambda m: (-m.duration_ns * m.count, m.key.op, m.key.inputs, m.key.outputs)))


def samples_of(measurements: Iterable[Measurement]) -> tuple[Sample, ...]:
    """Those whose work can be counted."""
    return tuple(sample for measurement in measurements if (sample := _sample(measurement)) is not None)


def _sample(measurement: Measurement) -> Sample | None:
    op, inputs, outputs = measurement.key.op, types_of(measurement.key.inputs), types_of(measurement.key.outputs)
    kind = classify(op)
    if not is_kernel(op) or kind is OpClass.COMMUNICATION or not inputs or not outputs:
        return None
    if not all(math.prod(tensor.shape) for tensor in (*inputs, *outputs)):
        return None
    if kind is OpClass.ELEMENTWISE and op not in COUNTED_OPS:
        return None
    if kind is OpClass.MATMUL and not _is_product(inputs, outputs):
        return None
    attention: tuple[int | None, ...] = ()
    if kind is OpClass.ATTENTION:
        found = _attention_integers(op, inputs, outputs)
        if found is None:
            return None
        attention = tuple(found)
    node = Node(op, op, None, "", "", (), outputs, {})
    return Sample(measurement, kind, node, count_work(op, inputs, outputs, attention))


def _is_product(inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> bool:
    """Whether the shapes of two operands and a result go together, whichever is transposed."""
    if len(inputs) < 2 or any(len(tensor.shape) < 2 for tensor in (*inputs[:2], outputs[0])):
        return False
    (*batch, rows, columns), (first, second) = outputs[0].shape, (tensor.shape for tensor in inputs[:2])
    size = math.prod(batch) * rows
    if not size or math.prod(first) % size:
        return False
    depth = math.prod(first) // size
    return sorted(second[-2:]) == sorted((depth, columns)) and sorted(first[-2:]) == sorted((rows, depth))


def _attention_integers(op: str, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> list[int] | None:
    """Tokens before, after, precision, layout and sparse mode, which kernels take as attributes.

    The statistics of softmax, shape (batch, heads, sequence, 8), tell the layout. A mask that is smaller than the
    scores is the compressed one, which is causal. One of the size of the scores is assumed to be: language models
    train so, and the kernel skips the blocks that the mask leaves empty.
    """
    statistic = next((t.shape for t in (*inputs, *outputs) if len(t.shape) == 4 and t.shape[-1] == 8), None)
    if statistic is None or len(inputs) < (4 if op.endswith("Grad") else 3):
        return None
    batch, _, sequence, _ = statistic
    if sequence > MAX_SEQUENCE:
        return None
    query = inputs[0].shape
    for layout, num_axes, batch_axis, sequence_axis in ATTENTION_LAYOUTS:
        if len(query) == num_axes and (query[batch_axis], query[sequence_axis]) == (batch, sequence):
            has_mask = any(t.dtype in MASK_DTYPES and len(t.shape) >= 2 for t in inputs)
            return [sequence, 0, 0, layout, CAUSAL] if has_mask else [sequence, sequence, 0, layout, 0]
    return None


# Figures that profiles show. The first are about the matrix units; the bandwidth of memory is fitted to vector kernels
# only. An operator counts for the first that decides its time: a kernel that computes says nothing of the memory.
MATRIX_FIGURES = ("weight_gradient_fraction", "compute_fraction", "attention_fraction", "attention_grad_fraction")
KERNEL_FIGURES = (
    *MATRIX_FIGURES,
    "norm_rate",
    "norm_grad_rate",
    "softmax_rate",
    "activation_rate",
    "activation_grad_rate",
    "cache_bandwidth",
    "memory_bandwidth_fraction",
)
MIN_KERNELS = 3
# No kernel of a real card was seen above: it is another card, or a kernel that works in the cache.
MAX_FRACTION_PERMILLE = 950
# A rate so low that it decides every time.
LOW_RATE = 10**6
# Times below, by the figure alone, are rounded too much to tell what decides them.
MIN_NS = 100
IDEAL_PERMILLE = 1000


@dataclass(frozen=True)
class FigureFit:
    """Fit of one figure to a profile."""

    name: str  # of the figure
    before: int  # of the device that was begun with, in its smallest unit
    fitted: int | None = None  # by the profile; None if it shows nothing
    num_samples: int = 0  # runs of kernels, copies or collectives
    # middle, over operators, copies or transfers, of how far times by the fit are from those measured; None without any
    residual_permille: int | None = None
    objection: str = ""  # why the figure stays as it was; empty if it is replaced

    @property
    def is_accepted(self) -> bool:
        return self.fitted is not None and not self.objection


def fit_kernels(samples: Iterable[Sample], device: Device) -> tuple[FigureFit, ...]:
    """Every figure of kernels that the device has."""
    values = figure_values(device)
    ideal = {name: _ideal(name) for name in KERNEL_FIGURES}
    left = [sample for sample in samples if sample.measurement.duration_ns >= 2 * _latency_ns(sample, device)]
    fits = []
    for name in KERNEL_FIGURES:
        mine, left = _split(left, name, device, ideal)
        fits.append(_fit(name, values[name], mine, device))
    return tuple(fits)


def _split(
    samples: Sequence[Sample], name: str, device: Device, ideal: Mapping[str, int]
) -> tuple[list[tuple[Sample, int]], list[Sample]]:
    """The samples that the figure decides with reference value x ns, and the others."""
    reference = _reference(name, device)
    whole, half = (with_figures(device, {**ideal, name: value}) for value in (reference, reference // 2))
    mine, others = [], []
    for sample in samples:
        latency = _latency_ns(sample, device)
        time, slower = (operator_ns(sample.node, sample.work, known) - latency for known in (whole, half))
        if sample.is_matrix is (name in MATRIX_FIGURES) and time >= MIN_NS and abs(slower - 2 * time) <= 2:
            mine.append((sample, time))
        else:
            others.append(sample)
    return mine, others


def _fit(name: str, before: int, samples: Sequence[tuple[Sample, int]], device: Device) -> FigureFit:
    count = sum(sample.measurement.count for sample, _ in samples)
    if not samples:
        return FigureFit(name, before, objection="no kernels of this kind")
    reference = _reference(name, device)
    times = [(sample.measurement.count, time, _net_ns(sample, device)) for sample, time in samples]
    time, net = _middle(times)
    fitted = max(1, reference * time // net)
    errors = [abs(reference * time // fitted - net) * 1000 // net for _, time, net in times]
    is_fraction = FIGURES[name].kind is FigureKind.FRACTION
    objection = ""
    if count < MIN_KERNELS:
        objection = f"too few kernels ({count}); {MIN_KERNELS} are needed"
    elif is_fraction and fitted > IDEAL_PERMILLE:
        objection = f"kernels are faster than the peak of {device.title}: is this its profile?"
    elif is_fraction and fitted > MAX_FRACTION_PERMILLE:
        objection = f"more than {MAX_FRACTION_PERMILLE / 1000:g} of a peak is not reached: is this its profile?"
    return FigureFit(name, before, fitted, count, int(statistics.median(errors)), objection)


def _middle(times: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """The operator (count, time, measured) in the middle of all time, ordered by how much slower it was measured.

    Its ratio leaves the smallest sum of errors: sum n |r time - measured| is least at the median of measured / time
    with weights n time. One operator that is much slower than the others moves it little.
    """
    ordered = sorted(times, key=lambda entry: Fraction(entry[2], entry[1]))
    half, so_far = sum(n * time for n, time, _ in times), 0
    for n, time, net in ordered:
        so_far += 2 * n * time
        if so_far >= half:
            return time, net
    raise AssertionError("unreachable: the last operator completes the sum")


def _ideal(name: str) -> int:
    """A value with which the figure decides nothing."""
    return {FigureKind.FRACTION: IDEAL_PERMILLE, FigureKind.BANDWIDTH: 10**18}.get(FIGURES[name].kind, 0)


def _reference(name: str, device: Device) -> int:
    """A value with which the figure decides the times of its kernels."""
    kind = FIGURES[name].kind
    if kind is FigureKind.FRACTION:
        return IDEAL_PERMILLE
    return device.memory_bandwidth_bytes_per_s if kind is FigureKind.BANDWIDTH else LOW_RATE


def _latency_ns(sample: Sample, device: Device) -> int:
    return device.op_latency_ns["matrix" if sample.is_matrix else "vector"]


def _net_ns(sample: Sample, device: Device) -> int:
    """Measured without the fixed cost, which is at most half of it."""
    return max(1, sample.measurement.duration_ns - _latency_ns(sample, device))
