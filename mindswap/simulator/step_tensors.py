"""Operator lists and tensors of a compiled step while it is read."""

from dataclasses import dataclass, field
from typing import NamedTuple

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.graph.model import Node, TensorType
from mindswap.simulator.layer_block import Consumers
from mindswap.simulator.memory_parts import TensorRole
from mindswap.simulator.program import NO_OP, OpKind


class OpList(NamedTuple):
    """An operator list: forward, backward, or the per-step part of a segment. Positions are indices in it."""

    segment: int
    is_forward: bool
    is_per_step: bool = False


class UntimedOp(NamedTuple):
    """An operator without its duration, which is computed when the block of its segment is requested."""

    node: Node
    label: Label
    kind: OpKind
    wait_op: int  # this field and the next three are those of `BlockOp`
    wait_per_step: int
    is_weight: bool
    positions: int = 1


# Indices of the fields of `Consumers`.
LAST_FORWARD, FIRST_BACKWARD, LAST_BACKWARD, FIRST_INPUT, FIRST_WEIGHT = map(
    Consumers._fields.index, ("last_forward", "first_backward", "last_backward", "first_input", "first_weight")
)
UNUSED = Consumers()[:-1]  # without `last_per_step`


@dataclass(eq=False, slots=True)
class StepTensor:
    """A tensor of the step, updated while the graph is read."""

    label: Label  # label of its producer
    type: TensorType  # shape, dtype and bytes
    op_list: OpList  # operator list of its producer
    producer_op_index: int  # position of its producer in that list
    is_recomputed: bool  # produced by a recomputed operator
    role: TensorRole
    uses: dict[int, list[int]] = field(default_factory=dict)  # segment -> fields of `Consumers` without the last
    last_per_step: int = NO_OP  # last use by an operator that runs once
    is_read: bool = False  # some operator reads it
    collective: int = NO_OP  # position of the collective on it that its readers wait for
    prefetch: list[int] = field(default_factory=list)  # `backward_prefetch` of each of its copies to the host
    has_resident_holder: bool = False  # backward saves it under a name that is not offloaded
    is_gradient: bool = False  # backward returns it
    is_one_way: bool = False  # offloaded and never prefetched
    is_live_from_start: bool = False  # live from the start of forward
    is_live_from_later_starts: bool = False  # live from the start of forward in every micro-batch but the first

    @property
    def segment(self) -> int:
        """Segment of its producer."""
        return self.op_list.segment

    def uses_in(self, segment: int) -> Consumers:
        """Return the positions at which a segment reads it."""
        last_per_step = self.last_per_step if segment == self.segment else NO_OP
        return Consumers._make((*self.uses.get(segment, UNUSED), last_per_step))

    def note_use(self, op_list: OpList, position: int, is_weight: bool) -> None:
        """Record a read by the operator at a position of an operator list."""
        self.is_read = True
        if op_list.is_per_step:
            self.last_per_step = position
            return
        uses = self.uses.get(op_list.segment)
        if uses is None:
            uses = self.uses[op_list.segment] = list(UNUSED)
        if op_list.is_forward:
            uses[LAST_FORWARD] = position
            return
        for first in (FIRST_BACKWARD, FIRST_WEIGHT if is_weight else FIRST_INPUT):  # the field of the last use follows
            if uses[first] == NO_OP:
                uses[first] = position
            uses[first + 1] = position
