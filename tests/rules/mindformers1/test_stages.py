import pytest

from mindswap.config.problem import Level
from mindswap.errors import PolicyError
from mindswap.features.check import NameSource, check_config
from mindswap.rules.checker import check_before_network
from tests.builders import check, document, found

# Rule `stage-count-form`.


def config(recompute, num_layers=8, stages=2, model=""):
    return f"""
        model: {{model_config: {{num_layers: {num_layers}, {model}}}}}
        parallel: {{pipeline_config: {{pipeline_interleave: True}}}}
        parallel_config: {{pipeline_stage: {stages}}}
        swap_config: {{swap: True, op_swap: []}}
        recompute_config:
          recompute: {recompute}
    """


def fix(text):
    problems = [problem for problem in check(text, None).problems if problem.rule != "nothing-swapped"]
    assert [(p.location.line, p.location.column, p.rule) for p in problems] == [(6, 14, "stage-count-form")]
    return problems[0].fix


def test_one_count_per_stage():
    # 8 layers on 2 stages: stage 0 has layers 0-3, stage 1 layers 4-7; facts: [2, 2] would be 0, 1, 4, 5.
    assert fix(config("[2, 2]")) == "recompute: [0, 1, 4, 5]"
    assert fix(config("[9, 1]")) == "recompute: [0, 1, 2, 3, 4]"
    assert fix(config("[True, 0]")) == "recompute: [0, 1, 2, 3]"


def test_one_count_per_chunk_and_stage():
    # 2 chunks x 2 stages x 2 layers: chunk 0 has 0-1 and 2-3, chunk 1 has 4-5 and 6-7.
    assert fix(config("[[2, 1], [1, 0]]")) == "recompute: [0, 1, 2, 4]"
    assert fix(config("[[2, 1], [1, 0]]", model="pp_interleave_num: 2")) == "recompute: [0, 1, 2, 4]"
    # Counts per stage are dealt out to the chunks in turn: 3 of stage 0 are two of chunk 0, one of chunk 1.
    assert fix(config("[3, 3]", model="pp_interleave_num: 2")) == "recompute: [0, 1, 2, 3, 4, 6]"


def test_offset_moves_the_stages():
    # 9 layers on 2 stages with offset [1, 0]: stage 0 has layers 0-4, stage 1 layers 5-8.
    assert fix(config("[1, 1]", num_layers=9, model="offset: [1, 0]")) == "recompute: [0, 5]"


def test_counts_that_do_not_fit_get_general_advice():
    assert fix(config("[[2, 1, 0], [1]]")).startswith("write the indices")


def test_without_stages_a_list_names_layers():
    assert [rule for *_, rule in found(config("[9]", stages=1), None)] == ["nothing-swapped", "layer-out-of-range"]


def test_without_stages_the_number_of_all_layers_is_a_count():
    (problem,) = problems(config("[8]", stages=1))
    assert problem.fix == "recompute: [0, 1, 2, 3, 4, 5, 6, 7]"


def note(recompute, num_layers=8, stages=2):
    checked = check_config(document(config(recompute, num_layers, stages)), names=NameSource.TABLE)
    (found,) = [note for note in checked.notes if "if a number of layers" in note] or [""]
    return found


@pytest.mark.parametrize(
    ("recompute", "stages", "meant"),
    [("[3]", 1, "[0, 1, 2]"), ("[2, 4]", 2, "[0, 1, 4, 5, 6, 7]"), ("[0, 1, 2]", 3, "[3, 6, 7]")],
)
def test_counts_that_were_pasted_get_a_note_on_how_they_are_read(recompute, stages, meant):
    num_layers = 9 if stages == 3 else 8
    found = note(recompute, num_layers, stages)
    assert found.startswith("x.yaml:") and f"recompute: {recompute} is read as layer" in found
    assert found.endswith(f"if a number of layers of each stage is meant: recompute: {meant}")


@pytest.mark.parametrize("recompute", ["[2, 5]", "[2]", "['2-3']", "[0, 0]", "True", "False", "[1, 2, 3]"])
def test_lists_that_are_no_counts_get_no_note(recompute):
    """On two stages of four layers."""
    assert note(recompute) == ""


def problems(text):
    return [problem for problem in check(text, None).problems if problem.rule == "stage-count-form"]


def test_one_number_per_stage_that_is_not_ascending_is_a_warning():
    """32 layers on 4 stages: counts 8, 6, 4, 2 are layers 0-7, 8-13, 16-19 and 24-25; as indices they are four."""
    (problem,) = problems(config("[8, 6, 4, 2]", 32, 4))
    assert problem.level is Level.WARNING
    assert problem.message == (
        "recompute_config.recompute: [8, 6, 4, 2] is read as layers 2, 4, 6, 8, because swap is on; with swap off it "
        "would count the layers of 4 stages"
    )
    counted = [*range(0, 8), *range(8, 14), *range(16, 20), 24, 25]
    assert problem.fix == f"if layers of each stage are meant: recompute: {counted}"
    assert problems(config("[2, 4, 6, 8]", 32, 4)) == []
    assert problems(config("[9, 6, 4, 2]", 32, 4)) == []  # no stage has 9 layers
    assert problems(config("[8, 6, 4]", 32, 4)) == []


def test_next_to_counts_it_is_an_error():
    """16 layers on 2 stages: [3, 5] could be layers 3 and 5, but [16, 16] can only be counts."""
    text = config("[3, 5]\n          select_recompute: [16, 16]", 16)
    assert [(p.location.line, p.level) for p in problems(text)] == [(6, Level.ERROR), (7, Level.ERROR)]
    assert "while recompute_config.select_recompute (x.yaml:7:21) counts layers" in problems(text)[0].message


def test_lists_of_operators_are_looked_at_too():
    text = config("False\n          select_recompute: {add: [2, 1]}")
    (problem,) = problems(text)
    assert problem.fix == "if layers of each stage are meant: 'add': [0, 1, 4]"


def test_lists_that_can_be_indices_pass():
    for recompute in ("[1, 2]", "[0, 7]", "[0, 1, 2]", "[]", "True"):
        assert "stage-count-form" not in [rule for *_, rule in found(config(recompute), None)]


def test_every_recompute_option_is_checked():
    text = """
        swap_config: {swap: True}
        recompute_config:
          select_recompute: {add: [[1]]}
          select_comm_recompute: [[1]]
          select_recompute_exclude: [[1]]
          select_comm_recompute_exclude: {add: [[1]]}
    """
    assert [line for line, _, rule in found(text) if rule == "stage-count-form"] == [3, 4, 5, 6]


def test_the_fix_for_one_operator_is_yaml():
    text = r"""
        model: {model_config: {num_layers: 4, offset: 0}}
        parallel_config: {pipeline_stage: 2}
        swap_config: {swap: True}
        recompute_config: {select_recompute: {'feed_forward': [True, False]}}
    """
    problem = next(p for p in check(text).problems if p.rule == "stage-count-form")
    assert problem.fix == "'feed_forward': [0, 1]"


# Rule `stage-recompute`.


def stage_recompute_config(recompute, swap="False"):
    return f"""
        model: {{model_config: {{num_layers: 4}}}}
        parallel_config: {{pipeline_stage: 2}}
        swap_config: {{swap: {swap}}}
        recompute_config: {recompute}
    """


def stage_problems(recompute, **options):
    problems = check(stage_recompute_config(recompute), **options).problems
    return [(p.level.value, p.location.line, p.location.column, p.rule) for p in problems]


def test_what_mindformers_takes_passes():
    for recompute in ("True", "[2, 1]", "[[1, 2]]", "[True, False]", "[]"):
        assert found(stage_recompute_config(f"{{recompute: {recompute}}}")) == []
    assert (
        found(stage_recompute_config(r"{select_recompute: ['feed_forward\.mul'], select_comm_recompute: [1, 0]}")) == []
    )


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
    rules = {rule for *_, rule in found(stage_recompute_config("{recompute: [1, 1, 1]}", swap="True"))}
    assert "stage-recompute" not in rules


def test_without_a_number_of_layers_nothing_is_said():
    assert found("recompute_config: {recompute: [1, 1, 1]}", model=None) == []


def test_a_run_with_swap_off_is_left_to_mindformers():
    assert (
        check_before_network(document(stage_recompute_config("{recompute: 7, select_recompute: ['(']}")), {}).policy
        is not None
    )
    with pytest.raises(PolicyError):
        check_before_network(document(stage_recompute_config("{recompute: 7}", swap="True")), {})


def test_an_offset_that_does_not_fit_the_model_is_an_error_with_swap_on_too():
    # 45 layers on 8 stages are 5 each and a rest of 5.
    text = """
        model: {model_config: {num_layers: 45, offset: 0}}
        parallel_config: {pipeline_stage: 8}
        swap_config: {swap: True}
    """
    (problem,) = check(text).problems
    assert (problem.level.value, problem.location.line, problem.rule) == ("error", 1, "stage-recompute")
    assert "0 adds up to 0, but 45 layers on 8 stages x 1 chunks leave a remainder of 5" in problem.message
    assert not check(text.replace("offset: 0", "offset: [1, 1, 1, 1, 1, 0, 0, 0]")).problems
