"""Which kernels of a profile are operators of the model, and what their work is."""

from dataclasses import replace

import pytest

from mindswap.graph.ops import OpClass
from mindswap.simulator.cost.kernel_fit import can_measure, measure, samples_of
from mindswap.simulator.cost.profile import ProfiledKernel
from mindswap.simulator.cost.table import Measurement, measured_key
from tests.simulator.cost.builders import matmul, mul, tensor


def sample(kernel: ProfiledKernel):
    found = samples_of(measure([kernel]))
    return found[0] if found else None


def test_durations_are_the_middle_of_all_runs_the_largest_sum_first():
    square = tensor(1000, 1000)
    key = measured_key("MatMul", [square] * 2, [square])
    other = measured_key("Mul", [square] * 2, [square])
    assert measure([mul(1000), matmul(40_000), matmul(90_000), matmul(44_000)]) == (
        Measurement(key, 44_000, 3),
        Measurement(other, 1000, 1),
    )


def test_a_tensor_of_one_number_is_no_part_of_the_key_one_of_two_is():
    assert measured_key("Mul", [tensor(1, 1), tensor(2)], [tensor(2)]) == measured_key("Mul", [tensor(2)], [tensor(2)])
    assert measured_key("Mul", [tensor(2)], []).inputs == (((2,), tensor(2).dtype),)


@pytest.mark.parametrize(
    ("kernel", "is_known"),
    [
        (matmul(1), True),
        (matmul(1, core="MIX_AIC"), True),
        (matmul(1, core="AI_VECTOR_CORE"), False),
        (mul(1), True),
        (mul(1, core="AI_CORE"), True),
        (mul(1, core="MIX_AIV"), True),
        (mul(1, core="MIX_AIC"), False),
        (mul(1, core="AI_CPU"), False),
        (mul(1, core="DSA_SQE"), False),
        (replace(mul(1), is_plain=False), False),
        (replace(mul(1), inputs=None), False),
    ],
)
def test_kernels_of_the_units_that_their_operator_belongs_to(kernel, is_known):
    assert can_measure(kernel) is is_known


@pytest.mark.parametrize("op", ["ZerosLike", "Conv2D", "ApplyAdamW", "TransData", "ReduceSumD", "NonZero", "Other"])
def test_what_the_model_has_no_figures_for(op):
    assert sample(replace(mul(1), type=op)) is None


@pytest.mark.parametrize(
    ("shapes", "flops"),
    [
        (((32, 64), (64, 128), (32, 128)), 2 * 32 * 64 * 128),
        (((64, 32), (64, 128), (32, 128)), 2 * 32 * 64 * 128),
        (((64, 32), (128, 64), (32, 128)), 2 * 32 * 64 * 128),
        (((4, 32, 64), (4, 64, 128), (4, 32, 128)), 2 * 4 * 32 * 64 * 128),
        (((4, 32, 64), (64, 128), (4, 32, 128)), 2 * 4 * 32 * 64 * 128),
        # Shapes that do not go together: a file that was edited, or a format that the shape does not show.
        (((640, 64), (64, 128), (32, 128)), None),
        (((32, 64), (65, 128), (32, 128)), None),
        (((9496, 256, 16, 16), (64, 256, 16, 16), (64, 9496, 16, 16)), None),
        (((64,), (64, 128), (128,)), None),
    ],
)
def test_products(shapes, flops):
    first, second, result = (tensor(*shape) for shape in shapes)
    found = sample(ProfiledKernel("MatMulV3", 1, (first, second), (result,)))
    assert (found.work.flops if found else None) == flops


def attention(query, mask, core="MIX_AIC"):
    """Two sequences of 512 tokens, 4 heads of 128."""
    statistics = tensor(2, 4, 512, 8, dtype="float32")
    inputs = (tensor(*query), tensor(*query), tensor(*query), *mask)
    return ProfiledKernel("FlashAttentionScore", 1, inputs, (statistics, statistics, tensor(*query)), core)


# Both products over all pairs: 2 x 2 x (2 x 4 x 512 x 512 x 128) = 1,073,741,824. Causal: 513 of 1024 of them.
WHOLE = 4 * 2 * 4 * 512 * 512 * 128


@pytest.mark.parametrize("query", [(2, 512, 512), (512, 2, 512), (2, 4, 512, 128), (2, 512, 4, 128)])
@pytest.mark.parametrize(
    ("mask", "flops"),
    [((), WHOLE), ((tensor(512, 512, dtype="uint8"),), WHOLE * 513 // 1024)],
)
def test_attention_in_every_layout(query, mask, flops):
    found = sample(attention(query, mask))
    assert (found.kind, found.work.flops) == (OpClass.ATTENTION, flops)


def test_attention_backward_has_five_products():
    kernel = attention((512, 2, 512), (tensor(512, 2, 512), tensor(512, 512, dtype="uint8"),
                                       tensor(2, 4, 512, 8, dtype="float32")))  # fmt: skip
    kernel = replace(kernel, type="FlashAttentionScoreGrad", outputs=(tensor(512, 2, 512),) * 3)
    assert sample(kernel).work.flops == WHOLE * 513 // 1024 * 5 // 2


def test_attention_without_statistics_has_no_layout():
    kernel = attention((2, 512, 512), ())
    assert sample(replace(kernel, outputs=kernel.outputs[2:])) is None
