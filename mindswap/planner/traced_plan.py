"""Search a plan for a recorded step of MindFormers 2.x: layers and cells to swap or to recompute.

An action is what happens to a layer: it is recomputed or swapped as a whole, or one of its cells is. First the least
number of layers with each action is searched with which the step fits, then pairs of the best actions, with every
number of layers for the first one that alone is faster than the best policy so far. All candidates are simulated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from mindswap.planner.build_plan import plan_of
from mindswap.planner.evaluate import evaluate
from mindswap.planner.policy_search import PolicySearch, rank_of
from mindswap.planner.problem import Allow, Plan, PlanProblem
from mindswap.planner.solver.search import Interruptible, Progress, Stop
from mindswap.policy.model import Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.simulator.step_model_2x import StepModel2x

# Distances in layers. A larger one keeps more layers in flight, which takes memory, and does not shorten the waits.
MAX_PREFETCH = 3
# Cells that save less than so much of a layer are no actions, and pairs are searched of so many actions.
MIN_CELL_PERMILLE, NUM_PAIRED = 30, 5


@dataclass(frozen=True)
class Action:
    """What happens to a layer.

    Attributes:
        is_swap: swapped, else recomputed.
        path: of the cell; "" for the layer as a whole.
        prefetch: distance of a swap in layers.
    """

    is_swap: bool
    path: str = ""
    prefetch: int = 1


def policy_of_actions(actions: Mapping[Action, Sequence[int]]) -> Policy:
    """Return the policy with layers for each action; all swaps have the largest distance."""
    used = {action: Layers(layers) for action, layers in actions.items() if len(layers)}
    prefetch = max((action.prefetch for action in used if action.is_swap), default=1)
    full = next((layers for action, layers in used.items() if not action.is_swap and not action.path), Layers(()))
    return Policy(
        is_swap_enabled=True,
        layer_swap=tuple(LayerSwap(layers, prefetch) for a, layers in used.items() if a.is_swap and not a.path),
        op_swap=tuple(OpSwap(a.path, layers, prefetch) for a, layers in used.items() if a.is_swap and a.path),
        layer_recompute=full,
        select_recompute=tuple(
            OpRecompute(a.path, layers) for a, layers in used.items() if not a.is_swap and a.path
        ),
    )  # fmt: skip


def plan_traced(problem: PlanProblem, progress: Progress = lambda: None) -> Plan:
    """Search the best policy.

    Args:
        problem: problem of a `StepModel2x`.
        progress: called after the baselines and each further simulation; may raise `Stop`, then the best policy so far
            is the plan.
    """
    interruptible = Interruptible(progress)
    search = ActionSearch(problem, interruptible)
    search.run()
    return plan_of_search(search, min(search.evaluated, key=search.rank), interruptible.is_stopped)


def plan_of_search(search: "ActionSearch", policy: Policy, is_interrupted: bool) -> Plan:
    """Return the plan with a policy.

    Args:
        search: a search that evaluated the baselines.
        policy: the best policy.
        is_interrupted: whether the search was stopped.
    """
    evaluation = evaluate(search.problem, policy)
    return plan_of(
        search.problem,
        None,  # Swap and recompute only add time. With a plan the slowdown says the same.
        search.evaluated[Policy(is_swap_enabled=True)].step_time_ns,
        policy,
        evaluation,
        compared=search.compared(search.baselines),
        num_evaluations=len(search.evaluated),
        is_interrupted=is_interrupted,
    )


def find_actions(model: StepModel2x, problem: PlanProblem) -> list[Action]:
    """Return the actions that the plan may use; cells are those with a part of what their layer saves."""
    allow = problem.allow
    distances = range(1, min(MAX_PREFETCH, model.num_layers - 1) + 1)
    cells = model.saving_cells(MIN_CELL_PERMILLE)
    recomputes = [Action(False, path) for path in ["", *cells]] if allow.recompute else []
    swaps = [Action(True, "", distance) for distance in distances] if allow.swap else []
    cell_swaps = [Action(True, path) for path in cells] if allow.swap else []
    return [*recomputes, *swaps, *cell_swaps]


class ActionSearch(PolicySearch):
    """Searches layers for actions; arguments as of `PolicySearch`, with the problem of a `StepModel2x`."""

    def __init__(self, problem: PlanProblem, progress: Interruptible):
        super().__init__(problem, progress)
        if not isinstance(problem.model, StepModel2x):
            raise AssertionError("a model without the memory of a step")
        self.model = problem.model
        self.baselines = layer_baselines(self.model.layer_indices, problem.allow, self.model.is_own_engine)
        for policy in self.baselines.values():  # which a stop does not leave out
            self.evaluate(policy, is_interruptible=False)

    def run(self) -> None:
        """Evaluate the candidates."""
        if self.fits(Policy(is_swap_enabled=True)):
            return
        with suppress(Stop):
            self.progress()
            singles = [single for action in find_actions(self.model, self.problem) if (single := self._single(action))]
            # Without the host memory: what exceeds it in all layers may be the best one in some of them.
            singles.sort(key=lambda single: self._rank_on_card(single[1]))
            best = self._different([action for action, _ in singles])
            for first, second in combinations(best, 2):
                self._pair(first, second)
            self._swap_inputs()

    def _layers(self, action: Action, prefetch: int, taken: Sequence[int] = ()) -> list[int]:
        """Return the layers that may have an action, in the order in which they get it."""
        keeps_last = action.is_swap and not self.model.is_own_engine  # MindFormers does not swap the last layers
        layers = self.model.layer_indices[: self.model.num_layers - (prefetch if keeps_last else 0)]
        return [layer for layer in layers if layer not in taken and self.model.has_cell(layer, action.path)]

    def _single(self, action: Action) -> tuple[Action, Policy] | None:
        """Search the least number of layers with an action; None if no layer can have it."""
        layers = self._layers(action, action.prefetch)
        if not layers:
            return None
        return action, self._least(partial(_pair_policy, action, [], action, layers), len(layers))

    def _pair(self, first: Action, second: Action) -> None:
        """For each number of layers with the first action, search the least number with the second one."""
        prefetch = max(action.prefetch for action in (first, second) if action.is_swap) if (
            first.is_swap or second.is_swap) else 1  # fmt: skip
        candidates = self._layers(first, prefetch)
        for number in _some(len(candidates)):
            chosen = candidates[:number]
            if not self._may_be_faster(policy_of_actions({first: chosen})):
                return  # more layers and the second action only add time
            rest = self._layers(second, prefetch, chosen)
            if rest:
                self._least(partial(_pair_policy, first, chosen, second, rest), len(rest))

    def _may_be_faster(self, part: Policy) -> bool:
        """Return whether a part of a policy alone is faster than the best policy that fits."""
        time_ns, budget_bytes = self.evaluate(part).step_time_ns, self.problem.budget_bytes
        fitting = (result.step_time_ns for result in self.evaluated.values() if result.fits(budget_bytes))
        return time_ns < min(fitting, default=time_ns + 1)

    def _swap_inputs(self) -> None:
        """Recompute all layers, and search the least number whose input has to be swapped, as MindFormers does."""
        layers, allow = self.model.layer_indices, self.problem.allow
        if allow.swap and allow.recompute and len(layers) > 1 and not self.model.is_own_engine:
            self._least(
                lambda number: policy_of_actions({Action(False): layers, Action(True): layers[:number]}),
                len(layers) - 1,
            )

    def _least(self, policy_of: Callable[[int], Policy], most: int) -> Policy:
        """Return the policy with the least number of layers that fits on the card; with all of them if none does.

        More layers take less memory of the card, and more of the host: if that policy is not within the host memory,
        none with another number fits.
        """
        low, high = 0, most
        if not self._fits_card(policy_of(most)):
            return policy_of(most)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fits_card(policy_of(middle)) else (middle + 1, high)
        return policy_of(high)

    def _fits_card(self, policy: Policy) -> bool:
        return self.evaluate(policy).peak_bytes <= self.problem.budget_bytes

    def _different(self, actions: Sequence[Action]) -> list[Action]:
        """Return the best actions, each cell once; a swap and a recompute of whole layers are always among them."""
        chosen: dict[tuple[bool, str], Action] = {}
        for action in actions:
            chosen.setdefault((action.is_swap, action.path), action)
        full = [action for (_, path), action in chosen.items() if not path]
        return list(dict.fromkeys([*list(chosen.values())[:NUM_PAIRED], *full]))

    def _rank_on_card(self, policy: Policy) -> tuple[object, ...]:
        """Return a sort key as `rank`, of the memory of the card alone."""
        return rank_of(replace(self.evaluated[policy], is_on_host=True), self.problem.budget_bytes)


def layer_baselines(layers: Sequence[int], allow: Allow, is_own_engine: bool = False) -> dict[str, Policy]:
    """Return the allowed baseline policies by name.

    Args:
        layers: layers of the model.
        allow: means that plans may use.
        is_own_engine: whether the last layer may be swapped, as mindswap's own engine does.
    """
    policies = {"keep all": Policy(is_swap_enabled=True)}
    if allow.recompute:
        policies["full recompute"] = policy_of_actions({Action(False): layers})
    if allow.swap and is_own_engine:
        policies["swap all layers"] = policy_of_actions({Action(True): layers})
    elif allow.swap and len(layers) > 1:
        policies["swap all but the last layer"] = policy_of_actions({Action(True): layers[:-1]})
    return policies


def _pair_policy(first: Action, chosen: Sequence[int], second: Action, layers: Sequence[int], number: int) -> Policy:
    """Return the policy with one action in chosen layers, and another one in the first `number` of some layers."""
    return policy_of_actions({first: chosen, second: layers[:number]})


def _some(count: int) -> Iterator[int]:
    """Yield up to eight numbers from 1 to below `count`, evenly."""
    yield from dict.fromkeys(round(1 + (count - 2) * step / 7) for step in range(8) if count > 1)
