"""Results of running a compiled step."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.executed.run import Executed

TOLERANCE = 1e-6  # of gradients between kernels that add up in another order


@dataclass(frozen=True)
class Witness:
    """MindSpore's own execution of the network, without any policy."""

    is_loss_equal: bool = False  # bit for bit
    num_equal: int = 0  # gradients that are equal bit for bit
    relative_difference: float = 0.0  # largest difference of a gradient, by its largest element
    failure: str = ""  # why there is none; then the rest means nothing

    @property
    def is_ok(self) -> bool:
        """Nothing speaks against the run."""
        return bool(self.failure) or self.relative_difference <= TOLERANCE


@dataclass(frozen=True)
class Reference:
    """The run without swap and recompute; tensors as digests of their type, shape and bytes."""

    names: tuple[str, ...]  # weights, in order of their gradients
    loss: str  # digest
    gradients: tuple[str, ...]  # digests
    peak_bytes: int  # highest of its live bytes
    witness: Witness | None = None  # MindSpore's own execution of the same; None where it was not asked


@dataclass(frozen=True)
class Execution:
    """What running the compiled step shows."""

    num_forward: int  # operators that ran
    num_backward: int
    num_gradients: int  # gradients of weights
    # names of the weights whose gradients are not equal bit for bit to those of the plain run
    different: tuple[str, ...]
    is_loss_equal: bool  # the same of the loss
    is_finite: bool  # no gradient has NaN or infinity
    misreads: tuple[str, ...]  # operators that read memory that was not theirs, in words
    num_copies: int  # copies to the host, and back
    offloaded_bytes: int  # bytes that left
    peak_bytes: int  # highest of its live bytes, by the order of the frontend; the backend's is in a dry run
    plain_peak_bytes: int  # executed without swap and recompute
    stand_ins: Mapping[str, int]  # operators without a kernel for the CPU -> how often they ran as stand-ins
    in_float32: Mapping[str, int]  # operators that ran in float32 and were rounded
    witness: Witness | None = None  # MindSpore's own execution; None where it was not asked
    num_one_way: int = 0  # copies to the host that never come back, beside `num_copies`

    @property
    def are_gradients_equal(self) -> bool:
        """All gradients and the loss, bit for bit, and nobody read what was not there."""
        return self.is_loss_equal and self.is_finite and not self.different and not self.misreads

    @property
    def is_ok(self) -> bool:
        return self.are_gradients_equal and (self.witness is None or self.witness.is_ok)


def make_reference(names: Sequence[str], plain: Executed, witness: Witness | None = None) -> Reference:
    """Reference from the run without swap and recompute."""
    if len(names) != len(plain.gradients):
        names = [f"gradient {index}" for index in range(len(plain.gradients))]
    gradients = tuple(_digest(gradient) for gradient in plain.gradients)
    return Reference(tuple(names), _digest(plain.loss), gradients, max(plain.curve_bytes, default=0), witness)


def compare_runs(run: Executed, plain: Reference) -> tuple[tuple[str, ...], bool, bool]:
    """Weights with unequal gradients, whether the loss is equal, whether all gradients are finite."""
    pairs = zip(plain.names, map(_digest, run.gradients), plain.gradients, strict=True)
    different = tuple(name for name, own, other in pairs if own != other)
    is_finite = all(np.isfinite(gradient).all() for gradient in run.gradients)
    return different, run.loss is not None and _digest(run.loss) == plain.loss, is_finite


def _digest(array: np.ndarray | None) -> str:
    """Equal for arrays that are equal bit for bit; NaN is equal to the same NaN."""
    if array is None:
        return ""
    return hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).hexdigest()


def relative_difference(own: np.ndarray, other: np.ndarray) -> float:
    """Largest difference, by the largest element."""
    scale = float(np.abs(other).max()) if other.size else 0.0
    return float(np.abs(own - other).max()) / scale if scale else float(np.abs(own).max(initial=0.0))
