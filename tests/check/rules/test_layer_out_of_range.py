from tests.builders import check, found


def layers(value):
    return f"swap_config: {{swap: True, layer_swap: [{{backward_prefetch: 2, layers: {value}}}]}}"


def test_layers_are_counted_from_zero():
    assert found(layers("[0, 3]")) == []
    assert found(layers("[0, 4]")) == [(1, 75, "layer-out-of-range")]


def test_a_negative_index_is_counted_from_the_front():
    problem = check(layers("[-1]")).problems[0]
    assert (problem.rule, problem.fix) == ("layer-out-of-range", "count from the front: 3")


def test_a_range_is_one_problem():
    problem = check(layers("'2-6'")).problems[0]
    assert problem.message.endswith("there are no layers 4-6")
    assert problem.allowed == "0 to 3 (num_layers: 4)"


def test_recompute_options_are_checked_alike():
    text = """
        swap_config: {swap: True}
        recompute_config:
          recompute: [7]
          select_recompute:
            add: [0, 9]
    """
    assert found(text) == [(3, 15, "layer-out-of-range"), (5, 14, "layer-out-of-range")]


def test_a_list_of_operators_reports_its_layers_once():
    text = "swap_config: {swap: True, op_swap: [{op_name: [add, attention], backward_prefetch: 2, layers: [4]}]}"
    assert found(text) == [(1, 96, "layer-out-of-range")]


def test_without_a_model_only_impossible_layers_are_found():
    assert found(layers("[-2, 500]"), None) == [(1, 72, "layer-out-of-range")]
    assert found(layers("'0-999999'"), None) == [(1, 71, "layer-out-of-range")]
