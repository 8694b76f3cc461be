"""Plans for a configuration with other batches or strategies: all but what cannot fit or cannot be the fastest."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mindswap.api.loaded_step import LoadedStep
from mindswap.api.plan import StepPlan, bound_ns_of, problem_of, refuse_unwritable
from mindswap.api.step import settings_of
from mindswap.api.strategies import own_strategy, strategy_space, with_layout, with_strategy
from mindswap.check.check import check_document
from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.pipeline import Layout
from mindswap.config.sections import rewrite_section
from mindswap.config.source import load_document
from mindswap.config.step import StepSettings, read_step_settings
from mindswap.errors import MindswapError, PlanError
from mindswap.planner.balance import busy_of, moved_layers
from mindswap.planner.batches import Batch, list_batches, pareto_front
from mindswap.planner.problem import Allow
from mindswap.planner.strategies import Strategy, list_strategies
from mindswap.units import format_bytes, format_time

# Moves of a layer that are planned before the best is taken to be the best.
MAX_MOVES = 3


@dataclass(frozen=True)
class AskedBatches:
    """What is looked for.

    Attributes:
        sizes: samples of a micro-batch; None for all that come into question.
        counts: micro-batches of a step; None likewise.
        keeps_samples: a step has as many samples as now.
        cards: over which other strategies spread the step; None keeps the strategy.
        cards_per_node: tensor parallel stays in a node.
        moves_layers: other numbers of layers on the stages of the best, too.
    """

    sizes: tuple[int, ...] | None = None
    counts: tuple[int, ...] | None = None
    keeps_samples: bool = True
    cards: int | None = None
    cards_per_node: int = 8
    moves_layers: bool = False


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
    def tokens_per_s(self) -> float:
        """Of one card; 0 without a plan that fits."""
        return tokens_per_s(self.found.step, self.found.step_time_ns) if self.found is not None else 0.0


def plan_batches(
    config: str,
    asked: AskedBatches,
    folder: Path,
    load: Callable[[str], LoadedStep],
    make: Callable[[LoadedStep], StepPlan],
    allow: Allow,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[BatchPlan, ...]:
    """The batches of a configuration, the fastest first.

    A network is captured once for each number of samples of a micro-batch, and for each way to cut a layer. What
    needs more than the budget for weights and optimizer alone, or has a lower bound that another plan beats, is not
    searched.

    Args:
        config: YAML of MindFormers 1.9.
        asked: which batches.
        folder: for the changed configurations, from which plans are written; as long as they are needed.
        load: `load_step` with its options.
        make: `make_plan` with its options.
        allow: what `make` allows.
        say: told of each batch before it is looked at.

    Raises:
        PlanError: a number does not divide the samples of a step, or no strategy has as many cards.
        PolicyError: the configuration itself is wrong.
    """
    document = load_document(config)
    refuse_unwritable(document)
    text = Path(config).read_bytes().decode("utf-8", "surrogatepass")
    strategy = own_strategy(document)
    if asked.cards is None:
        batches = list_batches(own_batch(document), asked.sizes, asked.counts, asked.keeps_samples)
        candidates = tuple((strategy, batch) for batch in batches)
    else:
        space = strategy_space(document, own_batch(document), asked.sizes, asked.counts, asked.cards_per_node)
        candidates = list_strategies(asked.cards, space)
    loaded: dict[Hashable, LoadedStep] = {}
    plans: list[BatchPlan] = []

    def plan_one(chosen: Strategy, batch: Batch, layout: Layout | None = None) -> BatchPlan:
        say(f"{chosen}; micro-batches: {batch.count} of {batch.size}" + (f"; layers {layout}" if layout else ""))
        try:
            changed = with_batch(with_strategy(text, document, chosen), document, batch)
            changed = with_layout(changed, document, layout) if layout else changed
            step = _step_with(changed, document, folder / str(len(plans)), loaded, load)
            best = max((one.tokens_per_s for one in plans), default=0.0)
            found = _planned(batch, step, make, allow, best)
            layout = _layout_of(step) if asked.moves_layers else None
        except MindswapError as error:
            found = BatchPlan(batch, chosen, reason=str(error).splitlines()[0])
        plans.append(replace(found, layout=layout))
        return plans[-1]

    for chosen, batch in candidates:
        plan_one(chosen, batch)
    if asked.moves_layers:
        _move_layers(plans, plan_one)
    fits = [one for one in plans if one.found is not None]
    front = pareto_front([(one.tokens_per_s, one.found.peak_bytes) for one in fits if one.found is not None])
    marked = [replace(one, is_on_front=is_front) for one, is_front in zip(fits, front, strict=True)]
    marked.sort(key=lambda one: -one.tokens_per_s)
    return (*marked, *(one for one in plans if one.found is None))


def _move_layers(plans: Sequence[BatchPlan], plan_one: Callable[[Strategy, Batch, Layout], BatchPlan]) -> None:
    """Hands layers of the busiest stage of the best plan to others, as long as a plan gets faster."""
    best = max(plans, key=lambda one: one.tokens_per_s)
    while best.found is not None and best.layout is not None:
        timeline = best.found.run().simulated.timeline
        tried = {one.layout for one in plans if (one.strategy, one.batch) == (best.strategy, best.batch)}
        others = [layout for layout in moved_layers(best.layout, busy_of(timeline)) if layout not in tried]
        found = (plan_one(best.strategy, best.batch, layout) for layout in others[:MAX_MOVES])
        faster = next((one for one in found if one.tokens_per_s > best.tokens_per_s), None)
        if faster is None:
            return
        best = faster


def _layout_of(step: LoadedStep) -> Layout | None:
    pipeline = step.model.settings.pipeline
    return pipeline.layout(step.model.captured.num_layers) if pipeline.num_stages > 1 else None


def own_batch(document: Document) -> Batch:
    """The batch that a configuration has."""
    return Batch(document.count("runner_config", "batch_size"), document.count(*_count_path(document)))


def _count_path(document: Document) -> tuple[str, str]:
    if read_step_settings(document).pipeline.num_stages > 1:
        return "parallel_config", "micro_batch_num"
    return "runner_config", "gradient_accumulation_steps"


def with_batch(text: str, document: Document, batch: Batch) -> str:
    """The configuration with another batch, all else as it was.

    Raises:
        PolicyError: the text cannot be changed the way it is written.
    """
    document = parse_document(text.encode("utf-8", "surrogatepass"), document.file)
    data = document.data()
    for path, number in ((("runner_config", "batch_size"), batch.size), (_count_path(document), batch.count)):
        section, key = path
        if document.count(*path) != number:
            data[section] = {**(data.get(section) or {}), key: number}
            text = rewrite_section(text, section, data[section], None, document.file)
    return text


def _step_with(
    changed: str,
    document: Document,
    folder: Path,
    loaded: dict[Hashable, LoadedStep],
    load: Callable[[str], LoadedStep],
) -> LoadedStep:
    path = folder / Path(document.file).name
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = changed.encode("utf-8", "surrogatepass")
    path.write_bytes(raw)
    read = parse_document(raw, str(path))
    checked = check_document(read)
    if checked.errors:
        raise PlanError(f"check: {checked.errors[0].message}")
    settings = settings_of(read)
    key = capture_key(settings, read.value("parallel_config", "use_seq_parallel") is True)
    if key not in loaded:
        loaded[key] = load(str(path))
        return loaded[key]
    step = loaded[key]  # the same network
    assert checked.policy is not None  # stages name other layers
    return replace(step, document=read, policy=checked.policy, path=path, model=step.model.remade(settings=settings))


def capture_key(settings: StepSettings, has_sequence: bool) -> Hashable:
    """What decides the network of one rank: steps that have this in common share a capture.

    Layers are captured in one stage whatever the pipeline. Where nothing is cut each data parallel rank has a network
    of its own; else one network of all samples is cut, whose merged constants depend on their number.
    """
    cut = (settings.model_parallel, settings.context_parallel, settings.expert_parallel)
    of_all = (settings.data_parallel, has_sequence) if settings.num_parts > 1 else ()
    return settings.batch_size, cut, of_all


def _planned(
    batch: Batch, step: LoadedStep, make: Callable[[LoadedStep], StepPlan], allow: Allow, best: float
) -> BatchPlan:
    strategy = own_strategy(step.document)
    budget_bytes = problem_of(step).budget_bytes
    static_bytes = max(stage.total_bytes for stage in step.model.static)
    if static_bytes > budget_bytes:
        return BatchPlan(batch, strategy, reason=f"weights and optimizer alone need {format_bytes(static_bytes)}")
    bound_ns = bound_ns_of(step, allow)
    if bound_ns is None:
        return BatchPlan(batch, strategy, reason="no policy fits, by the bound")
    if tokens_per_s(step, bound_ns) <= best:
        return BatchPlan(batch, strategy, reason=f"no policy is faster than {format_time(bound_ns)} by the bound")
    found = make(step)
    if not found.fits:
        needed = format_bytes(found.plan.smallest_budget_bytes)
        return BatchPlan(batch, strategy, reason=f"nothing found fits; the least is {needed}", is_simulated=True)
    return BatchPlan(batch, strategy, found, is_simulated=True)


def tokens_per_s(step: LoadedStep, step_time_ns: int) -> float:
    """Tokens that one card trains in a second."""
    settings = step.model.settings
    return settings.num_tokens / settings.num_cards * 1e9 / max(step_time_ns, 1)


def best_of(plans: Sequence[BatchPlan]) -> BatchPlan | None:
    """The fastest that fits; None if nothing does."""
    return plans[0] if plans and plans[0].found is not None else None
