"""Dry runs of several models and ranks: their configurations, processes in parallel, and progress."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from mindswap.adapters.mindrecord import SYNTHETIC_NAME, write_synthetic_data
from mindswap.config.nodes import Document
from mindswap.config.source import load_document
from mindswap.config.step_settings import StepSettings, read_step_settings
from mindswap.errors import MindswapError
from mindswap.features.dryrun.backend import StatusCallback, run_rank
from mindswap.features.dryrun.depths import ReducedModel
from mindswap.features.dryrun.memory_pool import DryRun
from mindswap.files import make_fresh
from mindswap.graph.capture_cache import make_key, open_samples_cache
from mindswap.policy.equivalence import truncated_policy
from mindswap.policy.model import Policy
from mindswap.rules.checker import check_document, policy_of
from mindswap.runtime.short_run import SyntheticData, write_backend_config
from mindswap.runtime.text.samples import data_columns, vocabulary_size
from mindswap.system.disk_cache import cached_folder
from mindswap.system.scratch import scratch_folder

T = TypeVar("T")
R = TypeVar("R")


class RankRun(NamedTuple):
    """A model and the rank that runs it."""

    model: ReducedModel
    rank: int


@dataclass(eq=False)
class RankRuns:
    """Dry runs of a configuration, in one folder.

    Attributes:
        document: the configuration.
        settings: its settings.
        full: the model with all layers.
        num_micro_batches: number of micro-batches; None for that of the configuration.
        num_jobs: number of concurrent processes.
        report_status: called with each line on the progress.
        folder: folder for all files.
        results: dry runs so far.
    """

    document: Document
    settings: StepSettings
    full: ReducedModel
    num_micro_batches: int | None
    num_jobs: int
    report_status: StatusCallback
    folder: Path
    results: dict[RankRun, DryRun] = field(default_factory=dict)
    _files: dict[ReducedModel, Path] = field(default_factory=dict)

    def run(self, tasks: Sequence[RankRun], meanwhile: Callable[[], R]) -> R:
        """Run models on ranks, longest first, because with several processes they determine the total time.

        Args:
            tasks: what to run.
            meanwhile: called once while the processes run.

        Returns:
            The result of `meanwhile`.
        """
        for model in dict.fromkeys(task.model for task in tasks):
            self.write(model)
        in_order = sorted(tasks, key=lambda task: -task.model.num_layers)
        dry_runs, result = run_concurrently(in_order, self._run_task, self.num_jobs, self.report_status, meanwhile)
        self.results |= dry_runs
        return result

    def stage_of(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return rank // (self.settings.num_cards // self.settings.pipeline.num_stages)

    def write(self, model: ReducedModel) -> Path:
        """Return the configuration of a model, which is written once."""
        if model not in self._files:
            self._files[model] = write_backend_config(
                self.document,
                self.full.num_layers,
                self.settings.num_cards,
                None if model == self.full else model.layer_indices,
                _cached_samples,
                self.folder / f"layers_{model.num_layers}",
                self.num_micro_batches,
            )
        return self._files[model]

    def has_same_policy(self, model: ReducedModel, policy: Policy) -> bool:
        """Return whether each layer of the written configuration has the settings of the layer of the full model."""
        document = load_document(str(self.write(model)))
        checked = check_document(document, environ={}, is_training_start=True)
        return not checked.errors and policy_of(document, checked) == truncated_policy(policy, model.layer_indices)

    def _run_task(self, task: RankRun, report_task_status: StatusCallback, stop: Callable[[], bool]) -> DryRun:
        model, rank = task
        num_stages = self.settings.pipeline.num_stages
        place = f"rank {rank}" + (f" (stage {self.stage_of(rank) + 1} of {num_stages})" if num_stages > 1 else "")
        name, file = f"{model.num_layers} of {self.full.num_layers} layers, {place}", self.write(model)
        dry_run = run_rank(
            file,
            file.with_name(f"rank_{rank}"),
            rank,
            self.settings.num_cards,
            lambda line: report_task_status(f"{name}: {line}"),
            stop,
        )
        report_task_status(f"{name}: peak {dry_run.used_peak_bytes >> 20} MiB, {dry_run.wall_s:.0f} s")
        return dry_run


def run_concurrently(
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
def run_folder(requested: Path | None) -> Iterator[Path]:
    """Yield the requested folder, or a scratch folder, which is kept after a failure because of its log."""
    if requested is None:
        with scratch_folder("dryrun", kept_on=(MindswapError,)) as folder:
            yield folder
    else:
        make_fresh(requested)
        yield requested.absolute()  # capturing the network for the simulation changes the working directory
