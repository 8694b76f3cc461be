"""Figures of kernels, counted by hand, starting from the generic device (100 TFLOPS, 1 TB/s)."""

from dataclasses import replace

import pytest

from mindswap.cost.kernel_fit import FigureFit, fit_kernels
from mindswap.cost.kernel_samples import measure, samples_of
from tests.cost.builders import GENERIC, device, matmul, mul


def fits(*kernels, known=GENERIC):
    return {fit.name: fit for fit in fit_kernels(samples_of(measure(kernels)), known)}


def test_shares_of_the_peaks():
    # 20 us of compute in 40 us: 0.5. 6 us of memory in 24 us: 0.25.
    found = fits(*[matmul(40_000)] * 3, *[mul(24_000)] * 4)
    assert found["compute_fraction"] == FigureFit("compute_fraction", 1000, 500, 3, 0, "")
    assert found["memory_fraction"] == FigureFit("memory_fraction", 1000, 250, 4, 0, "")


def test_the_fixed_cost_is_no_part_of_the_share():
    slow = device(op_latency_ns={"matrix": 5000, "vector": 2000, "communication": 0})
    assert fits(*[matmul(45_000)] * 3, known=slow)["compute_fraction"].fitted == 500
    # A kernel of less than two fixed costs says nothing.
    assert fits(*[matmul(9000)] * 3, known=slow)["compute_fraction"].fitted is None


def test_kernels_of_different_sizes_leave_a_residual():
    # 20 us of float16 in 40, 40 us of float32 in 60: 60 of 100, share 0.6; then 33,333 and 66,666 ns for 40 and 60 us:
    # off by 16.6 % and 11.1 %.
    found = fits(*[matmul(40_000), matmul(60_000, "float32")] * 3)["compute_fraction"]
    assert (found.fitted, found.num_samples, found.residual_permille) == (600, 6, 138)


def test_a_product_that_memory_bounds_says_nothing_of_the_units():
    # 2 MFLOPs take 0.02 us, 2 MB of inputs 2 us: no figure of vector kernels either.
    thin = replace(matmul(40_000).inputs[0], shape=(1, 1000), size_bytes=2000)
    kernel = replace(matmul(40_000), inputs=(thin, matmul(1).inputs[1]), outputs=(thin,))
    assert {fit.fitted for fit in fits(*[kernel] * 3).values()} == {None}


@pytest.mark.parametrize(
    ("durations", "said"),
    [
        ([40_000] * 2, "2 kernels are too few, 3 are needed"),
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
