"""Plans for a configuration with other batches or strategies: all but what cannot fit or cannot be the fastest."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.pipeline_layout import Layout
from mindswap.config.render import block_lines
from mindswap.config.source import BASE_CONFIG, load_document, with_model_of_folder
from mindswap.config.step_settings import StepSettings
from mindswap.errors import MindswapError
from mindswap.features.plan import StepPlan, make_problem, require_writable
from mindswap.features.plan.spread import Spread, Tick
from mindswap.features.plan.strategies import (
    capture_key,
    file_batch,
    file_strategy,
    shape_key,
    strategy_space,
    with_batch,
    with_layout,
    with_strategy,
)
from mindswap.features.plan.tasks import (
    Infeasible,
    StepOptions,
    StepTask,
    load_task,
    run_bound_task,
    run_capture_task,
    run_plan_task,
    summarize_error,
)
from mindswap.features.step import settings_of
from mindswap.graph.capture_cache import open_data_cache
from mindswap.planner.balance import balance_stages, busy_of
from mindswap.planner.problem import Plan
from mindswap.planner.solver.search import Stop
from mindswap.planner.strategies import (
    Batch,
    Strategy,
    demand_of,
    list_batches,
    list_strategies,
    needs_more,
    pareto_front,
)
from mindswap.policy.equivalence import with_swap_enabled
from mindswap.rules.checker import check_document
from mindswap.simulator.captured_step import CapturedStep
from mindswap.units import format_bytes, format_time

# A bound on the capture of other data parallel ranks differs by up to 0.02 % (constants of more samples).
SHAPE_TOLERANCE_PPM = 1000


@dataclass(frozen=True)
class BatchOptions:
    """Batches, strategies and stages to look at."""

    sizes: tuple[int, ...] | None = None  # samples of a micro-batch; None for all that come into question
    counts: tuple[int, ...] | None = None  # micro-batches of a step; None likewise
    keeps_samples: bool = True  # a step has as many samples as now
    cards: int | None = None  # over which other strategies spread the step; None keeps the strategy
    cards_per_node: int = 8  # tensor parallel stays in a node
    moves_layers: bool = False  # other numbers of layers on the stages of the best, too


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """A batch, with its strategy, and the plan for it or why there is none; all figures are simulated."""

    batch: Batch
    strategy: Strategy
    found: StepPlan | None = None
    reason: str = ""
    layout: Layout | None = None  # of a pipeline, where other numbers of layers on its stages are looked for
    is_simulated: bool = False  # a search was made
    is_on_front: bool = False  # nothing else is as fast with less memory

    @property
    def setup(self) -> tuple[Strategy, Batch]:
        """Strategy and batch."""
        return self.strategy, self.batch

    @property
    def tokens_per_s(self) -> float:
        """Of one card; 0 without a plan that fits."""
        return tokens_per_s(self.found.step.model.settings, self.found.step_time_ns) if self.found else 0.0


@dataclass(frozen=True, eq=False)
class _Candidate:
    plan: BatchPlan  # as it is written if nothing is found
    task: StepTask
    settings: StepSettings
    is_own: bool  # the configuration as it is, which is planned in any case: all others are held against it
    capture_id: Hashable  # with it in common steps have the same network
    shape_id: Hashable  # networks that are alike up to constants


def plan_batches(
    config: str,
    asked: BatchOptions,
    options: StepOptions,
    folder: Path,
    spread: Spread,
    report_status: Callable[[str], None] = lambda text: None,
    tick: Tick = lambda: None,
) -> tuple[BatchPlan, ...]:
    """The batches of a configuration, the fastest first: captured, bounded, and planned until no bound beats a plan.

    Args:
        config: YAML of MindFormers 1.9.
        asked: which batches.
        options: of each step.
        folder: for the changed configurations, from which plans are written; as long as they are needed.
        spread: where captures, bounds and plans are made; the answer does not depend on it.
        report_status: called with a line on each capture and plan.
        tick: called now and then; may raise `Stop`, and the best so far counts.

    Raises:
        PlanError: a number does not divide the samples of a step, or no strategy has as many cards.
        PolicyError: the configuration itself is wrong.
    """
    document = load_document(config)
    require_writable(document)
    raw = Path(config).read_bytes()
    text = raw.decode("utf-8", "surrogatepass")
    if parse_document(raw, config).get(BASE_CONFIG) is not None:  # which stands beside this file alone
        text = "\n".join(block_lines(document.data(), 0, 2)) + "\n"
    batch = file_batch(document)
    if asked.cards is None:
        batches = list_batches(batch, asked.sizes, asked.counts, asked.keeps_samples)
        wanted = tuple((file_strategy(document), one) for one in batches)
    else:
        space = strategy_space(document, batch, asked.sizes, asked.counts, asked.cards_per_node)
        wanted = list_strategies(asked.cards, space)
    if options.use_cache:
        open_data_cache()  # where it is unfit, this process tells it, and those of a pool do not
    search = _BatchSearch(document, text, options, folder, spread, report_status, tick, asked.moves_layers)
    list(search.evaluate_candidates([search.candidate(*one) for one in wanted]))
    if asked.moves_layers:
        _move_layers(search)
    plans = search.plans
    fits = [one for one in plans if one.found is not None]
    front = pareto_front([(one.tokens_per_s, one.found.peak_bytes) for one in fits if one.found is not None])
    marked = [replace(one, is_on_front=is_front) for one, is_front in zip(fits, front, strict=True)]
    return (*sorted(marked, key=lambda one: -one.tokens_per_s), *(one for one in plans if one.found is None))


def _move_layers(search: "_BatchSearch") -> None:
    """Hands layers of the busiest stage of the best plan to others, as long as a plan gets faster."""
    best = max(search.plans, key=lambda one: one.tokens_per_s)
    if best.found is None:
        return

    def faster(best: BatchPlan, layouts: Sequence[Layout]) -> BatchPlan | None:
        found = search.evaluate_candidates([search.candidate(best.strategy, best.batch, layout) for layout in layouts])
        return next((one for one in found if one.tokens_per_s > best.tokens_per_s), None)

    def busy_ns(one: BatchPlan) -> Sequence[int]:
        return busy_of(one.found.run().simulated.timeline) if one.found else ()

    balance_stages(best, lambda one: one.layout, busy_ns, faster)


@dataclass(eq=False)
class _BatchSearch:
    """Captures, bounds and plans of candidates, each made once."""

    document: Document
    text: str
    options: StepOptions
    folder: Path
    spread: Spread
    report_status: Callable[[str], None]
    tick: Tick
    has_layouts: bool
    captured: dict[Hashable, CapturedStep] = field(default_factory=dict)
    bounds_ns: "dict[_Candidate, int]" = field(default_factory=dict)
    infeasible: list[tuple[Strategy, Batch]] = field(default_factory=list)  # for which nothing fits
    plans: list[BatchPlan] = field(default_factory=list)
    is_over: bool = False  # interrupted

    def candidate(self, strategy: Strategy, batch: Batch, layout: Layout | None = None) -> _Candidate | BatchPlan:
        """Candidate to plan for, or the reason for which there is none."""
        bare = BatchPlan(batch, strategy, layout=layout)
        try:
            text = with_batch(with_strategy(self.text, self.document, strategy), self.document, batch)
            text = with_layout(text, self.document, layout) if layout else text
            read = with_model_of_folder(parse_document(text, self.document.file))
            checked = check_document(read)
            if errors := checked.errors or check_document(with_swap_enabled(read)).errors:
                return replace(bare, reason=f"check: {errors[0].message}")
            settings = settings_of(read)
        except MindswapError as error:
            return replace(bare, reason=summarize_error(error))
        if self.has_layouts and layout is None and settings.pipeline.num_stages > 1 and checked.num_layers is not None:
            bare = replace(bare, layout=settings.pipeline.layout(checked.num_layers))
        has_sequence = read.value("parallel_config", "use_seq_parallel") is True
        capture_id, shape_id = (make(settings, has_sequence) for make in (capture_key, shape_key))
        is_own = layout is None and (strategy, batch) == (file_strategy(self.document), file_batch(self.document))
        task = StepTask(Path(self.document.file).name, text, self.options)
        return _Candidate(bare, task, settings, is_own, capture_id, shape_id)

    def evaluate_candidates(self, candidates: Sequence[_Candidate | BatchPlan]) -> Iterator[BatchPlan]:
        """The plans of candidates, that of the configuration first, then the fastest bound; then those without one."""
        self.plans += [one for one in candidates if isinstance(one, BatchPlan)]
        ready = [one for one in candidates if isinstance(one, _Candidate)]
        left = dict.fromkeys(ready, "interrupted")
        try:
            for demand in sorted({demand_of(*one.plan.setup) for one in ready}):  # what needs less first
                left |= self._compute_bounds([one for one in ready if demand_of(*one.plan.setup) == demand])
            for one, plan in self._plan_candidates([one for one in ready if one in self.bounds_ns]):
                del left[one]
                self.plans.append(plan)
                yield plan
        except Stop:
            self.is_over = True
        for one, reason in left.items():
            if one in self.bounds_ns and not self._can_beat_best(one):
                reason = f"no policy is faster than {format_time(self.bounds_ns[one])} by the bound"
            self.plans.append(replace(one.plan, reason=reason))

    def _compute_bounds(self, ones: Sequence[_Candidate]) -> dict[_Candidate, str]:
        """Why some of these have no bound. Where what needs less does not fit, what needs more does not."""
        found = {}
        for one in ones:
            less = next((other for other in self.infeasible if needs_more(one.plan.setup, other)), None)
            if less is not None:
                of_which = f" of {less[0]}" if less[0] != one.plan.strategy else ""
                found[one] = f"no policy fits micro-batches of {less[1].size}{of_which}, by the bound"
        ones = [one for one in ones if one not in found]
        self._capture_networks(ones)
        tasks = (replace(one.task, captured=self._find_capture(one)) for one in ones)
        for one, bound in zip(ones, self.spread.map(run_bound_task, tasks, self.tick), strict=True):
            if isinstance(bound, int):
                self.bounds_ns[one] = bound
                continue
            found[one] = bound
            if isinstance(bound, Infeasible):
                self.infeasible.append(one.plan.setup)
        return found

    def _can_beat_best(self, one: _Candidate) -> bool:
        return one.is_own or self._max_tokens_per_s(one) > max((one.tokens_per_s for one in self.plans), default=0.0)

    def _max_tokens_per_s(self, one: _Candidate) -> float:
        return tokens_per_s(one.settings, self.bounds_ns[one]) * (1 + SHAPE_TOLERANCE_PPM / 1e6)

    def _find_capture(self, one: _Candidate) -> CapturedStep | None:
        return self.captured.get(one.capture_id, self.captured.get(one.shape_id))

    def _capture_networks(self, ready: Sequence[_Candidate]) -> None:
        """One network of those that are alike."""
        ones = list({one.shape_id: one for one in reversed(ready) if self._find_capture(one) is None}.values())[::-1]

        def tasks() -> Iterator[StepTask]:
            for number, one in enumerate(ones, 1):
                self.report_status(
                    f"capture {number} of {len(ones)}: {one.plan.strategy}; samples: {one.plan.batch.size}"
                )
                yield one.task

        for one, captured in zip(ones, self.spread.map(run_capture_task, tasks(), self.tick), strict=True):
            if isinstance(captured, CapturedStep):  # else each says for itself why not
                self.captured[one.capture_id] = self.captured[one.shape_id] = captured

    def _plan_candidates(self, ones: Sequence[_Candidate]) -> Iterator[tuple[_Candidate, BatchPlan]]:
        begun: deque[_Candidate] = deque()

        def tasks() -> Iterator[StepTask]:
            for one in sorted(ones, key=lambda one: (not one.is_own, -self._max_tokens_per_s(one))):
                if self._can_beat_best(one) and not self.is_over:
                    layers = f"; layers {one.plan.layout}" if one.plan.layout else ""
                    batch = f"{one.plan.batch.count} of {one.plan.batch.size}"
                    self.report_status(f"plan {one.plan.strategy}; micro-batches: {batch}{layers}")
                    begun.append(one)
                    yield replace(one.task, captured=self.captured.get(one.capture_id))

        for found in self.spread.map(run_plan_task, tasks(), self.tick):
            one = begun.popleft()
            if self._can_beat_best(one):  # else it was begun before a faster plan was there
                yield one, self._to_batch_plan(one, found)

    def _to_batch_plan(self, one: _Candidate, found: tuple[CapturedStep, Plan] | str) -> BatchPlan:
        if isinstance(found, str):
            return replace(one.plan, reason=found)
        captured, plan = found
        self.captured[one.capture_id] = captured
        self.is_over = self.is_over or plan.is_interrupted
        if not plan.fits:
            reason = f"nothing found fits; the least is {format_bytes(plan.smallest_budget_bytes)}"
            return replace(one.plan, reason=reason, is_simulated=True)
        step = load_task(replace(one.task, captured=captured), self.folder / str(len(self.plans))).with_swap()
        planned = StepPlan(step, make_problem(step, None, self.options.allow), plan)
        return replace(one.plan, found=planned, is_simulated=True)


def tokens_per_s(settings: StepSettings, step_time_ns: int) -> float:
    """Tokens that one card trains in a second."""
    return settings.num_tokens / settings.num_cards * 1e9 / max(step_time_ns, 1)
