"""Dry runs of pipeline stages: of all layers, or on the line through two short depths, beside the simulated step."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TypeVar

from mindswap.adapters.mindrecord import SYNTHETIC_NAME, write_synthetic_data
from mindswap.config.nodes import Document
from mindswap.config.step_settings import StepSettings, read_step_settings
from mindswap.errors import GraphError, LaunchError, MindswapError, SimulationError
from mindswap.features.dryrun.backend import StatusCallback, run_rank
from mindswap.features.dryrun.cann_stand_ins import has_cann, stub_libraries
from mindswap.features.dryrun.memory_pool import DryRun
from mindswap.features.dryrun.page import standalone_curve
from mindswap.features.dryrun.report import dry_run_to_json, format_dry_run
from mindswap.features.dryrun.stage_runs import DryRunReport, stage_run
from mindswap.features.simulate import LoadedStep
from mindswap.files import make_fresh
from mindswap.graph.capture_cache import make_key, open_samples_cache
from mindswap.policy.equivalence import retained_layers
from mindswap.policy.formats.mindformers2.tables import refuse_pynative
from mindswap.policy.model import ENTRY_FIELDS, Policy
from mindswap.report.html import in_notebook
from mindswap.rules.checker import check_document, policy_of, require_num_layers
from mindswap.rules.machine.software import require_mindformers
from mindswap.runtime.short_run import SyntheticData, write_backend_config
from mindswap.runtime.text.samples import data_columns, vocabulary_size
from mindswap.simulator.cost.budget import budget_of_device
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.layout import lay_out_stages
from mindswap.simulator.report_data import SimulationReport
from mindswap.system.disk_cache import cached_folder
from mindswap.system.scratch import scratch_folder

__all__ = [
    "DryRun", "DryRunOptions", "DryRunReport", "StatusCallback", "StepDryRun", "dry_run_step", "dry_run_to_json",
    "memory_limits", "run_stages",
]  # fmt: skip

# Layers of a stage that are run at most where nothing is asked for; of each chunk half as many with several of them.
MAX_SHORT_LAYERS = 6
# Of a pipeline with more micro-batches so few are run as have the same simulated peaks, but for this part: a step of
# many takes long, and MindSpore compiles no swap that reaches far of more than `MAX_INLINED_MICRO_BATCHES`.
MAX_MICRO_BATCHES, PEAK_TOLERANCE = 32, 1e-3
# Layers of all stages together that are run at most where nothing is asked for and there are few micro-batches.
MAX_LAYERS_FEW_MICRO_BATCHES = 24
NOT_INLINED_NOTE = (
    "MindSpore does not build this as it does by default (The pointer[ker_ptr] is null, of a PartialInline that is "
    "left): ran with MS_DEV_RUNTIME_CONF=switch_inline:False; a card may need that, too"
)
T = TypeVar("T")
R = TypeVar("R")
# The simulated step: of the whole model, or of one whose layers stand for some of its layers; None where there is none.
Simulate = Callable[[tuple[int, ...] | None], SimulationReport | None]


@dataclass(frozen=True)
class DryRunOptions:
    """Options of a dry run."""

    ranks: tuple[int, ...] = ()  # whose memory is asked for; empty: the first of each pipeline stage
    layers: tuple[int, ...] = ()  # layers of the models to run: one depth, or two for a straight line; empty: chosen
    is_full: bool = False  # run all layers
    num_jobs: int = 1  # processes at a time
    folder: Path | None = None  # where the raw tables stay; None keeps nothing


@dataclass(frozen=True, eq=False, repr=False)
class StepDryRun(DryRunReport):
    """A dry run that `print` and a notebook show."""

    def __str__(self) -> str:
        return format_dry_run(self)

    def _repr_html_(self) -> str:
        highest = max(self.stages, key=lambda stage: stage.used_peak_bytes)
        return in_notebook(repr(self), str(self), standalone_curve(highest))


@dataclass(frozen=True)
class _ShortModel:
    """The model with fewer layers, or with all of them."""

    kept: tuple[int, ...]  # layers of the whole model that its layers stand for
    stage_layers: tuple[int, ...]  # layers of each stage


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
        options: how.
        report_status: called with each line on the progress.
        title: name for reports.
        load: gives the step whose simulation is shown beside; called while the processes run. Where layers differ, it
            also chooses the short models, before. What cannot be simulated is dry run all the same, a note says why.
        budget_bytes: memory that may be used.
        counts_fragments: hold the peak with fragments against it.
        margin_permille: part of that memory which plans keep free.

    Raises:
        PolicyError: the configuration has mistakes.
        LaunchError: it cannot be run here, or the backend fails.
        DataError: the folder is there, and not empty.
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
    whole, loaded, reasons = _short_model(settings, num_layers), cache(load) if load else None, dict[str, None]()

    @cache
    def simulate(kept: tuple[int, ...] | None, count: int | None) -> SimulationReport | None:
        try:
            return loaded().short(kept, count).simulate().report() if loaded else None
        except (GraphError, SimulationError) as error:
            reasons[f"not simulated: {str(error).splitlines()[0]}"] = None
            return None

    count = None
    if not options.is_full and document.count("micro_batch_interleave_num") == 1:
        count = choose_micro_batches(settings, num_layers, lambda number: simulate(None, number))
    depths, doubt, line_errors_bytes = choose_depths(
        options,
        settings,
        num_layers,
        policy,
        lambda kept: simulate(kept, None if kept is None else count),
        has_few_micro_batches=count is not None,
    )
    is_cut = len(depths) == 1 and depths[0] != whole  # of another model than the one that is simulated
    with _run_folder(options.folder) as folder:
        files = {
            depth: write_backend_config(
                document,
                policy,
                settings.num_cards,
                None if depth == whole else depth.kept,
                _cached_samples,
                folder / f"layers_{len(depth.kept)}",
                count,
            )
            for depth in depths
        }
        if not has_cann():
            report_status("making stand-ins for CANN, or taking those that are there")
            stub_libraries()

        def run(task: tuple[_ShortModel, int], report_task_status: StatusCallback, stop: Callable[[], bool]) -> DryRun:
            depth, rank = task
            name, file = f"{len(depth.kept)} of {num_layers} layers, rank {rank}", files[depth]
            place = file.with_name(f"rank_{rank}")
            found = run_rank(
                file, place, rank, settings.num_cards, lambda line: report_task_status(f"{name}: {line}"), stop
            )
            report_task_status(f"{name}: peak {found.used_peak_bytes >> 20} MiB, {found.wall_s:.0f} s")
            return found

        # The deepest first: with several processes it decides how long all take.
        tasks = [(depth, rank) for depth in reversed(depths) for rank in ranks]
        try:
            found, simulated = _run_concurrently(
                tasks, run, options.num_jobs, report_status, lambda: None if is_cut else simulate(None, None)
            )
        except LaunchError as error:  # often for the same reason
            raise LaunchError("\n    ".join([str(error), *reasons])) from error
    size = settings.num_cards // num_stages
    stages = []
    for rank in ranks:
        stage = rank // size
        runs = {depth.stage_layers[stage]: found[depth, rank] for depth in depths}
        stages.append(
            stage_run(stage, whole.stage_layers[stage], runs, line_errors_bytes[stage] if line_errors_bytes else None)
        )
    return StepDryRun(
        title=title or Path(document.file).stem,
        stages=tuple(stages),
        simulated=simulated,
        num_layers=num_layers,
        depths=tuple(len(depth.kept) for depth in depths),
        budget_bytes=None if is_cut else budget_bytes,
        has_cann=has_cann(),
        counts_fragments=counts_fragments,
        margin_permille=margin_permille,
        notes=(
            *_notes(depths, num_layers, doubt, count, settings.num_micro_batches),
            *([NOT_INLINED_NOTE] if any(not run.is_inlined for run in found.values()) else []),
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
    """What `run` makes of each task in threads, told where to speak and when to stop; and of `meanwhile`, here.

    That begins when the first of them has: the compiler, which a simulation asks, lets no other thread run.
    """
    is_stopped, is_started = threading.Event(), threading.Event()

    def report_task_status(line: str) -> None:
        report_status(line)
        is_started.set()

    def one(task: T) -> DryRun:
        try:
            return run(task, report_task_status, is_stopped.is_set)
        finally:
            is_started.set()

    with ThreadPoolExecutor(num_jobs) as pool:
        try:
            results = pool.map(one, tasks)  # begins at once
            is_started.wait()
            beside = meanwhile()
            return dict(zip(tasks, results, strict=True)), beside
        except BaseException:
            is_stopped.set()
            pool.shutdown(cancel_futures=True)
            raise


def memory_limits(device: Device) -> tuple[int, bool, int]:
    """Last three arguments of `run_stages` for a device."""
    budget = budget_of_device(device)
    return budget.usable_bytes, device.leaves_fragments, budget.margin_permille


def dry_run_step(
    step: LoadedStep, options: DryRunOptions | None = None, report_status: StatusCallback = lambda line: None
) -> StepDryRun:
    """A dry run of a step beside its simulation, held against the memory of its device; errors as of `run_stages`."""
    if step.path is None:
        raise LaunchError("a dry run trains a configuration, and this step was captured from a network")
    limits = memory_limits(step.device)
    return run_stages(step.document, options, report_status, step.title, lambda: step, *limits)


def _cached_samples(document: Document) -> SyntheticData:
    """Kept, as what writes them takes five seconds to start."""
    settings, columns = read_step_settings(document), data_columns(document)
    num_samples = settings.num_tokens // settings.seq_length
    key = make_key(
        seq_length=settings.seq_length, num_samples=num_samples, size=vocabulary_size(document), columns=columns
    )
    kept = cached_folder(open_samples_cache(), "samples", key, lambda folder: write_synthetic_data(folder, document, 1))
    return SyntheticData(str(kept / SYNTHETIC_NAME), columns)


@contextmanager
def _run_folder(asked: Path | None) -> Iterator[Path]:
    """The folder for runs that is asked for, or a scratch one, which stays after a failure, with its log."""
    if asked is None:
        with scratch_folder("dryrun", kept_on=(MindswapError,)) as folder:
            yield folder
    else:
        make_fresh(asked)
        yield asked.absolute()  # MindSpore, which the simulation asks meanwhile, changes the working directory


def _short_model(settings: StepSettings, num_layers: int, per_chunk: int | None = None) -> _ShortModel:
    """The model with so many layers for each chunk of each stage; None for all of them."""
    kept: list[int] = []
    stage_layers = [0] * settings.pipeline.num_stages
    for cell in settings.pipeline.layout(num_layers).cells():
        count = len(cell.layers) if per_chunk is None else per_chunk
        kept += [cell.layers[i] for i in retained_layers(len(cell.layers), count)] if count else []
        stage_layers[cell.stage] += count
    return _ShortModel(tuple(kept), tuple(stage_layers))


def choose_micro_batches(
    settings: StepSettings, num_layers: int, simulate: Callable[[int | None], SimulationReport | None]
) -> int | None:
    """Micro-batches of a pipeline that are enough for the peak of all of them; None where all have to be run.

    `simulate` gives the simulated step of so many; None of all.
    """
    is_long = settings.pipeline.num_stages > 1 and settings.num_micro_batches > MAX_MICRO_BATCHES
    if not is_long:
        return None
    layout = lay_out_stages(settings.pipeline, num_layers, settings.num_micro_batches, settings.num_sequences)
    counts = {layout.short_of(number) for number in (2 * layout.num_stages, MAX_MICRO_BATCHES)}
    whole = simulate(None)
    for count in sorted(counts - {settings.num_micro_batches}):
        if whole is None or (short := simulate(count)) is None:
            return None
        pairs = zip(whole.stages, short.stages, strict=True)
        if all(abs(few.peak_bytes - every.peak_bytes) <= PEAK_TOLERANCE * every.peak_bytes for every, few in pairs):
            return count
    return None


def first_ranks(settings: StepSettings) -> tuple[int, ...]:
    """The first rank of each pipeline stage."""
    return tuple(range(0, settings.num_cards, settings.num_cards // settings.pipeline.num_stages))


def choose_depths(
    options: DryRunOptions,
    settings: StepSettings,
    num_layers: int,
    policy: Policy,
    simulate: Simulate = lambda kept: None,
    has_few_micro_batches: bool = False,
) -> tuple[list[_ShortModel], str, tuple[int, ...]]:
    """The depths that were asked for; else the whole model if it is short, and two short ones if it is not.

    Where the line through two short models cannot have as many layers of each kind as the model, those are taken whose
    simulated line comes nearest to the simulated whole. The second value says how near that is; "" where nothing is
    to be said. The third has the bytes by which the whole is above that line, of each stage.

    Raises:
        LaunchError: layers that were asked for cannot be spread over stages and chunks.
    """
    cells = list(settings.pipeline.layout(num_layers).cells())
    shortest = min(len(cell.layers) for cell in cells)
    whole = _short_model(settings, num_layers)
    if options.layers:
        most = shortest * len(cells)
        if wrong := [n for n in options.layers if n != num_layers and (n % len(cells) or n > most)]:
            multiple = f"a multiple of {len(cells)} up to {most}" if len(cells) > 1 else f"1 to {most}"
            raise LaunchError(
                f"--layers {wrong[0]}: every stage and chunk needs as many layers\n"
                f"    allowed: {multiple}, or {num_layers}, which is all of them"
            )
        found = [
            whole if n == num_layers else _short_model(settings, num_layers, n // len(cells)) for n in options.layers
        ]
        pairs = [sorted(found, key=lambda depth: len(depth.kept))]
    else:
        most = MAX_SHORT_LAYERS if len(cells) == 1 else MAX_SHORT_LAYERS // 2
        if has_few_micro_batches:
            most = min(MAX_SHORT_LAYERS, max(most, MAX_LAYERS_FEW_MICRO_BATCHES // len(cells)))
        most = min(most, shortest)
        if options.is_full or num_layers <= most * len(cells) or most < 2:
            return [whole], "", ()
        least = 2 if len(cells) == 1 else 1
        depths = [_short_model(settings, num_layers, n) for n in range(least, most + 1)]
        pairs = [[low, high] for high in depths for low in depths if len(low.kept) < len(high.kept)]
    if len(pairs[0]) == 1 or pairs[0][-1] is whole:
        return pairs[0], "", ()
    # The fewest layers with which the line has as many layers of each kind as the model.
    off = [_mismatch(pair, whole, policy) for pair in pairs]
    best = min(range(len(pairs)), key=off.__getitem__)
    if not off[best] or (simulated := simulate(None)) is None:
        doubt = f"for {off[best]:.0%} of them the line counts layers of another kind" if off[best] else ""
        return pairs[best], doubt, ()
    reports = {depth.kept: simulate(depth.kept) or simulated for depth in chain(*pairs)}
    errors = [_extrapolation_error(pair, whole, [reports[depth.kept] for depth in pair], simulated) for pair in pairs]
    best = min(range(len(pairs)), key=lambda number: errors[number][:2])
    _, share, line_errors_bytes = errors[best]
    return (
        pairs[best],
        f"in the simulation the line is {share:.1%} off the whole model, and corrected by that",
        line_errors_bytes,
    )


def _extrapolation_error(
    pair: Sequence[_ShortModel], whole: _ShortModel, reports: Sequence[SimulationReport], simulated: SimulationReport
) -> tuple[int, float, tuple[int, ...]]:
    """Stages whose peaks are in different parts of the step, how far the line misses at most, and by how many bytes."""
    num_mixed, worst, line_errors_bytes = 0, 0.0, []
    for stage, known in enumerate(simulated.stages):
        low, high = (report.stages[stage] for report in reports)
        moments = (each.moment for each in (low, high, known))
        num_mixed += len({(moment.phase == "forward", moment.layer < 0) for moment in moments}) > 1
        first, last, all_layers = (depth.stage_layers[stage] for depth in (*pair, whole))
        share = (all_layers - last) / (last - first)
        line_errors_bytes.append(round(known.peak_bytes - high.peak_bytes - (high.peak_bytes - low.peak_bytes) * share))
        worst = max(worst, abs(line_errors_bytes[-1] / known.peak_bytes))
    return num_mixed, round(worst, 3), tuple(line_errors_bytes)


def _mismatch(pair: Sequence[_ShortModel], whole: _ShortModel, policy: Policy) -> float:
    """Layers that the line through two short models has too many or too few of some kind, as a share of all."""
    counts = [_count_layer_classes(depth, policy) for depth in (*pair, whole)]
    low, high, num_layers = (len(depth.kept) for depth in (*pair, whole))
    share = (num_layers - high) / (high - low)
    off = 0.0
    for kind in set[tuple[bool, ...]]().union(*counts):
        first, second, wanted = (count.get(kind, 0) for count in counts)
        off += abs(second + (second - first) * share - wanted)
    return round(off / num_layers, 3)


def _count_layer_classes(depth: _ShortModel, policy: Policy) -> Mapping[tuple[bool, ...], int]:
    """Layers by the entries of the policy that name them."""
    sets = [entry.layers for name in ENTRY_FIELDS for entry in getattr(policy, name)]
    sets += [policy.layer_recompute, policy.output_recompute]
    return Counter(tuple(layer in layers for layers in sets) for layer in depth.kept)


def _notes(
    depths: Sequence[_ShortModel], num_layers: int, doubt: str, count: int | None, num_micro_batches: int
) -> tuple[str, ...]:
    notes = []
    ran = " and ".join(str(len(depth.kept)) for depth in depths)
    if len(depths[-1].kept) == num_layers:
        pass
    elif len(depths) == 1:
        notes.append(f"{ran} of {num_layers} layers were run: all figures are of those alone, and nothing is compared")
    else:
        notes.append(f"{ran} of {num_layers} layers were run: the figures are on the straight line through them")
        if doubt:
            notes.append(f"layers differ in what they swap and recompute; {doubt}: --full runs all of them")
    if count is not None:
        notes.append(f"{count} of {num_micro_batches} micro-batches were run: the simulated peaks are the same")
    return tuple(notes)
