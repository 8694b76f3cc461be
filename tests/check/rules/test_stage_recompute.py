import pytest

from mindswap.check.check import check_before_network
from mindswap.errors import PolicyError
from tests.builders import check, document, found


def config(recompute, swap="False"):
    return f"""
        model: {{model_config: {{num_layers: 4}}}}
        parallel_config: {{pipeline_stage: 2}}
        swap_config: {{swap: {swap}}}
        recompute_config: {recompute}
    """


def stage_problems(recompute, **options):
    problems = check(config(recompute), **options).problems
    return [(p.level.value, p.location.line, p.location.column, p.rule) for p in problems]


def test_what_mindformers_takes_passes():
    for recompute in ("True", "[2, 1]", "[[1, 2]]", "[True, False]", "[]"):
        assert found(config(f"{{recompute: {recompute}}}")) == []
    assert found(config(r"{select_recompute: ['feed_forward\.mul'], select_comm_recompute: [1, 0]}")) == []


def test_what_stops_mindformers_is_an_error_at_its_place():
    assert stage_problems("{recompute: [1, 1, 1]}") == [("error", 4, 38, "stage-recompute")]
    assert stage_problems("{recompute: '(1, 1)'}") == [("error", 4, 31, "stage-recompute")]
    assert stage_problems("{select_recompute: {add: [-1, 0]}}") == [("error", 4, 45, "stage-recompute")]
    assert stage_problems("{select_recompute: ['(']}") == [("error", 4, 39, "stage-recompute")]


def test_what_it_leaves_out_is_a_warning():
    assert stage_problems("{recompute: [3, 0]}") == [("warning", 4, 31, "stage-recompute")]
    assert stage_problems(r"{select_recompute: ['feed_forward\.mull']}") == [("warning", 4, 39, "unmatched-pattern")]
    assert stage_problems("{select_recompute: ['feed_forward.mul']}") == [("warning", 4, 39, "plain-dot")]
    assert stage_problems("{select_comm_recompute_exclude: {'no': True}}") == [("warning", 4, 52, "unmatched-pattern")]
    assert stage_problems("{select_recompute_exclude: ['feed_forward']}") == [("warning", 4, 47, "stage-recompute")]


def test_names_are_not_judged_where_the_model_is_not_known():
    assert stage_problems(r"{select_recompute: ['feed_forward\.mull']}", model=None) == []


def test_with_swap_on_the_other_rules_judge():
    rules = {rule for *_, rule in found(config("{recompute: [1, 1, 1]}", swap="True"))}
    assert "stage-recompute" not in rules


def test_without_a_number_of_layers_nothing_is_said():
    assert found("recompute_config: {recompute: [1, 1, 1]}", model=None) == []


def test_a_run_with_swap_off_is_left_to_mindformers():
    assert check_before_network(document(config("{recompute: 7, select_recompute: ['(']}")), {}).policy is not None
    with pytest.raises(PolicyError):
        check_before_network(document(config("{recompute: 7}", swap="True")), {})


def test_an_offset_that_does_not_fit_the_model_is_an_error_with_swap_on_too():
    # 45 layers on 8 stages are 5 each and a rest of 5.
    text = """
        model: {model_config: {num_layers: 45, offset: 0}}
        parallel_config: {pipeline_stage: 8}
        swap_config: {swap: True}
    """
    (problem,) = check(text).problems
    assert (problem.level.value, problem.location.line, problem.rule) == ("error", 1, "stage-recompute")
    assert "0 adds up to 0, but 45 layers on 8 stages x 1 chunks leave a rest of 5" in problem.message
    assert not check(text.replace("offset: 0", "offset: [1, 1, 1, 1, 1, 0, 0, 0]")).problems
