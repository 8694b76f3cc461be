from other_systems.saved import SavedTensor, Turn, find_turns, saved_tensors, swap_policy

from mindswap.policy.model import Layers, OpSwap, Policy
from tests.planner.models import MB, small_model


def test_tensors_of_a_layer_with_their_uses():
    # Forward exp mul relu tanh; backward dtanh drelu dmul dexp. tanh is read by the next layer's exp as well.
    assert saved_tensors(small_model(), 1) == (
        SavedTensor(1, ("attn.exp",), MB, made_at=0, last_forward=1, first_backward=2, saved_in=("attn",)),
        SavedTensor(1, ("mlp.relu",), MB, made_at=2, last_forward=3, first_backward=1, saved_in=("mlp",)),
        SavedTensor(1, ("mlp.tanh",), MB, made_at=3, last_forward=4, first_backward=0, saved_in=("mlp",)),
    )


def test_what_another_stage_reads_is_no_use_here():
    # Layer 1 is the last one of stage 0: its output is sent, and read again by its own backward only.
    output = saved_tensors(small_model(num_stages=2, num_micro_batches=2), 1)[-1]
    assert output == SavedTensor(1, ("mlp.tanh",), MB, made_at=3, last_forward=3, first_backward=0, saved_in=("mlp",))


def test_turns_of_one_stage():
    # 1 operator before the layers, 4 layers of 4; 1 behind them in forward, 1 in backward; back through the layers.
    model = small_model()
    turns = find_turns(model, model.program(Policy()), 0)
    assert turns == {0: [Turn(1, 31)], 1: [Turn(5, 27)], 2: [Turn(9, 23)], 3: [Turn(13, 19)]}


def test_turns_of_the_last_stage_of_a_pipeline():
    # A micro-batch is: receive, 8 forward, loss, its gradient, 8 backward, send: 20 operators.
    model = small_model(num_stages=2, num_micro_batches=2)
    turns = find_turns(model, model.program(Policy()), 1)
    assert turns == {2: [Turn(1, 15), Turn(21, 35)], 3: [Turn(5, 11), Turn(25, 31)]}


def test_a_policy_names_equal_layers_together():
    first, second = saved_tensors(small_model(), 0)[0], saved_tensors(small_model(), 2)[0]
    output = saved_tensors(small_model(), 2)[2]
    assert swap_policy([(second, 5), (first, 5), (output, 1)]) == Policy(
        True, op_swap=(OpSwap(r"attn\.exp", Layers((0, 2)), 5), OpSwap(r"mlp\.tanh", Layers((2,)), 1))
    )


def test_an_operator_has_one_distance():
    tensor = saved_tensors(small_model(), 0)[0]
    assert swap_policy([(tensor, 3), (tensor, 7)]).op_swap == (OpSwap(r"attn\.exp", Layers((0,)), 7),)
