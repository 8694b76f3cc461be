"""Orders of pipeline stages, written out by hand as F/B, micro-batch and (with chunks) a chunk letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindswap.simulate.schedule import order_turns


def order(stage, num_stages, num_chunks, num_micro_batches):
    chunk = (lambda turn: "abc"[turn.chunk]) if num_chunks > 1 else (lambda turn: "")
    turns = order_turns(stage, num_stages, num_chunks, num_micro_batches)
    return " ".join(f"{'F' if turn.is_forward else 'B'}{turn.micro_batch}{chunk(turn)}" for turn in turns)


@pytest.mark.parametrize(
    "stage,expected",
    [
        (0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"),
        (1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"),
        (2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"),
        (3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"),
    ],
)
def test_1f1b_of_four_stages_and_eight_micro_batches(stage, expected):
    assert order(stage, 4, 1, 8) == expected


def test_fewer_micro_batches_than_stages():
    assert order(0, 4, 1, 2) == "F0 F1 B0 B1"


@pytest.mark.parametrize(
    "stage,expected",
    [
        # Warm-up of Megatron-LM: 2 (stages behind) + (chunks - 1) * stages: 4 and 2.
        (0, "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"),
        (1, "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a"),
    ],
)
def test_interleaved_order_of_megatron(stage, expected):
    assert order(stage, 2, 2, 4) == expected


def test_a_group_that_is_not_full_goes_as_a_full_one():
    # As above for four micro-batches, without the last one.
    assert order(0, 2, 2, 3) == "F0a F1a F0b F1b F2a B0b B1b F2b B0a B1a B2b B2a"


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 9), st.data())
def test_every_pass_runs_once_and_backward_after_forward(num_stages, num_chunks, num_micro_batches, data):
    stage = data.draw(st.integers(0, num_stages - 1))
    turns = order_turns(stage, num_stages, num_chunks, num_micro_batches)
    assert len(set(turns)) == len(turns) == 2 * num_chunks * num_micro_batches
    place = {turn: position for position, turn in enumerate(turns)}
    for turn in turns:
        if not turn.is_forward:
            assert place[type(turn)(turn.chunk, turn.micro_batch, True)] < place[turn]
