from tests.builders import found


def test_a_whole_layer_leaves_nothing_to_select():
    text = """
        swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: [3]}]}
        recompute_config:
          recompute: [0]
          select_recompute: {feed_forward: [0, 1]}
          select_comm_recompute: ['.*\\.norm']
    """
    assert found(text) == [(4, 22, "select-in-recomputed-layer"), (5, 27, "select-in-recomputed-layer")]


def test_different_layers_pass():
    text = """
        swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: [3]}]}
        recompute_config: {recompute: [0], select_recompute: {feed_forward: [1]}}
    """
    assert found(text) == []
