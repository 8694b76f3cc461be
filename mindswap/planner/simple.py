"""Search a plan with few entries: one for swap and one for recompute, with one prefetch distance.

An entry names a part of a layer (the full layer, attention, or the feed-forward network; for recompute also the casts
of weights) and some layers. For each pair of parts and each number of swapped layers, each pipeline stage recomputes
the minimum number of layers that fits. The best of these are tried again with a further part recomputed in all layers:
casts of weights, activation functions, or a cell. All candidates are simulated.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from mindswap.errors import SimulationError
from mindswap.planner.evaluate import Candidate, Evaluation, evaluate
from mindswap.planner.policy_search import PolicySearch
from mindswap.planner.problem import Allow, PlanProblem
from mindswap.planner.solver.search import Interruptible, Stop
from mindswap.policy.cell_tree import CellNode, match_pattern
from mindswap.policy.coverage import ADD, cell_names
from mindswap.policy.model import ENTRY_FIELDS, NO_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.simulator.step_model import StepModel

MAX_ENTRIES = 6
WHOLE_LAYER = ""
# Names of the cells in legacy and in newer models.
CELLS = ("attention", "self_attention", "feed_forward", "mlp")
# Casts of weights: with several micro-batches each one saves its own cast of every weight, which is cheap to recompute.
WEIGHT_CASTS = r".*\.(w|linear_)\w+\.cast"
# Activation functions and the product after them, in legacy and in newer models: as cheap, and each frees a tensor as
# wide as the feed-forward network.
ACTIVATIONS = (r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu", r"mlp\.activation_func\.\w+")
# The coarse search swaps 1/4, 2/4, ... of the layers of a stage; the best candidates are then refined layer by layer.
NUM_QUARTERS = 4
PREFETCH = 30
DISTANCES = (5, 10, 15, 20, 40, 60, 100)
NUM_EXTENDED = 3  # candidates of the coarse search that are tried with a part recomputed in all layers
NUM_REFINED = 3  # of the candidates then, those that are refined
NUM_REPLAYED = 8  # limit of candidates that are evaluated on the whole step, until one fits


@dataclass(frozen=True)
class SimplePolicy:
    """A policy with few entries."""

    swap: str  # swapped part of a layer: a cell, or `WHOLE_LAYER`
    recomputed_part: str  # recomputed part of a layer
    num_swapped: tuple[int, ...]  # number of swapped layers of each stage
    num_recomputed: tuple[int, ...]  # number of recomputed layers of each stage
    prefetch: int  # `backward_prefetch`
    everywhere: tuple[str, ...] = ()  # patterns that all layers recompute which are not recomputed as a whole

    def policy(self, stages: Sequence[Sequence[int]], settings: Policy) -> Policy:
        """Return the policy in layer indices.

        Args:
            stages: layers of each stage.
            settings: policy with the switches of recompute.
        """
        swapped: list[int] = []
        recomputed_part: list[int] = []
        for layers, num_swapped, num_recomputed in zip(stages, self.num_swapped, self.num_recomputed, strict=True):
            # Backward starts with the last layer, so there is no time for its copies.
            swapped_of_stage = evenly(layers[:-1], num_swapped) if num_swapped < len(layers) else tuple(layers)
            remaining = [layer for layer in layers if layer not in swapped_of_stage]
            swapped += swapped_of_stage
            recomputed_part += (
                evenly(remaining, num_recomputed)
                if num_recomputed <= len(remaining)
                else (*remaining, *swapped_of_stage[: num_recomputed - len(remaining)])
            )
        swapped_layers, recomputed_layers = Layers(swapped), Layers(recomputed_part)
        # Full recompute of a layer includes it.
        whole = set(recomputed_part) if self.recomputed_part == WHOLE_LAYER else set()
        others = Layers(layer for layers in stages for layer in layers if layer not in whole)
        patterns = [pattern for pattern in self.everywhere if others and pattern != self.recomputed_part]
        everywhere = tuple(OpRecompute(pattern, others) for pattern in patterns)
        return replace(
            settings,
            is_swap_enabled=True,
            default_prefetch=None,
            layer_swap=(LayerSwap(swapped_layers, self.prefetch),) if swapped and self.swap == WHOLE_LAYER else (),
            op_swap=(OpSwap(self.swap, swapped_layers, self.prefetch),) if swapped and self.swap != WHOLE_LAYER else (),
            layer_recompute=recomputed_layers if self.recomputed_part == WHOLE_LAYER else NO_LAYERS,
            select_recompute=everywhere
            + (
                (OpRecompute(self.recomputed_part, recomputed_layers),)
                if recomputed_part and self.recomputed_part != WHOLE_LAYER
                else ()
            ),
        )


def num_entries(policy: Policy) -> int:
    """Return the number of entries of a policy in a configuration."""
    return sum(len(getattr(policy, name)) for name in ENTRY_FIELDS) + bool(policy.layer_recompute)


class SimpleResult(NamedTuple):
    """Result of the search for a policy with few entries."""

    policy: Policy
    evaluation: Evaluation  # on the whole step
    num_evaluations: int


def find_simple(problem: PlanProblem, short_models: Sequence[StepModel], progress: Interruptible) -> SimpleResult:
    """Search the fastest policy with few entries that fits; if none fits, the one with the lowest peak.

    Args:
        problem: budgets and permissions.
        short_models: model with few micro-batches, from `short_model`.
        progress: called after each simulation.
    """
    search = _SimpleSearch(problem, short_models[0], progress)
    with suppress(Stop):
        search.run()
    ranked = sorted(search.evaluated, key=search.rank)
    evaluated: list[tuple[Policy, Evaluation]] = []
    for policy in ranked:
        evaluated.append((policy, evaluate(problem, policy)))
        if evaluated[-1][1].fits or len(evaluated) == NUM_REPLAYED:
            break
    policy, evaluation = min(evaluated, key=lambda candidate: (not candidate[1].fits, candidate[1].peak_bytes))
    return SimpleResult(policy, evaluation, len(search.evaluated))


class _SimpleSearch(PolicySearch):
    """Searches policies on a short step."""

    def __init__(self, problem: PlanProblem, short: StepModel, progress: Interruptible):
        super().__init__(problem, progress, (short,))
        model, stages = problem.model, [sorted(sum(chunks, ())) for chunks in short.layout.chunks]
        self.stages = [[each - 1 for each in stage if 1 <= each <= model.captured.num_layers] for stage in stages]
        self.settings = problem.with_switches(Policy())
        self.none = (0,) * len(stages)  # layers of each stage
        self.cells = model.captured.trees, problem.allow, model.settings.has_interleaved_halves

    def run(self) -> None:
        """Evaluate the empty policy, the candidates of the coarse search, and refinements of the best ones."""
        self._evaluate(SimplePolicy(WHOLE_LAYER, WHOLE_LAYER, self.none, self.none, PREFETCH))
        fitted = []
        for simple in self._coarse():
            try:
                fitted.append(self._fit(simple))
            except SimulationError:  # this part cannot be recomputed in this model
                continue
        fitted = sorted(fitted, key=self._rank_of)
        extended = [self._extended(simple) for simple in fitted[:NUM_EXTENDED]]
        refined = sorted((*extended, *fitted[NUM_EXTENDED:]), key=self._rank_of)[:NUM_REFINED]
        # In addition to the others: nothing is left to extend, and it must not displace what can be extended.
        with suppress(SimulationError):  # as above
            cells = self._recomputed_cells()
            fitted_cells = [self._fit(cells)] if cells is not None else []
            refined += [each for each in fitted_cells if not refined or self._rank_of(each) < self._rank_of(refined[0])]
        for simple in refined:
            self._refine(simple)

    def _recomputed_cells(self) -> SimplePolicy | None:
        """Return the policy that swaps the inputs of all cells and recomputes no layer yet; None if not possible."""
        cells = recomputed_cells(*self.cells)
        return SimplePolicy(ADD, cells, tuple(map(len, self.stages)), self.none, PREFETCH) if cells else None

    def _extended(self, best: SimplePolicy) -> SimplePolicy:
        """Return the policy with a part recomputed in all layers, if that is better."""
        for everywhere in common_parts(*self.cells):
            try:
                best = min(best, self._fit(replace(best, everywhere=everywhere)), key=self._rank_of)
            except SimulationError:  # this part cannot be recomputed in this model
                continue
        return best

    def _coarse(self) -> Iterator[SimplePolicy]:
        none, (swaps, recomputed_parts) = self.none, parts(*self.cells)
        yield from (SimplePolicy(WHOLE_LAYER, part, none, none, PREFETCH) for part in recomputed_parts)
        for swap, part, quarters in product(swaps, recomputed_parts or (None,), range(1, NUM_QUARTERS + 1)):
            counts = tuple(len(layers) * quarters // NUM_QUARTERS for layers in self.stages)
            yield SimplePolicy(swap, part if part is not None else swap, counts, none, PREFETCH)

    def _refine(self, best: SimplePolicy) -> None:
        """Try other distances, then more or fewer swapped layers, while the result improves."""
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
        """Return the policy with the minimum number of recomputed layers that fits, by bisection in all stages."""
        if not self.problem.allow.recompute:
            self._evaluate(replace(simple, num_recomputed=self.none))
            return replace(simple, num_recomputed=self.none)
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
        return self.evaluate(simple.policy(self.stages, self.settings))

    def _rank_of(self, simple: SimplePolicy) -> tuple[object, ...]:
        return self.rank(simple.policy(self.stages, self.settings))


def parts(
    trees: Sequence[CellNode], allow: Allow, has_interleaved_halves: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parts of layers that may be swapped, and those that may be recomputed.

    These are the full layer, and the cells and casts of weights that every layer has. Cells with interleaved halves
    cannot be recomputed: rule `interleaved_cell`.
    """
    present = [name for name in (*CELLS, WEIGHT_CASTS) if all(match_pattern(name, tree) for tree in trees)]
    cells = [name for name in present if name != WEIGHT_CASTS]
    recomputed_part = [name for name in present if name == WEIGHT_CASTS or not has_interleaved_halves]
    return (WHOLE_LAYER, *cells) if allow.swap else (), (WHOLE_LAYER, *recomputed_part) if allow.recompute else ()


def recomputed_cells(trees: Sequence[CellNode], allow: Allow, has_interleaved_halves: bool = False) -> str:
    """Return a pattern of all cells of a layer, to be recomputed while their inputs are swapped; "" if not possible.

    This is full recompute with its saved tensors on the host. The inputs are the sums between the cells (`ADD`). Swap
    in a layer that is recomputed as a whole makes no copy. Arguments as of `parts`.
    """
    names = cell_names(trees)
    is_possible = allow.swap and allow.recompute and not has_interleaved_halves and names
    return f"({'|'.join(names)})" if is_possible and all(match_pattern(ADD, tree) for tree in trees) else ""


def common_parts(
    trees: Sequence[CellNode], allow: Allow, has_interleaved_halves: bool = False
) -> tuple[tuple[str, ...], ...]:
    """Return the patterns that all layers may recompute: casts of weights, activation functions, a cell, with casts.

    Arguments as of `parts`.
    """

    def present(patterns: Sequence[str]) -> tuple[str, ...]:
        return tuple(pattern for pattern in patterns if all(match_pattern(pattern, tree) for tree in trees))

    casts, cells = present((WEIGHT_CASTS,)), () if has_interleaved_halves else present(CELLS)
    others = [present(ACTIVATIONS), *((cell,) for cell in cells)]
    groups = (casts, *others, *((*casts, *other) for other in others if casts and other))
    return tuple(filter(None, groups)) if allow.recompute else ()


def evenly(layers: Sequence[int], number: int) -> tuple[int, ...]:
    """Return a number of layers at even distances."""
    return tuple(layers[position * len(layers) // number] for position in range(number))
