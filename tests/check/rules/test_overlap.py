from tests.builders import check, found


def test_a_cell_and_an_operator_inside_it():
    text = """
        swap_config:
          swap: True
          op_swap:
            - {op_name: attention, backward_prefetch: 20, layers: [0, 1]}
            - {op_name: 'attention\\.wq', backward_prefetch: 10, layers: [1, 2]}
    """
    assert found(text) == [(5, 17, "overlap")]
    assert (
        "in layer 1 (attention.wq.matmul); this one counts, with backward_prefetch 10"
        in check(text).problems[0].message
    )


def test_the_pattern_that_appears_first_is_the_weaker_one():
    text = """
        swap_config:
          swap: True
          op_swap:
            - {op_name: attention, backward_prefetch: 20, layers: [0]}
            - {op_name: 'att.*', backward_prefetch: 10, layers: [1]}
            - {op_name: attention, backward_prefetch: 30, layers: [1]}
    """
    assert found(text) == [(5, 17, "overlap")]


def test_op_swap_goes_before_layer_swap():
    text = """
        swap_config:
          swap: True
          op_swap:
            - {op_name: attention, backward_prefetch: 20, layers: [0]}
          layer_swap:
            - {backward_prefetch: 10, layers: True}
    """
    assert found(text) == [(4, 17, "overlap")]


def test_without_a_model_equal_beginnings_overlap():
    text = """
        swap_config:
          swap: True
          op_swap:
            - {op_name: attention, backward_prefetch: 20, layers: [0]}
            - {op_name: 'attention\\.wq', backward_prefetch: 10, layers: [0]}
            - {op_name: 'other\\.wq', backward_prefetch: 10, layers: [0]}
    """
    assert found(text, None) == [(5, 17, "overlap")]


def test_patterns_that_share_no_operator_pass():
    text = """
        swap_config:
          swap: True
          layer_swap: [{backward_prefetch: 10, layers: [3]}]
          op_swap:
            - {op_name: attention, backward_prefetch: 20, layers: [0]}
            - {op_name: feed_forward, backward_prefetch: 10, layers: [0]}
            - {op_name: 'attention\\.wq', backward_prefetch: 10, layers: [2]}
    """
    assert found(text) == []


def test_the_default_strategy_does_not_overlap_itself():
    assert found("swap_config: {swap: True}") == []
