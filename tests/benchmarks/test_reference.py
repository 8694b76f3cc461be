from dataclasses import replace

import numpy as np
import pytest
from reference.program_bounds import compute_only_ns, link_bound_ns, lower_bound_ns

from benchmarks.reference.program_check import check_program
from mindswap.errors import SimulationError
from mindswap.simulator.engine import run_program
from mindswap.simulator.program import OpKind
from tests.simulator.builders import Copy, Span, program_of

# Lower bounds worked out by hand.


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


# Inconsistent programs are refused, with the entry that is wrong.


GOOD = Copy(producer=0, release=1, prefetch=1, user=2)
STAGES = ("F10 F10 B10", "F10 B10")  # operators 0 to 2 and 3 to 4


def refusal(*stages, **parts) -> str:
    with pytest.raises(SimulationError) as error:
        check_program(program_of(*(stages or STAGES), **parts))
    return str(error.value)


def test_a_good_program_passes():
    spans = [Span(1, 0, ~0), Span(1, ~0, 2), Span(1, 0, 2), Span(1, 3, 4, stage=1)]
    check_program(program_of(*STAGES, copies=[GOOD], spans=spans))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"producer": 5}, "copy 1: producer_op is no operator"),
        ({"release": -1}, "copy 1: release_op is no operator"),
        ({"prefetch": -2}, "copy 1: prefetch_op is no operator"),
        ({"user": 5}, "copy 1: first_user_op is no operator"),
        ({"release": 3}, "copy 1: release_op and producer_op are in different stages"),
        ({"user": 3}, "copy 1: first_user_op and producer_op are in different stages"),
        ({"producer": 1, "release": 0}, "copy 1: release_op comes before producer_op"),
        ({"producer": 1, "user": 1}, "copy 1: first_user_op does not come after producer_op"),
        ({"prefetch": 2}, "copy 1: prefetch_op does not come before first_user_op"),
        ({"out_ns": -1}, "copy 1: out_ns is negative"),
        ({"size_bytes": -1}, "copy 1: size_bytes is negative"),
    ],
)
def test_copies(changed, message):
    assert refusal(copies=[GOOD, GOOD._replace(**changed)]) == message


@pytest.mark.parametrize(
    ("span", "message"),
    [
        (Span(1, 5, 5), "interval 1: it begins at no operator and no copy"),
        (Span(1, 0, ~1), "interval 1: it ends at no operator and no copy"),
        (Span(1, ~0, ~0), "interval 1: it begins when a copy comes in and ends when one goes out"),
        (Span(1, 2, 1), "interval 1: it ends before it begins"),
        (Span(1, 1, ~0), "interval 1: it ends before it begins"),  # copy 0 is made by operator 0
        (Span(1, ~0, 1), "interval 1: it ends before it begins"),  # copy 0 comes back for operator 2
        (Span(1, 0, 4), "interval 1: it begins or ends in another stage than its own"),
        (Span(1, 0, 0, stage=1), "interval 1: it begins or ends in another stage than its own"),
        (Span(-1, 0, 0), "interval 1: its size is negative"),
    ],
)
def test_intervals(span, message):
    assert refusal(copies=[GOOD], spans=[Span(1, 0, 0), span]) == message


def test_operators():
    assert refusal("F10 F10@1") == "operator 1: it waits for itself or a later operator of its stage"
    assert refusal("F10 F10@2 F10") == "operator 1: it waits for itself or a later operator of its stage"
    assert refusal("F10 F10@2") == "operator 1: wait_op is no operator"
    check_program(program_of("F10@1", "F10"))  # of another stage: position says nothing


def test_contended_rate():
    assert refusal(contended_permille=0) == "contended_permille is 0; allowed: 1 to 1000"
    assert refusal(contended_permille=1001) == "contended_permille is 1001; allowed: 1 to 1000"


def test_shapes():
    program = program_of("F10 F10")
    short = replace(program.ops, wait_op=np.array([-1]))
    with pytest.raises(SimulationError, match=r"Ops.wait_op has shape \(1,\); expected \(2,\)"):
        check_program(replace(program, ops=short))
    with pytest.raises(SimulationError, match=r"stage_starts is \[0, 3\]; expected to rise from 0 to 2"):
        check_program(replace(program, stage_starts=np.array([0, 3])))


def test_what_is_refused_may_not_come_to_an_end():
    program = program_of("F10 F10@1")
    with pytest.raises(SimulationError, match="it waits for itself"):
        check_program(program)
    with pytest.raises(SimulationError, match="wait for each other"):
        run_program(program)


@pytest.mark.parametrize("kind", [-1, len(OpKind)])
def test_kinds_of_operators(kind):
    program = program_of(*STAGES)
    kinds = np.array([0, 0, 1, 0, kind], np.int8)
    with pytest.raises(SimulationError, match=r"^operator 4: its kind is no OpKind$"):
        check_program(replace(program, ops=replace(program.ops, kind=kinds)))
