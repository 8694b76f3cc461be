from dataclasses import replace

import pytest
import yaml

from mindswap.policy.cell_tree import CellNode, LayerTrees
from tests.builders import LLAMA, QWEN, check, found, layer, trees

# Rule `bad-regex`.


def op_swap(name):
    return f"swap_config: {{swap: True, op_swap: [{{op_name: '{name}', backward_prefetch: 2, layers: [0]}}]}}"


@pytest.mark.parametrize("name", ["*", r"*\.flash_attention", "[", "(", "a(?i", r"attention\.(", "a{2}{3}", "x" * 1001])
@pytest.mark.parametrize("model", [None, trees()])
def test_what_the_compiler_refuses(name, model):
    assert found(op_swap(name), model) == [(1, 47, "bad-regex")]


@pytest.mark.parametrize("model", [None, trees()])
def test_a_pattern_that_does_not_come_to_an_end(model):
    assert found(op_swap("(?R)"), model) == [(1, 47, "bad-regex")]


def test_recompute_patterns_are_checked_alike():
    text = "{swap_config: {swap: True}, recompute_config: {select_recompute: {'(': [0]}, select_comm_recompute: ['[']}}"
    assert found(text) == [(1, 67, "bad-regex"), (1, 102, "bad-regex")]


@pytest.mark.parametrize("name", [".*", r"att.*\.w[qo]", r"feed_forward\.w1\.activation\.(silu|gelu)"])
def test_regular_expressions_pass(name):
    assert found(op_swap(name)) == []


def test_a_name_as_pages_of_mindformers_print_it():
    r"""In quotes YAML keeps both backslashes of 'feed_forward\\.mul'; split at `\.` its first part ends in one."""
    text = r"{swap_config: {swap: True, op_swap: [{op_name: 'feed_forward\\.mul', backward_prefetch: 1, layers: [0]}]}}"
    problem = next(problem for problem in check(text).problems if problem.rule == "bad-regex")
    assert problem.fix == r"'feed_forward\.mul'" and "keeps both backslashes" in problem.message


# Rule `exclude-select`.


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


# Rule `plain-dot`.


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("attention.flash_attention", r"attention\.flash_attention"),
        (".*.flash_attention", r".*\.flash_attention"),
        (r"feed_forward\.w1.activation.silu", r"feed_forward\.w1\.activation\.silu"),
        ("attention.(wq|wo)", r"attention\.(wq|wo)"),
        ("feed_forward..+", r"feed_forward\..+"),
    ],
)
@pytest.mark.parametrize("model", [None, trees()])
def test_a_dot_between_names(name, meant, model):
    problems = check(op_swap(name), model).problems
    assert [(p.location.column, p.rule, p.level.value, p.fix) for p in problems] == [
        (47, "plain-dot", "error", f"op_name: '{meant}'")
    ]


@pytest.mark.parametrize(
    "name",
    [".*", ".+", r".*\.flash_attention", r"feed_forward\.w.\.matmul", "att.*", "att.{6}", "attention[.]?", r"\w+"],
)
def test_a_dot_that_is_a_wildcard_passes(name):
    assert found(op_swap(name)) == []


def test_it_is_a_warning_where_the_pattern_matches():
    problems = check(op_swap("feed.forward")).problems
    assert [(p.rule, p.level.value) for p in problems] == [("plain-dot", "warning")]


# Rule `unmatched-pattern`.


def unmatched_pattern_op_swap(name, layers="True"):
    return f"swap_config: {{swap: True, op_swap: [{{op_name: '{name}', backward_prefetch: 2, layers: {layers}}}]}}"


def test_a_missing_level_is_found_with_the_full_path():
    problem = check(unmatched_pattern_op_swap("flash_attention")).problems[0]
    assert (problem.location.column, problem.rule) == (47, "unmatched-pattern")
    assert problem.fix == r"op_name: 'attention\.flash_attention'"
    assert "matches no operator in any layer of the test model" in problem.message


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        (r"feed_forward\.mull", r"feed_forward\.mul"),
        ("atention", "attention"),
        (r"feed_forward\.w4\.matmul", r"feed_forward\.w1\.matmul"),
        ("Attention", "attention"),
    ],
)
def test_the_closest_path_is_the_fix(name, closest):
    problem = check(unmatched_pattern_op_swap(name)).problems[0]
    assert (problem.rule, problem.fix) == ("unmatched-pattern", f"op_name: '{closest}'")
    assert f"closest: '{closest}'" in problem.allowed


def test_an_operator_is_no_cell():
    assert found(unmatched_pattern_op_swap(r"add\.x")) == [(1, 47, "unmatched-pattern")]


def test_every_option_with_patterns_is_checked():
    text = r"""
        swap_config: {swap: True}
        recompute_config:
          select_recompute: {'none\.such': [0]}
          select_comm_recompute: ['none\.such']
          select_recompute_exclude: {'none\.such': True}
    """
    assert [rule for *_, rule in found(text) if rule == "unmatched-pattern"] == ["unmatched-pattern"] * 3


def test_a_pattern_may_miss_some_layers_of_all_but_not_one_that_is_named():
    mixed = LayerTrees((layer("mlp\n  mul*"), layer("experts\n  mul*")), {}, "the test model")
    assert found(unmatched_pattern_op_swap("experts"), mixed) == []
    problems = check(unmatched_pattern_op_swap("experts", "[0, 1]"), mixed).problems
    assert [(p.rule, p.level.value) for p in problems] == [("unmatched-pattern", "warning")]
    assert found(unmatched_pattern_op_swap("experts", "[0]"), mixed) == [(1, 47, "unmatched-pattern")]


@pytest.mark.parametrize("outline", [LLAMA, QWEN])
def test_the_default_strategy_finds_flash_attention_in_both_families(outline):
    assert found("swap_config: {swap: True}", trees(outline=outline)) == []


def test_the_default_strategy_needs_flash_attention():
    model = trees(outline="attention\n  softmax*")
    assert found("swap_config: {swap: True}", model) == [(1, 21, "unmatched-pattern")]


def test_default_operators_need_not_all_exist():
    text = "{use_legacy: False, swap_config: {swap: True}, recompute_config: {select_recompute: True}}"
    result = check(text, trees(outline=QWEN))
    assert result.problems == ()
    written = yaml.safe_dump(result.policy.to_config() | {"use_legacy": False}, sort_keys=False)
    assert check(written, trees(outline=QWEN)).policy == result.policy


def test_default_operators_that_are_nowhere_are_a_warning():
    text = "{swap_config: {swap: True}, recompute_config: {select_comm_recompute: True}}"
    problems = check(text, trees(outline="attention\n  flash_attention*")).problems
    assert [(p.rule, p.level.value) for p in problems] == [("unmatched-pattern", "warning")]


def test_the_message_says_how_to_see_all_paths():
    assert (
        check(unmatched_pattern_op_swap("no"))
        .problems[0]
        .allowed.endswith("; all paths: mindswap explain --paths x.yaml")
    )


def test_a_pattern_may_name_the_layer_of_multi_token_prediction_by_the_number_of_the_last_layer():
    around = CellNode("", "Mtp", children=(replace(layer("mlp\n  mul*"), name="transformer_layer"),))
    model = LayerTrees((layer("mlp\n  mul*"),) * 3, {}, "the test model", around)
    name = r"transformer_layer\.mlp\.mul"
    assert (
        found(unmatched_pattern_op_swap(name), model)
        == found(unmatched_pattern_op_swap(name, "[2]"), model)
        == found(unmatched_pattern_op_swap("mlp"), model)
        == []
    )
    (problem,) = check(unmatched_pattern_op_swap(name, "[0]"), model).problems
    assert (problem.rule, problem.level.value, problem.fix) == ("unmatched-pattern", "error", "name layer 2")
    assert found(unmatched_pattern_op_swap(name), replace(model, mtp_layer=None)) == [(1, 47, "unmatched-pattern")]
