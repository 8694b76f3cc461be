"""`mindswap dryrun`: one training step on MindSpore's Ascend backend without a card, to measure memory.

Each pipeline stage runs on one rank, with all layers. Where that takes long, two reduced models run instead and their
memory is extrapolated, provided that the simulator can extrapolate from the same models. The step is also simulated,
and reports compare both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mindswap.config.nodes import Document
from mindswap.config.step_settings import StepSettings, read_step_settings
from mindswap.errors import LaunchError
from mindswap.features.dryrun.backend import StatusCallback, refuse_graph_engine
from mindswap.features.dryrun.cann_stand_ins import has_cann, prepare_stand_ins
from mindswap.features.dryrun.depths import (
    MAX_EXACT_LAYERS,
    MAX_EXACT_S,
    DryRunOptions,
    Reduction,
    choose_micro_batches,
    full_model,
    requested_models,
)
from mindswap.features.dryrun.memory_pool import DryRun
from mindswap.features.dryrun.model_choice import ChosenModels, ModelChoice, Simulation
from mindswap.features.dryrun.page import standalone_curve
from mindswap.features.dryrun.rank_runs import RankRun, RankRuns, run_folder
from mindswap.features.dryrun.report import describe_basis, dry_run_to_json, format_dry_run
from mindswap.features.dryrun.sharded_rank import read_shards
from mindswap.features.dryrun.stage_runs import DryRunReport, StageRun, stage_run
from mindswap.features.dryrun.trainer import dry_run_trainer, find_left_out
from mindswap.features.dryrun.trainer_config import (
    PARALLEL_KEYS,
    count_stages,
    is_1f1b,
    num_micro_batches,
    require_valid_2x,
    switched_off_2x,
)
from mindswap.features.dryrun.trainer_report import TrainerDryRun, rank_lines, trainer_dry_run_to_json
from mindswap.features.dryrun.trainer_run import has_mindformers_2x, recorder_versions, require_mindformers_2x
from mindswap.features.dryrun.trainer_step import TrainerStep, WrapperEffect, join_stages
from mindswap.features.dryrun.trainer_trace import (
    graph_mode_text,
    record_own_swap_step,
    record_trainer_step,
    trace_request,
)
from mindswap.features.simulate import LoadedStep
from mindswap.policy.formats.mindformers2.tables import refuse_pynative
from mindswap.report.html import in_notebook
from mindswap.rules.checker import check_document, policy_of, require_num_layers
from mindswap.rules.machine.software import require_mindformers
from mindswap.simulator.cost.budget import budget_of_device
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.report_data import SimulationReport
from mindswap.units import format_count

__all__ = [
    "PARALLEL_KEYS", "DryRun", "DryRunOptions", "DryRunReport", "StatusCallback", "StepDryRun", "TrainerDryRun",
    "TrainerStep", "WrapperEffect", "count_stages", "describe_basis", "dry_run_step", "dry_run_to_json",
    "dry_run_trainer", "find_left_out", "graph_mode_text", "has_mindformers_2x", "is_1f1b", "join_stages",
    "memory_limits", "num_micro_batches", "rank_lines", "read_shards",
    "record_own_swap_step", "record_trainer_step", "recorder_versions",
    "require_mindformers_2x", "require_valid_2x", "run_stages", "switched_off_2x", "trace_request",
    "trainer_dry_run_to_json",
]  # fmt: skip

NOT_INLINED_NOTE = (
    "MindSpore does not build this as it does by default (The pointer[ker_ptr] is null, of a PartialInline that is "
    "left): ran with MS_DEV_RUNTIME_CONF=switch_inline:False; a card may need that, too"
)


@dataclass(frozen=True, eq=False, repr=False)
class StepDryRun(DryRunReport):
    """A dry run report with a representation for `print` and notebooks."""

    def __str__(self) -> str:
        return format_dry_run(self)

    def _repr_html_(self) -> str:
        highest = max(self.stages, key=lambda stage: stage.used_peak_bytes)
        return in_notebook(repr(self), str(self), standalone_curve(highest))


class MemoryLimits(NamedTuple):
    """The memory arguments of `run_stages`."""

    budget_bytes: int
    counts_fragments: bool
    margin_permille: int


def run_stages(
    document: Document,
    options: DryRunOptions | None = None,
    report_status: StatusCallback = lambda line: None,
    title: str = "",
    load: Callable[[], LoadedStep] | None = None,
    budget_bytes: int | None = None,
    counts_fragments: bool = False,
    margin_permille: int = 0,
) -> StepDryRun:
    """Dry run a configuration on a rank of each pipeline stage.

    Args:
        document: a configuration of MindFormers 1.9.
        options: ranks, layers and processes.
        report_status: called with each line on the progress.
        title: name for reports.
        load: loads the step to simulate, for comparison; called while the processes run. If layers differ, the
            simulation also chooses the short models, before they run. If the step cannot be simulated, the report has
            a note with the reason.
        budget_bytes: memory budget of a card; None for no limit.
        counts_fragments: compare the peak with fragmentation with the budget.
        margin_permille: part of the budget that plans keep free.

    Raises:
        PolicyError: the configuration has errors, or its memory is planned by CANN's graph engine.
        LaunchError: a dry run is not possible here, or the backend failed.
        DataError: the folder exists and is not empty.
    """
    options = options or DryRunOptions()
    refuse_pynative(document)
    refuse_graph_engine(document)
    checked = check_document(document)
    policy = policy_of(document, checked)
    num_layers = require_num_layers(document, checked.num_layers, "a dry run: ")
    require_mindformers()
    settings = read_step_settings(document)
    ranks = options.ranks or first_ranks(settings)
    if wrong := [rank for rank in ranks if not 0 <= rank < settings.num_cards]:
        allowed = f"0 to {settings.num_cards - 1}, the ranks of the configuration"
        raise LaunchError(f"--ranks {wrong[0]}: there is no such rank\n    allowed: {allowed}")
    full = full_model(settings, num_layers)
    requested = requested_models(settings, num_layers, options.layers)
    simulation = Simulation(load)
    count = None
    if not options.is_full and document.count("micro_batch_interleave_num") == 1:
        count = choose_micro_batches(settings, num_layers, lambda number: simulation.simulate(None, number))
    with run_folder(options.folder) as folder:
        runs = RankRuns(document, settings, full, count, options.num_jobs, report_status, folder)
        chosen = ModelChoice(options, runs, policy, simulation, counts_fragments).choose(requested)
        prepare_stand_ins(report_status)
        is_truncated = len(requested) == 1 and requested[0] != full  # then nothing is extrapolated or compared
        try:
            simulated = _run(runs, ranks, chosen, lambda: None if is_truncated else simulation.simulate(None, None))
        except LaunchError as error:  # the simulation often fails for the same reason
            raise LaunchError("\n    ".join([str(error), *simulation.reasons])) from error
    stages = tuple(_stage_run(runs, rank, chosen.reduction) for rank in ranks)
    # Fragmentation is not extrapolated, so there is no verdict on it.
    lacks_fragments = counts_fragments and any(stage.actual_peak_bytes is None for stage in stages)
    return StepDryRun(
        title=title or Path(document.file).stem,
        stages=stages,
        simulated=simulated,
        num_layers=num_layers,
        depths=tuple(sorted({run.model.num_layers for run in runs.results})),
        budget_bytes=None if is_truncated or lacks_fragments else budget_bytes,
        has_cann=has_cann(),
        counts_fragments=counts_fragments,
        margin_permille=margin_permille,
        notes=(
            *chosen.notes,
            *_notes(count, settings.num_micro_batches),
            *([NOT_INLINED_NOTE] if any(not run.is_inlined for run in runs.results.values()) else []),
            *simulation.reasons,
        ),
    )


def _run(
    runs: RankRuns, ranks: tuple[int, ...], chosen: ChosenModels, simulate: Callable[[], SimulationReport | None]
) -> SimulationReport | None:
    """Run all ranks; first the reduced models, if there are any, and then all layers where that does not take long."""
    reduction = chosen.reduction
    if reduction is None or chosen.is_requested:
        return runs.run([RankRun(model, rank) for model in chosen.models for rank in ranks], simulate)
    long_ranks = [rank for rank in ranks if runs.full.stage_layers[runs.stage_of(rank)] > MAX_EXACT_LAYERS]
    tasks = [RankRun(model, rank) for model in (reduction.low, reduction.high) for rank in long_ranks]
    simulated = runs.run([*tasks, *(RankRun(runs.full, rank) for rank in ranks if rank not in long_ranks)], simulate)
    times_s = {}
    for rank in long_ranks:
        low, high = (runs.results[RankRun(model, rank)] for model in (reduction.low, reduction.high))
        times_s[rank] = reduction.estimated_s(low.cpu_s, high.cpu_s)
        verdict = "run" if times_s[rank] <= MAX_EXACT_S else "extrapolated"
        runs.report_status(f"all {runs.full.num_layers} layers, rank {rank}: about {times_s[rank]:.0f} s, so {verdict}")
    if short_ranks := [rank for rank in long_ranks if times_s[rank] <= MAX_EXACT_S]:
        runs.run([RankRun(runs.full, rank) for rank in short_ranks], lambda: None)
    return simulated


def _stage_run(runs: RankRuns, rank: int, reduction: Reduction | None) -> StageRun:
    stage = runs.stage_of(rank)
    by_layers: dict[int, DryRun] = {
        task.model.stage_layers[stage]: dry_run for task, dry_run in runs.results.items() if task.rank == rank
    }
    return stage_run(stage, runs.full.stage_layers[stage], by_layers, reduction)


def _notes(count: int | None, num_micro_batches: int) -> tuple[str, ...]:
    if count is None:
        return ()
    return (f"{format_count(count, 'micro-batch')} of {num_micro_batches} ran: the simulated peaks are the same",)


def memory_limits(device: Device) -> MemoryLimits:
    """Return the memory arguments of `run_stages` for a device."""
    budget = budget_of_device(device)
    return MemoryLimits(budget.usable_bytes, device.leaves_fragments, budget.margin_permille)


def dry_run_step(
    step: LoadedStep, options: DryRunOptions | None = None, report_status: StatusCallback = lambda line: None
) -> StepDryRun:
    """Dry run a step and compare with its simulation and the memory of its device. Raises as `run_stages`."""
    if step.path is None:
        raise LaunchError("a dry run trains a configuration, and this step was captured from a network")
    limits = memory_limits(step.device)
    return run_stages(step.document, options, report_status, step.title, lambda: step, *limits)


def first_ranks(settings: StepSettings) -> tuple[int, ...]:
    """Return the first rank of each pipeline stage."""
    return tuple(range(0, settings.num_cards, settings.num_cards // settings.pipeline.num_stages))
