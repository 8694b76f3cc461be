"""Index of a tracked step: where each layer runs, and which saved tensors backward reads for which operators."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from mindswap.errors import DataError
from mindswap.pynative.step_memory import BACKWARD, FORWARD, NO_OPERATOR, POOL_EXTRA_BYTES, MemoryBlock, StepMemory
from mindswap.pynative.trace import EventKind, Operator, Trace


class SavedRead(NamedTuple):
    """Backward reads a tensor that an operator of forward saved."""

    saver: int  # operator of forward
    task: int  # task of backward


class WeightView(NamedTuple):
    """A view of a weight that an operator of forward saved; each weight once."""

    saver: int  # operator of forward
    size_bytes: int  # of the weight


@dataclass(frozen=True)
class TaskSpan:
    """First and last task of a layer in forward or backward of a micro-batch."""

    first: int
    last: int


@dataclass(frozen=True)
class BlockFacts:
    """Uses of a block.

    Attributes:
        block: the block.
        micro_batch: that it belongs to, by the task that allocates it; -1 before the step.
        operator: that allocates it, `NO_OPERATOR` for none.
        forward_uses: tasks of forward of its micro-batch that use it, ascending.
        reads: reads of it in backward, by operators of forward that saved it.
        is_saved: whether it is allocated in forward and live in backward.
        is_protected: whether it is never moved: an input or an output of the network, or a weight.
        slice_bytes: size of the tensor if the first one that autograd saves is a part of the storage; 0 otherwise.
        is_permanent: whether it is live during the entire step.
    """

    block: MemoryBlock
    micro_batch: int
    operator: int
    forward_uses: tuple[int, ...]
    reads: tuple[SavedRead, ...]
    is_saved: bool
    is_protected: bool
    slice_bytes: int
    is_permanent: bool


class StepIndex:
    """Index of a tracked step.

    Args:
        trace: recorded pass of one micro-batch.
        memory: tasks and blocks of the step.

    Attributes:
        num_layers: layers of the network, those for multi-token prediction last.
        num_micro_batches: that were tracked.
        forward_spans: span of each (micro-batch, layer) in forward.
        backward_spans: the same in backward.
        forward_tasks: tasks of each (micro-batch, operator) in forward.
        blocks: facts of each block.
        weight_views: saved views of weights.

    Raises:
        DataError: the tracked step has no task of a layer in a pass, of which operators are recorded.
    """

    def __init__(self, trace: Trace, memory: StepMemory):
        self.trace, self.memory = trace, memory
        self.num_layers = trace.num_layers
        self.num_micro_batches = 1 + max((task.micro_batch for task in memory.tasks), default=0)
        self.forward_tasks: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._backward_tasks: dict[tuple[int, int], int] = {}
        spans: dict[str, dict[tuple[int, int], TaskSpan]] = {FORWARD: {}, BACKWARD: {}}
        for number, task in enumerate(memory.tasks):
            if task.operator == NO_OPERATOR:
                continue
            if task.phase == FORWARD:
                self.forward_tasks[task.micro_batch, task.operator].append(number)
            else:
                self._backward_tasks[task.micro_batch, task.operator] = number
            layer = trace.operators[task.operator].layer_index
            if layer is not None:
                known = spans[task.phase].get((task.micro_batch, layer))
                first = number if known is None else known.first
                spans[task.phase][task.micro_batch, layer] = TaskSpan(first, number)
        self.forward_spans, self.backward_spans = spans[FORWARD], spans[BACKWARD]
        self._require_spans(spans)
        self.weight_views = tuple(self._weight_views())
        reads, self._storages, self._producers = self._reads(), self._storages_by_memory(), self._makers()
        self._first_saves = {save.storage: save for save in reversed(trace.saves)}
        self.blocks = tuple(self._facts(block, reads) for block in memory.blocks)

    def layer_of(self, task: int) -> int | None:
        """Return the layer of a task; None outside the layers."""
        operator = self.memory.tasks[task].operator
        return None if operator == NO_OPERATOR else self.trace.operators[operator].layer_index

    def task_of(self, micro_batch: int, operator: int, otherwise: int) -> int:
        """Return the first task of an operator; `otherwise` if it has none."""
        if operator != NO_OPERATOR and self.trace.operators[operator].is_forward:
            return next(iter(self.forward_tasks.get((micro_batch, operator), ())), otherwise)
        return self._backward_tasks.get((micro_batch, operator), otherwise)

    def is_size_of(self, block: int, size_bytes: int) -> bool:
        """Return whether a block can be that of a storage of a size."""
        return 0 <= self.memory.blocks[block].size_bytes - size_bytes <= POOL_EXTRA_BYTES

    def _require_spans(self, spans: Mapping[str, Mapping[tuple[int, int], TaskSpan]]) -> None:
        """Check that each micro-batch runs all layers: without backward are those that train nothing."""
        recorded = {(operator.layer_index, operator.is_forward) for operator in self.trace.operators}
        for micro_batch, layer in product(range(self.num_micro_batches), range(self.num_layers)):
            for phase, is_forward in ((FORWARD, True), (BACKWARD, False)):
                is_run = is_forward or (layer, False) in recorded
                if is_run and (micro_batch, layer) not in spans[phase]:
                    raise DataError(
                        f"the tracked step has no operator of layer {layer} in {phase} of micro-batch {micro_batch}\n"
                        "    fix:     report this with the configuration"
                    )

    def _weight_views(self) -> Iterator[WeightView]:
        known: set[int] = set()
        for save in self.trace.saves:
            storage = self.trace.storages[save.storage]
            operator = self.trace.operators[save.operator]
            names = [v.weight for v in operator.inputs if v.memory == storage.memory and v.shape == save.shape]
            if storage.protection == "weight" and names and not any(names) and save.storage not in known:
                known.add(save.storage)
                yield WeightView(save.operator, storage.size_bytes)

    def _reads(self) -> dict[int, list[tuple[int, int]]]:
        """Return, by memory, the operators that saved it and the operators of backward that read that."""
        reads: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for event in self.trace.events:
            if event.kind is EventKind.READ:
                save = self.trace.saves[event.index]
                memory = self.trace.storages[save.storage].memory
                if memory is not None:
                    reads[memory].append((save.operator, event.num_operators))
        return reads

    def _storages_by_memory(self) -> dict[int, int]:
        return {s.memory: index for index, s in enumerate(self.trace.storages) if s.memory is not None}

    def _facts(self, block: MemoryBlock, reads: dict[int, list[tuple[int, int]]]) -> BlockFacts:
        tasks = self.memory.tasks
        birth = tasks[block.begin] if block.begin >= 0 else None
        micro_batch = -1 if birth is None else birth.micro_batch
        is_forward = birth is not None and birth.phase == FORWARD
        forward_uses = tuple(
            use for use in block.uses if tasks[use].phase == FORWARD and tasks[use].micro_batch == micro_batch
        )
        ends_later = block.end >= len(tasks) or tasks[block.end].phase != FORWARD
        storage = self._storages.get(block.memory)
        producer = self._producers.get(block.memory, NO_OPERATOR)
        if producer == NO_OPERATOR and birth is not None:
            producer = birth.operator
        return BlockFacts(
            block=block,
            micro_batch=micro_batch,
            operator=producer,
            forward_uses=forward_uses if is_forward else (),
            reads=tuple(self._known_reads(micro_batch, reads.get(block.memory, ()))) if is_forward else (),
            is_saved=is_forward and ends_later,
            is_protected=storage is not None and bool(self.trace.storages[storage].protection),
            slice_bytes=self._slice_bytes(storage) if storage is not None else 0,
            is_permanent=block.begin < 0 and block.end >= len(tasks),
        )

    def _makers(self) -> dict[int, int]:
        """Return the operator that makes each memory."""
        makers: dict[int, int] = {}
        for index, operator in enumerate(self.trace.operators):
            for value in operator.outputs:
                makers.setdefault(value.memory, index)
        return makers

    def _known_reads(self, micro_batch: int, reads: Iterable[tuple[int, int]]) -> Iterable[SavedRead]:
        for saver, reader in reads:
            task = self._backward_tasks.get((micro_batch, reader))
            if task is not None:
                yield SavedRead(saver, task)

    def _slice_bytes(self, storage: int) -> int:
        """Return the size of the first saved tensor of a storage if it is smaller than that; 0 otherwise."""
        save = self._first_saves[storage]
        size_bytes = tensor_bytes(save.shape, save.dtype)
        return size_bytes if 0 < size_bytes < self.trace.storages[storage].size_bytes else 0


DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "int8": 1, "bool": 1}


def tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Return the size of a tensor in bytes; 0 if the dtype is unknown."""
    size = DTYPE_BYTES.get(dtype, 0)
    for length in shape:
        size *= length
    return size


def is_in(operator: Operator, paths: Iterable[str]) -> bool:
    """Return whether an operator of a layer is one of some dotted paths, or below one of them."""
    own = [".".join(path[:depth]) for path in operator.paths for depth in range(1, len(path) + 1)]
    names = {name.casefold() for name in own}
    return any(path.casefold() in names for path in paths)
