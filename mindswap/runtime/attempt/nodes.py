"""Driver side of the nodes of an adaptive run: this machine."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from mindswap.errors import LaunchError
from mindswap.runtime.attempt.checkpoints import CheckpointKey, incomplete_on
from mindswap.runtime.attempt.model import Ended, Outcome
from mindswap.runtime.attempt.node import NodeTask, TrainingNode
from mindswap.runtime.attempt.watch import LogProgress, merge_progress
from mindswap.runtime.ray_cluster import (
    NodeLostError,
)

# Rank of a node -> arguments of a call on it.
Arguments = Callable[[int], tuple[Any, ...]]


class Nodes:
    """Nodes of a run on this machine; base class of `ray_nodes.RayNodes`.

    Attributes:
        step: last step that all workers of the attempt completed.
        startup_s: time from the start to the first step; 0 while unknown.
    """

    def __init__(self, task: NodeTask) -> None:
        self.step = 0
        self.startup_s = 0.0
        self._task = task
        self._ended: list[bool | None] = []
        self._started_s = 0.0
        self._node: TrainingNode | None = None

    def connect(self) -> None:
        """Connect to the nodes.

        Raises:
            LaunchError: if a node cannot be reached, or the nodes differ.
        """
        self._node = TrainingNode(self._task)

    def ask(self, method: str, arguments: Arguments = lambda _: (), ranks: Sequence[int] | None = None) -> list[Any]:
        """Call a method of `TrainingNode` on the nodes.

        Args:
            method: name of the method.
            arguments: function from the rank of a node to its arguments.
            ranks: ranks of the nodes to call; None for all.

        Returns:
            The results in order of rank.

        Raises:
            NodeLostError: if a node is lost, after all others have returned.
        """
        return [getattr(self._node, method)(*arguments(0))]

    def reconnect_lost(self) -> list[str]:
        """Replace lost nodes by spare ones, and return a message for each.

        Raises:
            LaunchError: if no spare node is left.
        """
        return []

    def name_of(self, rank: int) -> str:
        """Return the name of the node with this rank; "" if there is one node only."""
        return ""

    def master_address(self) -> str:
        """Return the address of the node of rank 0, which runs the scheduler."""
        return "127.0.0.1"

    def choose_port(self, may_differ: bool) -> int:
        """Choose the port of the scheduler on the node of rank 0; another than the user's only if `may_differ`."""
        return int(self.ask("choose_port", lambda _: (self.master_address(), may_differ), ranks=[0])[0])

    def marks(self) -> tuple[str, ...]:
        """Return the marks of the checkpoint files on all nodes, see `CheckpointFolder.marks`."""
        return tuple(sorted({mark for marks in self.ask("marks") for mark in marks}))

    def newest(self, ignored: tuple[str, ...]) -> CheckpointKey | None:
        """Return the newest checkpoint that is complete for every rank, on the node of the rank; None if none is."""
        return max(frozenset.intersection(*self.ask("complete", lambda _: (ignored,))), default=None)

    def to_resume(self, ignored: tuple[str, ...], report_status: Callable[[str], None]) -> CheckpointKey | None:
        """Return the checkpoint to resume from, as `newest`, and report nodes that lack a newer one.

        Args:
            ignored: marks of files to ignore.
            report_status: function that prints a line for the user.

        Raises:
            LaunchError: if a node has none but the others have several, because a fresh start would discard them.
        """
        complete = self.ask("complete", lambda _: (ignored,))
        having = [rank for rank, keys in enumerate(complete) if keys]
        without = [rank for rank, keys in enumerate(complete) if not keys]
        common_checkpoints = (
            frozenset[CheckpointKey]().union(*complete).intersection(*(complete[rank] for rank in having))
        )
        if without and len(common_checkpoints) > 1:
            steps = ", ".join(str(saved.step) for saved, *_ in sorted(common_checkpoints))
            raise LaunchError(
                f"no checkpoint of its ranks is on {self._names(without)}; the others have those of steps {steps}\n"
                "    fix:     copy the rank_* folders of the node that had its place "
                f"to {self._task.checkpoints} there, or save to a disk that all nodes share; to begin at step 0, move "
                "those of the others away"
            )
        newer, lacking = incomplete_on(complete)
        if newer:
            report_status(
                f"the checkpoint of step {newer[0].step} is not complete on {self._names(lacking)}: it is not used"
            )
        return max(frozenset.intersection(*complete), default=None)

    def _names(self, ranks: Iterable[int]) -> str:
        return ", ".join(map(self.name_of, ranks))

    def full_disks(self) -> tuple[str, ...]:
        """Return a line for each full disk of a node; empty if a node is lost."""
        with contextlib.suppress(NodeLostError):
            named = ((self.name_of(rank), lines) for rank, lines in enumerate(self.ask("full_disks")))
            return tuple(f"{name}: {line}" if name else line for name, lines in named for line in lines)
        return ()

    def prepare(
        self, number: int, yaml_text: str, key: CheckpointKey | None, ignored: tuple[str, ...], port: int
    ) -> None:
        """Write the input files of the workers on each node."""
        self.ask("prepare", lambda _: (number, yaml_text, key, ignored, (self.master_address(), port)))

    def open(self, number: int) -> None:
        """Switch to the logs of an attempt."""
        self.step, self.startup_s, self._started_s = 0, 0.0, time.monotonic()
        self.ask("open", lambda _: (number,))

    def start(self) -> None:
        """Start the workers on all nodes."""
        self.ask("start")

    def look(self) -> LogProgress:
        """Read the logs, and return the progress of the training."""
        progress = merge_progress(self.ask("look"))
        self.step = max(self.step, progress.step)
        if self.step and not self.startup_s:
            self.startup_s = time.monotonic() - self._started_s
        return progress

    def is_over(self) -> bool:
        """Return whether workers of a node failed, or all workers ended."""
        self._ended = self.ask("ended")
        return False in self._ended or None not in self._ended

    def explain(self) -> Ended:
        """Return why the workers ended; out of memory on any node takes precedence."""
        ranks = [rank for rank, ended in enumerate(self._ended) if ended is False] or range(len(self._ended))
        events = zip(ranks, self.ask("explain", ranks=ranks), strict=True)
        event = first_cause([_placed(event, self.name_of(rank)) for rank, event in events])
        memory = self.look().out_of_memory
        if False in self._ended and event.outcome is not Outcome.OUT_OF_MEMORY and memory:
            worker, oom_event = memory  # from a node whose msrun is still running
            event = Ended(
                Outcome.OUT_OF_MEMORY, 0, oom_event.text, worker=worker, missing_bytes=oom_event.missing_bytes
            )
        return replace(event, step=self.step)

    def stop_all(self) -> None:
        """Stop all workers on all reachable nodes."""
        with contextlib.suppress(NodeLostError):
            self.ask("stop_all")

    def close(self) -> None:
        """Disconnect from the nodes."""
        with contextlib.suppress(NodeLostError):
            self.ask("close")


def _placed(event: Ended, node: str) -> Ended:
    """Add the name of the node to the text of an event."""
    if not node or not event.text:
        return event
    is_report = event.outcome is Outcome.FAILED
    return replace(event, text=f"    on {node}:\n{event.text}" if is_report else f"{event.text} on {node}")


def first_cause(events: Sequence[Ended]) -> Ended:
    """Return the event that caused the others: a failure on one node makes the other nodes fail, too."""
    order = (Outcome.OUT_OF_MEMORY, Outcome.KILLED, Outcome.FAILED, Outcome.FINISHED)
    return min(events, key=lambda event: order.index(event.outcome))
