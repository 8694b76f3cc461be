"""What a planner is asked. Plain data."""

from dataclasses import dataclass
from enum import Enum

from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel


class Objective(Enum):
    """What shall be least within the budget."""

    TIME = "time"  # step time
    MEMORY = "memory"  # peak memory, among the policies that cost next to no time


@dataclass(frozen=True)
class Allow:
    """What a policy may do."""

    swap: bool = True  # move activations to the host
    recompute: bool = True  # run operators again in backward
    # swap what recomputed operators use, where that gains much. By the specification such a swap takes no effect;
    # MindSpore 2.9.0 inserts the copies all the same.
    coupled: bool = True


DEFAULT_ALLOW = Allow()


@dataclass(frozen=True, eq=False)
class PlanProblem:
    """Which policy to look for."""

    model: StepModel  # the step
    budget_bytes: int  # device memory that may be used, static memory included; every card
    host_bytes: int  # host memory of a node that may be used
    num_cards_per_node: int  # cards that share it
    allow: Allow = DEFAULT_ALLOW  # what the policy may do
    objective: Objective = Objective.TIME  # what shall be least
    # switches of recompute that are taken over from the configuration; its layers and operators are not
    settings: Policy = Policy()
    solver: str = "fast"  # one of `SOLVERS`

    @property
    def host_bytes_per_card(self) -> int:
        """Share of the host memory of one card."""
        cards = min(self.model.settings.num_cards, self.num_cards_per_node)
        return self.host_bytes // max(1, cards)
