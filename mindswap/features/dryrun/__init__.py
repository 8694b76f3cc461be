"""`mindswap dryrun`: one training step on MindSpore's Ascend backend without a card, to measure memory.

Each pipeline stage runs on one rank. Long models run at two short depths, and their memory is extrapolated linearly to
all layers. The step is also simulated, and reports compare both.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from mindswap.adapters.mindrecord import SYNTHETIC_NAME, write_synthetic_data
from mindswap.config.nodes import Document
from mindswap.config.step_settings import StepSettings, read_step_settings
from mindswap.errors import GraphError, LaunchError, MindswapError, SimulationError
from mindswap.features.dryrun.backend import StatusCallback, run_rank
from mindswap.features.dryrun.cann_stand_ins import has_cann, stub_libraries
from mindswap.features.dryrun.depths import DryRunOptions, ShortModel, choose_depths, choose_micro_batches, short_model
from mindswap.features.dryrun.memory_pool import DryRun
from mindswap.features.dryrun.page import standalone_curve
from mindswap.features.dryrun.report import dry_run_to_json, format_dry_run
from mindswap.features.dryrun.stage_runs import DryRunReport, stage_run
from mindswap.features.simulate import LoadedStep
from mindswap.files import make_fresh
from mindswap.graph.capture_cache import make_key, open_samples_cache
from mindswap.policy.formats.mindformers2.tables import refuse_pynative
from mindswap.report.html import in_notebook
from mindswap.rules.checker import check_document, policy_of, require_num_layers
from mindswap.rules.machine.software import require_mindformers
from mindswap.runtime.short_run import SyntheticData, write_backend_config
from mindswap.runtime.text.samples import data_columns, vocabulary_size
from mindswap.simulator.cost.budget import budget_of_device
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.report_data import SimulationReport
from mindswap.system.disk_cache import cached_folder
from mindswap.system.scratch import scratch_folder

__all__ = [
    "DryRun", "DryRunOptions", "DryRunReport", "StatusCallback", "StepDryRun", "dry_run_step", "dry_run_to_json",
    "memory_limits", "run_stages",
]  # fmt: skip

NOT_INLINED_NOTE = (
    "MindSpore does not build this as it does by default (The pointer[ker_ptr] is null, of a PartialInline that is "
    "left): ran with MS_DEV_RUNTIME_CONF=switch_inline:False; a card may need that, too"
)
T = TypeVar("T")
R = TypeVar("R")


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
        PolicyError: the configuration has errors.
        LaunchError: a dry run is not possible here, or the backend failed.
        DataError: the folder exists and is not empty.
    """
    options = options or DryRunOptions()
    refuse_pynative(document)
    checked = check_document(document)
    policy = policy_of(document, checked)
    num_layers = require_num_layers(document, checked.num_layers, "a dry run: ")
    require_mindformers()
    settings = read_step_settings(document)
    num_stages = settings.pipeline.num_stages
    ranks = options.ranks or first_ranks(settings)
    if wrong := [rank for rank in ranks if not 0 <= rank < settings.num_cards]:
        allowed = f"0 to {settings.num_cards - 1}, the ranks of the configuration"
        raise LaunchError(f"--ranks {wrong[0]}: there is no such rank\n    allowed: {allowed}")
    full, load_once, reasons = short_model(settings, num_layers), cache(load) if load else None, dict[str, None]()

    @cache
    def simulate(layer_indices: tuple[int, ...] | None, count: int | None) -> SimulationReport | None:
        try:
            return load_once().truncated(layer_indices, count).simulate().report() if load_once else None
        except (GraphError, SimulationError) as error:
            reasons[f"not simulated: {str(error).splitlines()[0]}"] = None
            return None

    count = None
    if not options.is_full and document.count("micro_batch_interleave_num") == 1:
        count = choose_micro_batches(settings, num_layers, lambda number: simulate(None, number))
    chosen = choose_depths(
        options,
        settings,
        num_layers,
        policy,
        simulate=lambda indices: simulate(indices, None if indices is None else count),
        has_few_micro_batches=count is not None,
    )
    models = chosen.models
    is_truncated = len(models) == 1 and models[0] != full  # then nothing is extrapolated or compared
    with _run_folder(options.folder) as folder:
        files = {
            model: write_backend_config(
                document,
                policy,
                settings.num_cards,
                None if model == full else model.layer_indices,
                _cached_samples,
                folder / f"layers_{model.num_layers}",
                count,
            )
            for model in models
        }
        if not has_cann():
            report_status("making stand-ins for CANN, or taking those that are there")
            stub_libraries()

        def run(task: tuple[ShortModel, int], report_task_status: StatusCallback, stop: Callable[[], bool]) -> DryRun:
            model, rank = task
            name, file = f"{model.num_layers} of {num_layers} layers, rank {rank}", files[model]
            rank_folder = file.with_name(f"rank_{rank}")
            dry_run = run_rank(
                file, rank_folder, rank, settings.num_cards, lambda line: report_task_status(f"{name}: {line}"), stop
            )
            report_task_status(f"{name}: peak {dry_run.used_peak_bytes >> 20} MiB, {dry_run.wall_s:.0f} s")
            return dry_run

        # The longest model first: with several processes it determines the total time.
        tasks = [(model, rank) for model in reversed(models) for rank in ranks]
        try:
            dry_runs, simulated = _run_concurrently(
                tasks, run, options.num_jobs, report_status, lambda: None if is_truncated else simulate(None, None)
            )
        except LaunchError as error:  # the simulation often fails for the same reason
            raise LaunchError("\n    ".join([str(error), *reasons])) from error
    size = settings.num_cards // num_stages
    stages = []
    for rank in ranks:
        stage = rank // size
        runs = {model.stage_layers[stage]: dry_runs[model, rank] for model in models}
        line_error_bytes = chosen.line_errors_bytes[stage] if chosen.line_errors_bytes else None
        stages.append(stage_run(stage, full.stage_layers[stage], runs, line_error_bytes))
    return StepDryRun(
        title=title or Path(document.file).stem,
        stages=tuple(stages),
        simulated=simulated,
        num_layers=num_layers,
        depths=tuple(model.num_layers for model in models),
        budget_bytes=None if is_truncated else budget_bytes,
        has_cann=has_cann(),
        counts_fragments=counts_fragments,
        margin_permille=margin_permille,
        notes=(
            *_notes(models, num_layers, chosen.caveat, count, settings.num_micro_batches),
            *([NOT_INLINED_NOTE] if any(not run.is_inlined for run in dry_runs.values()) else []),
            *reasons,
        ),
    )


def _run_concurrently(
    tasks: Sequence[T],
    run: Callable[[T, StatusCallback, Callable[[], bool]], DryRun],
    num_jobs: int,
    report_status: StatusCallback,
    meanwhile: Callable[[], R],
) -> tuple[dict[T, DryRun], R]:
    """Run tasks in threads, and `meanwhile` in this thread.

    `meanwhile` starts after the first task has started its process: it may compile a network, which blocks all other
    threads.

    Args:
        tasks: arguments of `run`.
        run: runs a task; called with the task, a status callback, and a function that returns whether to stop.
        num_jobs: number of threads.
        report_status: called with one line of progress.
        meanwhile: called once.

    Returns:
        The result of each task, and that of `meanwhile`.
    """
    is_stopped, is_started = threading.Event(), threading.Event()

    def report_task_status(line: str) -> None:
        report_status(line)
        is_started.set()

    def run_task(task: T) -> DryRun:
        try:
            return run(task, report_task_status, is_stopped.is_set)
        finally:
            is_started.set()

    with ThreadPoolExecutor(num_jobs) as pool:
        try:
            results = pool.map(run_task, tasks)  # starts immediately
            is_started.wait()
            other_result = meanwhile()
            return dict(zip(tasks, results, strict=True)), other_result
        except BaseException:
            is_stopped.set()
            pool.shutdown(cancel_futures=True)
            raise


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


def _cached_samples(document: Document) -> SyntheticData:
    """Write synthetic training data, or take it from the cache: the writer needs five seconds to start."""
    settings, columns = read_step_settings(document), data_columns(document)
    num_samples = settings.num_tokens // settings.seq_length
    key = make_key(
        seq_length=settings.seq_length, num_samples=num_samples, size=vocabulary_size(document), columns=columns
    )
    folder = cached_folder(
        open_samples_cache(), "samples", key, lambda folder: write_synthetic_data(folder, document, 1)
    )
    return SyntheticData(str(folder / SYNTHETIC_NAME), columns)


@contextmanager
def _run_folder(requested: Path | None) -> Iterator[Path]:
    """Yield the requested folder, or a scratch folder, which is kept after a failure because of its log."""
    if requested is None:
        with scratch_folder("dryrun", kept_on=(MindswapError,)) as folder:
            yield folder
    else:
        make_fresh(requested)
        yield requested.absolute()  # capturing the network for the simulation changes the working directory


def first_ranks(settings: StepSettings) -> tuple[int, ...]:
    """Return the first rank of each pipeline stage."""
    return tuple(range(0, settings.num_cards, settings.num_cards // settings.pipeline.num_stages))


def _notes(
    models: Sequence[ShortModel], num_layers: int, caveat: str, count: int | None, num_micro_batches: int
) -> tuple[str, ...]:
    notes = []
    depths = " and ".join(str(model.num_layers) for model in models)
    if models[-1].num_layers == num_layers:
        pass
    elif len(models) == 1:
        notes.append(
            f"{depths} of {num_layers} layers were run: all figures are of those alone, and nothing is compared"
        )
    else:
        notes.append(f"{depths} of {num_layers} layers were run: the figures are on the straight line through them")
        if caveat:
            notes.append(f"layers differ in what they swap and recompute; {caveat}: --full runs all of them")
    if count is not None:
        notes.append(f"{count} of {num_micro_batches} micro-batches were run: the simulated peaks are the same")
    return tuple(notes)
