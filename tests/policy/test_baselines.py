import pytest

from mindswap.errors import MindswapError
from mindswap.policy.baselines import BASELINES, baseline_policy
from mindswap.policy.model import Policy
from tests.builders import check

# The same, as a user writes it.
WRITTEN = {
    "none": "swap_config: {swap: True, op_swap: []}",
    "full-recompute": "swap_config: {swap: True, op_swap: []}\nrecompute_config: {recompute: True}",
    "select-recompute": "swap_config: {swap: True, op_swap: []}\nrecompute_config: {select_recompute: True}",
    "default-swap": "swap_config: {swap: True, default_prefetch: 1}",
    "default-swap-10": "swap_config: {swap: True, default_prefetch: 10}",
}


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_is_what_its_yaml_says(name):
    assert baseline_policy(name, use_legacy=True) == check(WRITTEN[name]).policy


def test_the_newer_models_have_other_operators():
    policy = baseline_policy("select-recompute", use_legacy=False)
    assert any(entry.pattern.startswith("mlp") for entry in policy.select_recompute)
    assert baseline_policy("none", use_legacy=False) == Policy(is_swap_enabled=True)


def test_an_unknown_name_lists_those_that_are_known():
    with pytest.raises(MindswapError, match="no baseline 'all'; known: none, full-recompute"):
        baseline_policy("all", use_legacy=True)
