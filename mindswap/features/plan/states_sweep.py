"""Plans for a range of budgets with the optimizer states in either place, as one curve of step time over memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mindswap.features.plan.step_planner import Sweep
from mindswap.planner.problem import Plan


@dataclass(frozen=True, eq=False)
class StatesSweep:
    """Pareto-optimal plans of one or both placements of the optimizer states, least memory first.

    Attributes:
        sweeps: the sweep of each placement; the key is whether the states are on the host. The first one is that of the
            configuration or the pin.
        plans: the plans that no other one is better than in time and memory.
        places: for each plan whether its states are on the host.
        reason: why the states are in one place only; "" if both are in `sweeps`.
    """

    sweeps: Mapping[bool, Sweep]
    plans: tuple[Plan, ...]
    places: tuple[bool, ...]
    reason: str = ""

    def bound(self) -> list[tuple[int, int]]:
        """Return points of the lower bound for both places: device memory in bytes, and the least step time in ns.

        At the points of each place the other one has a bound of its own, if anything fits there; the lower one holds.
        """
        points: list[tuple[int, int]] = []
        for place, sweep in self.sweeps.items():
            others = [other for other_place, other in self.sweeps.items() if other_place != place]
            for budget_bytes, bound_ns in sweep.bound():
                bounds = [other.bound_ns(budget_bytes) for other in others]
                points.append((budget_bytes, min([bound_ns, *(bound for bound in bounds if bound is not None)])))
        return sorted(points)


def merge_sweeps(sweeps: Mapping[bool, Sweep], reason: str = "") -> StatesSweep:
    """Merge the sweeps of both placements into one curve, compared with keeping everything where the file has them.

    Args:
        sweeps: see `StatesSweep`.
        reason: see `StatesSweep`.
    """
    first = next(iter(sweeps.values())).plans[0]
    merged = [
        (replace(plan, compared=first.compared, unconstrained_ns=first.unconstrained_ns), is_on_host)
        for is_on_host, sweep in sweeps.items()
        for plan in sweep.plans
    ]
    fitting = [pair for pair in merged if pair[0].fits]
    front: list[tuple[Plan, bool]] = []
    for plan, is_on_host in sorted(fitting, key=lambda pair: (pair[0].peak_bytes, pair[0].step_time_ns)):
        if not front or plan.step_time_ns < front[-1][0].step_time_ns:
            front.append(
                (_bounded(plan, [sweep for place, sweep in sweeps.items() if place != is_on_host]), is_on_host)
            )
    front = front or [min(merged, key=lambda pair: pair[0].smallest_budget_bytes)]
    return StatesSweep(sweeps, tuple(plan for plan, _ in front), tuple(place for _, place in front), reason)


def _bounded(plan: Plan, others: Sequence[Sweep]) -> Plan:
    """Return a plan whose lower bounds hold for the other placement, too."""
    bounds_ns = [sweep.bound_ns(plan.budget_bytes) for sweep in others]
    lower_bound_ns = plan.lower_bound_ns
    if lower_bound_ns is not None:
        lower_bound_ns = min([lower_bound_ns, *(bound_ns for bound_ns in bounds_ns if bound_ns is not None)])
    least_bytes = min([plan.least_budget_bytes, *(sweep.plans[0].least_budget_bytes for sweep in others)])
    return replace(plan, lower_bound_ns=lower_bound_ns, least_budget_bytes=least_bytes)
