from other_systems.longest_gap import longest_gap

from mindswap.policy.model import Layers, OpSwap
from tests.planner.models import MB, small_model

# Kept by all layers 12 MB; at the peak, the first operator of backward, also its input and its output.
PEAK_BYTES = 14 * MB


def test_nothing_leaves_where_the_budget_is_enough():
    model = small_model()
    assert model.simulate(longest_gap(1, model, PEAK_BYTES)).peak_bytes == PEAK_BYTES
    assert longest_gap(1, model, PEAK_BYTES).op_swap == ()


def test_longest_gaps_first_until_the_budget_is_met():
    # 4 MB too much; the gaps are 31, 28 and 26 operators in layer 0, and 23 for exp of layer 1.
    model = small_model()
    policy = longest_gap(1, model, PEAK_BYTES - 4 * MB)
    assert policy.op_swap == (
        OpSwap(r"attn\.exp", Layers((0, 1)), 1),
        OpSwap(r"mlp\.relu", Layers((0,)), 1),
        OpSwap(r"mlp\.tanh", Layers((0,)), 1),
    )
    assert model.simulate(policy).peak_bytes == PEAK_BYTES - 4 * MB


def test_the_distance_is_that_of_every_copy():
    entries = longest_gap(10, small_model(), PEAK_BYTES - 1).op_swap
    assert entries == (OpSwap(r"attn\.exp", Layers((0,)), 10),)


def test_a_budget_out_of_reach_takes_all_that_helps():
    model = small_model()
    patterns = {entry.pattern for entry in longest_gap(1, model, 0).op_swap}
    assert patterns == {r"attn\.exp", r"mlp\.relu", r"mlp\.tanh"}
