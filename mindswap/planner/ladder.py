"""The fixed budgets for which a model is planned. Pure.

A budget is planned as the largest fixed one that is not above it, and mixed with its neighbours (`curve`). So budgets
that are close share their plans, and neighbours share those of the knots below and above, which are there for both.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mindswap.planner.bound import Facts, least_budget_bytes
from mindswap.planner.problem import Allow

# From one knot to the next the least step time grows by so much, and memory gets less by this part of its range.
KNOT_PERMILLE = 20
LEAST_GAP = 32
# Knots from where the least step time is that of keeping everything up to the memory of keeping everything, closest at
# the low end.
NUM_FLAT = 6
# Fixed budgets from one knot to the next, where all of them are looked at, and where only the closest is.
NUM_RUNGS = 8
NUM_FINE_RUNGS = 32


@dataclass(frozen=True)
class Rung:
    """A fixed budget."""

    budget_bytes: int  # static memory included
    knot: int  # position of the knot at it or below it
    step: int  # 0 at the knot; else how far from it to the next one


def knots_of(facts: Facts, host_bytes: int, allow: Allow, keep_ns: int, keep_bytes: int) -> tuple[int, ...]:
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
        step_ns += step_ns * KNOT_PERMILLE // 1000
        found.append(max(least, min(found[-1] - gap, least_budget_bytes(facts, host_bytes, allow, step_ns))))
    return tuple(sorted({*found, least}))


def rungs_below(knots: tuple[int, ...], budget_bytes: int, every: bool = False) -> Iterator[Rung]:
    """The largest fixed budget that is not above one, then the knots below it, largest first.

    Args:
        knots: main fixed budgets, rising.
        budget_bytes: what may be used.
        every: also those between the knots.
    """
    is_first = True
    num_rungs = NUM_RUNGS if every else NUM_FINE_RUNGS
    for knot in range(len(knots) - 1, -1, -1):
        for step in range(num_rungs - 1, -1, -1):
            is_last = knot == len(knots) - 1
            if is_last and step:
                continue
            width = 0 if is_last else knots[knot + 1] - knots[knot]
            rung = Rung(knots[knot] + width * step // num_rungs, knot, step)
            if rung.budget_bytes <= budget_bytes and (every or is_first or not step):
                is_first = False
                yield rung
