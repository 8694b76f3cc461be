"""Independent tasks in this process, in several, or on the nodes of a Ray cluster: the same answers, in their order."""

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
# How often `tick` is called while an answer is waited for.
TICK_S = 0.2
# What decides an answer, and is taken along to other machines: variables that begin so.
_COPIED_PREFIXES = ("ENABLE_", "HCCL_", "MS_")
SAFE_PATH = "PYTHONSAFEPATH"


class Spread:
    """Where tasks run: here, or in `num_jobs` processes, or on every CPU of a Ray cluster.

    A task is a function of a module and what it is given, both of which can be pickled, and its answer follows from
    these alone: so it may run anywhere, and again where a node was lost.

    Args:
        num_jobs: processes; 1 for this one.
        ray: address of a cluster, or `"auto"`; its nodes have this package.

    Raises:
        LaunchError: Ray is not installed, or there is no cluster.
    """

    def __init__(self, num_jobs: int = 1, ray: str | None = None):
        self._pool: ProcessPoolExecutor | None = None
        self._ray: Any = None
        self.width = num_jobs  # tasks at a time
        if ray is not None:
            variables = {
                name: text for name, text in package_environment().items() if name.startswith(_COPIED_PREFIXES)
            }
            self._ray = connect(ray, runtime_env={"env_vars": variables})
            require_same_versions(self._ray)
            self.width = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        elif num_jobs > 1:  # MindSpore has threads, which a fork would not take along
            spawn = multiprocessing.get_context("spawn")
            self._line = ExitStack()
            self._pool = ProcessPoolExecutor(num_jobs, spawn, _init_worker, (self._line.enter_context(lifeline()),))

    def __enter__(self) -> "Spread":
        return self

    def __exit__(self, *error: object) -> None:
        if self._ray is not None:
            self._ray.shutdown()  # ends the tasks, too
        if self._pool is not None:
            with held_signals():
                _terminate(self._pool)
                self._line.close()

    def map(self, function: Callable[[T, Tick], R], tasks: Iterable[T], tick: Tick = lambda: None) -> Iterator[R]:
        """The answers, in the order of the tasks, of which no more are taken ahead than run at a time.

        Args:
            function: of a task, and of what it may call now and then; that is `tick` in this process only.
            tasks: may depend on the answers before them.
            tick: called now and then; what it raises ends the map.

        Raises:
            LaunchError: a process was killed.
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
            with _safe_path():  # this starts the process
                return self._pool.submit(_run, function, task)
        return begin(self._ray, function, task, _ignore_tick)


def _wait_for_result(future: "Future[R]", tick: Tick) -> R:
    while True:
        try:
            return future.result(TICK_S)
        except futures.TimeoutError:  # the built-in one from Python 3.11 on
            if future.done():
                raise  # of the task itself
            tick()


def _ignore_tick() -> None:
    """For tasks that nobody watches."""


@contextmanager
def _safe_path() -> Iterator[None]:
    """While this lasts, a process that is started imports no module of the working folder (from Python 3.11 on)."""
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
    """Run a task in a process of the pool, which a signal ends."""
    try:
        return function(task, _ignore_tick)
    except StoppedBySignal as stop:
        os._exit(stop.exit_code)  # an answer would be the signal of the process that asked


_worker_resources = ExitStack()  # what a process of the pool has open until its end


def _init_worker(line: str) -> None:
    """Prepare a process of the pool, which ends with the one that started it; Ctrl-C is for that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker_resources.enter_context(signals_raise())
    hold_lifeline({LIFELINE: line}, signal.SIGTERM)


def _terminate(pool: ProcessPoolExecutor) -> None:
    """End what runs, whose answers nobody waits for."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    limit_s = time.monotonic() + STOP_GRACE_S
    for process in processes:
        process.join(max(0.0, limit_s - time.monotonic()))
    late = [process for process in processes if process.is_alive()]
    for process in late:
        process.kill()
        process.join(STOP_LIMIT_S)
    if late:
        remove_abandoned()
