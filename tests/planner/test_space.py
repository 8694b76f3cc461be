import numpy as np
import pytest

from mindswap.config.pipeline import Pipeline
from mindswap.planner.rows import _worth
from mindswap.planner.space import Worth
from mindswap.planner.step_space import _short_run
from mindswap.policy.model import ALL_LAYERS, OpRecompute, Policy
from mindswap.simulator.layout import lay_out_stages
from tests.planner.builders import Tensor, ToySpace
from tests.planner.models import MB, small_model


def test_a_layer_on_the_clock():
    """One tensor of 10 bytes, made in 5 ns, copied in 4 ns, read in backward in 7 ns.

    Operators: end 0-1, t0 1-6, end 6-7, then backward end 7-8, g0 8-15, end 15-16.
    """
    case = ToySpace(((Tensor(10, 5, 7),),))
    timeline = case.timeline(np.array([[0, 0]]))
    assert timeline.op_start_ns.tolist() == [0, 1, 6, 7, 8, 15]
    assert case.evaluate(np.array([[0, 0]])).step_time_ns == 16
    assert case.evaluate(np.array([[0, -1]])).step_time_ns == 16 + 5


def test_a_swap_close_to_its_use_waits():
    """Out 6-16, in 16-26. Order: end t0 out end in end g0 end; three places behind `out` stands the `end` of backward.

    So that one runs, 7-8, and g0 waits for both copies.
    """
    case = ToySpace(((Tensor(10, 5, 7),),))
    timeline = case.timeline(np.array([[0, 1]]))
    assert (timeline.out_start_ns.tolist(), timeline.out_end_ns.tolist()) == ([6], [16])
    assert timeline.op_start_ns.tolist() == [0, 1, 6, 7, 26, 33]


def test_the_smallest_distances_delay_nothing_where_copies_have_time():
    """Four layers of 100 ns forward; each copy takes 40 ns, so one layer of distance is enough for all but the last."""
    layers = ((Tensor(40, 50, 100), Tensor(1, 50, 100, can_swap=False)),) * 4
    case = ToySpace(layers)
    choice = np.zeros((4, 3), np.int64)
    choice[:3, 1] = 20
    loose = case.timeline(choice)
    needed = case.smallest_distances(loose)
    assert (needed[:3, 1] > 0).all()
    assert (needed[:3, 1] < 20).all()
    assert not needed[3].any()
    tight = case.timeline(np.where(choice > 0, needed, 0))
    assert tight.step_time_ns == loose.step_time_ns == case.evaluate(np.zeros((4, 3), np.int64)).step_time_ns


def test_what_is_swapped_and_on_the_device_at_the_peak():
    """The peak is behind the last layer: the first tensor is away by then if it goes three operators behind its copy.

    Far ahead of its use it stays until the end of forward, and is back at once.
    """
    case = ToySpace(((Tensor(10, 50, 100),),) * 4 + ((Tensor(90, 50, 100, can_swap=False),),))
    choice = np.zeros((5, 2), np.int64)
    for distance, is_there in ((1, False), (50, True)):
        choice[0, 1] = distance
        found = case.at_peak(case.timeline(choice))
        assert found[0, 1] == is_there
        assert found.sum() == is_there


def test_what_a_program_copies_besides_is_no_cell_of_the_space():
    """Two layers of two tensors, all swapped; `t1`, then layer 1, are not of the space, and so none of its last."""
    case = ToySpace(((Tensor(10, 5, 7), Tensor(10, 5, 7)),) * 2)
    timeline = case.timeline(np.array([[0, 1, 1]] * 2))
    assert case.at_peak(timeline)[:, 1].all() and case.smallest_distances(timeline)[:, 1:].all()
    for layers, items, own in (((0, 1), {"t0": 1}, np.s_[:, 1]), ((0,), {"t0": 1, "t1": 2}, np.s_[0, 1:])):
        case.layers, case.items = layers, items
        for found in (case.at_peak(timeline), case.smallest_distances(timeline)):
            assert found[own].all() and found.sum() == 2


def test_memory_over_either_budget_is_excess():
    case = ToySpace(((Tensor(10, 5, 7),),), budget_bytes=4)
    assert case.evaluate(np.array([[0, 0]])).excess_bytes == 6
    full_host = ToySpace(((Tensor(10, 5, 7),),), budget_bytes=100, host_budget_bytes=3)
    assert full_host.evaluate(np.array([[0, 2]])).excess_bytes == 7


@pytest.mark.parametrize(
    ("num_sequences", "expected"),
    [
        # 1F1B: in flight are a micro-batch of each stage behind it and one more; the run is two micro-batches longer.
        (1, [(6, 4), (5, 3), (4, 2), (3, 1)]),
        # In halves of sequences one piece more: 5, 4, 3, 2 pieces are 3, 2, 2, 1 micro-batches.
        (2, [(5, 5), (4, 4), (4, 3), (3, 2)]),
    ],
)
def test_a_short_run_is_two_micro_batches_longer_than_what_is_in_flight(num_sequences, expected):
    layout = lay_out_stages(Pipeline(4), 8, 16, num_sequences)
    assert [_short_run(layout, stage) for stage in range(4)] == expected


def test_a_short_run_of_two_chunks_is_whole_rounds():
    """In flight are 5 and 3 passes; with one more for each chunk 2 rounds of 2 stages x 2 chunks."""
    layout = lay_out_stages(Pipeline(2, num_chunks=2), 8, 16)
    assert [_short_run(layout, stage) for stage in range(2)] == [(4, 3), (4, 2)]


@pytest.mark.parametrize(
    ("num_copies", "is_held", "worth"),
    [
        (1, False, Worth(MB, 0, 100_000, MB)),  # 1 MB, over a link of 10 GB/s
        (2, False, Worth(MB, 0, 200_000, 2 * MB)),  # under two names
        (1, True, Worth(0, 0, 100_000, MB)),  # under one of two names: it stays all the same
    ],
)
def test_what_a_swap_is_worth(num_copies, is_held, worth):
    model = small_model(2)
    plain = model.layer_block(Policy(), 0)
    assert _worth(model, plain, plain) == Worth(0, 0, 0, 0)
    (label,) = (tensor.label for tensor in plain.tensors if str(tensor.label) == "attn.exp")
    assert _worth(model, plain, plain.with_copies({label: (8, num_copies, is_held)})) == worth


def test_what_recompute_is_worth():
    model = small_model(2)
    again = model.layer_block(Policy(True, select_recompute=(OpRecompute(r"attn\.exp", ALL_LAYERS),)), 0)
    assert _worth(model, model.layer_block(Policy(), 0), again) == Worth(MB, 2000, 0, 0)
