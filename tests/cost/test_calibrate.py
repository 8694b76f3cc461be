"""Figures from profiles, counted by hand, starting from the generic device (100 TFLOPS, 1 TB/s)."""

from dataclasses import replace

import pytest

from mindswap.cost.calibrate import Change, calibrate
from mindswap.cost.calibration_file import format_device_file, load_measured
from mindswap.cost.device_file import figure_values, list_devices, load_device
from mindswap.cost.fit import fit_contention, fit_link
from mindswap.cost.measured import Measurement, measured_key
from mindswap.cost.profile_files import Copy, Kernel, Profile
from mindswap.cost.table import CostTable
from mindswap.errors import CostError
from mindswap.graph.work import count_work
from tests.cost.builders import GENERIC, device, operator, tensor

MB = 10**6
GB_PER_S = 10**9


def copies(*entries: tuple[int, int, int], is_out: bool = True) -> list[Copy]:
    """Copies from (start, duration, size)."""
    return [Copy(start, duration, size, is_out) for start, duration, size in entries]


def one_after_another(times: dict[int, int], is_out: bool = True) -> list[Copy]:
    """Copies with gaps between them, from size -> duration."""
    start, result = 0, []
    for size, duration in times.items():
        result.append(Copy(start, duration, size, is_out))
        start += duration + 10
    return result


def profile(kernels=(), moved=()) -> Profile:
    return Profile("p", tuple(kernels), tuple(moved), (), None, ())


def matmul(duration_ns: int, dtype: str = "float16") -> Kernel:
    """1000 x 1000 x 1000: 20 us at the peak for float16."""
    square = tensor(1000, 1000, dtype=dtype)
    return Kernel("MatMulV2", duration_ns, (square, square), (square,), False)


def mul(duration_ns: int) -> Kernel:
    """A million numbers: 6 MB, 6 us at the peak."""
    numbers = tensor(1000, 1000)
    return Kernel("Mul", duration_ns, (numbers, numbers), (numbers,), False)


def test_an_exact_line():
    # 20 us and 10 GB/s: 1 MB takes 120 us, 2 MB 220 us, 4 MB 420 us.
    fit = fit_link(one_after_another({MB: 120_000, 2 * MB: 220_000, 4 * MB: 420_000}), True)
    assert (fit.latency_ns, fit.bandwidth_bytes_per_s, fit.num_copies) == (20_000, 10 * GB_PER_S, 3)
    assert (fit.middle_error_permille, fit.largest_error_permille) == (0, 0)


def test_least_squares_and_what_is_left():
    # Times 1, 2, 2, 3 us for 1, 1, 2, 2 units of 10 KB: line through the means 1.5 and 2.5 us: slope 1 us, from 0.5 us.
    points = [(0, 1000, 10_000), (5000, 2000, 10_000), (9000, 2000, 20_000), (15_000, 3000, 20_000)]
    fit = fit_link(copies(*points), True)
    assert (fit.latency_ns, fit.bandwidth_bytes_per_s) == (500, 10 * GB_PER_S)
    # Fitted 1.5, 1.5, 2.5, 2.5 us: off by 50 %, 25 %, 25 % and 16.6 %.
    assert (fit.middle_error_permille, fit.largest_error_permille) == (250, 500)


def test_one_size_gives_no_latency():
    fit = fit_link(copies((0, 100_000, MB), (200_000, 100_000, MB), (400_000, 100_000, MB)), True)
    assert (fit.latency_ns, fit.bandwidth_bytes_per_s) == (0, 10 * GB_PER_S)


def test_a_line_below_zero_begins_at_zero():
    # 1 MB in 50 us, 2 MB in 200 us, 2 MB in 200 us: the line would begin at -100 us. Through zero: sum(s t) / sum(s s)
    # = (50 + 400 + 400) / (1 + 4 + 4) us per MB = 94.44: 10.588 GB/s.
    fit = fit_link(copies((0, 50_000, MB), (60_000, 200_000, 2 * MB), (300_000, 200_000, 2 * MB)), True)
    assert (fit.latency_ns, fit.bandwidth_bytes_per_s) == (0, 10_588_235_294)


def test_copies_beside_the_other_direction_are_left_out():
    alone = one_after_another({MB: 120_000, 2 * MB: 220_000, 4 * MB: 420_000})
    end = alone[-1].start_ns + alone[-1].duration_ns + 10
    slow = [Copy(end, 900_000, MB, True), Copy(end + 100, 800_000, MB, False)]
    assert fit_link([*alone, *slow], True) == fit_link(alone, True)


@pytest.mark.parametrize("times", [{}, {MB: 1, 2 * MB: 2}, {MB: 0, 2 * MB: 0, 3 * MB: 0}])
def test_too_little_to_fit(times):
    assert fit_link(one_after_another(times), True) is None


def test_contention_is_time_alone_by_time_together():
    out = fit_link(one_after_another({MB: 100_000, 2 * MB: 200_000, 4 * MB: 400_000}), True)
    # 1 MB each way at once, three times: 100 us alone, 125 us together.
    together = [Copy(start, 125_000, MB, way) for start in (0, 10**6, 2 * 10**6) for way in (True, False)]
    assert fit_contention(together, out, out) == (800, 6)
    # Half beside the other direction says neither.
    assert fit_contention(copies((0, 100_000, MB)) + copies((50_000, 100_000, MB), is_out=False), out, out) is None


def test_shares_of_the_peaks():
    # 20 us of compute in 40 us: 0.5. 6 us of memory in 24 us: 0.25.
    result = calibrate(profile([matmul(40_000), matmul(40_000), mul(24_000)]), GENERIC)
    assert result.changes == (
        Change("compute_fraction", 1000, 500, "2 kernels"),
        Change("memory_fraction", 1000, 250, "1 kernels"),
    )
    assert (result.device.compute_permille, result.device.memory_permille) == (500, 250)
    assert result.device.sources["compute_fraction"] == "measured, 2 kernels of a profile"
    assert (result.roofline_error_permille, result.middle_error_permille) == (0, 0)


def test_the_fixed_cost_is_no_part_of_the_share():
    slow = device(op_latency_ns={"matrix": 5000, "vector": 2000, "communication": 0})
    assert calibrate(profile([matmul(45_000)]), slow).device.compute_permille == 500
    # A kernel of less than two fixed costs says nothing.
    assert calibrate(profile([matmul(9000)]), slow).changes == ()


def test_kernels_of_different_sizes_leave_an_error():
    # 20 us of float16 in 40, 40 us of float32 in 60: 60 of 100, share 0.6; then 33,334 and 66,667 ns for 40 and 60 us.
    result = calibrate(profile([matmul(40_000), matmul(60_000, "float32")]), GENERIC)
    assert result.device.compute_permille == 600
    assert result.roofline_error_permille == 0  # 100,001 of 100,000
    assert result.middle_error_permille == 138  # of 166 (6,666 of 40,000) and 111 (6,667 of 60,000)


def test_faster_than_the_peak_is_doubted():
    result = calibrate(profile([matmul(10_000)]), GENERIC)
    assert result.device.compute_permille == 1000
    assert "compute_fraction: kernels are faster than the peak of a device of round numbers: is this its profile?" in (
        result.notes
    )


def test_durations_are_the_middle_of_all_runs():
    result = calibrate(profile([matmul(40_000), matmul(90_000), matmul(44_000), mul(1000)]), GENERIC)
    square = tensor(1000, 1000)
    assert result.measurements[0] == Measurement(measured_key("MatMul", [square] * 2, [square]), 44_000, 3)
    assert (result.num_kernels, result.num_covered, result.kernels_ns) == (4, 4, 175_000)


def test_what_has_no_types_is_not_covered_and_collectives_do_not_count():
    blank = Kernel("Cast", 10_000, None, None, False)
    collective = Kernel("hcom_allReduce_", 10**6, None, None, True)
    result = calibrate(profile([matmul(40_000), blank, collective]), GENERIC)
    assert (result.num_kernels, result.num_covered, result.kernels_ns, result.covered_ns) == (2, 1, 50_000, 40_000)


def test_links():
    moved = one_after_another({MB: 120_000, 2 * MB: 220_000, 4 * MB: 420_000})
    result = calibrate(profile(moved=moved), GENERIC)
    assert result.changes == (
        Change("d2h", 10 * GB_PER_S, 10 * GB_PER_S, "3 copies"),
        Change("d2h_latency", 0, 20_000, "3 copies"),
    )
    assert result.device.offload.latency_ns == 20_000
    assert result.device.prefetch == GENERIC.prefetch
    assert [note.partition(":")[0] for note in result.notes] == [
        "compute_fraction", "memory_fraction", "h2d", "contended_fraction",
    ]  # fmt: skip


def test_times_that_do_not_grow_with_sizes_are_no_link():
    # 4 MB take 1 ns more than 1 MB: faster than the memory of the device.
    moved = one_after_another({MB: 120_000, 2 * MB: 120_000, 4 * MB: 120_001})
    result = calibrate(profile(moved=moved), GENERIC)
    assert result.links == {} and result.device.offload == GENERIC.offload


@pytest.mark.parametrize("name", list_devices())
def test_a_written_device_reads_back_the_same(tmp_path, name):
    before = load_device(name)
    path = tmp_path / f"{name}.yaml"
    path.write_text(format_device_file(before, {"based_on": name}, ()))
    assert load_device(path) == before
    assert load_measured(path) == {}


def test_odd_figures_and_efficiencies_read_back_the_same(tmp_path):
    link = replace(GENERIC.offload, bandwidth_bytes_per_s=10_588_235_293, latency_ns=17, efficiency=((65536, 333),))
    before = device(name="device", offload=link, sources={**GENERIC.sources, "d2h_efficiency": 'a "table"'})
    path = tmp_path / "device.yaml"
    path.write_text(format_device_file(before, {}, ()))
    assert load_device(path) == before
    assert figure_values(load_device(path))["d2h"] == 10_588_235_293


def test_measured_durations_are_found_again(tmp_path):
    result = calibrate(profile([matmul(40_000), mul(24_000)]), GENERIC)
    path = tmp_path / "device.yaml"
    path.write_text(format_device_file(result.device, {}, result.measurements))
    square = tensor(1000, 1000)
    node = operator("MatMul", square)
    table = CostTable(load_device(path), load_measured(path))
    assert table.operator_ns(node, count_work("MatMul", (square, square), (square,))) == 40_000


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{op: Mul}", "write {op, inputs, outputs, duration_ns, count}"),
        ("{op: Mul, inputs: [half 3x4], outputs: [], duration_ns: 1, count: 1}", "'half 3x4' is no tensor"),
        ("{op: Mul, inputs: [float16 3*4], outputs: [], duration_ns: 1, count: 1}", "'float16 3*4' is no tensor"),
        ("{op: Mul, inputs: [], outputs: [], duration_ns: fast, count: 1}", "duration_ns a whole number"),
    ],
)
def test_a_broken_entry_has_its_line(tmp_path, entry, said):
    path = tmp_path / "device.yaml"
    path.write_text(format_device_file(GENERIC, {}, ()).replace("  []", f"- {entry}"))
    line = path.read_text().splitlines().index(f"- {entry}") + 1
    with pytest.raises(CostError, match=f"device.yaml:{line}:3: measured: ") as caught:
        load_measured(path)
    assert said in str(caught.value)
