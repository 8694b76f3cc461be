"""What a planner is asked. Plain data."""

from dataclasses import dataclass
from enum import Enum

from mindswap.policy.model import Policy
from mindswap.simulate.step_model import StepModel

__all__ = ["Objective", "Problem"]


class Objective(Enum):
    """What shall be least within the budget."""

    TIME = "time"  # step time
    MEMORY = "memory"  # peak memory, among the policies that cost next to no time


@dataclass(frozen=True, eq=False)
class Problem:
    """Which policy to look for.

    Attributes:
        model: the step.
        budget_bytes: device memory that may be used, static memory included; every card.
        host_bytes: host memory of a node that may be used.
        num_cards_per_node: cards that share it.
        allow_swap, allow_recompute: what the policy may do.
        objective: what shall be least.
        settings: switches of recompute that are taken over from the configuration; its layers and operators are
            not.
    """

    model: StepModel
    budget_bytes: int
    host_bytes: int
    num_cards_per_node: int
    allow_swap: bool = True
    allow_recompute: bool = True
    objective: Objective = Objective.TIME
    settings: Policy = Policy()

    @property
    def host_bytes_per_card(self) -> int:
        """Share of the host memory of one card."""
        cards = min(self.model.settings.num_cards, self.num_cards_per_node)
        return self.host_bytes // max(1, cards)
