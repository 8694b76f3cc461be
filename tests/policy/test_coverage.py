import pytest

from mindswap.errors import MindswapError
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.coverage import BASELINES, Coverage, baseline_policy
from mindswap.policy.model import ALL_LAYERS, Layers, Policy
from tests.builders import LLAMA, QWEN, check, layer

# Layers 0 and 2 are of one kind, layer 1 of another.
COVERAGE = Coverage(LayerTrees((layer(LLAMA), layer(QWEN), layer(LLAMA)), {}, "two kinds"))


def test_equal_layers_are_one_kind():
    assert COVERAGE.layer_class_of == (0, 1, 0)
    assert COVERAGE.layers_by_class(ALL_LAYERS) == {0: (0, 2), 1: (1,)}
    assert COVERAGE.layers_by_class(Layers((1, 2, 9))) == {1: (1,), 0: (2,)}  # there is no layer 9


def test_a_cell_covers_the_operators_below_it():
    assert COVERAGE.operators(r"feed_forward\.w1", 0) == {"feed_forward.w1.matmul", "feed_forward.w1.activation.silu"}
    assert COVERAGE.operators(r"feed_forward\.w1", 1) == frozenset()
    assert COVERAGE.operators(None, 1) == {
        "input_layernorm.norm",
        "self_attention.linear_qkv.matmul",
        "self_attention.core_attention.flash_attention",
        "mlp.activation_func.silu",
        "mlp.mul",
    }


def test_a_name_that_begins_alike_is_not_below():
    """`mul` is no operator of a cell `m`, and `mlp.mul` is not below `mlp.m`."""
    assert COVERAGE.operators(r"mlp\.m", 1) == frozenset()


def test_where_two_patterns_meet():
    layers, operators = COVERAGE.shared_operators(r".*attention", r".*\.flash_attention", ALL_LAYERS)
    assert (layers, operators) == ((0, 2), ("attention.flash_attention.flash_attention",))
    assert COVERAGE.shared_operators("attention", "feed_forward", ALL_LAYERS) == ((), ())
    assert COVERAGE.shared_operators("attention", None, Layers((0, 1))) == (
        (0,),
        tuple(sorted(COVERAGE.operators("attention", 0))),
    )


def test_a_pattern_that_cannot_be_matched_names_nothing_and_says_why():
    assert COVERAGE.error("*x") is not None
    assert COVERAGE.matches("*x", 0) == ()
    assert COVERAGE.error("attention") is None


# Baselines.


# The same, as a user writes it.
WRITTEN = {
    "none": "swap_config: {swap: True, op_swap: []}",
    "full-recompute": "swap_config: {swap: True, op_swap: []}\nrecompute_config: {recompute: True}",
    "select-recompute": "swap_config: {swap: True, op_swap: []}\nrecompute_config: {select_recompute: True}",
    "default-swap": "swap_config: {swap: True, default_prefetch: 1}",
    "default-swap-10": "swap_config: {swap: True, default_prefetch: 10}",
    "swap-everything": "swap_config: {swap: True, layer_swap: {backward_prefetch: 10, layers: True}}",
    "recompute-swap": """
swap_config: {swap: True, op_swap: [{op_name: add, backward_prefetch: 10, layers: True}]}
recompute_config: {select_recompute: {attention_norm: True, ffn_norm: True, attention: True, feed_forward: True}}
""",
    # The norms of this tree have no operator for their output.
    "recompute-swap-norms": """
swap_config: {swap: True, op_swap: [{op_name: add, backward_prefetch: 10, layers: True}]}
recompute_config: {select_recompute: {attention_norm: True, ffn_norm: True, attention: True, feed_forward: True}}
""",
}


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_is_what_its_yaml_says(name):
    assert baseline_policy(name, [layer(LLAMA)]) == check(WRITTEN[name]).policy


def test_outputs_of_norms_are_swapped_where_the_cell_is_not_recomputed_as_a_whole():
    policy = baseline_policy("recompute-swap-norms", [layer("norm\n  cast*\n  norm*\n  rcast*\nmlp\n  mul*\nadd*")])
    assert [entry.pattern for entry in policy.op_swap] == ["add", r"norm\.rcast"]
    assert [entry.pattern for entry in policy.select_recompute] == [r"norm\.cast", r"norm\.norm", "mlp"]


def test_the_newer_models_have_other_operators():
    """A model without shared experts has two of the four default operators."""
    policy = baseline_policy("select-recompute", [layer(QWEN)])
    assert [entry.pattern for entry in policy.select_recompute] == [r"mlp\.mul", r"mlp\.activation_func\.silu"]
    assert baseline_policy("none", [layer(QWEN)]) == Policy(is_swap_enabled=True)


def test_an_unknown_name_lists_those_that_are_known():
    with pytest.raises(MindswapError, match="no baseline 'all'; known: none, full-recompute"):
        baseline_policy("all", [layer(LLAMA)])
