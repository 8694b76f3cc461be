from tests.builders import found


def test_each_missing_key_is_named():
    text = """
        swap_config:
          swap: True
          op_swap:
            - {backward_prefetch: 20, layers: [0]}
            - {op_name: attention}
          layer_swap:
            - {}
    """
    assert found(text) == [
        (4, 7, "missing-key"),
        (5, 7, "missing-key"),
        (5, 7, "missing-key"),
        (7, 7, "missing-key"),
        (7, 7, "missing-key"),
    ]


def test_the_mapping_form_needs_no_op_name():
    text = r"swap_config: {swap: True, op_swap: {attention: [{backward_prefetch: 20, layers: [0]}]}}"
    assert found(text) == []
