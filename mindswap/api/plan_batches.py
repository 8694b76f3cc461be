"""Plans for a configuration with other batches: each is planned, but those that cannot fit or cannot be the fastest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mindswap.api.loaded_step import LoadedStep
from mindswap.api.plan import StepPlan, bound_ns_of, problem_of, refuse_unwritable
from mindswap.api.step import settings_of
from mindswap.check.check import check_document
from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.sections import rewrite_section
from mindswap.config.source import load_document
from mindswap.config.step import read_step_settings
from mindswap.errors import MindswapError, PlanError
from mindswap.planner.batches import Batch, list_batches, pareto_front
from mindswap.planner.problem import Allow
from mindswap.units import format_bytes, format_time


@dataclass(frozen=True)
class AskedBatches:
    """What is looked for.

    Attributes:
        sizes: samples of a micro-batch; None for all that come into question.
        counts: micro-batches of a step; None likewise.
        keeps_samples: a step has as many samples as now.
    """

    sizes: tuple[int, ...] | None = None
    counts: tuple[int, ...] | None = None
    keeps_samples: bool = True


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """A batch, and the plan for it or why there is none; all figures are simulated."""

    batch: Batch
    found: StepPlan | None = None
    reason: str = ""
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

    A network is captured once for each number of samples of a micro-batch. What needs more than the budget for weights
    and optimizer alone, or has a lower bound that another plan beats, is not searched.

    Args:
        config: YAML of MindFormers 1.9.
        asked: which batches.
        folder: for the changed configurations, from which plans are written; as long as they are needed.
        load: `load_step` with its options.
        make: `make_plan` with its options.
        allow: what `make` allows.
        say: told of each batch before it is looked at.

    Raises:
        PlanError: a number does not divide the samples of a step.
        PolicyError: the configuration itself is wrong.
    """
    document = load_document(config)
    refuse_unwritable(document)
    text = Path(config).read_bytes().decode("utf-8", "surrogatepass")
    batches = list_batches(own_batch(document), asked.sizes, asked.counts, asked.keeps_samples)
    loaded: dict[int, LoadedStep] = {}
    plans: list[BatchPlan] = []
    for batch in batches:
        say(f"micro-batches: {batch.count} of {batch.size}")
        try:
            step = _step_with(text, document, batch, folder, loaded, load)
            plans.append(_planned(batch, step, make, allow, max((one.tokens_per_s for one in plans), default=0.0)))
        except MindswapError as error:
            plans.append(BatchPlan(batch, reason=str(error).splitlines()[0]))
    fits = [one for one in plans if one.found is not None]
    front = pareto_front([(one.tokens_per_s, one.found.peak_bytes) for one in fits if one.found is not None])
    marked = [replace(one, is_on_front=is_front) for one, is_front in zip(fits, front, strict=True)]
    marked.sort(key=lambda one: -one.tokens_per_s)
    return (*marked, *(one for one in plans if one.found is None))


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
    data = document.data()
    count_path = _count_path(document)
    for path, number in ((("runner_config", "batch_size"), batch.size), (count_path, batch.count)):
        section, key = path
        if document.count(*path) != number:
            data[section] = {**(data.get(section) or {}), key: number}
            text = rewrite_section(text, section, data[section], None, document.file)
    return text


def _step_with(
    text: str, document: Document, batch: Batch, folder: Path, loaded: dict[int, LoadedStep],
    load: Callable[[str], LoadedStep],
) -> LoadedStep:  # fmt: skip
    changed = with_batch(text, document, batch)
    path = folder / f"{batch.size}_{batch.count}" / Path(document.file).name
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = changed.encode("utf-8", "surrogatepass")
    path.write_bytes(raw)
    read = parse_document(raw, str(path))
    errors = check_document(read).errors
    if errors:
        raise PlanError(f"check: {errors[0].message}")
    if batch.size not in loaded:
        loaded[batch.size] = load(str(path))
        return loaded[batch.size]
    step = loaded[batch.size]  # the same network
    return replace(step, document=read, path=path, model=step.model.remade(settings=settings_of(read)))


def _planned(
    batch: Batch, step: LoadedStep, make: Callable[[LoadedStep], StepPlan], allow: Allow, best: float
) -> BatchPlan:
    budget_bytes = problem_of(step).budget_bytes
    static_bytes = max(stage.total_bytes for stage in step.model.static)
    if static_bytes > budget_bytes:
        return BatchPlan(batch, reason=f"weights and optimizer alone need {format_bytes(static_bytes)}")
    bound_ns = bound_ns_of(step, allow)
    if bound_ns is None:
        return BatchPlan(batch, reason="no policy fits, by the bound")
    if tokens_per_s(step, bound_ns) <= best:
        return BatchPlan(batch, reason=f"no policy is faster than {format_time(bound_ns)} by the bound")
    found = make(step)
    if not found.fits:
        needed = format_bytes(found.plan.smallest_budget_bytes)
        return BatchPlan(batch, reason=f"nothing found fits; the least is {needed}", is_simulated=True)
    return BatchPlan(batch, found, is_simulated=True)


def tokens_per_s(step: LoadedStep, step_time_ns: int) -> float:
    """Tokens that one card trains in a second."""
    settings = step.model.settings
    return settings.num_tokens / settings.num_cards * 1e9 / max(step_time_ns, 1)


def best_of(plans: Sequence[BatchPlan]) -> BatchPlan | None:
    """The fastest that fits; None if nothing does."""
    return plans[0] if plans and plans[0].found is not None else None
