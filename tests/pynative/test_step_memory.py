"""Tables of the memory tracker, combined with the operators of a trace."""

from collections import Counter

import pytest

from mindswap.errors import DataError
from mindswap.pynative.launched_operators import MARK, find_common
from mindswap.pynative.recomputed_regions import LayerActions
from mindswap.pynative.step_index import StepIndex, tensor_bytes
from mindswap.pynative.step_memory import (
    BACKWARD,
    FORWARD,
    NO_OPERATOR,
    OPTIMIZER,
    TrackedBlock,
    read_step_memory,
)
from mindswap.pynative.step_schedule import Purpose, schedule_step
from mindswap.pynative.trace import Event, EventKind, Operator, Save, Trace, TracedStorage, Value

SIZE = 1 << 20
SIZES = {"weight_bytes": 8, "state_bytes": 16, "peak_bytes": 32, "num_marks_before": 0}


def value(memory):
    return Value(memory, SIZE, (SIZE // 4,), "float32")


def two_layers():
    """Layer i squares memory i into memory i + 1, and saves it; backward multiplies both with the gradient."""
    operators = [Operator("Square", i, ("mlp", "square"), True, (value(i),), (value(i + 1),)) for i in (0, 1)]
    operators += [Operator("Mul", i, ("Mul",), False, (value(i), value(10)), (value(20 + i),)) for i in (1, 0)]
    storages = (TracedStorage(SIZE, None, 0, "", 0), TracedStorage(SIZE, 0, 1, "", 1))
    saves = tuple(Save(i, i, i, (SIZE // 4,), "float32") for i in (0, 1))
    events = (Event(EventKind.READ, 1, 2), Event(EventKind.READ, 0, 3))
    return Trace(2, tuple(operators), storages, saves, events, "Ascend")


# The tick of each launch is twice its position: a block is allocated at the odd tick behind it.
NAMES = [MARK, "Ones", MARK, "Square", "Square", MARK, "Mul", "Mul", MARK, "AddExt", MARK]
LAUNCHES = ["Empty", MARK, "Ones", MARK, "Square", "Contiguous", "Square", MARK, "Mul", "Mul", MARK, "AddExt", MARK]


def tracked(blocks):
    tasks = [(2 * position, name) for position, name in enumerate(LAUNCHES)]
    return read_step_memory(two_layers(), NAMES, tasks, blocks, SIZES)


def block(begin, end, uses=(), size_bytes=SIZE + 512):
    """A block that launches `begin` to `end` of `LAUNCHES` see."""
    return TrackedBlock(size_bytes, 2 * begin + 1, 2 * end + 1, [2 * use for use in uses])


def test_tasks_have_their_phase_and_operator():
    tasks = tracked([]).tasks
    assert [task.name for task in tasks] == LAUNCHES[1:-1]
    assert [task.phase for task in tasks] == [FORWARD] * 6 + [BACKWARD] * 3 + [OPTIMIZER] * 2
    # `Contiguous` was noted by nobody: it belongs to the operator that comes next.
    assert [task.operator for task in tasks] == [NO_OPERATOR] * 3 + [0, 1, 1, NO_OPERATOR, 2, 3] + [NO_OPERATOR] * 2


def test_a_later_micro_batch_has_the_operators_of_the_first_one():
    """It adds gradients, and fewer of its operators are noted: the first `Square` is not."""
    launches = [*LAUNCHES[1:11], "Ones", MARK, "Square", "Contiguous", "Square", MARK, "Mul", "Add", "Mul", "Add", MARK]
    names = [*NAMES[:9], "Ones", MARK, "Square", MARK, "Mul", "Add", "Mul", "Add", MARK, "AddExt", MARK]
    tasks = [(2 * position, name) for position, name in enumerate([*launches, "AddExt", MARK])]
    memory = read_step_memory(two_layers(), names, tasks, [], SIZES)
    later = [task.operator for task in memory.tasks if task.micro_batch == 1 and task.phase != OPTIMIZER]
    none = NO_OPERATOR
    assert later == [none, none, none, 0, 1, 1, none, 2, none, 3, none]


def test_launches_of_backward_have_no_operator_of_forward():
    """Forward of the later micro-batch lacks the cast with which forward of the first ends; its backward begins so."""
    forward, backward = ([f"{name}{number}" for number in range(10)] for name in ("Square", "Mul"))
    operators = [Operator(name, 0, (name,), True) for name in (*forward, "Cast")]
    operators += [Operator(name, 0, (name,), False) for name in backward]
    trace = Trace(1, tuple(operators), (), (), (), "Ascend")
    first = [MARK, *forward, "Cast", MARK, *backward, MARK]
    names = [MARK, *first, MARK, *forward, MARK, "Cast", *backward, MARK, MARK]
    memory = read_step_memory(trace, names, list(enumerate(names)), [], SIZES)
    found = [(task.phase, trace.operators[task.operator].is_forward) for task in memory.tasks if task.operator >= 0]
    assert Counter(found) == {(FORWARD, True): 11 + 10, (BACKWARD, False): 10 + 10}


def test_blocks_are_cut_to_the_step_and_have_the_memory_that_their_users_read():
    memory = tracked([block(-5, 3), block(0, 99), block(4, 9, (6, 8)), block(6, 8, (6,))])
    assert [(b.begin, b.end) for b in memory.blocks] == [(-1, 2), (-1, 11), (3, 8), (5, 7)]
    assert [b.memory for b in memory.blocks] == [-1, -1, 1, 2]


def test_other_operators_than_those_of_the_trace_are_an_error():
    names = [name.replace("Square", "Exp").replace("Mul", "Div") for name in NAMES]
    launches = [name.replace("Square", "Exp").replace("Mul", "Div") for name in LAUNCHES]
    tasks = [(2 * position, name) for position, name in enumerate(launches)]
    with pytest.raises(DataError, match="0 of 4 recorded operators are in the tracked step"):
        read_step_memory(two_layers(), names, tasks, [], SIZES)


def test_a_step_without_marks_is_an_error():
    with pytest.raises(DataError, match="the tracked step has 0 marks"):
        read_step_memory(two_layers(), [], [(0, "Empty")], [], SIZES)


def scheduled(*actions, prefetch=1):
    """The lifetimes of the output of layer 0, which layer 1 saves, by purpose."""
    index = StepIndex(two_layers(), tracked([block(4, 8, (6, 8)), block(0, 99)]))
    schedule = schedule_step(index, actions, prefetch)
    return schedule, {lifetime.purpose: lifetime for lifetime in schedule.lifetimes if lifetime.block == 0}


def test_without_actions_all_is_as_tracked():
    schedule, lifetimes = scheduled(LayerActions(), LayerActions())
    assert [task for task, _ in schedule.tasks] == list(range(11)) and not schedule.copies
    assert (lifetimes[Purpose.TRACKED].begin, lifetimes[Purpose.TRACKED].end) == (3, 7)


def test_a_recomputed_layer_runs_again_and_its_output_stays_for_the_next_one():
    schedule, lifetimes = scheduled(LayerActions(is_recomputed=True), LayerActions())
    # Layer 0 saves memory 0, which no block is: nothing says when it is read, so it does not run again.
    assert not any(is_again for _, is_again in schedule.tasks)
    schedule, lifetimes = scheduled(LayerActions(), LayerActions(is_recomputed=True))
    assert [task for task, is_again in schedule.tasks if is_again] == [4, 5]
    assert schedule.tasks.index((4, True)) == schedule.tasks.index((7, False)) - 2
    assert schedule.tasks[lifetimes[Purpose.TRACKED].end] == (7, False)


def test_a_layer_without_one_behind_it_is_not_swapped():
    schedule, lifetimes = scheduled(LayerActions(), LayerActions(is_swapped=True))
    assert not schedule.copies and Purpose.TRACKED in lifetimes


def test_sizes_of_tensors():
    assert tensor_bytes((2, 3), "bfloat16") == 12 and tensor_bytes((2,), "complex64") == 0


def test_marks_of_another_tracked_step_are_skipped():
    launches = [MARK] * 5 + LAUNCHES
    tasks = [(2 * position, name) for position, name in enumerate(launches)]
    memory = read_step_memory(two_layers(), NAMES, tasks, [], SIZES | {"num_marks_before": 5})
    assert [task.name for task in memory.tasks] == LAUNCHES[1:-1]


def test_launches_and_names_are_aligned_where_either_lacks_some():
    launched = ["Cast", "Ones", "Mul", "Add", "Contiguous", "Mul", "Sum"]
    noted = ["Cast", "Mul", "View", "View", "Add", "Mul", "Sum"]
    assert list(find_common(launched, noted)) == [0, 2, 3, 5, 6]
