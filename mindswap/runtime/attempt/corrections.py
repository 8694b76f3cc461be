"""Fit of corrections of the planner's model to measurements of an adaptive run."""

from collections.abc import Iterable

from mindswap.runtime.attempt.model import Attempt, Corrections, Outcome

# A factor outside of these limits has another cause than the model, for example a busy machine.
LEAST_PERMILLE, MOST_PERMILLE = 100, 10_000


def correct(old: Corrections, attempts: Iterable[Attempt]) -> Corrections:
    """Fit corrections of the model to the measurements of the attempts.

    Memory: the offset is the measured peak minus the uncorrected predicted peak of the last attempt that reported one.
    Attempts that ran out of memory are skipped because they never reached their peak.

    Time: `measured = compute / speed + exposed copies / bandwidth`, solved by least squares over the attempts. If the
    attempts have the same share of copies, speed and bandwidth get the same factor.

    Args:
        old: corrections to keep where nothing was measured; also for the links if no copy was exposed.
        attempts: all attempts in order of start.

    Returns:
        The new corrections, within the limits of a plausible factor.
    """
    measured = list(attempts)
    offset = old.static_offset_bytes
    for attempt in measured:
        if attempt.measured_peak_bytes is not None and attempt.outcome is not Outcome.OUT_OF_MEMORY:
            offset = attempt.measured_peak_bytes - attempt.plan.raw_peak_bytes
    times = [_observe(attempt) for attempt in measured if attempt.measured_step_ns and attempt.plan.step_time_ns]
    if not times:
        return Corrections(offset, old.compute_permille, old.link_permille)
    compute_factor, copy_factor = _fit(times)
    link = old.link_permille if copy_factor is None else _permille(copy_factor)
    return Corrections(offset, _permille(compute_factor), link)


_Observation = tuple[float, float, int]


def _observe(attempt: Attempt) -> _Observation:
    """Return uncorrected compute time and exposed copy time of the model, and the measured step time (ns)."""
    plan = attempt.plan
    compute_ns = (plan.step_time_ns - plan.exposed_copy_ns) * plan.corrections.compute_permille / 1000
    copy_ns = plan.exposed_copy_ns * plan.corrections.link_permille / 1000
    return compute_ns, copy_ns, attempt.measured_step_ns or 0


def _fit(times: list[_Observation]) -> tuple[float, float | None]:
    """Return factors (measured / modelled) of compute and copy time; None for copies if none was exposed."""
    cc = sum(c * c for c, _, _ in times)
    ee = sum(e * e for _, e, _ in times)
    ce = sum(c * e for c, e, _ in times)
    cm = sum(c * m for c, _, m in times)
    em = sum(e * m for _, e, m in times)
    determinant = cc * ee - ce * ce
    if determinant > 1e-6 * cc * ee:  # the share of copies differs between attempts, so the two factors are separable
        compute, copy = (cm * ee - em * ce) / determinant, (em * cc - cm * ce) / determinant
        if compute > 0 and copy > 0:
            return compute, copy
    last_compute, last_copy, last_measured = times[-1]
    factor = last_measured / (last_compute + last_copy)
    return factor, factor if last_copy else None


def _permille(factor: float) -> int:
    return max(LEAST_PERMILLE, min(MOST_PERMILLE, round(1000 / factor)))
