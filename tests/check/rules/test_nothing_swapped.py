import pytest

from mindswap.policy.model import Policy
from tests.builders import check, found


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
