from dataclasses import replace

import pytest

from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpSwap
from mindswap.rules.checker import check_shape
from tests.builders import TEST_MODEL, check, document, found

# Rule `layer-out-of-range`.


def layers(value):
    return f"swap_config: {{swap: True, layer_swap: [{{backward_prefetch: 2, layers: {value}}}]}}"


def test_layers_are_counted_from_zero():
    assert found(layers("[0, 3]")) == []
    assert found(layers("[0, 4]")) == [(1, 75, "layer-out-of-range")]


def test_a_negative_index_is_counted_from_the_front():
    problem = check(layers("[-1]")).problems[0]
    assert (problem.rule, problem.fix) == ("layer-out-of-range", "count from the front: 3")


MTP = """
    model: {model_config: {model_type: deepseek_v3, num_layers: 4, %s}}
    use_legacy: False
    swap_config: {swap: True, layer_swap: [{backward_prefetch: 2, layers: %s}]}
"""


@pytest.mark.parametrize(
    ("key", "layers", "is_named"),
    [
        ("num_nextn_predict_layers: 1", "[4]", True),
        ("mtp_num_layers: 2", "['4-5']", True),
        ("mtp_depth: 1", "[5]", False),
        ("mtp_depth: 0", "[4]", False),
        ("hidden_size: 8", "[4]", True),  # by the tree of the model, which has one
    ],
)
def test_the_index_of_multi_token_prediction_is_that_of_the_last_layer(key, layers, is_named):
    model = replace(TEST_MODEL, mtp_layer=TEST_MODEL.layers[0])
    (problem,) = [p for p in check(MTP % (key, layers), model).problems if p.rule == "layer-out-of-range"]
    assert ("multi-token prediction" in problem.message) == is_named
    assert problem.fix == (
        "3, for the last layer and multi-token prediction" if is_named else "delete it; the last layer is 3"
    )


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


# Rule `no-layers`.


@pytest.mark.parametrize("layers", ["[]", "False"])
def test_an_entry_without_layers_is_a_warning(layers):
    text = f"""
        swap_config:
          swap: True
          layer_swap:
            - {{backward_prefetch: 2, layers: [0]}}
            - {{backward_prefetch: 3, layers: {layers}}}
    """
    result = check(text)
    assert [(p.location.line, p.location.column, p.rule) for p in result.problems] == [(5, 7, "no-layers")]
    assert result.policy.layer_swap == (LayerSwap(Layers((0,)), 2),)


def test_layers_that_could_not_be_read_are_another_matter():
    text = "swap_config: {swap: True, layer_swap: [{backward_prefetch: 2, layers: x}, {backward_prefetch: 3}]}"
    assert found(text) == [(1, 71, "wrong-type"), (1, 75, "missing-key")]


# Rule `output-recompute`.


def config(recompute, own, more=""):
    return f"{{swap_config: {{swap: True}}, recompute_config: {{recompute: {recompute}}}, mindswap: {{{own}}}{more}}}"


@pytest.mark.parametrize("recompute", ["True", "[0, 1, 2]", "'0-2'"])
def test_layers_that_are_recomputed_pass(recompute):
    problems = found(config(recompute, "output_recompute: [0, 1]"))
    assert {rule for *_, rule in problems} <= {"recompute-wins"}


def test_layers_that_are_not_recomputed():
    problems = found(config("[0, 1]", "output_recompute: [0, 2]"))
    assert (1, 97, "output-recompute") in problems


def test_every_layer_where_only_some_are_recomputed():
    assert (1, 97, "output-recompute") in found(config("[0, 1]", "output_recompute: True"))
    assert (1, 95, "output-recompute") not in found(config("True", "output_recompute: True"))


def test_the_newer_models_do_not_compile_with_it():
    problems = found(config("True", "output_recompute: [0]", ", use_legacy: False"), model=None, num_layers=4)
    assert (1, 95, "output-recompute") in problems


def test_layers_that_do_not_exist_and_keys_that_do_not():
    assert (1, 99, "layer-out-of-range") in found(config("True", "output_recompute: [0, 9]"))
    assert (1, 77, "unknown-key") in found(config("True", "output_recomputed: [0]"))
    assert (1, 95, "wrong-type") in found(config("True", "output_recompute: maybe"))


def test_it_is_written_and_read_back():
    policy = check_shape(document(config("True", "output_recompute: ['0-1']")), 4).policy
    assert policy.output_recompute.indices == (0, 1)
    assert policy.to_config()["mindswap"] == {"output_recompute": [0, 1]}
    assert check_shape(document(config("True", "cpu_stand_ins: True")), 4).policy.to_config().get("mindswap") is None


def test_with_swap_off_nothing_is_said():
    assert found("{swap_config: {swap: False}, mindswap: {output_recompute: [99], junk: 1}}") == []


# Rule `repeated-layer`.


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


# Rule `select-in-recomputed-layer`.


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
