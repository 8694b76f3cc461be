"""What a planner answers: a policy, what it comes to, and how good that is. Plain data; all times are simulated."""

from dataclasses import dataclass

from mindswap.policy.model import Policy

# `Compared.name` of the policy that the configuration has.
YOURS = "your file"
# And of the plan without a limit of entries, beside a simple one.
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
    lower_bound_ns: int | None  # step time that no policy within the budget can beat; None if none can be within it
    # the least budget for which a policy is known; not above `budget_bytes` if the plan fits
    smallest_budget_bytes: int
    least_budget_bytes: int  # device memory that every policy needs
    host_budget_bytes: int  # host memory of a node that may be used
    # what fills the memory of the fullest stage at its peak: (name, bytes), largest first
    holders: tuple[tuple[str, int], ...]
    compared: tuple[Compared, ...]  # that of the configuration, if it can be simulated, and well-known policies
    num_evaluations: int  # simulations made
    # highest device memory of any stage if swaps of what recomputed operators use took no effect, as the specification
    # has it; None if the policy has no such swap
    uncoupled_peak_bytes: int | None = None
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
        """Step time over the lower bound, less one: how much better a plan could be at most; None without a bound."""
        return self.step_time_ns / self.lower_bound_ns - 1 if self.lower_bound_ns is not None else None
