"""Conditions of refusals with values that nobody expects."""

import pytest

from mindswap.check.check import check_document
from mindswap.config.parse import parse_document
from mindswap.config.render import document_from_data
from mindswap.config.source import with_model_of_folder
from tests.check.refusal_cases import MODULES, OTHERS, Case, assert_refused, read_cases

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
    assert check_document(document_from_data(config, "command line"), is_run=True).errors == ()


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
