"""Map independent tasks over this process, a process pool or a Ray cluster, with results in the order of the tasks."""

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from mindswap.errors import LaunchError, StoppedBySignal
from mindswap.runtime.ray_cluster import begin, connect, require_same_versions
from mindswap.system.children import STOP_GRACE_S, STOP_LIMIT_S, hold_lifeline, lifeline
from mindswap.system.environment import package_environment
from mindswap.system.scratch import remove_abandoned
from mindswap.system.signals import LIFELINE, held_signals, signals_raise

T = TypeVar("T")
R = TypeVar("R")
Tick = Callable[[], None]
# Interval of `tick` while waiting for a result.
TICK_S = 0.2
# Environment variables that change results are copied to the nodes of a cluster: those with these prefixes.
_COPIED_PREFIXES = ("ENABLE_", "HCCL_", "MS_")
SAFE_PATH = "PYTHONSAFEPATH"


class WorkerPool:
    """A pool of workers: this process, `num_jobs` processes, or every CPU of a Ray cluster.

    A task is a module-level function and its argument; both must be picklable. The result may depend on these only, so
    that a task can run on any worker, and run a second time if a node fails.

    Args:
        num_jobs: number of processes; 1 runs the tasks in this process.
        ray: address of a cluster, or `"auto"`; mindswap must be installed on its nodes.

    Attributes:
        width: number of tasks that run at the same time.

    Raises:
        LaunchError: Ray is not installed, or there is no cluster.
    """

    def __init__(self, num_jobs: int = 1, ray: str | None = None):
        self._pool: ProcessPoolExecutor | None = None
        self._ray: Any = None
        self.width = num_jobs
        if ray is not None:
            variables = {
                name: text for name, text in package_environment().items() if name.startswith(_COPIED_PREFIXES)
            }
            self._ray = connect(ray, runtime_env={"env_vars": variables})
            require_same_versions(self._ray)
            self.width = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        elif num_jobs > 1:  # spawn, because threads of MindSpore do not survive a fork
            spawn = multiprocessing.get_context("spawn")
            self._line = ExitStack()
            self._pool = ProcessPoolExecutor(num_jobs, spawn, _init_worker, (self._line.enter_context(lifeline()),))

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *error: object) -> None:
        if self._ray is not None:
            self._ray.shutdown()  # also ends the tasks
        if self._pool is not None:
            with held_signals():
                _terminate(self._pool)
                self._line.close()

    def map(self, function: Callable[[T, Tick], R], tasks: Iterable[T], tick: Tick = lambda: None) -> Iterator[R]:
        """Yield the results in the order of the tasks.

        Args:
            function: called with a task and a callback, which is `tick` if the task runs in this process.
            tasks: taken lazily, at most `width` ahead, so that a task may depend on earlier results.
            tick: called regularly while waiting; an exception that it raises ends the map.

        Raises:
            LaunchError: a worker process was killed.
        """
        if self._pool is None and self._ray is None:
            yield from (function(task, tick) for task in tasks)
            return
        waiting: deque[Future[R]] = deque()
        try:
            for task in tasks:
                waiting.append(self._submit(function, task))
                if len(waiting) >= self.width:
                    yield _wait_for_result(waiting.popleft(), tick)
            while waiting:
                yield _wait_for_result(waiting.popleft(), tick)
        except Exception as error:
            if not self._is_lost(error):
                raise
            fix = "fewer --jobs" if self._pool is not None else "ray status: are nodes and memory left?"
            raise LaunchError(
                f"a process that planned was killed, maybe for want of memory\n    fix:     {fix}"
            ) from error
        finally:
            for future in waiting:
                future.cancel()

    def _is_lost(self, error: Exception) -> bool:
        if self._ray is None:
            return isinstance(error, BrokenProcessPool)
        errors = self._ray.exceptions
        return isinstance(error, errors.RayError) and not isinstance(error, errors.RayTaskError)

    def _submit(self, function: Callable[[T, Tick], R], task: T) -> "Future[R]":
        if self._pool is not None:
            with _safe_path():  # `submit` starts the process
                return self._pool.submit(_run, function, task)
        return begin(self._ray, function, task, _ignore_tick)


def _wait_for_result(future: "Future[R]", tick: Tick) -> R:
    while True:
        try:
            return future.result(TICK_S)
        except futures.TimeoutError:  # the built-in one from Python 3.11 on
            if future.done():
                raise  # a TimeoutError of the task itself
            tick()


def _ignore_tick() -> None:
    """The `tick` of tasks in other processes."""


@contextmanager
def _safe_path() -> Iterator[None]:
    """Set PYTHONSAFEPATH, so that started processes import no module from the working directory (Python 3.11)."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


def _run(function: Callable[[T, Tick], R], task: T) -> R:
    """Run a task in a worker process; a signal ends the process."""
    try:
        return function(task, _ignore_tick)
    except StoppedBySignal as stop:
        os._exit(stop.exit_code)  # raising would deliver the signal to the parent process


_worker_resources = ExitStack()  # context managers that a worker process keeps open until it ends


def _init_worker(lifeline_address: str) -> None:
    """Prepare a worker process: it ends with its parent, and only the parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker_resources.enter_context(signals_raise())
    hold_lifeline({LIFELINE: lifeline_address}, signal.SIGTERM)


def _terminate(pool: ProcessPoolExecutor) -> None:
    """Terminate the worker processes without waiting for results."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    limit_s = time.monotonic() + STOP_GRACE_S
    for process in processes:
        process.join(max(0.0, limit_s - time.monotonic()))
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.kill()
        process.join(STOP_LIMIT_S)
    if alive:
        remove_abandoned()
