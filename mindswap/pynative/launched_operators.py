"""Which operator of a recorded pass each launch ("task") of a tracked step belongs to.

Both have the same operators in the same order, but some are not launched, and kernels launch some of their own.
"""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

from mindswap.errors import DataError

if TYPE_CHECKING:
    from mindswap.pynative.trace import Trace

MARK = "AsinhExt"  # operator that separates the phases of a tracked step; no network has it
# Names in a row that only one of two lists has, at most; up to `NEAR` one equal name ends them, after that two.
MAX_MISSING, NEAR = 64, 3


class Segment(NamedTuple):
    """Tasks of a phase of a step."""

    phase: str
    micro_batch: int
    begin: int  # first task
    end: int  # task after the last one, a mark


def find_operators(
    trace: "Trace", names: Sequence[str], task_names: Sequence[str], segments: Sequence[Segment]
) -> dict[int, int]:
    """Return the operator of each task of forward and backward, by index of the task.

    The first micro-batch is compared with the recorded pass by the noted names, the others with the first one: they
    launch the same, and add gradients. In a pass that is recorded more names are noted than in others.

    Args:
        trace: recorded pass of one micro-batch.
        names: names of all operators of a step, with its marks.
        task_names: names of all tasks.
        segments: phases of the tracked step.

    Raises:
        DataError: the operators are not those of the trace.
    """
    recorded = [operator.name for operator in trace.operators]
    parts = iter(_parts_between_marks(names))
    operators: dict[int, int] = {}
    first: list[list[int]] = []  # tasks of forward and of backward of the first micro-batch
    for passes in (segments[start : start + 2] for start in range(0, len(segments) - 1, 2)):
        noted = [[name for _ in range(count) for name in next(parts, [])] for count in (2, 1)]
        tasks = [_tasks_of(segment, task_names) for segment in passes]
        pairs = _pairs_of_phases(tasks, first, task_names)
        if not first or len(pairs) * 10 < sum(map(len, first)) * 9:
            operators |= _operators_of_pass(passes, noted, task_names, recorded)
        else:
            operators |= {task: operators[other] for task, other in pairs.items() if other in operators}
        first = first or tasks
    return operators


def _tasks_of(segment: Segment, task_names: Sequence[str]) -> list[int]:
    """Return the tasks of a phase, without marks."""
    return [task for task in range(segment.begin, segment.end) if task_names[task] != MARK]


def _pairs_of_phases(
    tasks: Sequence[Sequence[int]], first: Sequence[Sequence[int]], task_names: Sequence[str]
) -> dict[int, int]:
    """Return the task of the first micro-batch for tasks of another one: for those of forward one of forward.

    Args:
        tasks: tasks of forward and of backward of a micro-batch.
        first: those of the first one; empty if it is the first one.
        task_names: names of all tasks.
    """
    return {
        of_phase[at]: of_first[other]
        for of_phase, of_first in zip(tasks, first, strict=False)
        for at, other in find_pairs([task_names[task] for task in of_phase], [task_names[task] for task in of_first])
    }


def _operators_of_pass(
    passes: Sequence[Segment], noted: Sequence[Sequence[str]], task_names: Sequence[str], recorded: Sequence[str]
) -> dict[int, int]:
    """Return the operator of each task of a micro-batch.

    Args:
        passes: its forward and its backward.
        noted: names of their operators.
        task_names: names of all tasks.
        recorded: names of the recorded operators.
    """
    of_pass: list[int] = []  # tasks of forward and backward, one for each noted name
    behind: dict[int, int] = {}  # task without a name -> the next one with a name
    for segment, names in zip(passes, noted, strict=True):
        tasks = _tasks_of(segment, task_names)
        matched = set(find_common([task_names[task] for task in tasks], names))
        waiting: list[int] = []
        for index, task in enumerate(tasks):
            waiting.append(task)
            if index in matched:
                behind |= dict.fromkeys(waiting, task)
                waiting.clear()
                of_pass.append(task)
    operators = _align([task_names[task] for task in of_pass], of_pass, recorded)
    return {task: operators[following] for task, following in behind.items() if following in operators}


def _parts_between_marks(names: Sequence[str]) -> list[list[str]]:
    """Return the names between marks; the first part is between the first and the second mark."""
    parts: list[list[str]] = []
    for name in names:
        if name == MARK:
            parts.append([])
        elif parts:
            parts[-1].append(name)
    return parts


def find_common(launched: Sequence[str], noted: Sequence[str]) -> Iterator[int]:
    """Yield the launches that were noted, in order: of both lists some names are missing in the other one."""
    return (launch for launch, _ in find_pairs(launched, noted))


def find_pairs(launched: Sequence[str], noted: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the indices of equal names in two lists, of which each lacks some names of the other one, in order.

    Where they differ, the nearest pair of equal names is searched; far away the next names have to be equal as well.
    """
    first, second = 0, 0
    while first < len(launched) and second < len(noted):
        if launched[first] != noted[second]:
            first, second = _next_pair(launched, noted, first, second)
            continue
        yield first, second
        first, second = first + 1, second + 1


def _next_pair(launched: Sequence[str], noted: Sequence[str], first: int, second: int) -> tuple[int, int]:
    for distance in range(1, MAX_MISSING):
        length = 1 if distance <= NEAR else 2
        for skipped in range(distance + 1):
            pair = first + distance - skipped, second + skipped
            if launched[pair[0] : pair[0] + length] == noted[pair[1] : pair[1] + length] != []:
                return pair
    return first + 1, second + 1


def _align(names: Sequence[str], tasks: Sequence[int], recorded: Sequence[str]) -> dict[int, int]:
    """Return the recorded operator of each task, by equal names in the same order."""
    skipped = len(names) - len(recorded)  # before forward of the network nothing is recorded
    if skipped >= 0 and list(names[skipped:]) == list(recorded):
        return {task: index for index, task in enumerate(tasks[skipped:])}
    matcher = SequenceMatcher(None, names, recorded, autojunk=False)
    pairs = {
        tasks[run.a + offset]: run.b + offset for run in matcher.get_matching_blocks() for offset in range(run.size)
    }
    if len(pairs) * 10 < len(recorded) * 9:
        raise DataError(
            f"{len(pairs)} of {len(recorded)} recorded operators are in the tracked step\n"
            "    fix:     report this with the configuration"
        )
    return pairs
