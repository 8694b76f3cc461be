"""The loop without processes: a fake world answers each action; and single decisions, worked out by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mindswap.features.adaptive.decide import decide
from mindswap.runtime.attempt.model import (  # fmt: skip
    Attempt,
    Corrections,
    End,
    Ended,
    Measured,
    NothingFits,
    Opened,
    Outcome,
    Planned,
    RunPlanner,
    Settings,
    Start,
    Started,
    State,
    TrainingPlan,
    Wait,
)

MEMORY = 6400
SECOND = 1_000_000_000


def plan(key, peak, step_s=1, budget=MEMORY):
    return TrainingPlan(key, f"# {key}\n", budget, peak, step_s * SECOND)


def state(**settings):
    return State(Settings(**{"memory_bytes": MEMORY, **settings}))


def play(start, *events):
    """The state after some events, and the last action."""
    action = None
    for event in events:
        start, action = decide(start, event)
    return start, action


def measured(step=10, num_steps=1000, peak=5000, step_s=1, startup_s=20, has_checkpoints=True):
    return Measured(step, num_steps, peak, step_s * SECOND, startup_s * SECOND, has_checkpoints)


def out_of_memory(worker, step, missing_bytes, text):
    return Ended(Outcome.OUT_OF_MEMORY, step, text, worker=worker, missing_bytes=missing_bytes)


RUNNING = (Opened(), Planned(plan("a", 6000)), Started(0))


def test_it_begins_with_a_plan_for_all_the_memory():
    assert play(state(), Opened())[1] == RunPlanner(MEMORY, "planning for 6.2 KiB")


def test_a_plan_is_started():
    after, action = play(state(), *RUNNING[:2])
    assert isinstance(action, Start) and action.plan.key == "a"
    after, action = decide(after, RUNNING[2])
    assert action == Wait() and after.current.plan.key == "a" and after.current.outcome is Outcome.RUNNING


def test_nothing_fits_names_the_smallest_budget():
    _, action = play(state(), Opened(), Planned(NothingFits(9216)))
    assert action == End(1, "no plan fits 6.2 KiB: at least 9.0 KiB are needed")


def test_the_budget_is_tightened_by_what_was_missing():
    """The plan needed 6000 by prediction and 500 were missing: the next may need 5500."""
    after, action = play(state(), *RUNNING, out_of_memory(3, 7, 500, "text"))
    assert isinstance(action, RunPlanner) and action.budget_bytes == 5500
    assert after.out_of_memory == ("a",) and after.current.outcome is Outcome.OUT_OF_MEMORY


def test_where_the_log_does_not_say_it_is_a_share_of_the_memory_doubled_each_time():
    """6400 / 64 = 100, then 6400 / 32 = 200, at last a quarter, 1600, each time."""
    after, action = play(state(), *RUNNING, out_of_memory(0, 0, None, "text"))
    assert action.budget_bytes == 5900
    for number, budget in enumerate((5700, 5300, 4500, 2900, 1300)):
        failing = plan(f"b{number}", action.budget_bytes)
        after, action = play(after, Planned(failing), Started(0), out_of_memory(0, 0, 1, "text"))
        assert action.budget_bytes == budget


def test_a_plan_that_ran_out_of_memory_is_not_started_again():
    """The planner insists: each time the budget goes down, until it gives something else."""
    after, action = play(state(), *RUNNING, out_of_memory(0, 0, 500, "text"), Planned(plan("a", 5500)))
    assert isinstance(action, RunPlanner) and action.budget_bytes < 5500
    _, action = decide(after, Planned(plan("b", action.budget_bytes)))
    assert isinstance(action, Start)


def test_a_plan_beyond_the_limit_is_not_started():
    _, action = play(state(), *RUNNING, out_of_memory(0, 0, 500, "text"), Planned(plan("b", 5501)))
    assert isinstance(action, RunPlanner)


def test_what_a_failing_plan_measured_is_forgotten():
    """5000 were measured before it failed: that was not its peak."""
    after, _ = play(state(), *RUNNING, measured(peak=5000))
    assert after.corrections.static_offset_bytes == -1000
    after, _ = play(after, Planned(NothingFits(None)), out_of_memory(0, 20, 500, "text"))
    assert after.corrections.static_offset_bytes == 0 and after.budget_bytes == 5500


def test_headroom_loosens_at_the_next_checkpoint():
    """1000 less than predicted: a plan of 6500 needs 5500. It saves 990 s of 1980, a restart costs 20."""
    after, action = play(state(), *RUNNING, measured(step_s=2))
    assert action.budget_bytes == MEMORY and "is there a faster plan?" in action.reason
    fast = TrainingPlan("b", "", MEMORY, 5500, SECOND, corrections=after.corrections)
    after, action = decide(after, Planned(fast))
    assert action.for_checkpoint and after.candidate == fast
    after, action = decide(after, Ended(Outcome.REPLANNED, 14))
    assert action == Start(fast) and after.current.outcome is Outcome.REPLANNED
    assert after.current.last_step == 14  # two steps after the checkpoint are done again
    after, _ = decide(after, Started(12))
    assert (after.num_restarts, after.current.first_step) == (1, 12)


def test_a_restart_that_costs_more_than_it_saves_is_not_made():
    """990 steps, 1 ms saved in each: 0.99 s, against 20 s."""
    after, _ = play(state(), *RUNNING, measured())
    answer = TrainingPlan("b", "", MEMORY, 5000, SECOND - 1_000_000)
    after, action = decide(after, Planned(answer))
    assert not action.for_checkpoint and after.is_stable and "990 ms" in action.reason


def test_a_restart_that_costs_what_it_saves_is_not_made():
    """20 steps are left, 1 s saved in each: 20 s, as much as a restart; with 21 steps it is made."""
    for num_steps, is_made in ((30, False), (31, True)):
        after, _ = play(state(), *RUNNING, measured(num_steps=num_steps, step_s=2))
        _, action = decide(after, Planned(plan("b", 6000)))
        assert action.for_checkpoint == is_made


def test_the_limit_is_of_predictions_without_correction():
    """Plan a, 6000 by prediction, failed with 500 missing: the limit is 5500.

    A plan of 5400 that is corrected by -200 is one of 5600 without: beyond the limit. One of 5600 that is corrected by
    +200 is one of 5400: within.
    """
    after, _ = play(state(), *RUNNING, out_of_memory(0, 0, 500, "text"))
    for peak, offset, is_started in ((5400, -200, False), (5600, 200, True)):
        answer = TrainingPlan("b", "", MEMORY, peak, SECOND, corrections=Corrections(offset))
        assert answer.raw_peak_bytes == peak - offset
        assert isinstance(decide(after, Planned(answer))[1], Start) == is_started


def test_near_the_end_nothing_is_changed():
    """15 steps of 1 s are left, a restart takes 20 s."""
    _, action = play(state(), *RUNNING, measured(step=985))
    assert isinstance(action, Wait) and "the remaining steps take no longer than a restart" in action.reason


def test_without_checkpoints_nothing_is_changed():
    _, action = play(state(), *RUNNING, measured(has_checkpoints=False))
    assert isinstance(action, Wait) and "no checkpoints are saved" in action.reason


def test_a_loosened_plan_that_fails_leads_back_to_the_proven_one():
    """The limit does not go below 6000, which ran well: 6100 failed with 500 missing."""
    after, _ = play(state(), *RUNNING, measured(peak=6000, step_s=2), Planned(plan("b", 6100)))
    after, action = play(after, Ended(Outcome.REPLANNED, 12), Started(12), out_of_memory(0, 12, 500, "text"))
    assert action.budget_bytes == 6000
    _, action = decide(after, Planned(NothingFits(None)))
    assert action.plan.key == "a" and "returning to one that ran" in action.reason


def test_a_plan_that_ran_proves_nothing_of_another_one_of_its_size():
    """Plan a of 6000 ran well, plan b of 6000 failed with 500 missing: the limit is 5500."""
    after, _ = play(state(), *RUNNING, measured(peak=6000, step_s=2), Planned(plan("b", 6000)))
    _, action = play(after, Ended(Outcome.REPLANNED, 12), Started(12), out_of_memory(0, 12, 500, "text"))
    assert action.budget_bytes == 5500


def test_a_killed_process_is_started_again_with_the_same_plan():
    _, action = play(state(), *RUNNING, Ended(Outcome.KILLED, 5, "worker 1 was killed by SIGKILL"))
    assert isinstance(action, Start) and action.plan.key == "a"


def test_three_kills_without_getting_further_are_enough():
    """The first came to step 5, the next three did not get beyond it."""
    after, _ = play(state(), *RUNNING, Ended(Outcome.KILLED, 5, "killed"))
    for _ in range(2):
        after, action = play(after, Started(4), Ended(Outcome.KILLED, 5, "killed"))
        assert isinstance(action, Start)
    _, action = play(after, Started(4), Ended(Outcome.KILLED, 5, "killed"))
    assert action == End(1, "killed, 3 times without progress")


def test_a_failure_of_the_training_is_its_own():
    _, action = play(state(), *RUNNING, Ended(Outcome.FAILED, 3, "    worker_0.log: ValueError: x", 7))
    assert action == End(7, "the training failed (not out of memory):\n    worker_0.log: ValueError: x")


def test_restarts_have_a_limit():
    after, _ = play(state(max_restarts=0), *RUNNING)
    _, action = decide(after, out_of_memory(0, 0, 1, "text"))
    assert isinstance(action, End) and "all 0 restarts are used" in action.reason
    assert action.exit_code == 1


def test_an_interrupted_run_goes_on_and_its_restarts_count_anew():
    after, action = play(state(max_restarts=1), *RUNNING, Ended(Outcome.INTERRUPTED, 9, "stopped by the user"))
    assert action.exit_code == 130
    after, action = play(after, Opened(), Planned(plan("a", 6000)), Started(8))
    assert (after.num_restarts, len(after.attempts)) == (0, 2)


def test_a_run_that_was_killed_is_closed():
    after, _ = play(state(), *RUNNING, Opened())
    assert after.attempts[0].outcome is Outcome.INTERRUPTED


def test_after_the_end_a_new_training_keeps_what_was_learned():
    events = (out_of_memory(0, 0, 500, "x"), Planned(plan("b", 5500)), Started(0), Ended(Outcome.FINISHED, 9))
    after, _ = play(state(), *RUNNING, *events)
    after, action = decide(after, Opened())
    assert (after.attempts, after.out_of_memory, action.budget_bytes) == ((), ("a",), 5500)


PLANS = st.lists(
    st.tuples(st.integers(1, 8000), st.integers(1, 5), st.integers(1, 9000)), min_size=1, max_size=8
)  # predicted peak, seconds a step, bytes that it really needs


def test_a_crash_after_the_end_is_told():
    text = "worker 1 crashed with SIGSEGV after the training was over"
    assert play(state(), *RUNNING, Ended(Outcome.FINISHED, 20, text))[1] == End(0, f"the training finished; {text}")


@settings(max_examples=150)
@given(PLANS, st.data())
def test_it_always_ends_and_never_repeats_a_plan_that_failed(table, data):
    """A world of plans with true needs, kills and checkpoints at random: few starts, no repeated failure."""
    plans = [(f"p{i}", peak, step_s, need) for i, (peak, step_s, need) in enumerate(table)]
    needs = {key: need for key, _, _, need in plans}
    failed, num_starts, current, step = set(), 0, None, 0
    now, event = state(max_restarts=5), Opened()
    for _ in range(400):
        now, action = decide(now, event)
        if isinstance(action, End):
            break
        if isinstance(action, RunPlanner):
            assert action.budget_bytes <= MEMORY
            offset = now.corrections.static_offset_bytes
            fitting = [p for p in plans if p[1] + offset <= action.budget_bytes]
            if fitting:
                key, peak, step_s, _ = min(fitting, key=lambda p: (p[2], p[0]))
                event = Planned(
                    TrainingPlan(
                        key, "", action.budget_bytes, peak + offset, step_s * SECOND, corrections=now.corrections
                    )
                )
            else:
                event = Planned(NothingFits(min(p[1] for p in plans) + offset))
        elif isinstance(action, Start):
            current = action.plan.key
            assert current not in failed
            num_starts += 1
            event = Started(step)
        elif needs[current] > MEMORY:
            failed.add(current)
            event = out_of_memory(0, step, data.draw(st.sampled_from([None, 1, needs[current] - MEMORY])), "x")
        else:
            step += 10
            choices = ["measured", "killed", "finished", *["checkpoint"] * action.for_checkpoint]
            choices = choices if step < 200 else ["finished"]
            choice = data.draw(st.sampled_from(choices))
            if choice == "measured":
                event = Measured(step, 10_000, needs[current], 3 * SECOND, SECOND, True)
            elif choice == "killed":
                event = Ended(Outcome.KILLED, step, "killed")
            else:
                event = Ended(Outcome.REPLANNED, step) if choice == "checkpoint" else Ended(Outcome.FINISHED, step)
    assert isinstance(action, End)
    assert num_starts <= 6


def test_a_start_that_was_killed_before_it_was_measured_is_no_fast_one():
    """Plan b takes 2 s a step, a takes 1 s: it goes back to a, although the last start of b has no time."""
    measured_a = Attempt(1, plan("a", 6000), outcome=Outcome.REPLANNED, measured_step_ns=SECOND)
    measured_b = Attempt(2, plan("b", 5000), outcome=Outcome.KILLED, measured_step_ns=2 * SECOND)
    killed_b = Attempt(3, plan("b", 5000), outcome=Outcome.KILLED)
    before = State(Settings(MEMORY), attempts=(measured_a, measured_b, killed_b))
    _, action = decide(before, Planned(NothingFits(None)))
    assert isinstance(action, Start) and action.plan.key == "a"


def test_what_is_said_of_a_plan():
    """6000 B are 5.9 KiB, 6400 are 6.2; a planner without times says none."""
    for step_s, time in ((1, ", 1.00 s a step (simulated)"), (0, "")):
        _, action = play(state(), Opened(), Planned(plan("a", 6000, step_s)))
        assert action.reason == f"plan a: predicted peak 5.9 KiB of 6.2 KiB{time}"


def test_what_is_said_of_a_measurement():
    for peak, memory in ((5000, "peak 4.9 KiB"), (None, "peak not reported")):
        after, action = play(state(), *RUNNING, measured(peak=peak))
        assert action.reason.startswith(f"step 10: measured {memory}, 1.00 s a step; predicted 5.9 KiB, 1.00 s; ")
        assert after.is_stable is (peak is None)
    assert action.reason.endswith("; no worker reports its memory, so the plan stays")


def test_what_is_said_of_want_of_memory():
    said = "worker 3 ran out of memory at step 7{}: text\nbudget 6.2 KiB -> {}"
    for missing_bytes, expected in (
        (500, said.format(", 500 B were missing", "5.4 KiB")),
        (None, said.format("", "5.8 KiB")),
    ):
        after, action = play(state(), *RUNNING, out_of_memory(3, 7, missing_bytes, "text"))
        assert action.reason == expected and after.current.reason == "worker 3: text"


def test_nothing_fits_and_nothing_is_known_of_what_would():
    assert play(state(), Opened(), Planned(NothingFits(None)))[1] == End(1, "no plan fits 6.2 KiB")


def test_a_budget_of_nothing_is_not_asked_for():
    """1 was needed, and at least a share of the memory, 100, is taken off."""
    _, action = play(state(), Opened(), Planned(plan("a", 100)), Started(0), out_of_memory(0, 0, None, "x"))
    assert action == End(1, "no plan fits 0 B")
    _, action = play(state(), Opened(), Planned(plan("a", 101)), Started(0), out_of_memory(0, 0, None, "x"))
    assert isinstance(action, RunPlanner) and action.budget_bytes == 1


def test_a_limit_is_never_raised_by_a_larger_plan_that_fails():
    """The limit is 5500; a plan of 5800 that was started in spite of it fails: 200, a 32nd, off 5500, not off 5800."""
    after, _ = play(state(), *RUNNING, out_of_memory(0, 0, 500, "x"))
    failing = State(after.settings, (*after.attempts, Attempt(2, plan("b", 5800))), limit_bytes=5500)
    assert decide(failing, out_of_memory(0, 0, 100, "x"))[1].budget_bytes == 5300


def test_a_plan_without_a_time_is_no_faster_one():
    after, _ = play(state(), *RUNNING, measured())
    after, action = decide(after, Planned(plan("b", 5000, step_s=0)))
    assert not action.for_checkpoint and after.is_stable and after.candidate is None


def test_what_was_tried_or_failed_is_no_faster_plan():
    after, _ = play(state(), *RUNNING, measured(step_s=2))
    for answer in (NothingFits(None), plan("a", 5000)):
        now, action = decide(after, Planned(answer))
        assert now.is_stable and action == Wait(reason="no faster plan that was not tried: the plan stays")


def test_a_plan_beyond_the_limit_is_no_faster_plan():
    """Plan a failed with 500 missing: 5500. Plan b of 5000 runs; one of 5500 is worth a restart, one of 5501 is not."""
    after, _ = play(state(), *RUNNING, out_of_memory(0, 0, 500, "x"), Planned(plan("b", 5000)), Started(0))
    after, _ = decide(after, measured(peak=5000, step_s=2))
    for peak, is_made in ((5500, True), (5501, False)):
        action = decide(after, Planned(plan("c", peak)))[1]
        assert action.for_checkpoint is is_made
        assert is_made or action.reason.endswith("needs as much as one that ran out of memory: the plan stays")


def test_a_stable_plan_is_measured_and_stays():
    after, _ = play(state(), *RUNNING, measured(has_checkpoints=False))
    after, action = decide(after, measured(step=30, peak=4000))
    assert action == Wait() and (after.current.last_step, after.current.measured_peak_bytes) == (30, 4000)


def test_steps_are_not_taken_back():
    """A log that was rotated says less than one that was seen before."""
    after, _ = play(state(), *RUNNING, measured(step=30), Planned(plan("a", 6000)))
    assert decide(after, measured(step=20))[0].current.last_step == 30
    assert decide(after, Ended(Outcome.FINISHED, 20))[0].current.last_step == 30


def test_an_attempt_begins_at_its_checkpoint():
    after, _ = play(state(), *RUNNING, Ended(Outcome.KILLED, 12, "killed"), Started(8))
    assert [(one.number, one.first_step, one.last_step) for one in after.attempts] == [(1, 0, 12), (2, 8, 8)]
    assert after.tried == ("a",) and after.candidate is None


def test_kills_count_only_behind_the_furthest_step_and_in_this_call():
    """Steps 5, 5, 6, 6, 6: the third got further, so two behind it count; those of another call do not."""
    after, _ = play(state(), *RUNNING)
    for step in (5, 5, 6, 6):
        after, action = decide(after, Ended(Outcome.KILLED, step, "killed"))
        assert isinstance(action, Start) and action.reason.startswith(f"killed at step {step}, ")
        after, _ = decide(after, Started(0))
    again, _ = play(after, Opened(), Planned(plan("a", 6000)), Started(0))
    assert isinstance(decide(again, Ended(Outcome.KILLED, 6, "killed"))[1], Start)
    after, action = decide(after, Ended(Outcome.KILLED, 6, "killed"))
    assert isinstance(action, Start)
    _, action = play(after, Started(0), Ended(Outcome.KILLED, 6, "killed"))
    assert isinstance(action, End) and action.exit_code == 1


def test_a_kill_uses_a_restart():
    """Two starts beyond the first, and a kill: the third is not made."""
    after, _ = play(state(max_restarts=2), *RUNNING, Ended(Outcome.KILLED, 5, "killed"), Started(4))
    after, action = decide(after, Ended(Outcome.KILLED, 7, "killed"))
    assert isinstance(action, Start)
    _, action = play(after, Started(6), Ended(Outcome.KILLED, 9, "killed"))
    assert action == End(1, "killed; all 2 restarts are used (--max-restarts)")


def test_without_a_restart_left_no_faster_plan_is_looked_for():
    _, action = play(state(max_restarts=0), *RUNNING, measured())
    assert isinstance(action, Wait) and "all 0 restarts are used" in action.reason
