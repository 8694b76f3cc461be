"""Parts of the memory of a dry run: the role of each block in the step, from the names and the reads of operators.

Operators that a pass of the backend fuses or inserts have no cells in their names. Their pass, segment and origin
follow from what they read and from who reads them.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mindswap.simulator.memory_parts import MemoryPart, Origin, Phase, TensorRole, live_part

if TYPE_CHECKING:
    from mindswap.features.dryrun.memory_pool import PoolBlock

# Block types of `memory_block.csv`.
WEIGHT, CONSTANT = "Weight", "ConstantValue"
# Prefixes of parameter names; all other parameters are weights of the model.
PARAMETERS = {
    MemoryPart.ACCUMULATED_GRADIENTS: ("accu_grads.",),
    MemoryPart.OPTIMIZER_STATES: ("adam_m.", "adam_v.", "moment1.", "moment2.", "moments.", "exp_avg", "max_exp_avg"),
    MemoryPart.MASTER_WEIGHTS: ("fp32_weight", "master_weight", "pma_weight"),
}
GRADIENTS, RECOMPUTED, OPTIMIZER = "Gradients/", "recompute_", "/optimizer-"
LAYER = re.compile(r"/(?:layers-\w+|\w*[lL]ayers-CellList)/(\d+)-\w+/(.*)")
_NUMBER = re.compile(r"-op\d+(?:_\d+)?$")
COMMUNICATION = ("AllGather", "AllReduce", "ReduceScatter", "AllToAll", "AlltoAll", "Send", "Receive", "MirrorOperator")
# Fused kernels that only pass a gradient on are named for their operators: `GraphKernel_Cast_fusion`.
_PASSING = re.compile(r"^(?:GraphKernel_)?(?:Cast|TensorMove|Reshape|Transpose|AddN|split|fusion|_)*$")
# Scalars such as the loss scale are read by operators of all phases.
MAX_SCALAR_BYTES = 4096


@dataclass(eq=False)
class _Operator:
    """An operator that is launched, with the positions of the blocks that it reads and allocates."""

    name: str
    reads: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    phase: Phase = Phase.FORWARD
    is_of_gradient: bool = False  # it depends on the gradient of the loss
    follows_gradient: bool = False  # the operator with cells before it depends on it
    reaches_loss: bool = False  # the loss depends on it, or the tensor that is sent to the next stage
    is_after_layers: bool = False
    role: TensorRole = field(default_factory=lambda: TensorRole(Phase.FORWARD))

    @property
    def type(self) -> str:
        """Type of the operator: `MatMul` of `Default/.../MatMul-op3`."""
        return operator_type(self.name)

    @property
    def has_cells(self) -> bool:
        """Return whether the name has the cells of the network, so that pass and segment are known."""
        return "/" in _cell(self.name)

    @property
    def is_inside(self) -> bool:
        """Return whether the operator belongs to a layer."""
        return LAYER.search(self.name) is not None

    @property
    def ends_forward(self) -> bool:
        """Return whether the operator is one of forward outside the layers, or sends a tensor to the next stage."""
        is_plain = self.has_cells and not self.name.startswith((GRADIENTS, RECOMPUTED)) and OPTIMIZER not in self.name
        return (is_plain and not self.is_inside) or self.type.startswith("Send")

    @property
    def is_communication(self) -> bool:
        """Return whether the operator is a collective or a transfer."""
        return any(name in self.type for name in COMMUNICATION)


def operator_type(name: str) -> str:
    """Return the type of an operator by its name: `MatMul` of `Default/.../MatMul-op3`."""
    return _NUMBER.sub("", name.rpartition("/")[2])


def find_parts(blocks: Sequence["PoolBlock"], operators: Mapping[int, str]) -> tuple[MemoryPart, ...]:
    """Return the part of each block.

    Args:
        blocks: blocks of the pool.
        operators: tick -> name of the operator that is launched.
    """
    return _PartFinder(blocks, operators).find()


class _PartFinder:
    def __init__(self, blocks: Sequence["PoolBlock"], operators: Mapping[int, str]):
        self.blocks = blocks
        self.ticks = sorted(operators)
        self.operators = {tick: _Operator(operators[tick]) for tick in self.ticks}
        self.parts = [self._parameter_part(block) for block in blocks]
        self.roles: list[TensorRole | None] = [None] * len(blocks)
        self._connect()

    def find(self) -> tuple[MemoryPart, ...]:
        """Find roles in order of launch, mark gradients from the last operator back, and assign parts."""
        self._follow_gradients()
        self._assign_phases()
        self._find_head()
        for operator in self.operators.values():
            operator.role = self._role(operator)
            for block in operator.outputs:
                self.roles[block] = operator.role
        self._mark_gradients()
        return tuple(self._part(position) for position in range(len(self.blocks)))

    @staticmethod
    def _parameter_part(block: "PoolBlock") -> MemoryPart | None:
        if block.kind == CONSTANT:
            return MemoryPart.CONSTANTS
        if block.kind != WEIGHT:
            return None
        parts = (part for part, prefixes in PARAMETERS.items() if block.name.startswith(prefixes))
        return next(parts, MemoryPart.WEIGHTS)

    def _connect(self) -> None:
        """Connect operators with the blocks that they read and allocate."""
        launches: dict[str, list[int]] = {}
        for tick, operator in self.operators.items():
            launches.setdefault(operator.name, []).append(tick)
        for position, block in enumerate(self.blocks):
            for tick in block.uses:
                if tick in self.operators:
                    self.operators[tick].reads.append(position)
            if self.parts[position] is None and block.name in launches:
                self.operators[_nearest(launches[block.name], block.start)].outputs.append(position)

    def _follow_gradients(self) -> None:
        """Mark operators that depend on the gradient of the loss, and those that the loss depends on.

        Names do not tell these passes apart for fused operators, nor for cells under recompute, of which the operators
        of both passes have the same prefix.
        """
        is_of_gradient: set[int] = set()
        follows_gradient = False
        for operator in self.operators.values():
            operator.follows_gradient = follows_gradient
            reads = [position for position in operator.reads if self._is_tensor(position)]
            operator.is_of_gradient = operator.name.startswith(GRADIENTS) or not is_of_gradient.isdisjoint(reads)
            if operator.is_of_gradient:
                is_of_gradient.update(operator.outputs)
            follows_gradient = operator.is_of_gradient if operator.has_cells else follows_gradient
        reaches_loss: set[int] = set()
        read_in_forward: set[int] = set()
        for operator in reversed(list(self.operators.values())):
            if operator.is_of_gradient:
                continue
            is_recomputed = operator.follows_gradient and read_in_forward.isdisjoint(operator.outputs)
            ends_forward = operator.ends_forward and not is_recomputed
            operator.reaches_loss = ends_forward or not reaches_loss.isdisjoint(operator.outputs)
            read_in_forward.update(operator.reads)
            if operator.reaches_loss:
                reaches_loss.update(operator.reads)

    def _assign_phases(self) -> None:
        """Assign a phase to each operator.

        Backward ends with the last operator that computes a gradient: gradients may be reduced while others are scaled.
        """
        ends = [
            tick
            for tick, operator in self.operators.items()
            if operator.name.startswith((GRADIENTS, RECOMPUTED)) and not self._passes_gradient(operator)
        ]
        last_backward = max(ends, default=self.ticks[-1] if self.ticks else 0)
        phase = Phase.FORWARD
        for tick, operator in self.operators.items():
            is_forward = operator.reaches_loss and not operator.is_of_gradient
            if operator.is_of_gradient or (operator.name.startswith(RECOMPUTED) and not operator.reaches_loss):
                phase = Phase.BACKWARD
            elif operator.has_cells and is_forward:
                phase = Phase.FORWARD
            operator.phase = Phase.FORWARD if is_forward else phase
            if tick > last_backward or OPTIMIZER in operator.name:
                operator.phase = Phase.OPTIMIZER

    def _find_head(self) -> None:
        """Mark operators after the layers: in forward they feed no layer, in backward they depend on none.

        An operator without cells that reads an output of a layer is counted as one of the layer.
        """
        of_layers: set[int] = set()  # blocks that operators of layers allocate
        for operator in self.operators.values():
            of_layers.update(operator.outputs if operator.is_inside else ())
        feeds_layer: set[int] = set()
        for operator in reversed(list(self.operators.values())):
            if operator.phase is Phase.FORWARD:
                is_of_layer = self._is_of_layer(operator, of_layers) or operator.type.startswith("Send")
                operator.is_after_layers = not is_of_layer and feeds_layer.isdisjoint(operator.outputs)
                feeds_layer.update(() if operator.is_after_layers else operator.reads)
        depends_on_layer: set[int] = set()
        for operator in self.operators.values():
            if operator.is_of_gradient:
                reads = [position for position in operator.reads if self._is_tensor(position)]
                is_of_layer = self._is_of_layer(operator, of_layers)
                operator.is_after_layers = not is_of_layer and depends_on_layer.isdisjoint(reads)
                depends_on_layer.update(() if operator.is_after_layers else operator.outputs)

    @staticmethod
    def _is_of_layer(operator: _Operator, of_layers: Set[int]) -> bool:
        return operator.is_inside or (not operator.has_cells and not of_layers.isdisjoint(operator.reads))

    def _role(self, operator: _Operator) -> TensorRole:
        roles = [self.roles[position] for position in operator.reads if self._is_tensor(position)]
        return TensorRole(
            phase=operator.phase,
            origin=self._origin(operator, {role.origin for role in roles if role is not None}),
            is_recomputed=operator.phase is Phase.BACKWARD and not operator.is_of_gradient,
            is_after_layers=operator.is_after_layers,
            is_communication=operator.is_communication,
        )

    def _is_tensor(self, position: int) -> bool:
        return self.blocks[position].size_bytes > MAX_SCALAR_BYTES

    def _origin(self, operator: _Operator, origins: Set[Origin]) -> Origin:
        parameters = {self.parts[position] for position in operator.reads}
        is_of_inputs = Origin.ACTIVATIONS in origins or self._reads_inputs(operator)
        if not is_of_inputs and (Origin.WEIGHTS in origins or MemoryPart.WEIGHTS in parameters):
            return Origin.WEIGHTS
        if not is_of_inputs and (Origin.CONSTANTS in origins or MemoryPart.CONSTANTS in parameters):
            return Origin.CONSTANTS
        return Origin.ACTIVATIONS

    def _reads_inputs(self, operator: _Operator) -> bool:
        """Return whether the operator reads an input of the step, which no operator allocates, or receives a tensor."""
        return operator.type.startswith("Receive") or any(
            self.parts[position] is None and self.roles[position] is None for position in operator.reads
        )

    def _mark_gradients(self) -> None:
        """Mark gradients of weights: what is accumulated or read by the optimizer, and what only passes it on."""
        is_gradient: set[int] = set()
        for operator in reversed(list(self.operators.values())):
            if self._takes_gradients(operator) or (
                not is_gradient.isdisjoint(operator.outputs) and self._passes_gradient(operator)
            ):
                is_gradient.update(
                    position
                    for position in operator.reads
                    if self._is_tensor(position) and self._can_be_gradient(self.roles[position])
                )
        for operator in self.operators.values():
            if self._scales_gradients(operator, is_gradient):
                is_gradient.update(operator.outputs)
        for position in is_gradient:
            role = self.roles[position]
            if role is not None:
                self.roles[position] = replace(role, is_weight_gradient=True)

    def _scales_gradients(self, operator: _Operator, is_gradient: Set[int]) -> bool:
        """Return whether the operator runs between backward and the optimizer, and reads gradients alone."""
        if operator.phase is not Phase.OPTIMIZER or OPTIMIZER in operator.name:
            return False
        reads = [position for position in operator.reads if self._is_tensor(position)]
        accumulated = MemoryPart.ACCUMULATED_GRADIENTS
        return bool(reads) and all(at in is_gradient or self.parts[at] is accumulated for at in reads)

    @staticmethod
    def _can_be_gradient(role: TensorRole | None) -> bool:
        return role is not None and role.phase is Phase.BACKWARD and _is_of_gradient(role)

    def _takes_gradients(self, operator: _Operator) -> bool:
        """Return whether the operator adds to an accumulated gradient, or runs after backward."""
        parameters = (self.parts[position] for position in operator.reads)
        return operator.phase is Phase.OPTIMIZER or MemoryPart.ACCUMULATED_GRADIENTS in parameters

    @staticmethod
    def _passes_gradient(operator: _Operator) -> bool:
        """Return whether the operator reduces or casts what it reads, if that is a gradient."""
        return operator.is_communication or bool(_PASSING.match(operator.type))

    def _part(self, position: int) -> MemoryPart:
        block, part, role = self.blocks[position], self.parts[position], self.roles[position]
        if part is not None:
            return part
        if role is None:
            return MemoryPart.CONSTANTS if block.uses else MemoryPart.OTHER  # inputs of the step
        readers = [self.operators[tick] for tick in block.uses if tick in self.operators]
        is_saved = role.phase is Phase.FORWARD and any(
            reader.role.phase is Phase.BACKWARD or reader.type.startswith("MoveTo") for reader in readers
        )
        return live_part(role.part, is_saved, is_prefetched=operator_type(block.name).startswith("MoveTo"))


def _is_of_gradient(role: TensorRole) -> bool:
    """Return whether a tensor depends on the gradient of the loss."""
    return role.phase is Phase.BACKWARD and not role.is_recomputed


def _nearest(ticks: Sequence[int], tick: int) -> int:
    """Return the tick of the launch that allocates at a tick; both differ by few ticks."""
    position = bisect_left(ticks, tick)
    return min(ticks[max(0, position - 1) : position + 1], key=lambda launch: abs(launch - tick))


def _cell(name: str) -> str:
    """Return the cells of an operator, without prefixes of backward and names of gradient operators."""
    cells = name.removeprefix(GRADIENTS).removeprefix(RECOMPUTED).split("/")[:-1]
    return "/".join(cell for cell in cells if not cell.startswith("Grad_"))
