"""Device memory of a step in PyNative mode: every block of the pool, and the operators that allocate and read it.

Made from a dry run without swap and recompute: MindSpore's memory tracker lists blocks and launches ("tasks") of a step
by tick, and the names of the operators of a later step, the recorded one, were noted. A task belongs to an operator of
the recorded trace, which has its layer and path. In the first micro-batch a task without a name (a copy that a kernel
makes, for example) belongs to the next operator; in a later one a task belongs to the operator of the equal task of the
first, and one without such a task (the addition of a gradient, for example) to none.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mindswap.errors import DataError
from mindswap.pynative.launched_operators import MARK, Segment, find_operators

if TYPE_CHECKING:
    from mindswap.pynative.trace import Trace

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
NO_OPERATOR = -1
# The pool adds up to so much to the size of a tensor: 512 bytes for its header, and alignment to 512 bytes.
POOL_EXTRA_BYTES = 1536
# Operators between the one that makes a tensor and the last launch before its allocation, or the other way round: with
# 8 and 2 all but 1 of 163 saved tensors of a Qwen3 are found, with 0 and 0 97.
MAX_QUEUED, MAX_EARLY = 8, 2


@dataclass(frozen=True)
class Task:
    """A launch of a step."""

    name: str  # type of the operator
    phase: str  # `FORWARD`, `BACKWARD` or `OPTIMIZER`
    micro_batch: int
    operator: int  # index in `Trace.operators`; `NO_OPERATOR` outside the recorded passes


@dataclass(frozen=True)
class MemoryBlock:
    """A block of device memory that is live during the step."""

    size_bytes: int
    begin: int  # index of the task that allocates it; -1 before the step
    end: int  # index of the last task that runs while it is live; the number of tasks after the step
    uses: tuple[int, ...]  # tasks that read or write it, ascending
    # number of its memory in the values of the trace, in each micro-batch the same; -1 if the trace does not have it
    memory: int = -1


@dataclass(frozen=True, eq=False)
class StepMemory:
    """All tasks and blocks of a step without swap and recompute, in bytes.

    Attributes:
        tasks: in order of launch.
        blocks: in order of allocation.
        weight_bytes: parameters of the network.
        state_bytes: float32 weights and states of the optimizer.
        peak_bytes: peak that the dry run measured.
    """

    tasks: tuple[Task, ...]
    blocks: tuple[MemoryBlock, ...]
    weight_bytes: int
    state_bytes: int
    peak_bytes: int

    def to_data(self) -> dict[str, Any]:
        """Return plain data for a file."""
        names = ("weight_bytes", "state_bytes", "peak_bytes")
        return {
            "tasks": [astuple(task) for task in self.tasks],
            "blocks": [astuple(block) for block in self.blocks],
            **{name: getattr(self, name) for name in names},
        }


# Reading of a dry run.


class TrackedBlock(NamedTuple):
    """A block in the table of the memory tracker, with ticks."""

    size_bytes: int
    begin_tick: int
    end_tick: int
    use_ticks: Sequence[int]


def read_step_memory(
    trace: "Trace",
    names: Sequence[str],
    tasks: Sequence[tuple[int, str]],
    blocks: Sequence[TrackedBlock],
    sizes: Mapping[str, int],
) -> StepMemory:
    """Combine the tables of the memory tracker, of a tracked step, with the operators of the recorded step.

    Args:
        trace: recorded pass of one micro-batch of the same training.
        names: names of all operators of the step in which the pass was recorded, with its marks.
        tasks: (tick, name) of all launches of the process, ascending.
        blocks: blocks of the process.
        sizes: `weight_bytes`, `state_bytes` and `peak_bytes`, and `num_marks_before`: marks of other tracked steps.

    Raises:
        DataError: the operators are not those of the trace.
    """
    marks = [index for index, (_, name) in enumerate(tasks) if name == MARK]
    marks = marks[sizes["num_marks_before"] :][: names.count(MARK)]
    segments = list(_segments(marks))
    first, last = marks[0], marks[-1]
    operators = find_operators(trace, names, [name for _, name in tasks], segments)
    step_tasks = tuple(
        Task(tasks[index][1], segment.phase, segment.micro_batch, operators.get(index, NO_OPERATOR))
        for segment in segments
        for index in range(segment.begin, segment.end)
    )
    ticks = [tick for tick, _ in tasks]

    def index_of(tick: int) -> int:
        return bisect_right(ticks, tick) - 1 - first

    live = []
    for block in blocks:
        begin, end = index_of(block.begin_tick), index_of(block.end_tick)
        if end < 0 or begin >= last - first:
            continue
        uses = tuple(sorted(use for tick in block.use_ticks if 0 <= (use := index_of(tick)) < len(step_tasks)))
        live.append(MemoryBlock(block.size_bytes, max(begin, -1), min(end, len(step_tasks)), uses))
    memories = _memories(trace, step_tasks, live)
    found = tuple(MemoryBlock(b.size_bytes, b.begin, b.end, b.uses, m) for b, m in zip(live, memories, strict=True))
    return StepMemory(step_tasks, found, sizes["weight_bytes"], sizes["state_bytes"], sizes["peak_bytes"])


def _segments(marks: Sequence[int]) -> Iterator[Segment]:
    """Yield the phases of a step, which cover it: marks are at its ends and around forward and behind backward."""
    if len(marks) < 5 or len(marks) % 3 != 2:
        raise DataError(
            f"the tracked step has {len(marks)} marks\n    fix:     report this with the log of the dry run"
        )
    begin = marks[0]
    for micro_batch, index in enumerate(range(1, len(marks) - 1, 3)):
        _, forward_end, backward_end = marks[index : index + 3]
        yield Segment(FORWARD, micro_batch, begin, forward_end)
        yield Segment(BACKWARD, micro_batch, forward_end, backward_end)
        begin = backward_end
    yield Segment(OPTIMIZER, micro_batch, begin, marks[-1])


def _memories(trace: "Trace", tasks: Sequence[Task], blocks: Sequence[MemoryBlock]) -> list[int]:
    """Return the memory number of each block; -1 for none.

    A block is allocated at the launch of its operator or, as launches are queued, at that of one of the next operators.
    Among the outputs of these operators with its size, it is the one that most of the tasks that use it read or write.
    """
    outputs, touched = _outputs_of(trace), _touched_by(trace)
    choices = []
    for index, block in enumerate(blocks):
        task = tasks[block.begin] if 0 <= block.begin < len(tasks) else None
        if task is None or task.operator == NO_OPERATOR:
            continue
        users = [tasks[use].operator for use in block.uses if tasks[use].micro_batch == task.micro_batch]
        for operator in range(task.operator - MAX_QUEUED, task.operator + MAX_EARLY + 1):
            for memory, size_bytes in outputs.get(operator, ()):
                if 0 <= block.size_bytes - size_bytes <= POOL_EXTRA_BYTES:
                    num_users = sum(memory in touched.get(user, ()) for user in users)
                    choices.append((-num_users, abs(operator - task.operator), index, task.micro_batch, memory))
    numbers = [-1] * len(blocks)
    taken: set[tuple[int, int]] = set()  # micro-batch, memory
    for _, _, index, micro_batch, memory in sorted(choices):
        if numbers[index] < 0 and (micro_batch, memory) not in taken:
            taken.add((micro_batch, memory))
            numbers[index] = memory
    return numbers


def _outputs_of(trace: "Trace") -> dict[int, list[tuple[int, int]]]:
    """Return memory and bytes of the outputs that an operator makes, by operator."""
    made: set[int] = set()
    outputs: dict[int, list[tuple[int, int]]] = {}
    for index, operator in enumerate(trace.operators):
        made |= {value.memory for value in operator.inputs}
        for value in operator.outputs:
            if value.memory not in made:
                made.add(value.memory)
                outputs.setdefault(index, []).append((value.memory, value.size_bytes))
    return outputs


def _touched_by(trace: "Trace") -> dict[int, set[int]]:
    """Return the memory that an operator reads or writes, by operator."""
    return {
        index: {value.memory for value in (*operator.inputs, *operator.outputs)}
        for index, operator in enumerate(trace.operators)
    }
