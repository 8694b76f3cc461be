"""Lower bounds worked out by hand."""

from reference.program_bounds import compute_only_ns, link_bound_ns, lower_bound_ns

from tests.simulator.builders import Copy, program_of


def copies(*times):
    return [Copy(producer=0, release=0, prefetch=0, user=1, out_ns=out_ns, in_ns=in_ns) for out_ns, in_ns in times]


def test_compute_only_leaves_out_copies_and_keeps_what_stages_wait_for():
    # Stage 0: 0-10, send 10-12. Stage 1: waits until 12, then 12-42. Without the wait for the copy, 0-10-20.
    program = program_of("F10 B10 S2@0", "V0@2 F30@3", copies=copies((100, 100)))
    assert compute_only_ns(program).tolist() == [20, 42]


def test_the_link_bound_is_the_busier_direction():
    # Out 30 + 10, in 20 + 5; at full rate both directions run side by side.
    assert link_bound_ns(program_of("F10 B10", copies=copies((30, 20), (10, 5)))).tolist() == [40]


def test_contention_makes_the_directions_share():
    # Together 65 ns of work. At 600 thousandths at most 1.2 ns per ns: 54. At 400 it is better to take turns: 65.
    times = ((30, 20), (10, 5))
    assert link_bound_ns(program_of("F1 B1", copies=copies(*times), contended_permille=600)).tolist() == [54]
    assert link_bound_ns(program_of("F1 B1", copies=copies(*times), contended_permille=400)).tolist() == [65]


def test_the_lower_bound_is_the_larger_of_both():
    assert lower_bound_ns(program_of("F10 B20", copies=copies((5, 5)))) == 30
    assert lower_bound_ns(program_of("F10 B20", copies=copies((35, 5)))) == 35
    assert lower_bound_ns(program_of("F10 B20")) == 30
