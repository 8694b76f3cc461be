import pytest

from mindswap.cli import main
from mindswap.config.problem import Level
from mindswap.config.source import load_document
from mindswap.rules.checker import check_document, check_pynative
from tests.builders import TEST_MODEL, check, document, found

# Rule `bad-ignore`.


WARNS = "{swap_config: {swap: True, default_prefetch: 5, layer_swap: [{layers: [0], backward_prefetch: 1}]}%s}"


def test_a_warning_that_is_ignored_is_counted():
    assert found(WARNS % "") == [(1, 46, "unused-default-prefetch")]
    result = check(WARNS % ", mindswap: {ignore: [unused-default-prefetch]}")
    assert result.problems == ()
    assert [problem.rule for problem in result.ignored] == ["unused-default-prefetch"]
    assert len(check(WARNS % "", silence=["unused-default-prefetch"]).ignored) == 1


def test_an_error_stays():
    text = "{context: {mode: 1}, swap_config: {swap: True}, mindswap: {ignore: [context-mode]}}"
    assert found(text) == [(1, 18, "context-mode")]
    assert check(text).ignored == ()


def test_an_unknown_name_is_a_warning_and_no_list_an_error():
    (problem,) = check("{mindswap: {ignore: [overlapp]}}").problems
    assert (problem.rule, problem.level) == ("bad-ignore", Level.WARNING)
    assert problem.message == "mindswap.ignore: there is no rule 'overlapp'" and "overlap, " in problem.allowed
    (problem,) = check("{mindswap: {ignore: overlap}}").problems
    assert (problem.rule, problem.level, problem.fix) == ("bad-ignore", Level.ERROR, "ignore: [overlap]")


def test_files_of_2x_ignore_their_own_rules():
    text = "{swap: {enable: True, default_prefetch: 1, op_swap: [{op_name: 'mlp', layers: [0], x: 1}]}%s}"
    warned = {p.rule for p in check_pynative(document(text % ""), 4).problems if p.level is Level.WARNING}
    assert "pynative-ignored-key" in warned
    checked = check_pynative(document(text % ", mindswap: {ignore: [pynative-ignored-key]}"), 4)
    assert "pynative-ignored-key" not in {p.rule for p in checked.problems}
    assert [p.rule for p in checked.ignored] == ["pynative-ignored-key"]


# Rule `duplicate-key`.


def levels(text):
    return [(p.location.line, p.rule, p.level.value) for p in check(text).problems]


def test_a_second_key_is_an_error_in_what_mindswap_reads():
    text = """
        swap_config:
          swap: True
          default_prefetch: 10
          default_prefetch: 20
    """
    assert found(text) == [(4, 3, "duplicate-key")]
    assert check(text).problems[0].message.startswith("swap_config.default_prefetch: appears twice, first at x.")


def test_it_is_a_warning_elsewhere():
    text = """
        optimizer: {eps: 1}
        optimizer: {eps: 2}
        swap_config: {swap: True}
    """
    assert levels(text) == [(2, "duplicate-key", "warning")]


def test_it_is_a_warning_while_swap_is_off():
    text = """
        swap_config:
          swap: False
          swap: False
        context: {mode: 0, mode: 0}
    """
    assert levels(text) == [(3, "duplicate-key", "warning"), (4, "duplicate-key", "warning")]


@pytest.mark.parametrize(
    "text",
    ["swap_config:\n  swap: True\n  swap: False", "swap_config: {swap: True}\nswap_config: {default_prefetch: 1}"],
)
def test_it_is_an_error_where_it_switches_swap_off(text):
    """Else the training runs, and swaps nothing."""
    assert ("duplicate-key", "error") in [(p.rule, p.level.value) for p in check(text).problems]


def test_the_last_one_decides_whether_swap_is_on():
    assert check("swap_config: {swap: True, swap: False}").is_swap_enabled is False


def test_keys_inside_list_entries_are_found():
    text = "swap_config: {swap: True, layer_swap: [{layers: [0], layers: [1], backward_prefetch: 2}]}"
    assert found(text) == [(1, 54, "duplicate-key")]


def test_merged_keys_are_no_duplicates():
    text = """
        base: &base {swap: True, default_prefetch: 3}
        swap_config:
          <<: *base
          default_prefetch: 10
    """
    assert found(text) == []
    assert check(text).policy.default_prefetch == 10


# Rule `missing-key`.


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


# Rule `section-of-2x`.


def test_a_section_of_2x_is_an_error_and_names_the_conversion():
    text = "trainer: {type: x}\nswap: {enable: True, layer_swap: [{layers: [0]}]}"
    assert found(text) == [(2, 1, "section-of-2x")]
    assert check(text).problems[0].fix == "mindswap convert --to 1.9 x.yaml"


def test_each_of_the_three_sections():
    text = "recompute: {mode: full}\nrecompute_comm: {enable: True}\nswap: {enable: True}"
    assert [problem.level.value for problem in check(text).problems] == ["error"] * 3


def test_one_that_is_off_is_a_warning():
    assert [p.level.value for p in check("swap: {enable: False}\nrecompute: {mode: None}").problems] == ["warning"] * 2


def test_other_things_with_these_names_are_left_alone():
    assert found("swap: 3\nrecompute: {a: 1}") == []


# Rule `unknown-key`.


def test_unknown_keys_are_found_at_every_level():
    text = """
        swap_config:
          swap: True
          default_prefech: 10
          layer_swap:
            - {backward_prefetch: 20, layers: [0], layer: 3}
        recompute_config:
          recompute: False
          select_recomput: True
    """
    assert found(text) == [(3, 3, "unknown-key"), (5, 44, "unknown-key"), (8, 3, "unknown-key")]


def test_the_closest_key_is_the_fix():
    assert check("swap_config: {swap: True, default_prefech: 10}").problems[0].fix == "write 'default_prefetch'"
    assert check("swap_config: {swap: True, something_else: 10}").problems[0].fix == "delete it"


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("swap_cfg: {swap: True}", "error"),
        ("recompute_confg: {recompute: True}", "error"),
        ("recompute_confg: {select_recompute: ['a']}", "error"),
        ("swap_cfg: {swap: False, default_prefetch: 3}", "warning"),
        ("recompute_confg: {recompute: False}", "warning"),
        ("swap_cfg: ", "warning"),
    ],
)
def test_a_misspelt_section_is_an_error_if_it_asks_for_something(text, level):
    """MindFormers trains without it, and says nothing."""
    result = check(text)
    assert [(p.rule, p.level.value) for p in result.problems] == [("unknown-key", level)]


def test_other_top_level_keys_are_no_concern():
    assert found("{swap_config: {swap: True}, context: {mode: 0}, my_swap: 3}") == []


def test_with_swap_off_an_unknown_key_stops_commands_and_no_run():
    text = "{swap_config: {swap: False, junk: 1}}"
    assert found(text) == [(1, 29, "section-refused"), (1, 29, "swap-off")]
    assert check(text, is_training_start=True).errors == ()


@pytest.mark.parametrize(("switch", "level"), [("True", Level.ERROR), ("False", Level.WARNING)])
def test_sections_in_the_wrong_place_are_errors_if_they_ask_for_swap(switch, level):
    text = f"""
        model:
          swap_config: {{swap: {switch}}}
        swap: {{swap: {switch}}}
    """
    problems = check(text).problems
    assert [(p.location.line, p.rule, p.level, p.fix) for p in problems] == [
        (2, "unknown-key", level, "move 'swap_config' to the top level"),
        (3, "unknown-key", level, "write 'swap_config:'"),
    ]


@pytest.mark.parametrize("key", ["swpa", "Swap", "enable", "SWAP", "use_swap", "'on'", "offload"])
@pytest.mark.parametrize("value", ["True", "'true'", "yes", "1"])
def test_a_switch_under_another_name_is_an_error_although_swap_is_off(key, value):
    problems = check(
        f"{{swap_config: {{{key}: {value}, layer_swap: [{{backward_prefetch: 1, layers: [0]}}]}}}}"
    ).problems
    assert [(p.rule, p.level, p.location.column, p.fix) for p in problems] == [
        ("unknown-key", Level.ERROR, 16, "rename it: swap: True")
    ]


@pytest.mark.parametrize("section", ["{swpa: False}", "{swap: False, enable: True}", "{layer_swap: [{swpa: True}]}"])
def test_other_unknown_keys_are_warnings_in_a_run_while_swap_is_off(section):
    problems = check(f"{{swap_config: {section}}}", is_training_start=True).problems
    assert problems and all(problem.level is Level.WARNING for problem in problems)


@pytest.mark.parametrize("section", ["{swpa: False}", "{swap: False, enable: True}"])
def test_commands_report_them_as_errors_as_mindformers_stops(section):
    (problem,) = check(f"{{swap_config: {section}}}").errors
    assert problem.rule in ("unknown-key", "section-refused") and problem.location.column >= 16


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("swap_config: {swap: True, layer_swap: [{op_name: 'add', backward_prefetch: 1, layers: [0]}]}", "op_swap"),
        ("swap_config: {swap: True, recompute: True}", "recompute_config"),
        ("swap_config: {swap: True, output_recompute: [0]}", "mindswap"),
        ("swap_config: {swap: True, backward_prefetch: 10}", "an entry of layer_swap or op_swap"),
        ("swap_config: {swap: True}, recompute_config: {op_swap: []}", "swap_config"),
        ("recompute_config: {layer_swap: []}", "swap_config"),
        ("swap_config: {swap: True}, mindswap: {select_recompute: True}", "recompute_config"),
    ],
)
def test_a_key_of_another_place_is_moved_there(text, place):
    (problem,) = [p for p in check(f"{{{text}}}").problems if "key" in p.message]
    assert problem.fix in (f"move it to {place}", f"move the entry to {place}")


PASTED = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2}


@pytest.mark.parametrize("swap", ["", "swap_config: {swap: True}, "])
@pytest.mark.parametrize("joint", ["_", "-"])
def test_pasted_options_of_megatron_are_one_problem_with_the_command_that_converts_them(swap, joint, tmp_path, capsys):
    keys = ", ".join(f"{key.replace('_', joint)}: {value}" for key, value in PASTED.items())
    file = tmp_path / "pasted.yaml"
    file.write_text(f"{{{swap}recompute_config: {{{keys}}}, model: {{model_config: {{num_layers: 4}}}}}}")
    (problem,) = check_document(load_document(file)).problems
    assert problem.location.column == len(swap) + 21
    command = problem.fix.partition("mindswap ")[2].replace("FILE", str(tmp_path / "converted.yaml"))
    assert main(command.split()) == 0
    converted = load_document(tmp_path / "converted.yaml")
    assert check_document(converted).errors == () and converted.data()["recompute_config"]["recompute"] == [0, 1]


def test_options_of_megatron_elsewhere_are_named_too():
    assert [(p.rule, p.level) for p in check("{recompute_granularity: full}").problems] == [
        ("unknown-key", Level.WARNING)
    ]
    (problem,) = check("{swap_config: {swap: True, offload_modules: [core_attn, attn_proj]}}").problems
    assert "convert --from megatron --offload-modules core_attn attn_proj x.yaml" in problem.fix


@pytest.mark.parametrize("model", [TEST_MODEL, None])
def test_an_unknown_key_of_recompute_is_an_error_with_swap_off_whatever_is_known_of_the_model(model):
    (problem,) = check("{recompute_config: {recomptue: True}}", model).problems
    assert (problem.rule, problem.fix) == ("stage-recompute", "write 'recompute'")


def test_a_key_like_one_that_is_missing_is_one_problem():
    text = "{swap_config: {swap: True, layer_swap: [{prefetch: 20, layers: [0]}]}}"
    (problem,) = check(text).problems
    assert problem.message == "swap_config.layer_swap[0].prefetch: no such key; 'backward_prefetch' is missing"
    assert problem.fix == "rename it: backward_prefetch: 20"


def test_the_optimizer_has_a_key_of_that_name():
    """As in configs/deepseek3/pretrain_deepseek3_671b.yaml of MindFormers."""
    assert found("{optimizer: {type: AdamW, swap: False}}") == []
    assert found("{memory: {swap: True, layer_swap: null}}") == [(1, 2, "unknown-key")]
