from tests.builders import found


def test_one_operator_with_two_distances():
    text = """
        swap_config:
          swap: True
          op_swap:
            - {op_name: attention, backward_prefetch: 20, layers: [0, 1]}
            - {op_name: attention, backward_prefetch: 10, layers: [1, 2]}
    """
    assert found(text) == [(5, 47, "conflicting-prefetch")]


def test_one_layer_with_two_distances():
    text = """
        swap_config:
          swap: True
          layer_swap:
            - {backward_prefetch: 20, layers: True}
            - {backward_prefetch: 10, layers: [1]}
    """
    assert found(text) == [(5, 27, "conflicting-prefetch")]


def test_the_mapping_form():
    entry = "[{backward_prefetch: 2, layers: [0]}, {backward_prefetch: 3, layers: [0]}]"
    assert found(f"swap_config: {{swap: True, op_swap: {{attention: {entry}}}}}") == [(1, 106, "conflicting-prefetch")]


def test_different_layers_pass():
    text = """
        swap_config:
          swap: True
          op_swap:
            - {op_name: attention, backward_prefetch: 20, layers: [0, 1]}
            - {op_name: attention, backward_prefetch: 10, layers: [2]}
    """
    assert found(text) == []
