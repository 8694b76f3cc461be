from mindswap.policy.formats.mindformers1.read import build_policy, read_settings
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from tests.builders import document


def built(text, num_layers=4):
    return build_policy(read_settings(document(text), num_layers))


def test_entries_of_one_pattern_and_distance_are_one_in_order_of_the_first():
    text = """
        swap_config:
          swap: True
          op_swap:
            - {op_name: b, backward_prefetch: 2, layers: [3]}
            - {op_name: a, backward_prefetch: 2, layers: [0]}
            - {op_name: b, backward_prefetch: 2, layers: [1]}
            - {op_name: b, backward_prefetch: 5, layers: [0]}
    """
    expected = (OpSwap("b", Layers((1, 3)), 2), OpSwap("b", Layers((0,)), 5), OpSwap("a", Layers((0,)), 2))
    assert built(text).op_swap == expected


def test_what_could_not_be_read_is_left_out():
    entries = "{backward_prefetch: x, layers: [0]}, {backward_prefetch: 1, layers: [1]}"
    text = f"swap_config: {{swap: True, layer_swap: [{entries}]}}"
    assert built(text).layer_swap == (LayerSwap(Layers((1,)), 1),)


def test_recompute_and_flags():
    text = """
        swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: [0]}]}
        recompute_config: {recompute: [1, '2-3'], select_recompute: [mul], mp_comm_recompute: False}
        mindswap: {output_recompute: [2]}
    """
    policy = built(text)
    assert (policy.layer_recompute, policy.output_recompute) == (Layers((1, 2, 3)), Layers((2,)))
    assert policy.select_recompute == (OpRecompute("mul", ALL_LAYERS),)
    assert not policy.mp_comm_recompute


def test_swap_off_decides_nothing():
    assert built("{swap_config: {swap: False}, recompute_config: {recompute: True}}") == Policy()
