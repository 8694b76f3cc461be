"""Question to a planner, and its answer. Plain data."""

from dataclasses import dataclass, replace
from enum import Enum

from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel


class Objective(Enum):
    """Quantity to minimize within the budget."""

    TIME = "time"  # step time
    MEMORY = "memory"  # peak memory, among the policies that cost next to no time


@dataclass(frozen=True)
class Allow:
    """Means that a policy may use."""

    swap: bool = True  # move activations to the host
    recompute: bool = True  # run operators again in backward
    # patterns of operators and cells about which nothing is decided any more: `--pin`
    pinned: tuple[str, ...] = ()


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

    @property
    def host_bytes_per_card(self) -> int:
        """Share of the host memory of one card."""
        cards = min(self.model.settings.num_cards, self.num_cards_per_node)
        return self.host_bytes // max(1, cards)

    def with_switches(self, policy: Policy) -> Policy:
        """A policy with the switches of the configuration."""
        names = ("recompute_slice_activation", "mp_comm_recompute", "parallel_optimizer_comm_recompute")
        return replace(policy, is_swap_enabled=True, **{name: getattr(self.settings, name) for name in names})


# The answer; all times are simulated.

# `Compared.name` of the policy that the configuration has.
YOURS = "your file"
# Name of the plan without a limit of entries, when compared with a simple one.
FULL = "full plan"


@dataclass(frozen=True)
class Compared:
    """A policy that the plan is compared with."""

    name: str  # of the policy, for people
    step_time_ns: int  # simulated; of a pipeline with many micro-batches carried on from fewer
    peak_bytes: int  # highest device memory of any stage, simulated
    fits: bool  # within the budgets
    baseline: str = ""  # its name in `BASELINES`; empty where it is none of them


@dataclass(frozen=True)
class Plan:
    """A policy with its predictions."""

    fits: bool  # whether it is within the budget; if not, it is the policy that comes nearest
    policy: Policy  # in layer indices
    step_time_ns: int  # simulated on the full graph
    stage_peak_bytes: tuple[int, ...]  # device memory of each stage, simulated on the full graph
    stage_static_bytes: tuple[int, ...]  # what no policy can move, of each stage
    host_bytes: int  # host memory of a node
    budget_bytes: int  # what was allowed
    unconstrained_ns: int  # step time if everything is kept, whether that fits or not
    lower_bound_ns: int | None  # proven: no policy within the budget is faster; None if none can be within it
    # the least budget for which a policy is known; not above `budget_bytes` if the plan fits
    smallest_budget_bytes: int
    least_budget_bytes: int  # device memory that every policy needs
    host_budget_bytes: int  # host memory of a node that may be used
    # what fills the memory of the fullest stage at its peak: (name, bytes), largest first
    holders: tuple[tuple[str, int], ...]
    compared: tuple[Compared, ...]  # that of the configuration, if it can be simulated, and well-known policies
    num_evaluations: int  # simulations made
    is_coupled: bool = False  # it swaps what recomputed operators use
    is_interrupted: bool = False  # the search was stopped early

    @property
    def peak_bytes(self) -> int:
        """Highest device memory of any stage."""
        return max(self.stage_peak_bytes)

    @property
    def slowdown(self) -> float:
        """Step time over that of keeping everything, less one."""
        return self.step_time_ns / self.unconstrained_ns - 1

    @property
    def gap(self) -> float | None:
        """Step time over the lower bound, less one: how much better a plan could be at most; None without one."""
        return self.step_time_ns / self.lower_bound_ns - 1 if self.lower_bound_ns else None
