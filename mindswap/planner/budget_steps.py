"""The fixed budgets for which a model is planned.

A budget is planned as the largest fixed one that is not above it, and mixed with its neighbours (`curve`). So budgets
that are close share their plans, and neighbours share those of the breakpoints below and above, which all have.
"""

from collections.abc import Iterator
from itertools import pairwise

from mindswap.planner.bound import Facts, least_budget_bytes
from mindswap.planner.problem import Allow

# From one breakpoint to the next the least step time grows by so much, and memory gets less by this part of its range.
BREAKPOINT_PERMILLE = 20
LEAST_GAP = 32
# Knots from where the least step time is that of keeping everything up to the memory of keeping everything, closest at
# the low end.
NUM_FLAT = 6
# Fixed budgets from one breakpoint to the next, where all of them are looked at, and where only the closest is.
NUM_STEPS = 8
NUM_FINE_STEPS = 32


def breakpoints_of(facts: Facts, host_bytes: int, allow: Allow, keep_ns: int, keep_bytes: int) -> tuple[int, ...]:
    """Budgets from the least that any policy needs to that of keeping everything.

    Args:
        facts: of the model.
        host_bytes: host memory of one card.
        allow: what policies may do.
        keep_ns, keep_bytes: step time and peak memory if everything is kept.
    """
    least = least_budget_bytes(facts, host_bytes, allow)
    if least >= keep_bytes:
        return (keep_bytes,)
    gap = max(1, (keep_bytes - least) // LEAST_GAP)
    flat = min(keep_bytes, least_budget_bytes(facts, host_bytes, allow, keep_ns))
    found = [flat + (keep_bytes - flat) * step**2 // NUM_FLAT**2 for step in range(NUM_FLAT, -1, -1)]
    step_ns = keep_ns
    while found[-1] > least + gap:
        step_ns += step_ns * BREAKPOINT_PERMILLE // 1000
        found.append(max(least, min(found[-1] - gap, least_budget_bytes(facts, host_bytes, allow, step_ns))))
    return tuple(sorted({*found, least}))


def fixed_budgets(breakpoints: tuple[int, ...], every: bool = False) -> list[int]:
    """Rising budgets for which plans are made; `every` gives the few of a small model, which all are looked at."""
    num_steps = NUM_STEPS if every else NUM_FINE_STEPS
    between = (
        low + (high - low) * step // num_steps for low, high in pairwise(breakpoints) for step in range(num_steps)
    )
    return list(dict.fromkeys((*between, breakpoints[-1])))


def budgets_below(breakpoints: tuple[int, ...], budget_bytes: int, every: bool = False) -> Iterator[int]:
    """The largest fixed budget that is not above one, then the breakpoints below it, largest first; or all below it.

    Args:
        breakpoints: main fixed budgets, rising.
        budget_bytes: what may be used.
        every: also those between the breakpoints.
    """
    below = [size for size in fixed_budgets(breakpoints, every) if size <= budget_bytes]
    yield from below[-1:]
    yield from (size for size in reversed(below[:-1]) if every or size in breakpoints)
