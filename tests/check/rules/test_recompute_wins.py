import pytest

from tests.builders import check, found


def config(swap, recompute):
    return f"""
        swap_config:
          swap: True
          op_swap:
            - {{op_name: '{swap}', backward_prefetch: 20, layers: [0, 1]}}
        recompute_config: {{{recompute}}}
    """


@pytest.mark.parametrize(
    ("swap", "recompute"),
    [
        ("attention", "select_recompute: {attention: [1]}"),
        ("attention", r"select_recompute: {'attention\.wq': [1]}"),
        (r"attention\.wq", "select_recompute: {attention: True}"),
        (r".*\.wq", r"select_recompute: ['att.*\.w.']"),
        (r"feed_forward\.mul", "select_recompute: True"),
        ("attention", "recompute: [1]"),
        ("attention", "recompute: True"),
    ],
)
def test_operators_that_are_swapped_and_recomputed(swap, recompute):
    assert found(config(swap, recompute)) == [(4, 17, "recompute-wins")]


@pytest.mark.parametrize(
    "recompute",
    [
        "select_recompute: {attention: [2]}",
        "select_recompute: {feed_forward: True}",
        r"select_comm_recompute: {'attention\.wq': True}",
        "recompute: [2, 3]",
        "recompute: False",
    ],
)
def test_different_operators_or_layers_pass(recompute):
    assert found(config("attention", recompute)) == []


def test_an_excluded_operator_is_not_recomputed():
    recompute = r"select_recompute: [attention], select_recompute_exclude: ['attention\.wq']"
    assert found(config(r"attention\.wq", recompute)) == []


def test_layers_are_recomputed_or_swapped():
    text = """
        swap_config: {swap: True, layer_swap: [{backward_prefetch: 2, layers: [1]}]}
        recompute_config: {recompute: [1]}
    """
    assert found(text) == [(1, 40, "recompute-wins")]


def test_without_a_model_names_are_compared():
    assert found(config("attention", r"select_recompute: {'attention\.wq': [1]}"), None) == [(4, 17, "recompute-wins")]
    assert found(config("attention", "select_recompute: {feed_forward: [1]}"), None) == []


def test_the_message_names_layers_operators_and_place():
    problem = check(config("attention", r"select_recompute: {'attention\.wq': [1]}")).problems[0]
    assert "(x.yaml:5:56) recomputes attention.wq.matmul in layer 1" in problem.message


def test_where_every_layer_is_recomputed_the_fix_says_so():
    text = "{swap_config: {swap: True}, recompute_config: {recompute: True}}"
    problem = next(problem for problem in check(text).problems if problem.rule == "recompute-wins")
    assert problem.fix == "recompute: False, or delete swap_config: every layer is recomputed, so nothing is swapped"
