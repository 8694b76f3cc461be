"""Kernels of a profile -> operators of the model with their work, as far as a profile shows it."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mindswap.graph.model import Node, TensorType
from mindswap.graph.ops import COUNTED_OPS, ComputeUnit, OpClass, classify, is_kernel
from mindswap.graph.work import MASK_DTYPES, Work, count_work
from mindswap.simulator.cost.profile import Engine, ProfiledKernel
from mindswap.simulator.cost.table import MeasuredKey, Measurement, measured_key, types_of

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
