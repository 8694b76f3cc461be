"""Columns of the master problem: their possible decisions, their reduced costs, and their order over the layers."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mindswap.planner.stage_problem import KEEP, AssignmentCost, DecisionCosts

# Dual prices of memory, link and host.
DualPrices = np.ndarray
# A column with its cost.
Entry = tuple[np.ndarray, AssignmentCost]


def front_loaded(columns: Sequence[Entry]) -> list[Entry]:
    """Order the columns by copy time, longest first, so that the last copies end before backward begins."""
    return sorted(columns, key=lambda entry: -entry[1].copy_ns)


def interleaved(columns: Sequence[Entry]) -> list[Entry]:
    """Spread equal columns evenly over the layers, so that copies overlap layers with other columns.

    Of equally frequent columns the one with the longest copy time goes first, so that few copies remain at the end.
    """
    number = Counter(column.tobytes() for column, _ in columns)
    heaviest = list(dict.fromkeys(column.tobytes() for column, _ in front_loaded(columns)))
    shift = {key: rank / max(1, len(heaviest) - 1) for rank, key in enumerate(heaviest)}
    seen: Counter[bytes] = Counter()
    placed = []
    for position, entry in enumerate(front_loaded(columns)):
        key = entry[0].tobytes()
        placed.append(((seen[key] + shift[key]) / number[key], position, entry))
        seen[key] += 1
    return [entry for *_, entry in sorted(placed, key=lambda ranked: ranked[:2])]


def options_of(costs: DecisionCosts, layer: int, group: int, is_unswappable: bool = False) -> list[int]:
    """Return the possible decisions of a group: keep, each recompute path, swap."""
    path_indices = np.flatnonzero(costs.freed_bytes[layer, group] > 0).tolist()
    decisions = (-path_index if path_index else 1 for path_index in path_indices)
    return [KEEP, *(decision for decision in decisions if decision < KEEP or not is_unswappable)]


def group_price(costs: DecisionCosts, layer: int, group: int, value: int, dual_prices: DualPrices) -> float:
    """Return the reduced cost in ns of one decision alone."""
    if value == KEEP:
        return 0.0
    size = int(costs.freed_bytes[layer, group, max(-value, 0)])
    is_swap = value > KEEP
    copy_ns, host_bytes = (int(costs.copy_ns[layer, group]), size) if is_swap else (0, 0)
    return price_of(
        AssignmentCost(size, int(costs.recompute_ns[layer, group, max(-value, 0)]), copy_ns, host_bytes), dual_prices
    )


def price_of(assignment_cost: AssignmentCost, dual_prices: DualPrices) -> float:
    """Return the reduced cost of a column in ns."""
    memory, link, host = dual_prices.tolist()
    return (
        assignment_cost.recompute_ns
        - memory * assignment_cost.freed_bytes
        + link * assignment_cost.copy_ns
        + host * assignment_cost.host_bytes
    )
