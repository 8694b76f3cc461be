import pytest

from mindswap.policy.model import Policy
from tests.builders import LLAMA_USES, TEST_MODEL, check, found, trees

# Rule `conflicting-prefetch`.


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


# Rule `far-prefetch`: the test model has four layers of 12 operators, so at most 4 * 3 * 12 compiled ones.


def distance_of(distance, layers="[0]", model=TEST_MODEL, stages=1):
    entry = f"{{backward_prefetch: {distance}, layers: {layers}}}"
    text = f"{{parallel_config: {{pipeline_stage: {stages}}}, swap_config: {{swap: True, layer_swap: [{entry}]}}}}"
    return found(text, model, num_layers=4)


@pytest.mark.parametrize(("layers", "limit"), [("[0]", 144), ("[3]", 36), ("[1, 3]", 108), ("True", 144)])
def test_a_distance_beyond_all_operators_frees_nothing(layers, limit):
    assert distance_of(limit, layers) == []
    assert [rule for *_, rule in distance_of(limit + 1, layers)] == ["far-prefetch"]


def test_of_a_model_that_is_not_known_the_limit_is_larger():
    assert distance_of(12000, model=None) == [] != distance_of(12001, model=None)


def test_with_a_pipeline_other_micro_batches_are_in_between():
    assert distance_of(100_000, stages=2) == []


def test_a_default_distance_is_one_finding():
    text = "{swap_config: {swap: True, default_prefetch: 2000}}"
    (problem,) = check(text).problems
    assert (problem.rule, problem.location.column) == ("far-prefetch", 46)
    assert problem.message.startswith("swap_config.default_prefetch: 2000, and")


# Rule `nothing-swapped`.


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ("op_swap: []", 36),
        ("op_swap: {}", 36),
        ("layer_swap: []", 39),
        ("layer_swap: [], op_swap: []", 39),
        ("layer_swap: null, op_swap: []", 54),
    ],
)
def test_empty_lists_replace_the_default_strategy(options, column):
    result = check(f"swap_config: {{swap: True, {options}}}")
    assert [(p.location.column, p.rule) for p in result.problems] == [(column, "nothing-swapped")]
    assert result.policy == Policy(is_swap_enabled=True)


@pytest.mark.parametrize("options", ["layer_swap: null, op_swap: null", "default_prefetch: 1"])
def test_null_keeps_the_default_strategy(options):
    assert found(f"swap_config: {{swap: True, {options}}}") == []


def test_one_of_the_two_may_be_empty():
    assert found("swap_config: {swap: True, op_swap: [], layer_swap: [{backward_prefetch: 2, layers: [0]}]}") == []


# Rule `overlap`.


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
        "in layer 1 (attention.wq.matmul); this entry applies, with backward_prefetch 10"
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


# Rule `recompute-wins`.


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
        ("attention", r"select_recompute: {'attention\..*': [1]}"),
        (r"attention\.wq", "select_recompute: {attention: True}"),
        (r"attention\.w.", r"select_recompute: {'attention\.wq': True}"),
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
        r"select_recompute: {'attention\.wq': [1]}",  # the rest of attention is swapped
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
    part = text.replace("recompute: [1]", r"select_recompute: {attention: [1]}")
    assert found(part) == found(part, None) == []


def test_without_a_model_names_are_compared():
    assert found(config(r"attention\.wq", "select_recompute: {attention: [1]}"), None) == [(4, 17, "recompute-wins")]
    assert found(config("attention", r"select_recompute: {'attention\.wq': [1]}"), None) == []
    assert found(config("attention", "select_recompute: {feed_forward: [1]}"), None) == []


def test_the_message_names_layers_operators_and_place():
    problem = check(config(r"attention\.wq", r"select_recompute: {attention: [1]}")).problems[0]
    assert "(x.yaml:5:50) recomputes attention.wq.matmul in layer 1" in problem.message


def test_where_every_layer_is_recomputed_the_fix_says_so():
    text = "{swap_config: {swap: True}, recompute_config: {recompute: True}}"
    problem = next(problem for problem in check(text).problems if problem.rule == "recompute-wins")
    assert problem.fix == (
        "recompute: False, or delete swap_config: every layer is recomputed, so nothing is swapped; or "
        "select_recompute of '(attention_norm|ffn_norm|attention|feed_forward)' and op_swap of 'add': then the inputs "
        "of the cells are swapped"
    )


def test_for_the_newer_models_the_fix_names_no_cells():
    text = "{use_legacy: False, swap_config: {swap: True}, recompute_config: {recompute: True}}"
    problem = next(problem for problem in check(text).problems if problem.rule == "recompute-wins")
    assert problem.fix == "recompute: False, or delete swap_config: every layer is recomputed, so nothing is swapped"


def test_the_fix_of_a_swap_in_a_recomputed_layer_does_what_it_says():
    """The form of `mindswap compare FILE recompute-swap`: no warning, and each cell is recomputed."""
    problem = next(p for p in check(config("add", "recompute: [1]")).problems if p.rule == "recompute-wins")
    cells = problem.fix.split("'")[1]
    checked = check(config("add", f"select_recompute: {{'{cells}': [1]}}"))
    assert [p for p in checked.problems if p.rule == "recompute-wins"] == []
    assert checked.policy.select_recompute[0].pattern == cells


# Swap of what a recomputed operator reads: by the specification it takes no effect, on the backend it frees memory
# (docs/rule_effects.md), so nothing is said.


@pytest.mark.parametrize(
    ("swap", "recompute", "rules"),
    [
        (r"feed_forward\.mul", r"feed_forward\.w2", []),
        (r"feed_forward\.w1", r"feed_forward\.mul", []),
        ("attention", r"attention\.flash_attention", []),
        (r"feed_forward\.mul", "feed_forward", ["recompute-wins"]),  # recomputed itself
    ],
)
def test_a_recomputed_operator_reads_the_swapped_one(swap, recompute, rules):
    text = config(swap, f"select_recompute: {{'{recompute}': [1, 2]}}")
    assert [rule for *_, rule in found(text, trees(uses=LLAMA_USES))] == rules
