"""Captures, lower bounds and plans of candidates: what the bound shows to be slower is not planned."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.pipeline_layout import Layout
from mindswap.config.source import with_model_of_folder
from mindswap.config.step_settings import StepSettings
from mindswap.errors import MindswapError
from mindswap.features.plan import StepPlan, make_problem
from mindswap.features.plan.states import PLACES, with_states_text
from mindswap.features.plan.strategies import (
    capture_key,
    file_batch,
    file_strategy,
    shape_key,
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
from mindswap.features.plan.worker_pool import Tick, WorkerPool
from mindswap.features.step import settings_of
from mindswap.planner.problem import Plan
from mindswap.planner.solver.search import Stop
from mindswap.planner.strategies import (
    Batch,
    Strategy,
    demand_of,
    needs_more,
)
from mindswap.policy.equivalence import with_swap_enabled
from mindswap.rules.checker import check_document
from mindswap.simulator.captured_step import CapturedStep
from mindswap.units import format_bytes, format_time

# The bound of a capture with another number of data parallel ranks differs by up to 0.02 % (merged constants).
SHAPE_TOLERANCE_PPM = 1000


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """A batch with its strategy, and either its plan or the reason for having none. All figures are simulated."""

    batch: Batch
    strategy: Strategy
    step_plan: StepPlan | None = None
    reason: str = ""
    layout: Layout | None = None  # layers of each stage, if the search moves layers
    has_states_on_host: bool = False  # optimizer states are in host memory
    is_simulated: bool = False  # planned, not only bounded
    is_on_front: bool = False  # Pareto optimal: no other plan is as fast with less memory

    @property
    def setup(self) -> tuple[Strategy, Batch]:
        """Strategy and batch."""
        return self.strategy, self.batch

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second and card; 0 without a plan."""
        return tokens_per_s(self.step_plan.step.model.settings, self.step_plan.step_time_ns) if self.step_plan else 0.0


@dataclass(frozen=True, eq=False)
class _Candidate:
    plan: BatchPlan  # without a step plan so far
    task: StepTask
    settings: StepSettings
    is_file_setup: bool  # the strategy and batch of the file, which are always planned for comparison
    capture_id: Hashable  # equal for steps with the same captured network
    shape_id: Hashable  # equal for networks that differ in constants only


PRUNED = "pruned by its lower bound"  # begins the reason of a candidate that cannot be the fastest


@dataclass(eq=False)
class BatchSearch:
    """Captures, lower bounds and plans of candidates; each is computed once.

    Attributes:
        is_file_on_host: the configuration has its optimizer states on the host.
        places: where candidates have their optimizer states, on the host or not; first the place of the comparison.
        captured: networks by `capture_id` and by `shape_id`.
        bounds_ns: lower bound of the step time of each candidate.
        infeasible: candidates whose lower bound of memory is too large; larger ones are skipped.
        plans: results so far, also of candidates without a plan.
        is_over: the search was interrupted.
    """

    document: Document
    text: str
    options: StepOptions
    folder: Path
    pool: WorkerPool
    report_status: Callable[[str], None]
    tick: Tick
    has_layouts: bool
    is_file_on_host: bool = False
    places: tuple[bool, ...] = (False,)
    captured: dict[Hashable, CapturedStep] = field(default_factory=dict)
    bounds_ns: "dict[_Candidate, int]" = field(default_factory=dict)
    infeasible: list[BatchPlan] = field(default_factory=list)
    plans: list[BatchPlan] = field(default_factory=list)
    is_over: bool = False

    def make_candidates(self, strategy: Strategy, batch: Batch) -> Iterator[_Candidate | BatchPlan]:
        """Yield a candidate for each place where the optimizer states can be; see `make_candidate`."""
        for is_on_host in self.places:
            yield self.make_candidate(strategy, batch, is_on_host)

    def make_candidate(
        self, strategy: Strategy, batch: Batch, is_on_host: bool, layout: Layout | None = None
    ) -> _Candidate | BatchPlan:
        """Return a candidate to plan, or a result with the reason if its configuration has errors."""
        unplanned = BatchPlan(batch, strategy, layout=layout, has_states_on_host=is_on_host)
        try:
            text = with_batch(with_strategy(self.text, self.document, strategy), self.document, batch)
            text = with_layout(text, self.document, layout) if layout else text
            if is_on_host != self.is_file_on_host:
                text = with_states_text(self.document, text, is_on_host)
            changed = with_model_of_folder(parse_document(text, self.document.file))
            checked = check_document(changed)
            if errors := checked.errors or check_document(with_swap_enabled(changed)).errors:
                return replace(unplanned, reason=f"check: {errors[0].message}")
            settings = settings_of(changed)
        except MindswapError as error:
            return replace(unplanned, reason=summarize_error(error))
        if self.has_layouts and layout is None and settings.pipeline.num_stages > 1 and checked.num_layers is not None:
            unplanned = replace(unplanned, layout=settings.pipeline.layout(checked.num_layers))
        has_sequence = changed.value("parallel_config", "use_seq_parallel") is True
        capture_id, shape_id = (make(settings, has_sequence) for make in (capture_key, shape_key))
        file_setup = (file_strategy(self.document), file_batch(self.document), self.places[0])
        is_file_setup = layout is None and (strategy, batch, is_on_host) == file_setup
        task = StepTask(Path(self.document.file).name, text, self.options)
        return _Candidate(unplanned, task, settings, is_file_setup, capture_id, shape_id)

    def evaluate_candidates(self, candidates: Sequence[_Candidate | BatchPlan]) -> Iterator[BatchPlan]:
        """Bound and plan candidates: the file's own first, then by bound. Yields each plan; the others get a reason."""
        self.plans += [result for result in candidates if isinstance(result, BatchPlan)]
        ready = [candidate for candidate in candidates if isinstance(candidate, _Candidate)]
        reasons = dict.fromkeys(ready, "interrupted")
        try:
            for demand in sorted({demand_of(*candidate.plan.setup) for candidate in ready}):  # least memory first
                reasons |= self._compute_bounds([each for each in ready if demand_of(*each.plan.setup) == demand])
            for candidate, plan in self._plan_candidates([each for each in ready if each in self.bounds_ns]):
                del reasons[candidate]
                self.plans.append(plan)
                yield plan
        except Stop:
            self.is_over = True
        for candidate, reason in reasons.items():
            if candidate in self.bounds_ns and not self._can_beat_best(candidate):
                reason = f"{PRUNED}: no policy is faster than {format_time(self.bounds_ns[candidate])}"
            self.plans.append(replace(candidate.plan, reason=reason))

    def _compute_bounds(self, candidates: Sequence[_Candidate]) -> dict[_Candidate, str]:
        """Bound candidates, and return the reason for each that has no bound.

        Candidates that need more memory than an infeasible one are infeasible without a bound of their own.
        """
        reasons = {}
        for candidate in candidates:
            smaller = next((each for each in self.infeasible if _needs_more(candidate.plan, each)), None)
            if smaller is not None:
                of_which = f" of {smaller.strategy}" if smaller.strategy != candidate.plan.strategy else ""
                size = smaller.batch.size
                reasons[candidate] = (
                    f"no policy fits micro-batches of {size}{of_which}: the lower bound of memory is larger"
                )
        candidates = [candidate for candidate in candidates if candidate not in reasons]
        self._capture_networks(candidates)
        tasks = (replace(candidate.task, captured=self._find_capture(candidate)) for candidate in candidates)
        bounds = self.pool.map(run_bound_task, tasks, self.tick)
        for candidate, bound in zip(candidates, bounds, strict=True):
            if isinstance(bound, int):
                self.bounds_ns[candidate] = bound
                continue
            reasons[candidate] = bound
            if isinstance(bound, Infeasible):
                self.infeasible.append(candidate.plan)
        return reasons

    def _can_beat_best(self, candidate: _Candidate) -> bool:
        best = max((plan.tokens_per_s for plan in self.plans), default=0.0)
        return candidate.is_file_setup or self._max_tokens_per_s(candidate) > best

    def _max_tokens_per_s(self, candidate: _Candidate) -> float:
        return tokens_per_s(candidate.settings, self.bounds_ns[candidate]) * (1 + SHAPE_TOLERANCE_PPM / 1e6)

    def _find_capture(self, candidate: _Candidate) -> CapturedStep | None:
        return self.captured.get(candidate.capture_id, self.captured.get(candidate.shape_id))

    def _capture_networks(self, ready: Sequence[_Candidate]) -> None:
        """Capture the network of the first candidate of each `shape_id` without a capture."""
        missing = (candidate for candidate in reversed(ready) if self._find_capture(candidate) is None)
        candidates = list({candidate.shape_id: candidate for candidate in missing}.values())[::-1]

        def tasks() -> Iterator[StepTask]:
            for number, candidate in enumerate(candidates, 1):
                batch_plan = candidate.plan
                progress = f"compile {number} of {len(candidates)}"
                self.report_status(f"{progress}: {batch_plan.strategy}; samples: {batch_plan.batch.size}")
                yield candidate.task

        captures = self.pool.map(run_capture_task, tasks(), self.tick)
        for candidate, captured in zip(candidates, captures, strict=True):
            if isinstance(captured, CapturedStep):  # after a failure each candidate reports its own reason
                self.captured[candidate.capture_id] = self.captured[candidate.shape_id] = captured

    def _plan_candidates(self, candidates: Sequence[_Candidate]) -> Iterator[tuple[_Candidate, BatchPlan]]:
        started: deque[_Candidate] = deque()

        def tasks() -> Iterator[StepTask]:
            for candidate in sorted(
                candidates, key=lambda each: (not each.is_file_setup, -self._max_tokens_per_s(each))
            ):
                if self._can_beat_best(candidate) and not self.is_over:
                    batch_plan = candidate.plan
                    layers = f"; layers {batch_plan.layout}" if batch_plan.layout else ""
                    batch = f"{batch_plan.batch.count} of {batch_plan.batch.size}"
                    states = f"; states {PLACES[batch_plan.has_states_on_host]}" if len(self.places) > 1 else ""
                    self.report_status(f"plan {batch_plan.strategy}; micro-batches: {batch}{layers}{states}")
                    started.append(candidate)
                    yield replace(candidate.task, captured=self.captured.get(candidate.capture_id))

        for planned in self.pool.map(run_plan_task, tasks(), self.tick):
            candidate = started.popleft()
            if self._can_beat_best(candidate):  # a faster plan may have come in since it was started
                yield candidate, self._to_batch_plan(candidate, planned)

    def _to_batch_plan(self, candidate: _Candidate, planned: tuple[CapturedStep, Plan] | str) -> BatchPlan:
        if isinstance(planned, str):
            return replace(candidate.plan, reason=planned)
        captured, plan = planned
        self.captured[candidate.capture_id] = captured
        self.is_over = self.is_over or plan.is_interrupted
        if not plan.fits:
            reason = f"no plan found fits; the minimum is {format_bytes(plan.smallest_budget_bytes)}"
            return replace(candidate.plan, reason=reason, is_simulated=True)
        step = load_task(
            replace(candidate.task, captured=captured), self.folder / str(len(self.plans))
        ).as_compiled_with_swap()
        step_plan = StepPlan(step, make_problem(step, None, self.options.allow), plan)
        return replace(candidate.plan, step_plan=step_plan, is_simulated=True)


def _needs_more(candidate: BatchPlan, infeasible: BatchPlan) -> bool:
    """Return whether a candidate needs at least the memory of one for which no plan fits.

    What does not fit with the optimizer states on the host does not fit with them on the card.
    """
    is_same_place = candidate.has_states_on_host == infeasible.has_states_on_host
    return (is_same_place or infeasible.has_states_on_host) and needs_more(candidate.setup, infeasible.setup)


def tokens_per_s(settings: StepSettings, step_time_ns: int) -> float:
    """Return the tokens that one card trains per second."""
    return settings.num_tokens / settings.num_cards * 1e9 / max(step_time_ns, 1)
