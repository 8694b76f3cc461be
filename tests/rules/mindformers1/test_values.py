import pytest

from mindswap.config.problem import Level
from mindswap.config.render import document_from_data
from mindswap.policy.model import Policy
from mindswap.rules.checker import check_document
from mindswap.rules.mindformers1.values import FIND_DISTANCE
from tests.builders import check, found

# Rule `bad-prefetch`.


@pytest.mark.parametrize("value", ["0", "-1", "True", "1.0", "'10'", "ten", "null", "[10]", "99999999999"])
def test_anything_but_a_positive_integer_is_refused(value):
    text = f"""
        swap_config:
          swap: True
          layer_swap:
            - {{backward_prefetch: {value}, layers: [0]}}
    """
    assert found(text) == [(4, 27, "bad-prefetch")]


@pytest.mark.parametrize("value", ["0", "True", "2.5"])
def test_default_prefetch_is_checked_alike(value):
    assert found(f"swap_config: {{swap: True, default_prefetch: {value}}}") == [(1, 45, "bad-prefetch")]


@pytest.mark.parametrize(("value", "fix"), [("'10'", 10), ("10.0", 10), ("' 20 '", 20)])
def test_the_fix_is_the_number_that_was_meant(value, fix):
    problem = check(f"swap_config: {{swap: True, default_prefetch: {value}}}").problems[0]
    assert problem.fix == f"default_prefetch: {fix}"


@pytest.mark.parametrize("value", ["True", "-3", "0", "99999999999999999999", "4294967296", "ten", "'1,000'", "[10]"])
def test_without_a_number_that_may_be_meant_no_number_is_put_in_its_place(value):
    (problem,) = check(f"swap_config: {{swap: True, default_prefetch: {value}}}").problems
    assert problem.fix == FIND_DISTANCE and "plan" in problem.fix


def test_one_is_the_least():
    assert found("swap_config: {swap: True, default_prefetch: 1}") == []


def test_a_float_without_a_dot_is_a_string_in_yaml():
    text = "{swap_config: {swap: True, default_prefetch: 1e2}}"
    assert [problem.fix for problem in check(text).problems] == ["default_prefetch: 100"]


# Rule `number-of-layers`.


TEXT = "{model: {model_config: {num_layers: %s}}, swap_config: {swap: True}}"


def test_a_number_that_is_none():
    unknown = "num_layers: the number of layers of the model"
    known = (("'32'", "num_layers: 32"), ("4.0", "num_layers: 4"))
    for value, fix in (*known, ("0", unknown), ("True", unknown), ("[4]", unknown)):
        (problem,) = check(TEXT % value, None).problems
        assert (problem.rule, problem.location.column, problem.fix) == ("number-of-layers", 37, fix)
        assert problem.allowed == "an integer, 1 to 10000"


def test_a_number_and_none_at_all_are_good():
    assert found(TEXT % "32", None) == []
    assert found("{model: {model_config: {hidden_size: 4}}, swap_config: {swap: True}}", None) == []
    assert (
        found("{model: {model_config: {num_layers: null, num_hidden_layers: 2}}, swap_config: {swap: True}}", None)
        == []
    )


def test_in_a_run_with_swap_off_it_is_a_warning():
    text = TEXT.replace("True}", "False}") % "0"
    assert [p.level for p in check(text, None).problems] == [Level.ERROR]
    assert [p.level for p in check(text, None, is_training_start=True).problems] == [Level.WARNING]


# Rule `swap-not-bool`.


@pytest.mark.parametrize("value", ["'True'", "1", "null", "'False'", "[]", "maybe"])
def test_only_true_and_false_will_do(value):
    assert found(f"swap_config: {{swap: {value}}}") == [(1, 21, "swap-not-bool")]


def test_the_rest_is_checked_when_the_value_looks_like_on():
    text = "swap_config: {swap: 'True', default_prefetch: 0}"
    assert found(text) == [(1, 21, "swap-not-bool"), (1, 47, "bad-prefetch")]


def test_the_rest_is_left_alone_when_the_value_looks_like_off():
    assert found("swap_config: {swap: 'False', default_prefetch: 0}") == [(1, 21, "swap-not-bool")]


@pytest.mark.parametrize("value", ["True", "False", "on", "off"])
def test_yaml_bools_pass(value):
    assert found(f"swap_config: {{swap: {value}}}") == []


# Rule `swap-off`.


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ("swap_config: {swap: False, default_prefetch: 10}", (1, 28)),
        ("swap_config: {swap: False, layer_swap: rubbish, op_swap: 3}", (1, 28)),
        ("swap_config: {swap: False, op_swap: [{}]}", (1, 28)),
        ("swap_config: {op_swap: [{}]}", (1, 15)),
        ("swap_config: {junk: 1, swap: False}", (1, 15)),
    ],
)
def test_one_warning_and_in_a_run_no_error(section, place):
    result = check(section, is_training_start=True)
    problems = [(p.location.line, p.location.column, p.rule) for p in result.problems if p.rule != "section-refused"]
    assert problems == [(*place, "swap-off")]
    assert result.errors == () and result.policy == Policy()


def test_an_unknown_key_is_an_error_for_commands_as_mindformers_stops():
    assert [p.rule for p in check("swap_config: {junk: 1, swap: False}").errors] == ["section-refused"]


@pytest.mark.parametrize(
    "text",
    [
        "a: 1",
        "swap_config:",
        "swap_config: {}",
        "swap_config: {swap: False}",
        "swap_config: {swap: False, default_prefetch: 1, layer_swap: null, op_swap: null}",
        "{swap_config: {swap: False}, recompute_config: {recompute: [[1]], select_recompute: [1]}}",
        "{swap_config: {swap: False}, context: {mode: 1, memory_optimize_level: O1, jit_level: O2}}",
    ],
)
def test_nothing_at_all_when_it_is_only_off(text):
    assert found(text, environ={"ENABLE_LAZY_INLINE_NO_PIPELINE": "0"}) == []
    assert check(text).policy == Policy()


# Rule `unused-default-prefetch`.


ENTRY = "layer_swap: [{backward_prefetch: 20, layers: [0]}]"


@pytest.mark.parametrize("value", [1, 10])
def test_it_has_no_effect_next_to_entries(value):
    text = f"swap_config: {{swap: True, default_prefetch: {value}, {ENTRY}}}"
    assert found(text) == [(1, 45, "unused-default-prefetch")]


def test_it_acts_in_the_default_strategy():
    assert found("swap_config: {swap: True, default_prefetch: 10}") == []


def test_the_default_that_mindformers_puts_there_is_no_concern():
    data = {"swap": True, "default_prefetch": 1, "layer_swap": [{"backward_prefetch": 20, "layers": [0]}]}
    assert check_document(document_from_data({"swap_config": data}, "x")).problems == ()


# Rule `wrong-type`.


@pytest.mark.parametrize(
    ("layers", "place", "fix"),
    [
        ("[0, 1.0]", (4, 43), "1"),
        ("[0, '1']", (4, 43), "1"),
        ("[0, x]", (4, 43), ""),
        ("[True]", (4, 40), "layers: True"),
        ("[[0]]", (4, 40), ""),
        ("[3-1]", (4, 40), "'1-3'"),
        ("3", (4, 39), "layers: [3]"),
        ("'3'", (4, 39), "layers: [3]"),
        ("all", (4, 39), "layers: True"),
        ("null", (4, 39), ""),
        ("{}", (4, 39), ""),
        ("2.5", (4, 39), ""),
    ],
)
def test_layers_take_integers_ranges_and_true(layers, place, fix):
    text = f"""
        swap_config:
          swap: True
          layer_swap:
            - {{backward_prefetch: 20, layers: {layers}}}
    """
    problem = check(text).problems[0]
    assert (problem.location.line, problem.location.column, problem.rule, problem.fix) == (*place, "wrong-type", fix)
    assert len(check(text).problems) == 1


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ("swap_config: [1]", (1, 14)),
        ("swap_config: yes please", (1, 14)),
        ("swap_config: {swap: True, layer_swap: 3}", (1, 39)),
        ("swap_config: {swap: True, layer_swap: [3]}", (1, 40)),
        ("swap_config: {swap: True, op_swap: attention}", (1, 36)),
        ("swap_config: {swap: True, op_swap: {attention: 10}}", (1, 48)),
        ("swap_config: {swap: True, op_swap: [{op_name: 1, backward_prefetch: 1, layers: True}]}", (1, 47)),
        ("swap_config: {swap: True, op_swap: [{op_name: '', backward_prefetch: 1, layers: True}]}", (1, 47)),
        ("swap_config: {swap: True, op_swap: [{op_name: [], backward_prefetch: 1, layers: True}]}", (1, 47)),
        ("swap_config: {swap: True, op_swap: [{op_name: [add, 1], backward_prefetch: 1, layers: True}]}", (1, 53)),
        ("{swap_config: {swap: True}, recompute_config: [1]}", (1, 47)),
        ("{swap_config: {swap: True}, recompute_config: {recompute: 3}}", (1, 59)),
        ("{swap_config: {swap: True}, recompute_config: {recompute: null}}", (1, 59)),
        ("{swap_config: {swap: True}, recompute_config: {select_recompute: add}}", (1, 66)),
        ("{swap_config: {swap: True}, recompute_config: {select_recompute: {add: 1}}}", (1, 72)),
        ("{swap_config: {swap: True}, recompute_config: {select_recompute: {1: True}}}", (1, 67)),
        ("{swap_config: {swap: True}, recompute_config: {recompute_slice_activation: 1}}", (1, 76)),
        ("{swap_config: {swap: True}, recompute_config: {mp_comm_recompute: 'True'}}", (1, 67)),
    ],
)
def test_every_place_says_what_it_takes(section, place):
    assert found(section) == [(*place, "wrong-type")]


def test_a_section_that_aliases_blow_up_is_refused():
    lines = ["a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    text = "\n".join([*lines, "swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: *a8}]}"])
    assert found(text) == [(10, 14, "wrong-type")]


def test_nothing_is_found_in_a_good_file():
    text = """
        swap_config: {swap: True, layer_swap: [{backward_prefetch: 20, layers: [0, '2-3']}]}
        recompute_config: {recompute: False, mp_comm_recompute: True}
    """
    assert found(text) == []


@pytest.mark.parametrize("key", ["recompute", r"'feed_forward\.mul'", "select_recompute"])
@pytest.mark.parametrize("number", ["2", "2.0", "'2'"])
def test_one_number_may_be_a_layer_or_a_count_and_the_fix_has_both(key, number):
    """With swap off MindFormers counts layers, so a number alone is either."""
    section = f"{{{key}: {number}}}" if "recompute" in key else f"{{select_recompute: {{{key}: {number}}}}}"
    (problem,) = [p for p in check(f"{{swap_config: {{swap: True}}, recompute_config: {section}}}").problems]
    assert problem.fix == f"{key}: [2], if layer 2 is meant; {key}: ['0-1'], if 2 layers are meant"


def test_one_number_that_can_be_only_one_of_both():
    text = "{swap_config: {swap: True}, recompute_config: {recompute: %s}}"
    assert check(text % "4").problems[0].fix == "recompute: ['0-3'], if 4 layers are meant"
    assert check(text % "0").problems[0].fix == "recompute: [0]"
    swapped = "{swap_config: {swap: True, layer_swap: [{backward_prefetch: 2, layers: 2}]}}"
    assert check(swapped).problems[0].fix == "layers: [2]"


@pytest.mark.parametrize(("stages", "fix"), [(1, "[2]"), (2, "[2, 2], if each of 2 stages recomputes so many layers")])
def test_with_swap_off_one_number_is_a_count_of_each_stage(stages, fix):
    text = f"{{parallel_config: {{pipeline_stage: {stages}}}, recompute_config: {{recompute: 2}}}}"
    (problem,) = check(text).problems
    assert (problem.rule, problem.fix) == ("stage-recompute", f"recompute: {fix}")


def test_a_default_prefetch_of_null_is_not_set():
    assert found("swap_config: {swap: True, default_prefetch: null}") == []


def test_layers_that_were_probably_meant():
    text = "{swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: %s}]}}"
    (problem,) = check(text % "'0-3,5'").problems
    assert problem.fix == "layers: ['0-3', 5]"
    fixes = [problem.fix for problem in check(text % "[True, False]").problems]
    assert fixes == ["layers: True", "0, if the first layer is meant"]


def test_our_own_switch_is_a_bool():
    assert found("{swap_config: {swap: True}, mindswap: {cpu_stand_ins: yes please}}") == [(1, 55, "wrong-type")]
