from tests.builders import found


def config(options):
    return "{swap_config: {swap: True}, recompute_config: {" + options + "}}"


def test_what_is_selected_and_excluded():
    text = config(r"select_recompute: ['feed_forward\.mul'], select_recompute_exclude: ['feed_forward\.mul']")
    assert found(text) == [(1, 116, "exclude-select")]


def test_what_nothing_selects():
    assert found(config(r"select_recompute_exclude: ['feed_forward\.mul']")) == [(1, 75, "exclude-select")]
    assert found(config(r"select_comm_recompute_exclude: ['feed_forward\.mul']")) == [(1, 80, "exclude-select")]


def test_a_part_of_what_is_selected_passes():
    assert found(config(r"select_recompute: [feed_forward], select_recompute_exclude: ['feed_forward\.mul']")) == []


def test_a_part_of_a_recomputed_layer_passes():
    text = r"""
        swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: [0]}]}
        recompute_config: {recompute: [1], select_recompute_exclude: ['feed_forward\.mul']}
    """
    assert found(text) == []
