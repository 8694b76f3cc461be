import pytest

from mindswap.policy.model import Policy
from tests.builders import check, found


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
def test_one_warning_and_no_error(section, place):
    result = check(section)
    assert [(p.location.line, p.location.column, p.rule) for p in result.problems] == [(*place, "swap-off")]
    assert result.errors == () and result.policy == Policy()


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
