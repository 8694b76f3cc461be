from mindswap.policy.convert import first_difference
from mindswap.policy.model import Layers, OpRecompute, Policy
from tests.builders import LLAMA, trees

ON = Policy(is_swap_enabled=True)


def selecting(pattern, *layers):
    return Policy(is_swap_enabled=True, select_recompute=(OpRecompute(pattern, Layers(layers)),))


def test_equal_operators_under_other_names_are_no_difference():
    """`w1` has one product and one activation below it; named one by one they are the same."""
    both = Policy(
        is_swap_enabled=True,
        select_recompute=tuple(
            OpRecompute(rf"feed_forward\.w1\.{name}", Layers((1,))) for name in ("matmul", r"activation\.silu")
        ),
    )
    assert first_difference(selecting(r"feed_forward\.w1", 1), both, 4, trees(4, LLAMA)) == ""


def test_the_first_layer_that_differs_is_named_with_its_operators():
    found = first_difference(
        selecting(r"feed_forward\.mul", 1, 2), selecting(r"feed_forward\.mul", 1), 4, trees(4, LLAMA)
    )
    assert found == "in layer 2 only before recomputed: feed_forward.mul"


def test_whole_layers_and_flags_need_no_model():
    whole = Policy(is_swap_enabled=True, layer_recompute=Layers((0, 3)))
    assert first_difference(whole, ON, 4, None) == "layer 0 is in recompute only before"
    flag = Policy(is_swap_enabled=True, mp_comm_recompute=False)
    assert first_difference(ON, flag, 4, None) == "mp_comm_recompute is True before and False after"
    assert first_difference(selecting("add", 1), ON, 4, None) == ""
