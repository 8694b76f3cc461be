from mindswap.policy.model import ALL_LAYERS, OpSwap
from tests.builders import check, found


def test_an_index_that_stands_twice_in_a_list():
    text = "swap_config: {swap: True, layer_swap: [{backward_prefetch: 2, layers: [0, 1, '0-1', 2]}]}"
    assert found(text) == [(1, 78, "repeated-layer"), (1, 78, "repeated-layer")]


def test_an_entry_that_repeats_another():
    text = """
        swap_config:
          swap: True
          op_swap:
            - {op_name: attention, backward_prefetch: 2, layers: [0, 1]}
            - {op_name: attention, backward_prefetch: 2, layers: True}
    """
    assert found(text) == [(5, 17, "repeated-layer")]
    assert check(text).policy.op_swap == (OpSwap("attention", ALL_LAYERS, 2),)


def test_a_name_that_stands_twice_in_a_list():
    text = "{swap_config: {swap: True}, recompute_config: {select_recompute: [add, add]}}"
    assert found(text) == [(1, 72, "repeated-layer")]


def test_different_layers_and_different_operators_pass():
    text = """
        swap_config:
          swap: True
          op_swap:
            - {op_name: attention, backward_prefetch: 2, layers: [0, 1]}
            - {op_name: attention, backward_prefetch: 2, layers: [2]}
            - {op_name: feed_forward, backward_prefetch: 2, layers: [0]}
    """
    assert found(text) == []
