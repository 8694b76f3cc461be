"""State machine of an adaptive run: (state, event) -> (state, action).

It terminates: every start after the first counts against `max_restarts`; a plan that ran out of memory, or one that
needs at least as much, is never restarted; a faster plan is started at most once.
"""

from dataclasses import replace

from mindswap.runtime.attempt.corrections import correct
from mindswap.runtime.attempt.model import (
    Action,
    Attempt,
    End,
    Ended,
    Event,
    Measured,
    NothingFits,
    Opened,
    Outcome,
    Planned,
    RunPlanner,
    Start,
    Started,
    State,
    TrainingPlan,
    Wait,
)
from mindswap.units import format_bytes, format_time

# After an out-of-memory error the budget shrinks by at least 1/64 of the memory, doubled each time up to 1/4, because a
# log has only the first failed allocation, not those that would have followed.
TIGHTEN_SHARE, MAX_TIGHTEN_SHARE = 64, 4
# Limit of consecutive killed attempts without progress.
MAX_KILLS_WITHOUT_PROGRESS = 3

Next = tuple[State, Action]


def decide(state: State, event: Event) -> Next:
    """Return the next state and the action for an event."""
    match event:
        case Opened():
            return _open(state)
        case Planned(answer):
            return _take_plan(state, answer)
        case Started(first_step):
            return _begin(state, first_step), Wait()
        case Measured():
            return _measure(state, event)
        case Ended(Outcome.REPLANNED, step):
            return _stopped(state, step)
        case Ended(Outcome.OUT_OF_MEMORY):
            return _out_of_memory(state, event)
        case Ended(Outcome.KILLED, step, text):
            return _killed(state, step, text)
        case Ended():
            return _finish(state, event)


def _finish(state: State, event: Ended) -> Next:
    """End the run after training that finished, was interrupted, or failed other than by memory."""
    state = _close(state, event.outcome, event.step, event.text)
    if event.outcome is Outcome.FINISHED:
        return _end(state, 0, "; ".join(filter(None, ("the training finished", event.text))))
    if event.outcome is Outcome.INTERRUPTED:
        return _end(state, 130, "interrupted; the same command continues from the newest checkpoint")
    return _end(state, event.exit_code, f"the training failed (not out of memory):\n{event.text}")


def _open(state: State) -> Next:
    state = _close(state, Outcome.INTERRUPTED, 0, "mindswap itself was killed")
    if state.is_finished:
        state = replace(state, attempts=(), tried=())  # a new training; corrections and memory limits are kept
    state = replace(state, num_fixed_attempts=len(state.attempts), is_stable=False, candidate=None, exit_reason="")
    reason = f"planning for {format_bytes(state.budget_bytes)}"
    if state.out_of_memory:
        reason += f"; {len(state.out_of_memory)} plans are known to run out of memory"
    return state, RunPlanner(state.budget_bytes, reason)


def _take_plan(state: State, answer: TrainingPlan | NothingFits) -> Next:
    if state.running:
        return _consider(state, state.running, answer)
    if isinstance(answer, NothingFits):
        if times := _proven(state):
            return _start(state, min(times, key=times.__getitem__), "no better plan: returning to one that ran")
        minimum_bytes = answer.smallest_budget_bytes
        need = f": at least {format_bytes(minimum_bytes)} are needed" if minimum_bytes is not None else ""
        return _end(state, 1, f"no plan fits {format_bytes(state.budget_bytes)}{need}")
    if answer.key in state.out_of_memory or _exceeds_limit(state, answer):
        return _replan(_tighten(state, answer), f"a plan like one that ran out of memory ({answer.key})")
    peak = f"predicted peak {format_bytes(answer.peak_bytes)} of {format_bytes(state.budget_bytes)}"
    time = f", {format_time(answer.step_time_ns)} a step (simulated)" if answer.step_time_ns else ""
    return _start(state, answer, f"plan {answer.key}: {peak}{time}")


def _start(state: State, plan: TrainingPlan, reason: str) -> Next:
    return replace(state, candidate=plan), Start(plan, reason)


def _begin(state: State, first_step: int) -> State:
    if state.candidate is None:
        raise AssertionError("no plan waits for its start")
    attempt = Attempt(len(state.attempts) + 1, state.candidate, first_step, last_step=first_step)
    tried = tuple(dict.fromkeys((*state.tried, state.candidate.key)))
    return replace(state, attempts=(*state.attempts, attempt), candidate=None, is_stable=False, tried=tried)


def _measure(state: State, event: Measured) -> Next:
    if state.current is None:
        raise AssertionError("no attempt runs")
    state = state.with_current(
        last_step=max(state.current.last_step, event.step),
        num_steps=event.num_steps,
        startup_ns=event.startup_ns,
        measured_peak_bytes=event.peak_bytes,
        measured_step_ns=event.step_time_ns,
    )
    state = replace(state, corrections=correct(state.corrections, state.attempts))
    if state.is_stable:
        return state, Wait()
    measurement = _compare(state.attempts[-1])
    if reason := _reason_to_stay(state, event):
        return _settle(state, f"{measurement}; {reason}, so the plan stays")
    return state, RunPlanner(state.budget_bytes, f"{measurement}; is there a faster plan?")


def _compare(attempt: Attempt) -> str:
    peak, step = attempt.measured_peak_bytes, attempt.measured_step_ns or 0
    memory = "peak not reported" if peak is None else f"peak {format_bytes(peak)}"
    predicted = f"{format_bytes(attempt.plan.peak_bytes)}, {format_time(attempt.plan.step_time_ns)}"
    return f"step {attempt.last_step}: measured {memory}, {format_time(step)} a step; predicted {predicted}"


def _reason_to_stay(state: State, event: Measured) -> str:
    """Return why a search for a faster plan is not worthwhile; "" if it is."""
    if event.peak_bytes is None:
        return "no worker reports its memory"
    if not event.has_checkpoints:
        return "no checkpoints are saved"
    if _has_no_restart(state):
        return f"all {state.settings.max_restarts} restarts are used"
    if (event.num_steps - event.step) * event.step_time_ns <= event.startup_ns:
        return "the remaining steps take no longer than a restart"
    return ""


def _consider(state: State, current: Attempt, answer: TrainingPlan | NothingFits) -> Next:
    """Decide whether a plan that was made during training is worth a restart."""
    if isinstance(answer, NothingFits) or answer.key in state.tried or answer.key in state.out_of_memory:
        return _settle(state, "no faster plan that was not tried: the plan stays")
    if _exceeds_limit(state, answer):
        return _settle(state, "a faster plan needs as much as one that ran out of memory: the plan stays")
    saved_ns = ((current.measured_step_ns or 0) - answer.step_time_ns) * (current.num_steps - current.last_step)
    if not answer.step_time_ns or saved_ns <= current.startup_ns:
        saving = f"would save {format_time(max(saved_ns, 0))} until the end (simulated)"
        cost = f"a restart costs {format_time(current.startup_ns)}"
        return _settle(state, f"plan {answer.key} {saving}, {cost}: the plan stays")
    saving = f"saves {format_time(saved_ns)} until the end (simulated)"
    fit = f"fits {format_bytes(state.budget_bytes)}"
    reason = f"plan {answer.key} {saving} and {fit}: it starts at the next checkpoint"
    return replace(state, candidate=answer), Wait(for_checkpoint=True, reason=reason)


def _stopped(state: State, step: int) -> Next:
    if state.candidate is None:
        raise AssertionError("no plan waits for its start")
    return _close(state, Outcome.REPLANNED, step, f"for plan {state.candidate.key}"), Start(state.candidate)


def _out_of_memory(state: State, event: Ended) -> Next:
    if state.current is None:
        raise AssertionError("no attempt runs")
    plan = state.current.plan
    state = _close(state, Outcome.OUT_OF_MEMORY, event.step, f"worker {event.worker}: {event.text}")
    # The peak measured before the failure was too low, so the correction of the plan is restored.
    corrections = replace(state.corrections, static_offset_bytes=plan.corrections.static_offset_bytes)
    failed = tuple(dict.fromkeys((*state.out_of_memory, plan.key)))
    state = replace(state, out_of_memory=failed, corrections=corrections, candidate=None)
    before = state.budget_bytes
    failing_bytes = _least_failing(state, plan)
    state = _keep_proven(_tighten(state, plan, event.missing_bytes), failing_bytes)
    missing = "" if event.missing_bytes is None else f", {format_bytes(event.missing_bytes)} were missing"
    failure = f"worker {event.worker} ran out of memory at step {event.step}{missing}: {event.text}"
    if _has_no_restart(state):
        return _give_up(state, failure)
    return _replan(state, f"{failure}\nbudget {format_bytes(before)} -> {format_bytes(state.budget_bytes)}")


def _replan(state: State, reason: str) -> Next:
    if state.budget_bytes <= 0:
        return _take_plan(state, NothingFits(None))
    return state, RunPlanner(state.budget_bytes, reason)


def _tighten(state: State, plan: TrainingPlan, missing_bytes: int | None = None) -> State:
    """Lower the limit below the predicted peak of a plan, by the shortage or by a fraction of the memory."""
    times = sum(attempt.outcome is Outcome.OUT_OF_MEMORY for attempt in state.attempts)
    share = max(MAX_TIGHTEN_SHARE, TIGHTEN_SHARE >> max(times - 1, 0))
    step_bytes = max(missing_bytes or 0, state.settings.memory_bytes // share, 1)
    return replace(state, limit_bytes=_least_failing(state, plan) - step_bytes)


def _least_failing(state: State, plan: TrainingPlan) -> int:
    return plan.raw_peak_bytes if state.limit_bytes is None else min(plan.raw_peak_bytes, state.limit_bytes)


def _keep_proven(state: State, failing_bytes: int) -> State:
    """Raise the limit to the largest successful plan below `failing_bytes`."""
    proven = [plan.raw_peak_bytes for plan in _proven(state) if plan.raw_peak_bytes < failing_bytes]
    return replace(state, limit_bytes=max([state.limit_bytes or 0, *proven]))


def _proven(state: State) -> dict[TrainingPlan, int]:
    """Return plans that were measured and never ran out of memory, with their measured step time in ns."""
    return {
        attempt.plan: attempt.measured_step_ns
        for attempt in state.attempts
        if attempt.measured_step_ns is not None and attempt.plan.key not in state.out_of_memory
    }


def _exceeds_limit(state: State, plan: TrainingPlan) -> bool:
    return state.limit_bytes is not None and plan.raw_peak_bytes > state.limit_bytes


def _killed(state: State, step: int, text: str) -> Next:
    if state.current is None:
        raise AssertionError("no attempt runs")
    plan = state.current.plan
    state = replace(_close(state, Outcome.KILLED, step, text), candidate=None)
    if _has_no_restart(state):
        return _give_up(state, text)
    if _num_kills_without_progress(state) >= MAX_KILLS_WITHOUT_PROGRESS:
        return _end(state, 1, f"{text}, {MAX_KILLS_WITHOUT_PROGRESS} times without progress")
    return _start(state, plan, f"{text} at step {step}, no log reports a lack of memory: retrying with the same plan")


def _num_kills_without_progress(state: State) -> int:
    """Count the latest attempts that were killed without progress beyond earlier ones."""
    count, attempts = 0, state.attempts[state.num_fixed_attempts :]
    for index in range(len(attempts) - 1, -1, -1):
        best = max((earlier.last_step for earlier in attempts[:index]), default=0)
        if attempts[index].outcome is not Outcome.KILLED or attempts[index].last_step > best:
            break
        count += 1
    return count


def _has_no_restart(state: State) -> bool:
    return state.num_restarts >= state.settings.max_restarts


def _give_up(state: State, reason: str) -> Next:
    return _end(state, 1, f"{reason}; all {state.settings.max_restarts} restarts are used (--max-restarts)")


def _settle(state: State, reason: str) -> Next:
    return replace(state, is_stable=True), Wait(reason=reason)


def _close(state: State, outcome: Outcome, step: int, reason: str = "") -> State:
    """Set the outcome of the running attempt; `step` is the last step in its logs."""
    if state.running is None:
        return state
    return state.with_current(outcome=outcome, last_step=max(step, state.running.last_step), reason=reason)


def _end(state: State, exit_code: int, reason: str) -> Next:
    return replace(state, exit_reason=reason, candidate=None), End(exit_code, reason)
