"""Conditions of refusals with values that nobody expects."""

import re

import pytest

from mindswap.config.parse import parse_document
from mindswap.config.render import document_from_data
from mindswap.config.source import with_model_of_folder
from mindswap.rules.checker import check_document
from mindswap.rules.mindformers1 import find_rules
from mindswap.rules.refusals import with_dot
from tests.rules.refusal_cases import MODULES, OTHERS, Case, assert_refused, read_cases, rule_of

ODD = ("null", "[]", "{}", "'x'", "-1", "1.0e+30", "True", "[[]]", "[null]", "{a: {b: c}}", "99999999999999999999")
CASES = [case for module in MODULES for case in read_cases(module)]


@pytest.mark.parametrize("case", read_cases(OTHERS), ids=str)
def test_rules_without_a_table_find_what_mindformers_refuses(case: Case) -> None:
    assert_refused(case)


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel", "data_parallel"])
def test_the_names_that_a_run_has_for_parallel_modes_are_taken(mode: str) -> None:
    """MindFormers puts MindSpore's names in place of its own before mindswap reads the configuration of a run."""
    splits = {"data_parallel": 2, "pipeline_stage": 1 if mode == "data_parallel" else 2, "micro_batch_num": 2}
    parallel = {"parallel_mode": mode, "enable_parallel_optimizer": mode != "data_parallel"}
    config = {"use_parallel": True, "parallel": parallel, "parallel_config": splits, "swap_config": {"swap": True}}
    assert check_document(document_from_data(config, "command line"), is_training_start=True).errors == ()


@pytest.mark.parametrize("case", [*CASES, *read_cases(OTHERS)], ids=str)
def test_without_use_parallel_mindspore_gets_nothing_of_the_section_parallel(case: Case) -> None:
    """MindSpore has no schedule then, either, so conditions of a schedule do not hold."""
    if case.name in READ_WITHOUT_PARALLEL or "use_parallel" in case.text:
        return
    text = case.text.replace("@", "")
    with_parallel, without = (_errors(f"use_parallel: {is_parallel}\n{text}") for is_parallel in (True, False))
    assert not [error for error in without if error.startswith("parallel.") or "zero_bubble_v" in error]
    assert not [error for error in without if error.startswith("parallel:")]
    assert with_parallel


# Of these MindFormers reads the file.
READ_WITHOUT_PARALLEL = ("parallel-mode", "seqvpp-pieces")


def _errors(text: str) -> list[str]:
    return [problem.message for problem in check_document(parse_document(text, "x.yaml")).errors]


def test_two_checks_read_the_section_parallel_without_use_parallel() -> None:
    text = "use_parallel: False\nparallel: {parallel_mode: x, pipeline_config: {pipeline_scheduler: seqvpp}}"
    errors = check_document(parse_document(text, "x.yaml")).errors
    assert {"split-refused", "pipeline-refused"} <= {problem.rule for problem in errors}


@pytest.mark.parametrize(("mode", "is_refused"), [(1, True), (2, False)])
def test_newer_models_have_flash_attention_by_default(mode: int, is_refused: bool) -> None:
    """In semi-auto mode check_rules.py reads the file, whatever the default of the class."""
    text = f"""
use_legacy: False
runner_config: {{epochs: 1}}
parallel: {{parallel_mode: {mode}}}
parallel_config: {{context_parallel: 2}}
model: {{model_config: {{model_type: qwen3}}}}
"""
    errors = check_document(parse_document(text, "x.yaml")).errors
    assert any("use_flash_attention" in problem.message for problem in errors) == is_refused


def test_one_list_of_counts_for_two_chunks_is_one_error_with_a_fix_that_passes() -> None:
    text = """
use_legacy: False
parallel: {pipeline_config: {pipeline_interleave: True, pipeline_scheduler: zero_bubble_v}}
parallel_config: {pipeline_stage: 4, micro_batch_num: 8}
model: {model_config: {num_hidden_layers: 8, pp_interleave_num: 2}}
recompute_config: {KEY: VALUE}
"""
    for key in ("recompute", "select_recompute"):
        wrong = text.replace("KEY: VALUE", f"{key}: [1, 1, 1, 1]")
        (error,) = check_document(parse_document(wrong, "x.yaml")).errors
        fix, _, rest = error.fix.partition(", with")
        assert rest and "one count for each stage, or" not in error.allowed
        assert check_document(parse_document(text.replace("KEY: VALUE", fix), "x.yaml")).errors == ()


def test_a_mistyped_run_mode_hides_no_other_mistake() -> None:
    text = "run_mode: {}\noptimizer: {{type: AdamW, eps: 1e-8}}"
    rules = {mode: check_document(parse_document(text.format(mode), "x.yaml")).errors for mode in ("trian", "predict")}
    assert {problem.rule for problem in rules["trian"]} == {"run-refused", "optimizer-refused"}
    assert rules["predict"] == ()


def test_a_run_may_replace_the_mode_of_its_file() -> None:
    document = parse_document("run_mode: pretrain\nswap_config: {swap: True}", "x.yaml")
    assert check_document(document, is_training_start=True).errors == ()


@pytest.mark.parametrize(("value", "fix"), [("1", "{key}: 1.0"), ("1e-8", "{key}: 1.0e-8"), ("3%", ""), (True, "")])
def test_the_fix_for_a_number_without_a_dot_has_the_same_value(value: object, fix: str) -> None:
    assert with_dot(value) == fix


def test_a_model_in_a_folder_that_is_not_here_may_have_anything() -> None:
    """MindFormers' recipe for DeepSeek-V3 has `expert_parallel: 32`, and its experts in a config.json."""
    config = {
        "use_legacy": False,
        "runner_config": {"epochs": 1},
        "parallel_config": {"data_parallel": 4, "model_parallel": 8, "expert_parallel": 32, "use_seq_parallel": True},
        "model": {"model_config": {"compute_dtype": "bfloat16"}},
    }
    for folder, rules in (("/nowhere", set()), (None, {"split-refused"})):
        data = config | ({"pretrained_model_dir": folder} if folder else {})
        document = with_model_of_folder(document_from_data(data, "x.yaml"))
        assert {problem.rule for problem in check_document(document).errors} == rules


@pytest.mark.parametrize("odd", ODD)
def test_odd_values_are_problems_or_none_and_never_a_crash(odd: str) -> None:
    for case in CASES:
        text = _with_value(case, odd)
        problems = check_document(parse_document(text, "x.yaml")).problems
        assert all(problem.message and problem.location.line for problem in problems), text


def _with_value(case: Case, value: str) -> str:
    """Return the text with another value where the problem is, up to the next separator on the line."""
    before, _, after = case.text.partition("@")
    depth = 0
    for position, character in enumerate(after):
        depth += (character in "[{") - (character in "]}")
        if depth < 0 or character == "\n" or (depth == 0 and character == ","):
            return before + value + after[position:]
    return before + value


# What the examples of a rule say in brackets.
INTERLEAVED = """
parallel: {pipeline_config: {pipeline_interleave: True, pipeline_scheduler: 1f1b}}
model: {model_config: {pp_interleave_num: 2}}
"""


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_rule_with_a_table_pass_and_fail(module: str) -> None:
    rule = rule_of(module)
    examples = re.findall(r"^ *(PASS|FAIL)( \(.*?\))?: (.*)$", find_rules()[rule].text, re.MULTILINE)
    assert {kind for kind, *_ in examples} == {"PASS", "FAIL"}
    for kind, condition, text in examples:
        document = parse_document(text + INTERLEAVED if condition else text, "x.yaml")
        rules = {problem.rule for problem in check_document(document).errors}
        assert (rule in rules) == (kind == "FAIL"), text


def test_each_wrong_part_of_a_list_or_mapping_is_a_problem_at_its_line() -> None:
    text = """\
callbacks:
  - type: MFLossMonitor
  - type: CheckpointMonitor
    prefix: rank_0
  - {type: CheckpointMonitor, prefix: llama}
  - {type: CheckpointMonitor, prefix: my_rank}
parallel:
  full_batch: True
  pipeline_stage: 2
  comm_fusion:
    allreduce: {mode: auto, config: null}
    allgather: {mode: index, config: null}
  stages: 2
optimizer:
  type: AdamW
  betas:
    - 0.9
    - 1.5
"""
    errors = check_document(parse_document(text, "x.yaml")).errors
    assert [(problem.location.line, problem.message.partition(": ")[0]) for problem in errors] == [
        (4, "callbacks[1].prefix"),
        (6, "callbacks[3].prefix"),
        (9, "parallel.pipeline_stage"),
        (12, "parallel.comm_fusion.allgather.mode"),
        (13, "parallel.stages"),
        (18, "optimizer.betas[1]"),
    ]
    assert errors[0].fix == "prefix: checkpoint" and "'rank_0'" in errors[0].message
