"""Links from copies and collectives, counted by hand."""

import pytest

from mindswap.simulator.profile.fits import LARGE_BYTES, LinkFit, _overlaps, fit_contention, fit_link, fit_share
from mindswap.simulator.profile.profile import ProfiledCopy, Transfer

MB = 10**6
GB_PER_S = 10**9


def copies(*entries: tuple[int, int, int], is_out: bool = True) -> list[ProfiledCopy]:
    """Copies from (start, duration, size)."""
    return [ProfiledCopy(start, duration, size, is_out) for start, duration, size in entries]


def one_after_another(times: dict[int, int], is_out: bool = True) -> list[ProfiledCopy]:
    """Copies with gaps between them, from size -> duration."""
    start, result = 0, []
    for size, duration in times.items():
        result.append(ProfiledCopy(start, duration, size, is_out))
        start += duration + 10
    return result


def test_an_exact_line():
    # 20 us and 10 GB/s: 1 MB takes 120 us, 2 MB 220 us, 4 MB 420 us. Two of them are larger than 1 MiB.
    fit = fit_link(one_after_another({MB: 120_000, 2 * MB: 220_000, 4 * MB: 420_000}), True)
    assert (fit.latency_ns, fit.bandwidth_bytes_per_s, fit.num_copies, fit.num_large) == (20_000, 10 * GB_PER_S, 3, 2)
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
    slow = [ProfiledCopy(end, 900_000, MB, True), ProfiledCopy(end + 100, 800_000, MB, False)]
    assert fit_link([*alone, *slow], True) == fit_link(alone, True)


@pytest.mark.parametrize("times", [{}, {MB: 1, 2 * MB: 2}, {MB: 0, 2 * MB: 0, 3 * MB: 0}])
def test_too_little_to_fit(times):
    assert fit_link(one_after_another(times), True) is None


def test_contention_is_time_alone_by_time_together():
    out = fit_link(one_after_another({MB: 100_000, 2 * MB: 200_000, 4 * MB: 400_000}), True)
    # 1 MB each way at once, three times: 100 us alone, 125 us together.
    together = [ProfiledCopy(start, 125_000, MB, way) for start in (0, 10**6, 2 * 10**6) for way in (True, False)]
    assert fit_contention(together, out, out) == (800, 6)
    # Half beside the other direction says neither.
    assert fit_contention(copies((0, 100_000, MB)) + copies((50_000, 100_000, MB), is_out=False), out, out) is None


def test_a_copy_that_was_held_up_moves_nothing():
    # The middle of 100, 100 and 9000 us is 100 us: 10 GB/s.
    fit = fit_link(copies((0, 100_000, MB), (200_000, 9_000_000, MB), (20_000_000, 100_000, MB)), True)
    assert (fit.latency_ns, fit.bandwidth_bytes_per_s) == (0, 10 * GB_PER_S)
    assert fit.largest_error_permille == 988  # 8900 of 9000


def test_copies_of_other_ranks_are_beside_nothing():
    alone = one_after_another({MB: 120_000, 2 * MB: 220_000, 4 * MB: 420_000})
    other = [ProfiledCopy(0, 10**6, MB, False, rank=1)]
    assert fit_link([*alone, *other], True) == fit_link(alone, True)
    assert fit_link([*alone, ProfiledCopy(0, 10**6, MB, False, rank=0)], True) is None


def gather(size_bytes: int, link_ns: int, elapsed_ns: int, number: int = 0, link: str = "HCCS") -> Transfer:
    return Transfer(f"hcom_allGather__1_{number}", link, size_bytes, link_ns, elapsed_ns)


def test_a_copy_and_a_collective_of_1_mib_are_large_and_one_byte_less_is_not():
    times = {LARGE_BYTES - 1: 100_000, LARGE_BYTES: 110_000, LARGE_BYTES + 1: 120_000}
    assert LARGE_BYTES == 2**20 and fit_link(one_after_another(times), True).num_large == 2
    found = [gather(LARGE_BYTES - 1, 100_000, 100_000), gather(LARGE_BYTES, 100_000, 100_000)]
    assert fit_share(found, "HCCS", 20 * GB_PER_S)[1] == 1


def test_a_link_moves_a_byte_a_second_at_least():
    second = 10**9
    fit = fit_link(one_after_another({1: 10 * second, 2: 20 * second, 3: 30 * second}), True)
    assert fit.bandwidth_bytes_per_s == 1
    # 20 MB in 2 s are half a thousandth of 20 GB/s.
    assert fit_share([gather(20 * MB, 2 * second, 2 * second)], "HCCS", 20 * GB_PER_S) == (1, 1, 0)


def test_how_long_copies_ran_beside_the_other_direction():
    """Out 0-10 and 20-30, back 5-25 on the same rank: 5 of each, 10 of the one back. Rank 1 is beside nothing.

    Moments are those of a clock that began in 1970.
    """
    begin = 1_717_575_960 * GB_PER_S
    moved = copies((begin, 10, 1), (begin + 20, 10, 1)) + copies((begin + 5, 20, 1), is_out=False)
    moved += [ProfiledCopy(begin + 5, 20, 1, False, rank=1), ProfiledCopy(begin + 24, 20, 1, True, rank=1)]
    assert _overlaps(moved).tolist() == [5, 5, 10, 1, 1]
    assert _overlaps([]).tolist() == []


def test_copies_that_are_beside_the_other_direction_for_nine_tenths_tell_of_it():
    """By the fit of their own direction: out 100 us alone, back 50; both took 125 and 100. One took no time."""
    out = fit_link(one_after_another({MB: 100_000, 2 * MB: 200_000, 4 * MB: 400_000}), True)
    back = fit_link(one_after_another({MB: 50_000, 2 * MB: 100_000, 4 * MB: 200_000}), True)
    starts = range(0, 3_000_000, 1_000_000)
    beside = copies(*((start, 100_000, MB) for start in starts))
    others = copies(*((start + 10_000, 200_000, MB) for start in starts), is_out=False)
    assert fit_contention([*beside, *others, *copies((5, 0, MB))], out, back) == (1000, 3)
    assert fit_contention([*beside[:2], *others], out, back) is None
    others = copies(*((start + 10_001, 200_000, MB) for start in starts), is_out=False)
    assert fit_contention([*beside, *others], out, back) is None
    longer = copies(*((start, 125_000, MB) for start in starts))
    shorter = copies(*((start, 100_000, MB) for start in starts), is_out=False)
    assert fit_contention([*longer[:1], *shorter], out, back) is None
    assert fit_contention([*copies(*((start, 100_000, MB) for start in starts)), *shorter], None, back) == (500, 3)


def test_the_quickest_of_the_same_collective_counts():
    # 20 MB over one link, 1.9 ms busy of 2, twice; once it waited: 10 GB/s of 20. 40 MB over four links, 3.6 ms
    # together within 1 ms: 10 GB/s each. Fixed cost: none.
    found = [
        *[gather(20 * MB, 1_900_000, elapsed, n) for n, elapsed in enumerate((2 * MB, 9 * MB, 2 * MB))],
        gather(40 * MB, 3_600_000, MB),
        gather(20 * MB, 500_000, MB, link="RDMA"),
    ]
    assert fit_share(found, "HCCS", 20 * GB_PER_S) == (500, 4, 0)
    assert fit_share(found, "PCIE", 20 * GB_PER_S) is None


def test_the_fixed_cost_of_a_collective_is_no_part_of_the_share():
    # 20 MB in 2.1 ms, of which 0.1 ms are fixed.
    assert fit_share([gather(20 * MB, 1_900_000, 2_100_000)], "HCCS", 20 * GB_PER_S, 100_000) == (500, 1, 0)
    assert fit_share([gather(20 * MB, 2_000_000, 2_000_000)], "HCCS", 20 * GB_PER_S, 900_000) == (909, 1, 0)
    # Where the fixed part is half of it, nothing is known.
    assert fit_share([gather(20 * MB, 2_000_000, 2_000_000)], "HCCS", 20 * GB_PER_S, 1_000_000) is None


def test_collectives_that_only_wait_or_are_small_say_nothing():
    waited = gather(20 * MB, 2 * MB, 9 * MB)  # busy for 22 %
    small = gather(MB, 2 * MB, 2 * MB)  # less than 1 MiB
    assert fit_share([waited, small], "HCCS", 20 * GB_PER_S) is None


def test_links_that_are_busy_for_four_fifths_count():
    # 1.6 of 2 ms: 20 MB in 2 ms are 10 GB/s of 20; a nanosecond less says nothing.
    assert fit_share([gather(20 * MB, 1_600_000, 2 * MB)], "HCCS", 20 * GB_PER_S) == (500, 1, 0)
    assert fit_share([gather(20 * MB, 1_599_999, 2 * MB)], "HCCS", 20 * GB_PER_S) is None


def both_ways(number: int, duration_ns: int) -> list[ProfiledCopy]:
    """So many copies out, each beside one back of the same time."""
    starts = range(0, number * 1_000_000, 1_000_000)
    rows = [(start, duration_ns, MB) for start in starts]
    return copies(*rows) + copies(*rows, is_out=False)


def test_three_copies_are_enough_to_say_how_the_directions_slow_each_other():
    """Alone 1 MB takes 100 us at 10 GB/s, beside the other direction 125 us."""
    out = fit_link(one_after_another({MB: 100_000, 2 * MB: 200_000, 4 * MB: 400_000}), True)
    assert out.latency_ns == 0
    assert fit_contention(both_ways(3, 125_000), out, None) == (800, 3)
    assert fit_contention(both_ways(2, 125_000), out, None) is None
    assert fit_contention(both_ways(3, 90_000), out, None) == (1000, 3)  # nothing is faster than alone


@pytest.mark.parametrize(("size_bytes", "duration_ns", "permille"), [(19_990, 4000, 499), (10, 4000, 1)])
def test_the_rate_beside_the_other_direction_is_rounded_down_and_never_nothing(size_bytes, duration_ns, permille):
    """10 GB/s: 1999 of 4000 ns, and 1 of 4000."""
    moved = [ProfiledCopy(0, duration_ns, size_bytes, is_out, rank) for rank in range(3) for is_out in (True, False)]
    assert fit_contention(moved, LinkFit(10 * GB_PER_S, 0, 3, 3, 0, 0), None) == (permille, 3)


def test_links_that_wait_for_a_quarter_of_the_time_say_nothing():
    """Four links that are busy for 3.1 of 4 ms together."""
    assert fit_share([gather(40 * MB, 3_100_000, MB)], "HCCS", 20 * GB_PER_S) is None


def test_collectives_of_two_kinds_are_two_though_they_are_of_one_size():
    """40 MB in 3 ms: two thirds of 20 GB/s."""
    scatter = Transfer("hcom_reduceScatter__1_0", "HCCS", 20 * MB, MB, MB)
    assert fit_share([gather(20 * MB, 2 * MB, 2 * MB), scatter], "HCCS", 20 * GB_PER_S)[:2] == (666, 2)


def test_two_sizes_of_collectives_have_one_share_and_each_its_error():
    """20 MB in 2 ms and 40 MB in 3 ms: 60 MB in 5 ms are 12 GB/s, 600 permille of 20; 4 ms and 8 / 3 ms by it.

    20 MB in 5 / 3 ms: off by a sixth; 40 MB in 10 / 3 ms: off by a ninth.
    """
    found = [gather(20 * MB, 2_000_000, 2_000_000), gather(40 * MB, 3_000_000, 3_000_000)]
    assert fit_share(found, "HCCS", 20 * GB_PER_S) == (600, 2, (166 + 111) // 2)


def test_a_collective_as_quick_as_the_link_has_a_share_of_one():
    assert fit_share([gather(20 * MB, MB, MB)], "HCCS", 20 * GB_PER_S) == (1000, 1, 0)
    # 100 MB in 10 ms are 10 GB/s; by that the first two, which had 20 GB/s, take twice as long.
    found = [gather(20 * MB, MB, MB), gather(30 * MB, 1_500_000, 1_500_000), gather(50 * MB, 7_500_000, 7_500_000)]
    assert fit_share(found, "HCCS", 20 * GB_PER_S) == (500, 3, 1000)
