"""Tables of tensors with their lifetimes, for a virtual chunk in one micro-step, and for a stage in all micro-steps."""

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from mindswap.simulator.memory_parts import MemoryPart, live_part
from mindswap.simulator.program import NO_OP, ONE_WAY, Table

# Part of a tensor that is saved for backward, by the number of its part otherwise.
PART_IF_SAVED = np.array([live_part(part, is_saved=True) for part in MemoryPart], np.int8)

L = TypeVar("L", bound="TensorLifetimes")


class TensorLifetimes(Table):
    """Base of tables of tensors with their lifetimes."""

    @classmethod
    def filled(cls: type[L], size_bytes: np.ndarray, **columns: np.ndarray | int) -> L:
        """Build a table.

        Args:
            size_bytes: sizes, shape (num_tensors,).
            columns: arrays of that shape, or scalars for all tensors; the defaults are no use, no layer and no copies.
        """
        values: dict[str, np.ndarray | int] = {}
        for column in fields(cls):  # type: ignore[arg-type]
            values[column.name] = False if column.name.startswith("is_") else NO_OP
        values |= {"prefetch": 0, "num_copies": 0} | columns
        table = {name: np.broadcast_to(value, size_bytes.shape) for name, value in values.items()}
        return cls(**(table | {"size_bytes": size_bytes}))


@dataclass(frozen=True, eq=False)
class PassTensors(TensorLifetimes):
    """Tensors of a virtual chunk in one micro-step; all arrays have shape (num_tensors,).

    Positions are relative to forward if `is_forward` and in `last_forward`, else to backward; `NO_OP` for no use.
    """

    size_bytes: np.ndarray  # int64
    is_forward: np.ndarray  # bool, produced in forward
    begin: np.ndarray  # int64, producer
    last_forward: np.ndarray  # int64, last use in forward
    first_backward: np.ndarray  # int64, first use in backward
    last_backward: np.ndarray  # int64, last use in backward
    kind: np.ndarray  # int8, `MemoryKind` if the tensor is not saved for backward
    part: np.ndarray  # int8, `MemoryPart` if the tensor is not saved for backward
    label: np.ndarray  # int32, label number of the step
    layer: np.ndarray  # int64, layer of the model; `NO_OP` outside the layers
    prefetch: np.ndarray  # int64, `backward_prefetch` of its copies
    num_copies: np.ndarray  # int64, as `BlockTensor.num_copies`
    is_resident: np.ndarray  # bool, as `BlockTensor.is_resident`
    is_optimizer_input: np.ndarray  # bool, live until the optimizer starts
    is_live_from_later_starts: np.ndarray  # bool, live from the start of forward in every micro-batch but the first


@dataclass(frozen=True, eq=False)
class StageTensors(TensorLifetimes):
    """Tensors of a stage in all micro-steps, with absolute positions; all arrays have shape (num_tensors,)."""

    size_bytes: np.ndarray  # this field and the next ones are those of `PassTensors`
    is_forward: np.ndarray
    begin: np.ndarray
    last_forward: np.ndarray
    first_backward: np.ndarray
    last_backward: np.ndarray
    kind: np.ndarray
    part: np.ndarray
    label: np.ndarray
    layer: np.ndarray
    prefetch: np.ndarray
    num_copies: np.ndarray
    is_resident: np.ndarray
    is_optimizer_input: np.ndarray
    micro_batch: np.ndarray  # int64, micro-step that produces it

    @property
    def is_saved(self) -> np.ndarray:
        """Whether each tensor is saved for backward: bool."""
        return self.is_forward.astype(bool) & (self.first_backward != NO_OP)

    @property
    def live_part(self) -> np.ndarray:
        """Part of each tensor, the prefetched copies of it aside: int8, `MemoryPart`."""
        is_saved = self.is_saved | (self.num_copies == ONE_WAY)
        return np.where(is_saved, PART_IF_SAVED[self.part], self.part)
