"""Question to a planner, and its answer. Plain data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from mindswap.errors import PlanError
from mindswap.policy.cell_tree import SEPARATOR, CellNode, Match, PatternError, exact_pattern, match_pattern
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy
from mindswap.policy.words import closest_names
from mindswap.simulator.step_model import StepModel


class Objective(Enum):
    """Figure that shall be least within the budget."""

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


# Pins: decisions of the user that a plan keeps: operators that are swapped, recomputed, or kept in any case.

# Of what is swapped where no distance is written, in operators.
DEFAULT_DISTANCE = 10


class Means(Enum):
    """Treatment of what a pin names."""

    KEEP = "keep"
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class Pin:
    """One decision of the user, in every layer."""

    pattern: str  # as `op_name`
    means: Means
    distance: int = DEFAULT_DISTANCE  # `backward_prefetch` of a swap


def read_pin(text: str) -> Pin:
    """From `PATTERN=keep`, `PATTERN=recompute`, `PATTERN=swap` or `PATTERN=swap:12`.

    Raises:
        PlanError: it is none of these.
    """
    pattern, _, what = text.rpartition("=")
    name, colon, distance = what.partition(":")
    means = next((one for one in Means if one.value == name), None)
    is_number = distance.isdecimal() and int(distance) > 0 and means is Means.SWAP
    if not pattern or means is None or (colon and not is_number):
        raise PlanError(
            f"--pin {text}: is not a decision\n    allowed: PATTERN=swap, PATTERN=swap:12 (backward_prefetch), "
            "PATTERN=recompute, PATTERN=keep\n    fix:     such as --pin 'attention\\.flash_attention=swap'"
        )
    return Pin(pattern, means, int(distance) if colon else DEFAULT_DISTANCE)


def fixed_policy(pins: Sequence[Pin], trees: Sequence[CellNode], layer_map: Sequence[int]) -> Policy:
    """The entries of all pins, one operator to a pattern.

    Args:
        pins: decisions.
        trees: of each kind of layer.
        layer_map: kind of each layer of the model.

    Raises:
        PlanError: a pin names nothing in any layer, or two decide about the same.
    """
    decided: dict[tuple[int, str], Pin] = {}
    for pin in pins:
        names = [(kind, match.name) for kind, tree in enumerate(trees) for match in _matches(pin.pattern, tree)]
        if not names:
            known = sorted({".".join(path) for tree in trees for path, _ in tree.walk()})
            near = ", ".join(closest_names(pin.pattern.replace(SEPARATOR, "."), known, limit=3))
            raise PlanError(
                f"--pin {pin.pattern}={pin.means.value}: names nothing in any layer\n    allowed: names as of op_name, "
                f"parts joined by '{SEPARATOR}'\n    fix:     near: {near}"
            )
        for one in names:
            other = decided.setdefault(one, pin)
            if (other.means, other.distance) != (pin.means, pin.distance):
                raise PlanError(
                    f"--pin {pin.pattern}={pin.means.value}: {one[1]} is pinned to {other.means.value} as well\n"
                    "    fix:     leave one out"
                )
    where: dict[tuple[str, Pin], list[int]] = {}
    for (kind, name), pin in decided.items():
        where.setdefault((name, pin), []).extend(i for i, own in enumerate(layer_map) if own == kind)

    def layers_of(indices: Sequence[int]) -> Layers:
        return ALL_LAYERS if len(indices) == len(layer_map) else Layers(tuple(sorted(indices)))

    entries = [
        (exact_pattern(name), pin, layers_of(indices))
        for (name, pin), indices in sorted(where.items(), key=lambda one: one[0][0])
    ]
    return Policy(
        True,
        op_swap=tuple(OpSwap(name, layers, pin.distance) for name, pin, layers in entries if pin.means is Means.SWAP),
        select_recompute=tuple(
            OpRecompute(name, layers) for name, pin, layers in entries if pin.means is Means.RECOMPUTE
        ),
    )


def _matches(pattern: str, tree: CellNode) -> list[Match]:
    try:
        return list(match_pattern(pattern, tree))
    except PatternError as error:
        raise PlanError(f"--pin {error}") from None
