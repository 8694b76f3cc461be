"""What measurements say about the planner's model of memory and time."""

from collections.abc import Iterable

from mindswap.training.adaptive.model import Attempt, Corrections, Outcome

# Beyond this a measurement says that something else was wrong, a busy machine for example.
LEAST_PERMILLE, MOST_PERMILLE = 100, 10_000


def correct(old: Corrections, attempts: Iterable[Attempt]) -> Corrections:
    """Corrections that make the predictions of the attempts meet what was measured; the old ones where nothing was.

    Memory: what the last measured attempt needed beyond its uncorrected prediction; one that ran out of memory did not
    come to its peak. Time: measured = compute / speed + exposed copies / bandwidth, in the least squares over the
    attempts; where they do not tell the two apart, both get the same factor, and the link keeps its own if no copy was
    exposed.
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
    """Time of computation and of exposed copies by the uncorrected model, and the measured step."""
    plan = attempt.plan
    compute_ns = (plan.step_time_ns - plan.exposed_copy_ns) * plan.corrections.compute_permille / 1000
    copy_ns = plan.exposed_copy_ns * plan.corrections.link_permille / 1000
    return compute_ns, copy_ns, attempt.measured_step_ns or 0


def _fit(times: list[_Observation]) -> tuple[float, float | None]:
    """Factors of compute and copy time; None for the copies if none was exposed."""
    cc = sum(c * c for c, _, _ in times)
    ee = sum(e * e for _, e, _ in times)
    ce = sum(c * e for c, e, _ in times)
    cm = sum(c * m for c, _, m in times)
    em = sum(e * m for _, e, m in times)
    determinant = cc * ee - ce * ce
    if determinant > 1e-6 * cc * ee:  # the attempts differ in their share of copies
        compute, copy = (cm * ee - em * ce) / determinant, (em * cc - cm * ce) / determinant
        if compute > 0 and copy > 0:
            return compute, copy
    last_compute, last_copy, last_measured = times[-1]
    factor = last_measured / (last_compute + last_copy)
    return factor, factor if last_copy else None


def _permille(factor: float) -> int:
    return max(LEAST_PERMILLE, min(MOST_PERMILLE, round(1000 / factor)))
