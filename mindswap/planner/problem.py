"""Problem of a planner, and the resulting plan. Plain data."""

from dataclasses import dataclass
from enum import Enum

from mindswap.policy.cell_tree import CellNode, match_pattern
from mindswap.policy.equivalence import with_switches_of
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel


class Objective(Enum):
    """Quantity to minimize within the budget."""

    TIME = "time"  # step time
    MEMORY = "memory"  # peak memory, among the policies with a slowdown of at most 1 %


@dataclass(frozen=True)
class Allow:
    """Means that a policy may use."""

    swap: bool = True  # move activations to the host
    recompute: bool = True  # run operators again in backward
    # patterns of operators and cells that the user has decided: `--pin`
    pinned: tuple[str, ...] = ()

    def pinned_names(self, layer: CellNode) -> frozenset[str]:
        """Return the names of a layer that plans leave alone: pinned ones, all inside them, and the cells around."""
        named = {match.path for pattern in self.pinned for match in match_pattern(pattern, layer)}
        inside = {path for path, _ in layer.walk() if any(path[: len(pinned)] == pinned for pinned in named)}
        parents = {pinned[:depth] for pinned in named for depth in range(1, len(pinned))}
        return frozenset(".".join(path) for path in inside | parents)


DEFAULT_ALLOW = Allow()


@dataclass(frozen=True, eq=False)
class PlanProblem:
    """Step, budgets, permissions and objective of a plan."""

    model: StepModel  # step model
    budget_bytes: int  # device memory budget of every card, static memory included
    host_bytes: int  # host memory budget of a node
    num_cards_per_node: int  # cards that share the host memory
    allow: Allow = DEFAULT_ALLOW  # means that the policy may use
    objective: Objective = Objective.TIME  # quantity to minimize
    # policy with the recompute switches of the configuration, which plans keep; its layers and operators are ignored
    settings: Policy = Policy()

    @property
    def host_bytes_per_card(self) -> int:
        """Share of the host memory of one card for swapped activations, less optimizer states that are there.

        Of the stages, the one with the fewest states counts, so that bounds hold for every stage; `evaluate` adds up
        those of a node.
        """
        cards = min(self.model.settings.num_cards, self.num_cards_per_node)
        states_bytes = min(static.host_bytes for static in self.model.static)
        return max(0, self.host_bytes // max(1, cards) - states_bytes)

    def with_switches(self, policy: Policy) -> Policy:
        """Return a policy with the recompute switches of the configuration."""
        return with_switches_of(self.settings, policy)


# The plan; all times are simulated.

# `Compared.name` of the policy that the configuration has.
YOURS = "your file"
# Name of the plan without a limit of entries, when compared with a simple one.
FULL = "unrestricted plan"


@dataclass(frozen=True)
class Compared:
    """A policy that the plan is compared with."""

    name: str  # name of the policy in reports
    step_time_ns: int  # simulated; extrapolated from fewer micro-batches if there are many
    peak_bytes: int  # highest device memory of any stage, simulated
    fits: bool  # within the budgets
    baseline: str = ""  # its name in `BASELINES`; "" for other policies
    policy: Policy | None = None  # in layer indices; None if no other evaluation needs it


@dataclass(frozen=True)
class Plan:
    """A policy with its predictions."""

    fits: bool  # whether it is within the budget; otherwise it is the policy closest to the budget
    policy: Policy  # in layer indices
    step_time_ns: int  # simulated on the full graph
    stage_peak_bytes: tuple[int, ...]  # device memory of each stage, simulated on the full graph
    stage_static_bytes: tuple[int, ...]  # static memory of each stage
    host_bytes: int  # host memory of a node
    budget_bytes: int  # device memory budget
    unconstrained_ns: int  # step time if everything is kept, whether that fits or not
    # no policy within the budget that keeps the outputs of layers is faster (proven); None if none fits, or if the plan
    # itself keeps fewer
    lower_bound_ns: int | None
    # smallest budget for which a policy is known; at most `budget_bytes` if the plan fits
    smallest_budget_bytes: int
    # lower bound of the device memory of all policies; that of policies that keep the outputs of layers, if no compared
    # one needs less
    least_budget_bytes: int
    host_budget_bytes: int  # host memory budget of a node
    # memory by operator at the peak of the stage with the highest one: (name, bytes), largest first
    holders: tuple[tuple[str, int], ...]
    compared: tuple[Compared, ...]  # policy of the configuration, if it can be simulated, and the baselines
    num_evaluations: int  # number of simulations
    is_coupled: bool = False  # it swaps tensors that recomputed operators read
    is_interrupted: bool = False  # the search was stopped early

    @property
    def peak_bytes(self) -> int:
        """Highest device memory of any stage."""
        return max(self.stage_peak_bytes)

    @property
    def slowdown(self) -> float:
        """Relative increase of the step time over keeping everything."""
        return self.step_time_ns / self.unconstrained_ns - 1

    @property
    def gap(self) -> float | None:
        """Relative distance of the step time from the lower bound; None without a bound."""
        return self.step_time_ns / self.lower_bound_ns - 1 if self.lower_bound_ns else None
