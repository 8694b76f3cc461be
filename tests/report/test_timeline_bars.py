import numpy as np
import pytest

from mindswap.report.simulation_text import fit_bars, join_bars, sample_memory
from mindswap.report.timeline_bars import BAR, BarKind, Bars, Lane, list_bars
from mindswap.simulator.engine import run_program
from mindswap.simulator.memory import profile_memory
from mindswap.simulator.program import MemoryKind
from tests.report.simulated import MS, large_program, pipeline_report, small_report
from tests.simulator.builders import program_of

F, B, WAIT, BUBBLE = BarKind.FORWARD, BarKind.BACKWARD, BarKind.WAIT_COPY_OUT, BarKind.BUBBLE


def rows(bars: Bars) -> list[tuple]:
    names = ("lane", "kind", "start_ns", "end_ns")
    return list(zip(*(getattr(bars, name).tolist() for name in names), strict=True))


def compute_bars(*bars: tuple[BarKind, int, int], layers: list[int] | None = None) -> Bars:
    """Bars of the compute stream: (kind, start, end)."""
    kind, start, end = (np.array(column) for column in zip(*bars, strict=True))
    same = np.zeros(len(bars), np.int64)
    layer = same if layers is None else np.array(layers)
    return np.rec.fromarrays([same, kind, start, end, end - start, same, layer, same, same + 1, same], dtype=BAR)


def test_every_operator_copy_and_wait_is_a_bar():
    assert rows(list_bars(small_report().timeline, 0)) == [
        (Lane.COMPUTE, F, 0, 2 * MS),
        (Lane.COMPUTE, WAIT, 2 * MS, 5 * MS),
        (Lane.COMPUTE, F, 5 * MS, 7 * MS),
        (Lane.COMPUTE, B, 7 * MS, 11 * MS),
        (Lane.COMPUTE, BarKind.WAIT_COPY_IN, 11 * MS, 16 * MS),
        (Lane.COMPUTE, B, 16 * MS, 20 * MS),
        (Lane.COPY_OUT, BarKind.COPY_OUT, 2 * MS, 5 * MS),
        (Lane.COPY_IN, BarKind.COPY_IN, 11 * MS, 16 * MS),
    ]


def test_waiting_for_another_stage_is_a_bubble_and_so_is_the_idle_end():
    assert rows(list_bars(pipeline_report().timeline, 1)) == [
        (Lane.COMPUTE, BUBBLE, 0, 12 * MS),
        (Lane.COMPUTE, F, 12 * MS, 22 * MS),
        (Lane.COMPUTE, B, 22 * MS, 42 * MS),
        (Lane.COMPUTE, BUBBLE, 42 * MS, 64 * MS),
        (Lane.COMMUNICATION, BarKind.BETWEEN_STAGES, 42 * MS, 43 * MS),
        (Lane.RECEIVING, BarKind.BETWEEN_STAGES, 11 * MS, 12 * MS),
    ]


def test_waiting_for_a_collective():
    # F 0-10, collective 10-15, F waits for it: 15-20.
    timeline = run_program(program_of("F10 C5@0 F5@1"))
    assert rows(list_bars(timeline, 0))[1] == (Lane.COMPUTE, BarKind.WAIT_COMMUNICATION, 10, 15)


def test_a_program_without_copies_has_bars():
    assert len(list_bars(run_program(program_of("F10 B20")), 0)) == 2


def test_short_neighbours_of_a_kind_are_joined():
    joined = join_bars(compute_bars((F, 0, 4), (F, 4, 9), (F, 10, 12), (B, 12, 15)), resolution_ns=10)
    assert rows(joined) == [(0, F, 0, 12), (0, B, 12, 15)]
    assert joined.count.tolist() == [3, 1]
    assert joined.busy_ns.tolist() == [11, 3]  # nothing ran from 9 to 10


def test_layers_stay_apart_if_asked():
    bars = compute_bars((F, 0, 4), (F, 4, 8), layers=[0, 1])
    assert len(join_bars(bars, 10)) == 2
    joined = join_bars(bars, 10, by_layer=False)
    assert rows(joined) == [(0, F, 0, 8)]
    assert joined.layer.tolist() == [-1]


def test_long_bars_and_gaps_stay():
    bars = compute_bars((F, 0, 40), (F, 40, 45), (F, 45, 50), (F, 80, 85))
    assert rows(join_bars(bars, 10)) == [(0, F, 0, 40), (0, F, 40, 50), (0, F, 80, 85)]


def test_short_waits_stand_together_where_they_add_up():
    # Three waits of 6, each too short for 10: 18 together, before the bar that they belong to.
    bars = compute_bars((WAIT, 0, 6), (F, 6, 8), (WAIT, 8, 14), (F, 14, 16), (WAIT, 16, 22), (F, 22, 24))
    joined = join_bars(bars, 10)
    assert rows(joined) == [(0, WAIT, 0, 18), (0, F, 18, 24)]
    assert joined.busy_ns.tolist() == [18, 6]
    assert joined.count.tolist() == [3, 3]


def test_short_waits_of_two_kinds_each_have_their_share():
    # 6 for a copy, 4 and 5 of bubble, before the 6 of work that they belong to.
    bars = compute_bars((WAIT, 0, 6), (F, 6, 8), (BUBBLE, 8, 12), (F, 12, 14), (BUBBLE, 14, 19), (F, 19, 21))
    assert rows(join_bars(bars, 10)) == [(0, WAIT, 0, 6), (0, BUBBLE, 6, 15), (0, F, 15, 21)]


@pytest.mark.parametrize("by_layer", [True, False])
def test_joining_keeps_the_time_of_every_kind(by_layer):
    timeline = run_program(large_program(1, 2, 6, 9))
    full = list_bars(timeline, 0)
    joined = join_bars(full, 500_000, by_layer)
    assert len(joined) < len(full) / 2
    for kind in (F, B, BarKind.COPY_OUT, BarKind.COPY_IN):
        assert joined.busy_ns[joined.kind == kind].sum() == full.busy_ns[full.kind == kind].sum()
        assert joined.count[joined.kind == kind].sum() == (full.kind == kind).sum()
    waiting = [bars.busy_ns[bars.kind == WAIT].sum() for bars in (full, joined)]
    assert 0.9 * waiting[0] <= waiting[1] <= waiting[0]
    for lane in Lane:
        starts, ends = joined.start_ns[joined.lane == lane], joined.end_ns[joined.lane == lane]
        assert (starts[1:] >= ends[:-1]).all()


def test_a_limit_on_bars_joins_as_much_as_it_takes():
    timeline = run_program(large_program(2, 4, 8, 12))
    parts = fit_bars(timeline, [0, 1], max_bars=800)
    assert 0 < sum(map(len, parts)) <= 800
    assert sum(map(len, fit_bars(timeline, [0, 1], max_bars=10**6))) == sum(
        len(list_bars(timeline, stage)) for stage in (0, 1)
    )


def test_memory_in_fewer_points_keeps_its_peak():
    timeline = run_program(large_program(1, 3, 8, 12))
    memory = profile_memory(timeline, 0)
    time_ns, by_kind = sample_memory(memory, timeline.step_time_ns, max_points=60)
    assert len(time_ns) <= 61 < len(memory.time_ns)
    assert (np.diff(time_ns) > 0).all() and time_ns[-1] == timeline.step_time_ns
    total = by_kind.sum(axis=0)
    assert total.max() == memory.peak_bytes
    assert time_ns[total.argmax()] == memory.peak_ns
    assert total[-1] == 0


def test_memory_with_few_points_stays_as_it_is():
    report = small_report()
    time_ns, by_kind = sample_memory(report.stages[0].memory, report.step_time_ns, max_points=100)
    assert time_ns.tolist() == [0, 5 * MS, 11 * MS, 20 * MS, 25 * MS]
    assert (by_kind[MemoryKind.KEPT] // 2**20).tolist() == [0, 32, 0, 0, 0]
