"""Rules `section-refused` and `nesting-refused`."""

import pytest

from mindswap.config.problem import Level
from tests.builders import check

WHOLE = "runner_config: {batch_size: 1}\nmodel: {model_config: {num_layers: 4}}\n"


def refused(text: str, rule: str = "section-refused", **options) -> list[tuple[int, int, str]]:
    problems = check(text, **options).problems
    return [(p.location.line, p.location.column, p.fix) for p in problems if p.rule == rule and p.level is Level.ERROR]


@pytest.mark.parametrize(
    ("text", "column", "fix"),
    [
        ("{parallel_config: {data_parallel: 8, data_paralell: 8}}", 38, "data_parallel: 8"),
        ("{runner_config: {image_size: 224}}", 18, "delete it"),
        ("{monitor_config: {monitor_on: True, step_intervall: 1}}", 37, "step_interval: 1"),
        ("{moe_config: {expert_number: 8}}", 15, "expert_num: 8"),
        ("{parallel_config: [8, 1]}", 19, "delete it, or make it a mapping"),
    ],
)
def test_a_key_that_mindformers_does_not_take_in_a_section(text, column, fix):
    assert refused(text) == [(1, column, fix)]


@pytest.mark.parametrize(
    "text",
    [
        "{parallel_config: {data_parallel: 8, mem_coeff: 0.1}}",
        "{use_legacy: False, moe_config: {expert_number: 8}}",  # newer models do not read the section
        "{context: {anything: 1}}",
        "{optimizer: {learning_rate: 0.1}}",  # a fragment
        "{run_mode: predict, parallel_config: {beam: 1}}",
        "{parallel_config: null}",
    ],
)
def test_what_mindformers_takes(text):
    assert refused(text) == []


@pytest.mark.parametrize("section", ["trainer", "train_dataset_task", "runner_wrapper", "optimizer", "lr_schedule"])
def test_sections_of_a_training_have_a_type(section):
    text = f"{WHOLE}{section}: {{a: 1}}"
    ((line, column, fix),) = refused(text)
    assert (line, column) == (3, len(section) + 3)
    assert refused(text.replace("a: 1", fix)) == []


def test_a_model_has_its_settings():
    assert refused("runner_config: {batch_size: 1}\nmodel: {arch: {type: A}}") == [
        (2, 8, "model_config: {model_type: qwen3}")
    ]


def test_in_a_run_with_swap_off_it_is_a_warning():
    problems = check("{runner_config: {image_size: 224}}", is_training_start=True).problems
    assert [(p.rule, p.level) for p in problems] == [("section-refused", Level.WARNING)]


def nested(depth: int) -> str:
    return "{a: " * depth + "1" + "}" * depth


def test_mappings_of_ten_levels_load_and_of_eleven_do_not():
    assert refused(nested(10), "nesting-refused") == []
    assert refused(nested(11), "nesting-refused") == [(1, 41, "fewer levels")]


def test_lists_do_not_count():
    """MindFormers looks below the values of mappings only."""
    assert refused("{a: " * 10 + "[{b: {c: 1}}]" + "}" * 10, "nesting-refused") == []
