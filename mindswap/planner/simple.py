"""A plan of few entries: whole layers, or the cells of attention and of the feed-forward net, and one distance.

One part of some layers is swapped; one part of some layers, or the casts of their weights, recomputed. For each pair of
parts and each number of swapped layers each pipeline stage recomputes as few layers as its memory allows; each one
is simulated.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from mindswap.errors import SimulationError
from mindswap.planner.evaluate import Candidate, Evaluation, evaluate, evaluate_short
from mindswap.planner.problem import Allow, PlanProblem
from mindswap.planner.solver.search import Interruptible, Stop
from mindswap.policy.cell_tree import CellNode, match_pattern
from mindswap.policy.model import ENTRY_FIELDS, NO_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.simulator.step_model import StepModel

MAX_ENTRIES = 4
WHOLE_LAYER = ""
# What the cells are called in legacy and in newer models.
CELLS = ("attention", "self_attention", "feed_forward", "mlp")
# Casts of weights: with several micro-batches each holds its own copy of every weight, and makes it again for little.
WEIGHT_CASTS = r".*\.(w|linear_)\w+\.cast"
# Quarters of the layers of a stage that are swapped at first; the best are tried with a layer more or less.
NUM_QUARTERS = 4
PREFETCH = 30
DISTANCES = (5, 10, 15, 20, 40, 60, 100)
NUM_REFINED = 3  # candidates
NUM_REPLAYED = 8  # candidates that are simulated whole, until one fits there


@dataclass(frozen=True)
class SimplePolicy:
    """A policy of few entries."""

    swap: str  # what is swapped: a cell, or `WHOLE_LAYER`
    recomputed_part: str  # what is recomputed
    num_swapped: tuple[int, ...]  # layers of each stage
    num_recomputed: tuple[int, ...]  # layers of each stage
    prefetch: int

    def policy(self, stages: Sequence[Sequence[int]], settings: Policy) -> Policy:
        """In layer indices.

        Args:
            stages: layers of each.
            settings: switches of recompute.
        """
        swapped: list[int] = []
        recomputed_part: list[int] = []
        for layers, num_swapped, num_recomputed in zip(stages, self.num_swapped, self.num_recomputed, strict=True):
            # What comes last is needed first: there is no time for its copies.
            out = evenly(layers[:-1], num_swapped) if num_swapped < len(layers) else tuple(layers)
            stay = [layer for layer in layers if layer not in out]
            swapped += out
            recomputed_part += (
                evenly(stay, num_recomputed)
                if num_recomputed <= len(stay)
                else (*stay, *out[: num_recomputed - len(stay)])
            )
        out_set, again_set = Layers(swapped), Layers(recomputed_part)
        return replace(
            settings,
            is_swap_enabled=True,
            default_prefetch=None,
            layer_swap=(LayerSwap(out_set, self.prefetch),) if swapped and self.swap == WHOLE_LAYER else (),
            op_swap=(OpSwap(self.swap, out_set, self.prefetch),) if swapped and self.swap != WHOLE_LAYER else (),
            layer_recompute=again_set if self.recomputed_part == WHOLE_LAYER else NO_LAYERS,
            select_recompute=(OpRecompute(self.recomputed_part, again_set),)
            if recomputed_part and self.recomputed_part != WHOLE_LAYER
            else (),
        )


def num_entries(policy: Policy) -> int:
    """Entries that a reader of the configuration sees."""
    return sum(len(getattr(policy, name)) for name in ENTRY_FIELDS) + bool(policy.layer_recompute)


def find_simple(
    problem: PlanProblem, short_models: Sequence[StepModel], progress: Interruptible
) -> tuple[Policy, Evaluation, int]:
    """The fastest policy of few entries that fits, its evaluation, and how many were simulated.

    If none fits it is the one that needs least memory.

    Args:
        problem: what to look for.
        short_models: the model with few micro-batches, from `short_model`.
        progress: called after each simulation.
    """
    search = _SimpleSearch(problem, short_models[0], progress)
    with suppress(Stop):
        search.run()
    ranked = sorted(search.evaluated, key=search.rank)
    found: list[tuple[Policy, Evaluation]] = []
    for policy in ranked:
        found.append((policy, evaluate(problem, policy)))
        if found[-1][1].fits or len(found) == NUM_REPLAYED:
            break
    policy, evaluation = min(found, key=lambda one: (not one[1].fits, one[1].peak_bytes))
    return policy, evaluation, len(search.evaluated)


class _SimpleSearch:
    """Simulates policies, each once, in a short step.

    Attributes:
        evaluated: what was simulated.
    """

    def __init__(self, problem: PlanProblem, short: StepModel, progress: Interruptible):
        self.problem = problem
        self.short = short
        self.progress = progress
        sections = [sorted(section for chunk in chunks for section in chunk) for chunks in short.layout.chunks]
        num_layers = problem.model.captured.num_layers
        self.stages = [[section - 1 for section in own if 1 <= section <= num_layers] for own in sections]
        self.settings = problem.with_switches(Policy())
        self.evaluated: dict[Policy, Candidate] = {}  # time lines of hundreds would fill the memory

    def run(self) -> None:
        """Fills `evaluated`: nothing, quarters of the layers in all parts, then the best of them a little otherwise."""
        none = (0,) * len(self.stages)
        self._evaluate(SimplePolicy(WHOLE_LAYER, WHOLE_LAYER, none, none, PREFETCH))
        found = []
        for simple in self._coarse():
            try:
                found.append(self._fit(simple))
            except SimulationError:  # such a part cannot run again in this model
                continue
        for simple in sorted(found, key=self._rank_of)[:NUM_REFINED]:
            self._refine(simple)

    def _coarse(self) -> Iterator[SimplePolicy]:
        none = (0,) * len(self.stages)
        model = self.problem.model
        swaps, agains = parts(model.captured.trees, self.problem.allow, model.settings.has_interleaved_halves)
        if agains:
            yield from (SimplePolicy(WHOLE_LAYER, recomputed_part, none, none, PREFETCH) for recomputed_part in agains)
        for swap, recomputed_part, quarters in product(swaps, agains or (None,), range(1, NUM_QUARTERS + 1)):
            counts = tuple(len(layers) * quarters // NUM_QUARTERS for layers in self.stages)
            yield SimplePolicy(swap, recomputed_part if recomputed_part is not None else swap, counts, none, PREFETCH)

    def _refine(self, best: SimplePolicy) -> None:
        """Other distances, then layers more or fewer, as long as it gets better."""
        for distance in DISTANCES if any(best.num_swapped) else ():
            best = min(best, self._fit(replace(best, prefetch=distance)), key=self._rank_of)
        step = max(1, max(map(len, self.stages)) // (2 * NUM_QUARTERS))
        while step and any(best.num_swapped):
            tries = [self._fit(replace(best, num_swapped=self._moved(best, by))) for by in (step, -step)]
            better = min([best, *tries], key=self._rank_of)
            if better == best:
                step //= 2
            best = better

    def _moved(self, simple: SimplePolicy, by: int) -> tuple[int, ...]:
        return tuple(
            min(len(layers), max(0, n + by)) for layers, n in zip(self.stages, simple.num_swapped, strict=True)
        )

    def _fit(self, simple: SimplePolicy) -> SimplePolicy:
        """With as few recomputed layers in each stage as fit, found by halving in all stages at once."""
        if not self.problem.allow.recompute:
            self._evaluate(replace(simple, num_recomputed=(0,) * len(self.stages)))
            return replace(simple, num_recomputed=(0,) * len(self.stages))
        apart = simple.swap != simple.recomputed_part and WHOLE_LAYER not in (simple.swap, simple.recomputed_part)
        high = [len(layers) - (0 if apart else n) for layers, n in zip(self.stages, simple.num_swapped, strict=True)]
        low = [0] * len(high)
        while any(a < b for a, b in zip(low, high, strict=True)):
            middle = tuple((a + b) // 2 for a, b in zip(low, high, strict=True))
            evaluation = self._evaluate(replace(simple, num_recomputed=middle))
            for stage, size in enumerate(evaluation.stage_peak_bytes):
                if size <= self.problem.budget_bytes:
                    high[stage] = middle[stage]
                elif low[stage] < high[stage]:
                    low[stage] = middle[stage] + 1
        self._evaluate(replace(simple, num_recomputed=tuple(high)))
        return replace(simple, num_recomputed=tuple(high))

    def _evaluate(self, simple: SimplePolicy) -> Candidate:
        policy = simple.policy(self.stages, self.settings)
        if policy not in self.evaluated:
            evaluation = evaluate_short(self.problem, policy, (self.short,))
            self.evaluated[policy] = Candidate.of(self.problem, policy, evaluation)
            self.progress()
        return self.evaluated[policy]

    def _rank_of(self, simple: SimplePolicy) -> tuple[bool, int, int]:
        return self.rank(simple.policy(self.stages, self.settings))

    def rank(self, policy: Policy) -> tuple[bool, int, int]:
        return self.evaluated[policy].rank(self.problem.budget_bytes)


def parts(
    trees: Sequence[CellNode], allow: Allow, has_interleaved_halves: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parts that may be swapped, and recomputed: whole layers; of cells, and casts of weights, what every layer has.

    Cells that compute in halves do not run again: rule `interleaved_cell`.
    """
    every = [part for part in (*CELLS, WEIGHT_CASTS) if all(match_pattern(part, tree) for tree in trees)]
    cells = [part for part in every if part != WEIGHT_CASTS]
    recomputed_part = [part for part in every if part == WEIGHT_CASTS or not has_interleaved_halves]
    return (WHOLE_LAYER, *cells) if allow.swap else (), (WHOLE_LAYER, *recomputed_part) if allow.recompute else ()


def evenly(layers: Sequence[int], number: int) -> tuple[int, ...]:
    """So many of the layers, at even distances."""
    return tuple(layers[position * len(layers) // number] for position in range(number))
