"""Search over batches and parallel strategies: plan each candidate whose lower bound may still beat the best plan.

Each candidate is captured, bounded and planned. Candidates that the bound shows to be infeasible, or slower than the
best plan so far, are not planned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.pipeline_layout import Layout
from mindswap.config.render import block_lines
from mindswap.config.source import BASE_CONFIG, load_document
from mindswap.config.step_settings import read_step_settings
from mindswap.features.plan import check_plan_writable
from mindswap.features.plan.batch_search import BatchPlan, BatchSearch
from mindswap.features.plan.states import find_file_obstacle, require_place
from mindswap.features.plan.strategies import (
    file_batch,
    file_strategy,
    strategy_space,
)
from mindswap.features.plan.tasks import (
    StepOptions,
)
from mindswap.features.plan.worker_pool import Tick, WorkerPool
from mindswap.graph.capture_cache import open_data_cache
from mindswap.planner.balance import balance_stages, busy_of
from mindswap.planner.strategies import (
    list_batches,
    list_strategies,
    pareto_front,
)


@dataclass(frozen=True)
class BatchOptions:
    """Batches, strategies and layer assignments to search."""

    sizes: tuple[int, ...] | None = None  # samples of a micro-batch; None for all divisors
    counts: tuple[int, ...] | None = None  # micro-batches of a step; None for all divisors
    keeps_samples: bool = True  # keep the global batch size
    cards: int | None = None  # number of cards for other strategies; None keeps the strategy of the file
    cards_per_node: int = 8  # limit of tensor parallel, which must not cross nodes
    moves_layers: bool = False  # also move layers between the pipeline stages of the best plan
    states: bool | None = None  # whether the optimizer states are on the host, by a pin; None tries both


def plan_batches(
    config: str,
    requested: BatchOptions,
    options: StepOptions,
    folder: Path,
    pool: WorkerPool,
    report_status: Callable[[str], None] = lambda text: None,
    tick: Tick = lambda: None,
) -> tuple[BatchPlan, ...]:
    """Plan the requested batches and strategies of a configuration.

    Args:
        config: path of a MindFormers 1.9 YAML file.
        requested: batches and strategies to search.
        options: options of every step.
        folder: folder for the changed configurations; it must exist as long as the plans are used.
        pool: processes that capture, bound and plan; the result does not depend on their number.
        report_status: called with one line per capture and plan.
        tick: called regularly; if it raises `Stop`, the search ends with the plans so far.

    Returns:
        Candidates with a plan, fastest first, then those without one.

    Raises:
        PlanError: a size does not divide the samples of a step, no strategy fits the number of cards, or the
            optimizer states cannot be where they are pinned.
        PolicyError: the configuration has errors.
    """
    document = load_document(config)
    check_plan_writable(document)
    raw = Path(config).read_bytes()
    text = raw.decode("utf-8", "surrogatepass")
    if parse_document(raw, config).get(BASE_CONFIG) is not None:  # a path relative to the folder of this file
        text = "\n".join(block_lines(document.data(), 0, 2)) + "\n"
    batch = file_batch(document)
    if requested.cards is None:
        batches = list_batches(batch, requested.sizes, requested.counts, requested.keeps_samples)
        setups = tuple((file_strategy(document), each) for each in batches)
    else:
        space = strategy_space(document, batch, requested.sizes, requested.counts, requested.cards_per_node)
        setups = list_strategies(requested.cards, space)
    if options.use_cache:
        open_data_cache()  # this process warns about an unusable cache; the processes of the pool do not
    is_file_on_host = read_step_settings(document).is_state_offloaded
    search = BatchSearch(
        document=document,
        text=text,
        options=options,
        folder=folder,
        pool=pool,
        report_status=report_status,
        tick=tick,
        has_layouts=requested.moves_layers,
        is_file_on_host=is_file_on_host,
        places=_find_places(document, text, is_file_on_host, requested.states, options.allow.swap),
    )
    list(search.evaluate_candidates([each for setup in setups for each in search.make_candidates(*setup)]))
    if requested.moves_layers:
        _move_layers(search)
    with_plan = [plan for plan in search.plans if plan.step_plan is not None]
    front = pareto_front([(p.tokens_per_s, p.step_plan.peak_bytes) for p in with_plan if p.step_plan is not None])
    marked = [replace(plan, is_on_front=is_front) for plan, is_front in zip(with_plan, front, strict=True)]
    without_plan = (plan for plan in search.plans if plan.step_plan is None)
    return (*sorted(marked, key=lambda plan: -plan.tokens_per_s), *without_plan)


def _find_places(
    document: Document, text: str, is_file_on_host: bool, pinned: bool | None, can_swap: bool
) -> tuple[bool, ...]:
    """Return where candidates have their optimizer states: as in the file or as pinned first.

    Raises:
        PlanError: the pinned place is impossible.
    """
    obstacle = find_file_obstacle(document, text, not is_file_on_host)
    if pinned is not None:
        require_place(pinned, is_file_on_host, obstacle)
        return (pinned,)
    return (is_file_on_host,) if obstacle or not can_swap else (is_file_on_host, not is_file_on_host)


def _move_layers(search: BatchSearch) -> None:
    """Move layers of the busiest stage of the best plan to other stages until no plan gets faster."""
    best = max(search.plans, key=lambda plan: plan.tokens_per_s)
    if best.step_plan is None:
        return

    def faster(best: BatchPlan, layouts: Sequence[Layout]) -> BatchPlan | None:
        plans = search.evaluate_candidates(
            [search.make_candidate(best.strategy, best.batch, best.has_states_on_host, layout) for layout in layouts]
        )
        return next((plan for plan in plans if plan.tokens_per_s > best.tokens_per_s), None)

    def busy_ns(plan: BatchPlan) -> Sequence[int]:
        return busy_of(plan.step_plan.run().simulated.timeline) if plan.step_plan else ()

    balance_stages(best, lambda plan: plan.layout, busy_ns, faster)
