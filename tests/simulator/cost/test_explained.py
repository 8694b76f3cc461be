"""How much of a profile figures explain, counted by hand on the generic device."""

from dataclasses import replace

from mindswap.simulator.cost.explained import WITHOUT_FIGURES, ClassTime, explain
from mindswap.simulator.cost.kernel_fit import measure, samples_of
from tests.simulator.cost.builders import GENERIC, matmul, mul


def explained(*kernels):
    return explain(kernels, samples_of(measure(kernels)), GENERIC)


def test_by_class_and_what_is_left():
    # Products: 20 us for 40 measured, off by 20. Mul: 6 for 5 measured, off by 1. Two others: 35 us nobody explains.
    optimizer, random = (replace(mul(time), type=name) for name, time in (("ApplyAdamW", 30_000), ("DSAGen", 5000)))
    result = explained(matmul(40_000), mul(5000), optimizer, random)
    assert result.classes == (
        ClassTime("matrix product", 1, 40_000, 20_000, 500),
        ClassTime("element-wise", 1, 5000, 6000, 200),
        ClassTime(WITHOUT_FIGURES, 2, 35_000, None, None),
    )
    assert (result.known_ns, result.error_ns, result.total_ns) == (45_000, 21_000, 80_000)
    assert result.explained_permille == 300  # 24 of 80
    assert result.others == (("ApplyAdamW", 30_000), ("DSAGen", 5000))
    assert [operator.measurement.key.op for operator in result.operators] == ["MatMul", "Mul"]
    assert not result.is_absurd


def test_kernels_without_figures_come_longest_first_then_by_name():
    times = (("NonZero", 5), ("ApplyAdamW", 5), ("DSAGen", 30_000), ("DSAGen", 10))
    kernels = [replace(mul(time), type=name) for name, time in times]
    assert explained(*kernels).others == (("DSAGen", 30_010), ("ApplyAdamW", 5), ("NonZero", 5))


def test_off_by_more_than_half_is_absurd():
    # Off by 20,000 of 40,000 is not; off by 20,002 of 40,002 is.
    assert not explained(matmul(40_000)).is_absurd
    assert explained(matmul(40_002)).is_absurd
    # Off by 25 us of 15, the other way round.
    assert explained(matmul(8000)).is_absurd


def test_nothing_explains_nothing():
    result = explained()
    assert (result.explained_permille, result.is_absurd, result.classes) == (None, False, ())
