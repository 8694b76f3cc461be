"""From a profile to a device, counted by hand, starting from the generic device (100 TFLOPS, 1 TB/s)."""

from dataclasses import replace

import pytest

from mindswap.simulator.cost.cost_table import Measurement, measured_key
from mindswap.simulator.profile.calibration import calibrate
from mindswap.simulator.profile.profile import (
    Profile,
    ProfiledCopy,
    ProfiledKernel,
    Share,
    Transfer,
    can_measure,
    measure,
)
from tests.simulator.cost.builders import GENERIC, device, matmul, mul, tensor

MB = 10**6
GB_PER_S = 10**9
# 2, 3 and 4 MB, 20 us and 10 GB/s.
MOVED = tuple(
    ProfiledCopy(start, duration, size, True)
    for start, duration, size in ((0, 220_000, 2 * MB), (MB, 320_000, 3 * MB), (2 * MB, 420_000, 4 * MB))
)


def profile(kernels=(), moved=(), **others) -> Profile:
    return replace(Profile("p", tuple(kernels), tuple(moved), (), None, ()), **others)


def accepted(result):
    return {figure.name: figure.fitted for figure in result.changes}


def objections(result):
    return {figure.name: figure.objection for figure in result.figures if figure.objection}


def test_figures_and_their_source():
    result = calibrate(profile(moved=MOVED), GENERIC)
    assert result.device.sources["d2h"] == "measured, 1 rank of a profile, 3 samples"
    assert result.device.sources["h2d"] == GENERIC.sources["h2d"]
    assert (
        calibrate(profile(moved=MOVED, num_ranks=2), GENERIC).device.sources["d2h"].startswith("measured, 2 ranks of")
    )


def test_durations_are_the_median_of_all_runs_the_largest_sum_first():
    square = tensor(1000, 1000)
    key = measured_key("MatMul", [square] * 2, [square])
    other = measured_key("Mul", [square] * 2, [square])
    assert measure([mul(1000), matmul(40_000), matmul(90_000), matmul(44_000)]) == (
        Measurement(key, 44_000, 3),
        Measurement(other, 1000, 1),
    )


def test_what_runs_often_comes_before_what_takes_long_once():
    found = measure([mul(100), *[matmul(44)] * 3])
    assert [(entry.duration_ns, entry.count) for entry in found] == [(44, 3), (100, 1)]


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


def test_what_has_no_types_is_not_covered_and_collectives_do_not_count():
    blank = ProfiledKernel("Cast", 10_000, None, None)
    collective = ProfiledKernel("hcom_allReduce_", 10**6, None, None, "HCCL")
    result = calibrate(profile([matmul(40_000), blank, collective]), GENERIC)
    assert (result.num_kernels, result.num_covered, result.kernels_ns, result.covered_ns) == (2, 1, 50_000, 40_000)
    assert result.unmeasured_ns == (("Cast", 10_000),)


def test_links():
    result = calibrate(profile(moved=MOVED), GENERIC)
    assert accepted(result) == {"d2h": 10 * GB_PER_S, "d2h_latency": 20_000}
    assert result.device.offload.latency_ns == 20_000
    assert result.device.prefetch == GENERIC.prefetch
    assert objections(result)["h2d"] == "no copies in this direction"
    samples = {figure.name: figure.num_samples for figure in result.figures}
    assert samples == {
        "d2h": 3, "d2h_latency": 3, "h2d": 0, "h2d_latency": 0, "contended_fraction": 0, "collective_fraction": 0,
        "internode_fraction": 0,
    }  # fmt: skip


def test_both_directions_slow_each_other():
    """Three copies back beside three out: 20 us and 10 GB/s alone, twice as long together."""
    assert objections(calibrate(profile(moved=MOVED), GENERIC))["contended_fraction"] == (
        "fewer than three copies overlapped with copies in the other direction"
    )
    later = 10**9
    both = [
        replace(copy, start_ns=later + copy.start_ns, duration_ns=2 * copy.duration_ns, is_out=way)
        for copy in MOVED
        for way in (True, False)
    ]
    result = calibrate(profile(moved=[*MOVED, *both]), GENERIC)
    assert accepted(result)["contended_fraction"] == 500
    assert "contended_fraction" not in objections(result)


def test_links_need_large_copies():
    small = [replace(copy, size_bytes=copy.size_bytes // 1000) for copy in MOVED]
    result = calibrate(profile(moved=small), GENERIC)
    assert objections(result)["d2h"] == "too few copies of 1.0 MiB or more (0); 3 are needed"
    assert result.device.offload == GENERIC.offload


def test_times_that_do_not_grow_with_sizes_are_no_link():
    # 1 TB/s, as fast as the memory of the device.
    moved = [replace(copy, duration_ns=copy.size_bytes // 1000) for copy in MOVED]
    assert accepted(calibrate(profile(moved=moved), GENERIC))["d2h"] == 10**12
    # 4 MB take 1 ns more than 2 MB: faster than that.
    moved = [replace(copy, duration_ns=120_000 + index) for index, copy in enumerate(MOVED)]
    result = calibrate(profile(moved=moved), GENERIC)
    assert result.links == {} and result.device.offload == GENERIC.offload
    assert objections(result)["d2h"].startswith("3 copies, of which fewer than three ran alone")


def test_level_1_says_that_level_2_is_needed():
    result = calibrate(profile(num_unsized_copies=14, level="Level1"), GENERIC)
    assert objections(result)["d2h"] == "copies have no size below Level2"
    assert result.notes == (
        "14 copies without a size (Level1): only profiler level 2 writes sizes, so the links to the host keep their "
        "figures",
    )


def sent(link, *entries):
    return tuple(Transfer("hcom_x", link, size, time, time) for size, time in entries)


def test_collectives_by_the_bandwidth_of_one_link():
    # 80 GB/s to four others: 20 GB/s a link. 10 MB in 1 ms: 10 GB/s, half.
    mesh = replace(GENERIC.intranode, bandwidth_bytes_per_s=80 * GB_PER_S, num_mesh_cards=5)
    result = calibrate(profile(transfers=sent("HCCS", *[(10 * MB, MB)] * 3)), device(intranode=mesh))
    assert result.device.intranode.efficiency_permille == 500
    # To one other it is all of the 80 GB/s.
    pair = device(intranode=replace(mesh, num_mesh_cards=2))
    result = calibrate(profile(transfers=sent("HCCS", *[(40 * MB, MB)] * 3)), pair)
    assert result.device.intranode.efficiency_permille == 500
    # 200 GB/s a link is more than there is; two samples are too few.
    result = calibrate(profile(transfers=sent("HCCS", *[(200 * MB, MB)] * 3)), device(intranode=mesh))
    assert objections(result)["collective_fraction"].startswith("links are faster than those of")
    result = calibrate(profile(transfers=sent("HCCS", *[(20_020_000, MB)] * 3)), device(intranode=mesh))
    assert objections(result)["collective_fraction"].startswith("links are faster than those of")
    result = calibrate(profile(transfers=sent("HCCS", *[(20 * MB, MB)] * 3)), device(intranode=mesh))
    assert result.device.intranode.efficiency_permille == 1000
    result = calibrate(profile(transfers=sent("HCCS", *[(10 * MB, MB)] * 2)), device(intranode=mesh))
    assert objections(result)["collective_fraction"] == "too few collectives (2); 3 are needed"


def test_a_card_with_another_number_of_cores():
    kernels = [replace(matmul(40_000), num_blocks=blocks) for blocks in (16, 20, 20)]
    assert calibrate(profile(kernels), device(num_matrix_cores=20)).notes == ()
    assert calibrate(profile(kernels), device(num_matrix_cores=24)).notes == (
        "matrix kernels run on 20 cores, a device of round numbers has 24: is --device the card of this profile?",
    )
    # Vector kernels are split otherwise.
    assert calibrate(profile([replace(mul(40_000), num_blocks=48)] * 3), device(num_matrix_cores=24)).notes == ()


def test_kernels_that_are_not_those_of_the_steps():
    # Kernels of 40 us against 100 us of computing.
    result = calibrate(profile([matmul(40_000)], steps=(Share(100_000, 0, 0),)), GENERIC)
    assert result.notes == (
        "kernels take 40 % of the computing time in step_trace_time.csv: is a part of one of them missing?",
    )
    assert calibrate(profile([matmul(40_000)], steps=(Share(45_000, 9, 9),)), GENERIC).notes == ()


@pytest.mark.parametrize(("kernels_ns", "percent"), [(79, 79), (80, None), (120, None), (121, 121), (180, 180)])
def test_a_fifth_more_or_less_than_the_steps_is_what_ran_beside_each_other(kernels_ns, percent):
    notes = calibrate(profile([matmul(kernels_ns)], steps=(Share(100, 0, 0),)), GENERIC).notes
    assert [note.partition(" of")[0] for note in notes] == ([f"kernels take {percent} %"] if percent else [])
