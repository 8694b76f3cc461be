"""Small made-up models to plan: layers of a few tensors, each made by one operator and read by one in backward."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindswap.planner.stage_problem import KEEP, AssignmentCost, DecisionCosts, Score, StageProblem
from mindswap.simulator.layer_block import Block, BlockOp, BlockTensor, Consumers
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.placing import TransferCosts
from mindswap.simulator.program import NO_OP, OpKind

NO_LIMIT = 10**12


@dataclass(frozen=True)
class Tensor:
    """Made in `forward_ns`, read in backward by an operator of `backward_ns`."""

    size_bytes: int
    forward_ns: int
    backward_ns: int
    can_swap: bool = True
    can_recompute: bool = True


class ToySpace(StageProblem):
    """Layers of tensors; item i of a layer is its tensor i - 1, item 0 (the full layer) cannot be chosen.

    Args:
        layers: tensors of each layer; all layers have equally many.
        budget_bytes: for activations.
        ns_per_byte: of a copy, each direction.
        contended_permille: rate of a copy while the other direction copies.
        num_micro_batches: of a step.
    """

    is_additive = True  # for `reference.exact`

    def __init__(
        self,
        layers: Sequence[Sequence[Tensor]],
        budget_bytes: int = NO_LIMIT,
        ns_per_byte: int = 1,
        contended_permille: int = 1000,
        num_micro_batches: int = 1,
        host_budget_bytes: int = NO_LIMIT,
    ):
        costs = TransferCosts(
            lambda size: size * ns_per_byte, lambda size: size * ns_per_byte, contended_permille=contended_permille
        )
        segments = tuple(range(len(layers) + 2))
        super().__init__(costs, StageLayout(((segments,),), num_micro_batches), 0)
        self.tensors = layers
        self.known: dict[tuple[int, bytes], Block] = {}
        self.ends = [
            Block((BlockOp("end", OpKind.FORWARD, 1),), (BlockOp("end", OpKind.BACKWARD, 1),), (), ()) for _ in range(2)
        ]
        self.budget_bytes = budget_bytes
        self.static_bytes = np.zeros(1, np.int64)
        self.host_budget_bytes = host_budget_bytes
        self.layers = tuple(range(len(layers)))
        self.groups = {f"t{i}": i + 1 for i in range(len(layers[0]))}
        shape = (len(layers), len(layers[0]) + 1)
        freed, again = np.zeros((*shape, 2), np.int64), np.zeros((*shape, 2), np.int64)
        copies = np.zeros(shape, np.int64)
        for layer, tensors in enumerate(layers):
            for i, tensor in enumerate(tensors):
                freed[layer, i + 1] = (
                    tensor.size_bytes * tensor.can_swap,
                    tensor.size_bytes * tensor.can_recompute,
                )
                again[layer, i + 1, 1] = tensor.forward_ns
                copies[layer, i + 1] = tensor.size_bytes * ns_per_byte
        self.costs = DecisionCosts(freed, again, copies)

    def assignment_cost(self, layer, row):
        assignment = np.zeros((self.costs.num_layers, self.costs.num_groups), np.int64)
        assignment[layer] = row
        return AssignmentCost(*self.costs.of(assignment).sum(axis=(1, 2)).tolist())

    def evaluate(self, assignment) -> Score:
        """Simulates a choice."""
        return self.score(self.timeline(assignment))

    def blocks(self, assignment):
        """What is before and behind the layers takes 1 ns in each pass."""
        blocks = [self.ends[0]]
        for layer, row in enumerate(assignment):
            key = (layer, row.tobytes())
            if key not in self.known:
                self.known[key] = self._block(self.tensors[layer], row)
            blocks.append(self.known[key])
        return [*blocks, self.ends[1]]

    def _block(self, tensors: Sequence[Tensor], row: np.ndarray) -> Block:
        forward = tuple(BlockOp(f"t{i}", OpKind.FORWARD, tensor.forward_ns) for i, tensor in enumerate(tensors))
        backward: list[BlockOp] = []
        first: dict[int, int] = {}  # first and last read in backward of what forward made
        last: dict[int, int] = {}
        again: dict[int, list[int]] = {}  # made again at, last read at

        def read(i: int) -> None:
            """Before the next operator of backward: it reads tensor i."""
            if i < 0:
                return
            if row[i + 1] < KEEP and i not in again:
                read(i - 1)
                backward.append(BlockOp(f"t{i}", OpKind.RECOMPUTE, tensors[i].forward_ns))
                use(i - 1, len(backward) - 1)
                again[i] = [len(backward) - 1, len(backward) - 1]

        def use(i: int, position: int) -> None:
            if i < 0:
                return
            if row[i + 1] < KEEP:
                again[i][1] = position
            else:
                first.setdefault(i, position)
                last[i] = position

        for i in reversed(range(len(tensors))):
            read(i)
            backward.append(BlockOp(f"g{i}", OpKind.BACKWARD, tensors[i].backward_ns))
            use(i, len(backward) - 1)
        made = []
        for i, tensor in enumerate(tensors):
            last_forward = min(i + 1, len(tensors) - 1)
            uses = Consumers(last_forward, first.get(i, NO_OP), last.get(i, NO_OP))
            distance = max(int(row[i + 1]), 0)
            made.append(
                BlockTensor(f"t{i}", tensor.size_bytes, True, False, i, uses, None, distance, int(distance > 0))
            )
            if i in again:
                begin, end = again[i]
                made.append(
                    BlockTensor(f"t{i}", tensor.size_bytes, False, True, begin, Consumers(NO_OP, begin, end), None)
                )
        return Block(forward, tuple(backward), tuple(made), ())


def random_space(seed: int, max_cells: int = 8) -> ToySpace:
    """Two to four layers of two to four tensors, at most so many together, and a budget that binds."""
    chance = random.Random(seed)
    num_layers = chance.randint(2, 4)
    num_tensors = chance.randint(2, min(4, max_cells // num_layers))
    alike = chance.random() < 0.5

    def layer() -> list[Tensor]:
        return [
            Tensor(
                chance.randint(5, 100),
                chance.randint(2, 120),
                chance.randint(2, 200),
                can_swap=chance.random() < 0.7,
                can_recompute=chance.random() < 0.7,
            )
            for _ in range(num_tensors)
        ]

    first = layer()
    layers = [first if alike else layer() for _ in range(num_layers)]
    ns_per_byte, contended = chance.randint(1, 4), chance.choice((500, 700, 1000))
    free = ToySpace(layers, ns_per_byte=ns_per_byte, contended_permille=contended)
    most = free.evaluate(np.zeros((num_layers, num_tensors + 1), np.int64)).peak_bytes
    return ToySpace(layers, most * chance.randint(40, 95) // 100, ns_per_byte, contended)
