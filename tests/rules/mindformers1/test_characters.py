import pytest

from mindswap.rules.checker import check_pynative
from tests.builders import check, document, found

# Rule `wide-character`.


@pytest.mark.parametrize(
    ("text", "place", "fix"),
    [
        ("swap_config: {swap: True, default_prefetch: ２０}", (1, 45), "write 20"),
        ("swap_config: {swap: Ｔrue}", (1, 21), "write True"),
        ("swap_config:\n　　swap: True", (2, 1), "write swap"),
        ("swap_config: {swap: True}\nparallel_config: {pipeline_stage: ２}", (2, 35), "write 2"),
        ("swap_config: {swap: True}\nparallel_config: {“pipeline_stage”: 2}", (2, 19), 'write "pipeline_stage"'),
    ],
)
def test_such_a_character_in_a_key_or_number_is_found_in_a_file_that_yaml_reads(text, place, fix):
    problems = [p for p in check(text).problems if p.rule == "wide-character"]
    assert [(p.location.line, p.location.column, p.fix) for p in problems] == [(*place, fix)]


@pytest.mark.parametrize(
    "text",
    [
        "trainer: {model_name: 模型（一），第二}",
        "output_dir: './输出：一'",
        "# 说明：swap_config，见文档\nseed: 0",
        "swap_config: {swap: True}  # 打开：默认",
        "trainer: {note: 说明： 见文档}",
        "trainer: {note: “第一”和“第二”}",
    ],
)
def test_texts_and_comments_may_have_them(text):
    assert found(text) == []


def test_with_swap_off_they_stop_nothing():
    (problem,) = check("{swap_config: {swap: False, default_prefetch: ２０}}").problems[:1]
    assert problem.level.value == "warning"


def test_a_file_of_2x_has_the_same_rule():
    text = "{swap: {enable: True, layer_swap: [{layers: ['0–2']}]}}"
    (problem,) = check_pynative(document(text), 4).errors
    assert (problem.rule, problem.fix) == ("pynative-wide-character", "write 0-2")
