"""What holds for any program, and agreement with a second simulator, event by event."""


from hypothesis import given, settings

from mindswap.simulate.engine import simulate
from tests.simulate.builders import in_times, op_times, out_times
from tests.simulate.reference import tick_through
from tests.simulate.strategies import programs


@settings(max_examples=400, deadline=None)
@given(programs())
def test_a_second_simulator_agrees_on_every_event(program):
    timeline = simulate(program)
    ops, outs, backs = tick_through(program)
    assert op_times(timeline) == [(job.start, job.end) for job in ops]
    assert out_times(timeline) == [(job.start, job.end) for job in outs]
    assert in_times(timeline) == [(job.start, job.end) for job in backs]
