"""Orders written out by hand: F forward, B backward, I and W its halves, micro-batch, chunk a or b, piece x or y."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindswap.simulator.schedules import SCHEDULES, find_schedule, order_passes
from mindswap.simulator.schedules.rounds import PassWork, Shape
from tests.simulator.schedules.builders import num_forward, passes_in_words


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "seqpipe", "seqvpp", "seqsmartvpp"])
@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"),
        (1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"),
        (2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"),
        (3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"),
    ],
)
def test_with_one_chunk_all_are_1f1b(name, stage, expected):
    assert passes_in_words(name, stage, Shape(4, 1, 8)) == expected


def test_fewer_micro_batches_than_stages():
    assert passes_in_words("1f1b", 0, Shape(4, 1, 2)) == "F0 F1 B0 B1"


@pytest.mark.parametrize("name", ["1f1b", "1f1b_less_memory", "seqpipe"])
def test_one_micro_batch_alone_goes_through_its_chunks_once(name):
    """MindSpore refuses it for 1f1b; the bound runs one stage so, to see what one micro-batch takes."""
    assert passes_in_words(name, 0, Shape(4, 2, 1)) == "F0a F0b B0b B0a"


@pytest.mark.parametrize(
    ("name", "stage", "expected"),
    [
        # Warm-up of Megatron-LM: 2 (stages behind) + (chunks - 1) * stages: 4 and 2.
        ("1f1b", 0, "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"),
        ("1f1b", 1, "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a"),
        # One less for each stage before the last: 3 and 2.
        ("1f1b_less_memory", 0, "F0a F1a F0b F1b B0b F2a B1b F3a B0a F2b B1a F3b B2b B3b B2a B3a"),
        ("1f1b_less_memory", 1, "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a"),
        ("seqpipe", 0, "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"),
        ("seqsmartvpp", 0, "F0a F1a F0b F1b B0b F2a B1b F3a B0a F2b B1a F3b B2b B3b B2a B3a"),
        ("gpipe", 0, "F0a F1a F2a F3a F0b F1b F2b F3b B0b B1b B2b B3b B0a B1a B2a B3a"),
        # 2 F0 | F0 F1 | B1 W1 F1 | B1 F0 B0 F1 | B1 B0 F1 | B1 B0 | B0 | W0 W0; micro-batches 2 and 3 of chunk a are
        # cut (2 of the last ones), and 0 of chunk b (one stage behind).
        ("zero_bubble_v", 0, "F0a F1a F2a F0b I0b W0b F1b B1b F3a B0a F2b B2b B1a F3b B3b I2a I3a W2a W3a"),
        # 2 x F0 F1 | 2 x B1 F0 B0 F1 | 2 x B1 B0 | W0 W1; micro-batch 3 of both chunks is cut.
        ("zero_bubble_v", 1, "F0a F0b F1a F1b B0b F2a B0a F2b B1b F3a B1a F3b B2b B2a I3b I3a W3a W3b"),
    ],
)
def test_two_chunks_of_four_micro_batches(name, stage, expected):
    assert passes_in_words(name, stage, Shape(2, 2, 4)) == expected


def test_micro_batches_that_make_no_whole_round():
    # 1f1b: the first round has them all, 2 + 1. seqpipe: the first rounds get one more each; the same with one round.
    forward = "F0a F1a F2a F0b F1b F2b"
    for name in ("1f1b", "seqpipe"):
        words = passes_in_words(name, 0, Shape(2, 2, 3)).split()
        assert " ".join(word for word in words if word[0] == "F") == forward
    # 8 of 3 stages: 1f1b has 3 + 2, 3; seqpipe 3 + 1, 3 + 1.
    firsts = {
        name: [entry.micro_batch for entry in order_passes(name, 0, Shape(3, 2, 8)) if entry.work is PassWork.FORWARD][
            :5
        ]
        for name in ("1f1b", "seqpipe")
    }
    assert firsts == {"1f1b": [0, 1, 2, 3, 4], "seqpipe": [0, 1, 2, 3, 0]}


def test_pieces_of_a_sequence_go_back_in_reverse():
    assert passes_in_words("seqpipe", 0, Shape(2, 1, 2, 2)) == "F0x F0y F1x B0y F1y B0x B1y B1x"
    # A round of seqvpp has as many pieces as stages: one micro-batch of two pieces. Warm-up 2 + 2 + 1.
    expected = "F0ax F0ay F0bx F0by F1ax F1ay B0by F1bx B0bx F1by B0ay B0ax B1by B1bx B1ay B1ax"
    assert passes_in_words("seqvpp", 0, Shape(2, 2, 2, 2)) == expected


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("1f1b", Shape(4, 2, 3), "3 micro-batches are fewer than 4 stages"),
        ("1f1b", Shape(4, 1, 3), ""),
        ("seqvpp", Shape(2, 2, 4, 4), "4 pieces, more than the 2 stages"),
        ("seqvpp", Shape(4, 2, 1, 2), "1 micro-batches x 2 pieces of sequences are fewer than 4 stages"),
        ("seqsmartvpp", Shape(3, 2, 6), "an even number of stages, not 3"),
        ("zero_bubble_v", Shape(2, 1, 4), "pp_interleave_num: 2"),
        ("zero_bubble_v", Shape(4, 2, 7), "8 micro-batches or more"),
        ("zero_bubble_v", Shape(4, 2, 8), ""),
        ("gpipe", Shape(4, 2, 1), ""),
    ],
)
def test_what_mindspore_refuses(name, shape, words):
    refusal = find_schedule(name, shape).refusal(shape)
    assert words in refusal and bool(words) == bool(refusal)


@settings(max_examples=150)
@given(st.sampled_from(list(SCHEDULES)), st.integers(1, 6), st.integers(1, 3), st.integers(1, 14), st.integers(1, 3))
def test_every_pass_runs_once_forward_before_backward(name, num_stages, num_chunks, num_micro_batches, num_sequences):
    shape = Shape(num_stages, num_chunks, num_micro_batches, num_sequences if name.startswith("seq") else 1)
    if find_schedule(name, shape).refusal(shape):
        return
    for stage in range(num_stages):
        passes = order_passes(name, stage, shape)
        place = {(e.chunk, e.micro_batch, e.sequence, e.work): at for at, e in enumerate(passes)}
        assert len(place) == len(passes)
        count = {work: sum(key[3] is work for key in place) for work in PassWork}
        assert (
            count[PassWork.FORWARD] == count[PassWork.BACKWARD] + count[PassWork.INPUT_GRADIENT] == num_forward(shape)
        )
        assert count[PassWork.INPUT_GRADIENT] == count[PassWork.WEIGHT_GRADIENT]
        for (*which, work), at in place.items():
            if work is PassWork.WEIGHT_GRADIENT:
                assert place[(*which, PassWork.INPUT_GRADIENT)] < at
            elif work is not PassWork.FORWARD:
                assert place[(*which, PassWork.FORWARD)] < at
