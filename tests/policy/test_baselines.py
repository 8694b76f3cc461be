import pytest

from mindswap.errors import MindswapError
from mindswap.policy.coverage import BASELINES, baseline_policy
from mindswap.policy.model import Policy
from tests.builders import LLAMA, QWEN, check, layer

# The same, as a user writes it.
WRITTEN = {
    "none": "swap_config: {swap: True, op_swap: []}",
    "full-recompute": "swap_config: {swap: True, op_swap: []}\nrecompute_config: {recompute: True}",
    "select-recompute": "swap_config: {swap: True, op_swap: []}\nrecompute_config: {select_recompute: True}",
    "default-swap": "swap_config: {swap: True, default_prefetch: 1}",
    "default-swap-10": "swap_config: {swap: True, default_prefetch: 10}",
    "swap-everything": "swap_config: {swap: True, layer_swap: {backward_prefetch: 10, layers: True}}",
}


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_is_what_its_yaml_says(name):
    assert baseline_policy(name, [layer(LLAMA)]) == check(WRITTEN[name]).policy


def test_the_newer_models_have_other_operators():
    """A model without shared experts has two of the four default operators."""
    policy = baseline_policy("select-recompute", [layer(QWEN)])
    assert [entry.pattern for entry in policy.select_recompute] == [r"mlp\.mul", r"mlp\.activation_func\.silu"]
    assert baseline_policy("none", [layer(QWEN)]) == Policy(is_swap_enabled=True)


def test_an_unknown_name_lists_those_that_are_known():
    with pytest.raises(MindswapError, match="no baseline 'all'; known: none, full-recompute"):
        baseline_policy("all", [layer(LLAMA)])
