"""Bubbles and what is in flight against closed formulas; the engine against a walk over the lists."""

import random

import pytest

from mindswap.errors import SimulationError
from mindswap.simulator.memory import peak_memory
from mindswap.simulator.schedules import SCHEDULES, find_schedule, order_passes
from mindswap.simulator.schedules.rounds import Shape, max_num_in_flight
from tests.simulator.schedules.builders import layout_of, num_forward, reference_ns, run
from tests.strength import examples

# 20 sizes: stages, chunks, micro-batches in whole rounds.
SIZES = [
    Shape(stages, chunks, stages * rounds)
    for stages, chunks, rounds in [
        (2, 2, 1), (2, 2, 2), (2, 2, 5), (2, 3, 2), (2, 4, 3), (3, 2, 1), (3, 2, 4), (3, 3, 2), (4, 2, 1), (4, 2, 2),
        (4, 2, 3), (4, 3, 2), (4, 4, 2), (5, 2, 3), (5, 3, 1), (6, 2, 2), (6, 3, 3), (8, 2, 2), (8, 2, 4), (8, 4, 1),
    ]
]  # fmt: skip
PIECES = [
    Shape(stages, chunks, micro_batches, pieces)
    for stages, chunks, micro_batches, pieces in [
        (2, 1, 1, 2), (2, 1, 4, 2), (2, 1, 4, 4), (2, 2, 4, 2), (2, 3, 4, 2), (3, 1, 3, 3), (3, 1, 6, 2), (4, 1, 4, 2),
        (4, 1, 8, 4), (4, 1, 2, 8), (4, 2, 4, 2), (4, 2, 8, 2), (4, 2, 8, 4), (4, 3, 4, 4), (6, 1, 6, 2), (6, 2, 6, 3),
        (6, 2, 12, 2), (8, 1, 8, 2), (8, 2, 8, 4), (8, 2, 16, 8),
    ]
]  # fmt: skip
FORWARD_NS, INPUT_NS, WEIGHT_NS = 3, 2, 5


def in_flight(name: str, shape: Shape) -> list[int]:
    return [max_num_in_flight(order_passes(name, stage, shape)) for stage in range(shape.num_stages)]


def kept_bytes(name: str, shape: Shape) -> list[int]:
    """Peak of the simulated step: every layer keeps 1 byte from its forward to the end of its backward."""
    return [int(peak) for peak in peak_memory(run(name, shape))]


def warm_up(shape: Shape, stage: int, per_stage: int, size: int) -> int:
    """Passes in flight: a round of every chunk but the last, those behind, one more piece for each, and one."""
    pieces = shape.num_sequences
    wanted = (shape.num_chunks - 1) * size * pieces + (shape.num_stages - 1 - stage) * per_stage + pieces
    return min(num_forward(shape), wanted)


# Narayanan et al. (SC 2021), 2.2: the bubble is (stages - 1) forwards and backwards of one chunk.
@pytest.mark.long
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize(("name", "per_stage"), [("1f1b", 2), ("1f1b_less_memory", 1), ("seqpipe", 2)])
def test_interleaved(name, per_stage, shape):
    pass_ns = FORWARD_NS + INPUT_NS + WEIGHT_NS
    step_ns = run(name, shape, FORWARD_NS, INPUT_NS, WEIGHT_NS).step_time_ns
    assert step_ns == (num_forward(shape) + shape.num_stages - 1) * pass_ns
    expected = [warm_up(shape, stage, per_stage, shape.num_stages) for stage in range(shape.num_stages)]
    assert in_flight(name, shape) == kept_bytes(name, shape) == expected


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_one_chunk(shape):
    shape = Shape(shape.num_stages, 1, shape.num_micro_batches)
    pass_ns = FORWARD_NS + INPUT_NS + WEIGHT_NS
    step_ns = run("1f1b", shape, FORWARD_NS, INPUT_NS, WEIGHT_NS).step_time_ns
    assert step_ns == (shape.num_micro_batches + shape.num_stages - 1) * pass_ns
    expected = [min(shape.num_micro_batches, shape.num_stages - stage) for stage in range(shape.num_stages)]
    assert in_flight("1f1b", shape) == kept_bytes("1f1b", shape) == expected


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_gpipe(shape):
    pass_ns = FORWARD_NS + INPUT_NS + WEIGHT_NS
    step_ns = run("gpipe", shape, FORWARD_NS, INPUT_NS, WEIGHT_NS).step_time_ns
    assert step_ns == (num_forward(shape) + shape.num_stages - 1) * pass_ns
    assert in_flight("gpipe", shape) == kept_bytes("gpipe", shape) == [num_forward(shape)] * shape.num_stages


@pytest.mark.long
@pytest.mark.parametrize("shape", PIECES, ids=str)
@pytest.mark.parametrize(("name", "per_stage"), [("seqpipe", 2), ("seqvpp", 2), ("seqsmartvpp", 1)])
def test_pieces_of_sequences(name, per_stage, shape):
    schedule = find_schedule(name, shape)
    if schedule.refusal(shape):
        # seqvpp takes more stages than pieces, seqsmartvpp an even number of stages.
        assert shape.num_sequences > shape.num_stages or shape.num_stages % 2
        return
    pass_ns = FORWARD_NS + INPUT_NS + WEIGHT_NS
    step_ns = run(name, shape, FORWARD_NS, INPUT_NS, WEIGHT_NS).step_time_ns
    assert step_ns == (num_forward(shape) + shape.num_stages - 1) * pass_ns
    # With one chunk MindSpore runs seqpipe, where a stage is ahead of the next one by one.
    per_stage = 1 if shape.num_chunks == 1 else per_stage
    size = min(shape.num_micro_batches, shape.num_stages)
    if name != "seqpipe" and shape.num_chunks > 1:
        size = shape.num_stages // shape.num_sequences
    expected = [warm_up(shape, stage, per_stage, size) for stage in range(shape.num_stages)]
    assert in_flight(name, shape) == kept_bytes(name, shape) == expected


@pytest.mark.long
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_zero_bubble_v(shape):
    """Where F, I and W take one unit each, the bubble is 2 (stages - 1) units: the way down the V and up again."""
    shape = Shape(shape.num_stages, 2, 2 * shape.num_micro_batches)
    assert run("zero_bubble_v", shape).step_time_ns == 3 * num_forward(shape) + 2 * (shape.num_stages - 1)
    # Every stage holds 2 passes for each stage: as 1F1B on its first stage, with chunks of half the size.
    expected = [2 * shape.num_stages] * shape.num_stages
    assert in_flight("zero_bubble_v", shape) == kept_bytes("zero_bubble_v", shape) == expected


@pytest.mark.long
def test_random_pipelines_take_the_time_of_the_reference():
    rng = random.Random(14)
    count = 0
    while count < examples(100, 200):
        name = rng.choice(list(SCHEDULES))
        pieces = rng.choice((1, 1, 2, 3)) if name.startswith("seq") else 1
        shape = Shape(rng.randint(1, 6), rng.randint(1, 3), rng.randint(1, 14), pieces)
        if find_schedule(name, shape).refusal(shape):
            continue
        costs = rng.randint(1, 9), rng.randint(1, 9), rng.randint(0, 9)
        expected = reference_ns(name, shape, *costs)
        if expected is None:
            with pytest.raises(SimulationError, match="wait for each other"):
                run(name, shape, *costs)
        else:
            assert run(name, shape, *costs).step_time_ns == expected, (name, shape, costs)
        count += 1


def test_rounds_of_seqvpp_that_are_two_pieces_short_of_the_stages_wait_for_each_other():
    # 5 stages, 3 pieces: rounds of one micro-batch, 3 pieces. MindSpore's order of passes, as its source has it.
    assert reference_ns("seqvpp", Shape(5, 2, 5, 3), 1, 1, 1) is None
    assert reference_ns("seqvpp", Shape(5, 2, 5, 2), 1, 1, 1) is not None


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_a_short_step_shows_the_same_full_pipeline(name):
    shape = Shape(4, 2, 27)
    if name == "zero_bubble_v":
        shape = Shape(4, 2, 26)
    layout = layout_of(name, shape)
    number = layout.short_of(10)
    short = Shape(4, 2, number)
    assert in_flight(name, short) == in_flight(name, shape)
    # Rounds of 4: 27 - 4 k leaves the same rest; seqpipe has 3 rounds and one more. A micro-batch at a time; all.
    rounds = dict.fromkeys(("seqpipe", "seqvpp", "seqsmartvpp"), 13)
    assert number == {"gpipe": 27, "zero_bubble_v": 10, **rounds}.get(name, 11)
