"""Figures of kernels, counted by hand, starting from the generic device (100 TFLOPS, 1 TB/s)."""

from dataclasses import replace

import pytest

from mindswap.simulator.cost.kernel_fit import FigureFit, fit_kernels, measure, samples_of
from mindswap.simulator.cost.profile import ProfiledKernel
from tests.simulator.cost.builders import GENERIC, device, matmul, mul, tensor


def fits(*kernels, known=GENERIC):
    return {fit.name: fit for fit in fit_kernels(samples_of(measure(kernels)), known)}


def test_shares_of_the_peaks():
    # 20 us of compute in 40 us: 0.5. 6 us of memory in 24 us: 0.25.
    found = fits(*[matmul(40_000)] * 3, *[mul(24_000)] * 4)
    assert found["compute_fraction"] == FigureFit("compute_fraction", 1000, 500, 3, 0, "")
    assert found["memory_bandwidth_fraction"] == FigureFit("memory_bandwidth_fraction", 1000, 250, 4, 0, "")


def test_the_fixed_cost_is_no_part_of_the_share():
    slow = device(op_latency_ns={"matrix": 5000, "vector": 2000, "communication": 0})
    assert fits(*[matmul(45_000)] * 3, known=slow)["compute_fraction"].fitted == 500
    # A kernel of less than two fixed costs says nothing.
    assert fits(*[matmul(9000)] * 3, known=slow)["compute_fraction"].fitted is None


def test_kernels_of_different_sizes_leave_a_residual():
    # 20 us of float16 in 40, 40 us of float32 in 60: most of the time at the peak is in the second, 0.666. Then the
    # first takes 30 of 40 us, off by 24.9 %, the second 60.
    found = fits(*[matmul(40_000), matmul(60_000, "float32")] * 3)["compute_fraction"]
    assert (found.fitted, found.num_samples, found.residual_permille) == (666, 6, 125)


def test_one_slow_operator_moves_nothing():
    # 20 us in 40 us, twenty times; one of 40 us in 4 ms.
    found = fits(*[matmul(40_000)] * 20, matmul(4_000_000, "float32"))["compute_fraction"]
    assert (found.fitted, found.num_samples) == (500, 21)


def test_a_product_that_memory_bounds_says_nothing_of_the_units():
    # 2 MFLOPs take 0.02 us, 2 MB of inputs 2 us: no figure of vector kernels either.
    thin = replace(matmul(40_000).inputs[0], shape=(1, 1000), size_bytes=2000)
    kernel = replace(matmul(40_000), inputs=(thin, matmul(1).inputs[1]), outputs=(thin,))
    assert {fit.fitted for fit in fits(*[kernel] * 3).values()} == {None}


@pytest.mark.parametrize(
    ("durations", "said"),
    [
        ([40_000] * 2, "too few kernels (2); 3 are needed"),
        ([10_000] * 3, "kernels are faster than the peak of a device of round numbers: is this its profile?"),
        ([20_500] * 3, "more than 0.95 of a peak is not reached: is this its profile?"),  # 0.975
        ([40_000] * 3, ""),
    ],
)
def test_what_is_not_believed(durations, said):
    found = fits(*[matmul(duration) for duration in durations])["compute_fraction"]
    assert found.objection == said
    assert found.is_accepted is not bool(said)


def test_no_kernels():
    assert {fit.objection for fit in fits().values()} == {"no kernels of this kind"}


CARD = device(
    cache_bytes=8_000_000,
    cache_bandwidth_bytes_per_s=2 * 10**12,
    vector_rates={**GENERIC.vector_rates, "norm": 10**11, "activation": 10**11},
)


def vector(op, duration_ns, num_rows):
    """An operator that reads and writes num_rows x 1000 numbers of 2 bytes."""
    numbers = tensor(num_rows, 1000)
    return ProfiledKernel(op, duration_ns, (numbers,), (numbers,), "AI_VECTOR_CORE")


def test_each_operator_counts_for_the_figure_that_decides_its_time():
    found = fits(
        *[vector("Exp", 4000, 1000)] * 3,  # 4 MB within the cache of 8 MB, in 4 us: 1 TB/s
        *[vector("Exp", 20_000, 4000)] * 3,  # 16 MB in 20 us: 0.8 of 1 TB/s
        *[vector("RmsNorm", 50_000, 1000)] * 3,  # a million numbers in 50 us: 20 G/s
        *[vector("SiLU", 25_000, 1000)] * 3,  # 40 G/s
        known=CARD,
    )
    assert {name: fit.fitted for name, fit in found.items() if fit.fitted is not None} == {
        "cache_bandwidth": 10**12,
        "memory_bandwidth_fraction": 800,
        "norm_rate": 20 * 10**9,
        "activation_rate": 40 * 10**9,
    }


def test_gradients_of_weights_by_the_shape_of_their_first_operand():
    # 500 x 2000 transposed by 500 x 1000: 2 GFLOP, 20 us at the peak, in 25 us. Tiles are not counted here.
    first, second, result = tensor(500, 2000), tensor(500, 1000), tensor(2000, 1000)
    kernel = ProfiledKernel("MatMulV3", 25_000, (first, second), (result,))
    found = fits(*[kernel] * 3)
    assert found["weight_gradient_fraction"].fitted == 800
    assert found["compute_fraction"].fitted is None


def test_tiles_that_leave_cores_idle_are_no_lack_of_share():
    # 1000 x 1000 are 8 x 4 = 32 tiles of 128 x 256: on 24 cores two rounds of 24. 20 us become 30; in 40 us: 0.75.
    assert fits(*[matmul(40_000)] * 3, known=device(num_matrix_cores=24))["compute_fraction"].fitted == 750


def test_attention_forward_and_backward_apart():
    # WHOLE of test_kernel_samples: 1.073741824 GFLOP, 10.737 us at the peak; in 40 us: 0.268.
    query, statistics = tensor(2, 4, 512, 128), tensor(2, 4, 512, 8, dtype="float32")
    forward = ProfiledKernel("FlashAttentionScore", 40_000, (query,) * 3, (statistics, statistics, query), "MIX_AIC")
    backward = ProfiledKernel("FlashAttentionScoreGrad", 100_000, (query,) * 4 + (statistics,), (query,) * 3, "MIX_AIC")
    found = fits(*[forward, backward] * 3)
    assert found["attention_fraction"].fitted == 268
    assert found["attention_grad_fraction"].fitted == 268  # 2.5 times as much in 2.5 times the time
    assert found["compute_fraction"].fitted is None
