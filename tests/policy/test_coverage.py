from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.coverage import Coverage
from mindswap.policy.model import ALL_LAYERS, Layers
from tests.builders import LLAMA, QWEN, layer

# Layers 0 and 2 are of one kind, layer 1 of another.
COVERAGE = Coverage(LayerTrees((layer(LLAMA), layer(QWEN), layer(LLAMA)), {}, "two kinds"))


def test_equal_layers_are_one_kind():
    assert COVERAGE.kind_of == (0, 1, 0)
    assert COVERAGE.layers_by_kind(ALL_LAYERS) == {0: (0, 2), 1: (1,)}
    assert COVERAGE.layers_by_kind(Layers((1, 2, 9))) == {1: (1,), 0: (2,)}  # there is no layer 9


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
