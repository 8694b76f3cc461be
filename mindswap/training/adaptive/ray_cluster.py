"""The nodes of an adaptive run on a Ray cluster, as the driver sees them."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindswap.errors import LaunchError
from mindswap.training.adaptive.checkpoints import CheckpointKey, incomplete_on
from mindswap.training.adaptive.cluster_node import (
    ClusterNode,
    NodeFacts,
    NodeTask,
    choose_nodes,
    node_mistakes,
    read_config,
)
from mindswap.training.adaptive.events import Ended, Measured, OutOfMemory
from mindswap.training.adaptive.model import Outcome
from mindswap.training.adaptive.watch import Seen
from mindswap.training.adaptive.workers import DRAIN_S
from mindswap.training.launch.cluster import (
    NPU,
    NodeLost,
    answer_of,
    connect,
    living_nodes,
    on_node,
    package_versions,
    refuse,
)
from mindswap.training.launch.processes import VARIABLE

# Of the driver's machine alone.
_OWN_VARIABLES = ("PATH", VARIABLE)


@dataclass(frozen=True)
class _Node:
    name: str  # its address
    actor: Any


class RayCluster:
    """One actor on each of `num_nodes` nodes, and `num_spare` more that take the place of a lost one."""

    def __init__(self, address: str, num_nodes: int, num_spare: int, task: NodeTask) -> None:
        self._ray: Any = None  # until it is connected
        self._address = address
        self._num_nodes, self._num_spare, self._task = num_nodes, num_spare, task
        self._nodes: list[_Node] = []
        self._spare: list[_Node] = []
        self._lost: dict[int, str] = {}  # rank -> name

    def connect(self) -> None:
        """Start the actors, and compare the nodes. Raises LaunchError: what differs, with node and value."""
        self._ray = connect(self._address)
        alive = living_nodes(self._ray)
        own, wanted = self._ray.get_runtime_context().get_node_id(), (self._num_nodes, self._num_spare)
        nodes = [self._on(node) for node in choose_nodes(alive, own, self._task.command.num_local, wanted)]
        path = self._task.command.config_path
        here = NodeFacts("here", package_versions(), read_config(path))
        refuse(node_mistakes([self._facts(node) for node in nodes], path, here))
        self._nodes, self._spare = nodes[: self._num_nodes], nodes[self._num_nodes :]
        self.ask("enter", lambda rank: (rank,))

    def _on(self, node: Mapping[str, Any]) -> _Node:
        options: dict[str, Any] = {"num_cpus": 0, **on_node(node)}
        if node["Resources"].get(NPU):
            options["resources"] = {NPU: self._task.command.num_local}
        actor = self._ray.remote(ClusterNode).options(**options).remote(self._task)
        return _Node(node["NodeManagerAddress"], actor)

    def _facts(self, node: _Node) -> NodeFacts:
        try:
            versions, config = self._get(node, node.actor.facts.remote())  # waits for its process
        except NodeLost as error:
            raise LaunchError(f"{error}: nothing starts there\n    fix:     ray status: are its NPUs free?") from error
        before_s = time.time()
        clock_s = self._get(node, node.actor.clock_s.remote())
        return NodeFacts(node.name, versions, config, clock_s - (before_s + time.time()) / 2)

    def ask(
        self,
        method: str,
        arguments: Callable[[int], tuple[Any, ...]] = lambda _: (),
        ranks: Sequence[int] | None = None,
    ) -> list[Any]:
        """Answers of all nodes, or of some, by rank. Raises NodeLost after all that live have answered."""
        calls = {
            rank: getattr(node.actor, method).remote(*arguments(rank))
            for rank, node in enumerate(self._nodes)
            if rank not in self._lost and (ranks is None or rank in ranks)
        }
        answers = []
        for rank, call in calls.items():
            try:
                answers.append(self._get(self._nodes[rank], call))
            except NodeLost:
                self._lost[rank] = self._nodes[rank].name
        if self._lost:
            raise NodeLost("; ".join(f"node {name} (node_rank {rank}) is lost" for rank, name in self._lost.items()))
        return answers

    def _get(self, node: _Node, call: Any) -> Any:
        return answer_of(self._ray, node.name, call)

    def mend(self) -> list[str]:
        """Put spare nodes in the place of lost ones; gives what was done. Raises LaunchError: none is left."""
        said = []
        for rank, name in sorted(self._lost.items()):
            if not self._spare:
                raise LaunchError(
                    f"node {name} (node_rank {rank}) is lost, and no spare node is left\n"
                    "    fix:     --spare 1, or bring it back; the same command goes on from the newest checkpoint"
                )
            self._ray.kill(self._nodes[rank].actor)
            self._nodes[rank] = self._spare.pop(0)
            del self._lost[rank]
            self._get(self._nodes[rank], self._nodes[rank].actor.enter.remote(rank))
            said.append(f"node {self._nodes[rank].name} takes the place of {name} (node_rank {rank})")
        return said

    def choose_port(self, *, may_differ: bool) -> int:
        """Where the scheduler will listen, on the node of rank 0."""
        first, port = self._nodes[0], self._task.command.master_port
        return int(self._get(first, first.actor.choose_port.remote(first.name, port, may_differ=may_differ)))

    def marks(self) -> tuple[str, ...]:
        """Of the checkpoint files on all nodes."""
        return tuple(sorted({mark for marks in self.ask("marks") for mark in marks}))

    def newest(self, ignored: tuple[str, ...], say: Callable[[str], None] | None = None) -> CheckpointKey | None:
        """The newest checkpoint that every rank has completely, on its own node; `say` hears who lacks a newer one."""
        complete = self.ask("complete", lambda _: (ignored,))
        newer, lacking = incomplete_on(complete)
        if newer and say:
            names = ", ".join(map(self.name_of, lacking))
            say(f"the checkpoint of step {newer[0].step} is not complete on {names}: it is not used")
        return max(frozenset.intersection(*complete), default=None)

    def full_disks(self) -> tuple[str, ...]:
        """Where nodes have no room left; nothing of nodes that are lost."""
        with contextlib.suppress(NodeLost):
            answers = enumerate(self.ask("full_disks"))
            return tuple(f"{self.name_of(rank)}: {line}" for rank, lines in answers for line in lines)
        return ()

    def name_of(self, rank: int) -> str:
        """Of the node that has this rank now."""
        return f"node {self._nodes[rank].name} (node_rank {rank})"

    def prepare(
        self, number: int, yaml_text: str, key: CheckpointKey | None, ignored: tuple[str, ...], port: int
    ) -> None:
        """Each node writes what its workers read."""
        master = (self._nodes[0].name, port)
        self.ask("prepare", lambda _: (number, yaml_text, key, ignored, master))

    def close(self) -> None:
        """Leave the cluster; the actors end, and with them what they started."""
        self._ray.shutdown()


class ClusterWorkers:
    """The workers on all nodes, in the place of `Workers`."""

    def __init__(self, cluster: RayCluster, number: int) -> None:
        self.step = 0
        self._cluster = cluster
        self._lost = ""
        self._ended: list[bool | None] = []
        self._seen = merge_seen(())
        self._started_s = time.monotonic()
        self._startup_s = 0.0
        cluster.ask("open", lambda _: (number,))

    def start(self, _words: list[str], environment: Mapping[str, str]) -> None:
        """Start them on all nodes, each with words of its own."""
        changed = {key: value for key, value in environment.items() if os.environ.get(key) != value}
        variables = {key: value for key, value in changed.items() if key not in _OWN_VARIABLES}
        self._cluster.ask("start", lambda _: (variables,))

    def look(self) -> Seen:
        """What their logs say by now."""
        try:
            self._seen = merge_seen(self._cluster.ask("look"))
        except NodeLost as error:
            self._lost = str(error)
        self.step = max(self.step, self._seen.step)
        if self.step and not self._startup_s:
            self._startup_s = time.monotonic() - self._started_s
        return self._seen

    def measured(self, seen: Seen, has_checkpoints: bool) -> Measured:
        """What was seen, as measurements of the plan."""
        startup_ns = int(self._startup_s * 1e9)
        return Measured(seen.step, seen.num_steps, seen.peak_bytes, seen.step_time_ns, startup_ns, has_checkpoints)

    def is_over(self) -> bool:
        """Workers of a node ended badly, a node is lost, or all have ended."""
        try:
            self._ended = self._cluster.ask("ended")
        except NodeLost as error:
            self._lost = str(error)
        return bool(self._lost) or False in self._ended or None not in self._ended

    def explain(self) -> Ended | OutOfMemory:
        """Why they are over: want of memory first, of whichever node."""
        deadline = time.monotonic() + DRAIN_S
        while not self._lost and not all(self._ended) and time.monotonic() < deadline:
            if self.look().out_of_memory:
                break
            time.sleep(0.1)
        if not self._lost and all(self._ended):
            return Ended(Outcome.FINISHED, self.look().step)
        if self._seen.out_of_memory:
            worker, event = self._seen.out_of_memory
            return OutOfMemory(worker, self.step, event.missing_bytes, event.text)
        if not self._lost:
            try:
                bad = [rank for rank, ended in enumerate(self._ended) if ended is False]
                found = zip(bad, self._cluster.ask("explain", ranks=bad), strict=True)
                return first_cause([_placed(event, self._cluster.name_of(rank), self.step) for rank, event in found])
            except NodeLost as error:
                self._lost = str(error)
        return Ended(Outcome.KILLED, self.step, self._lost)

    def stop_all(self) -> None:
        """End all of them, on all nodes that answer."""
        try:
            self._cluster.ask("stop_all")
        except NodeLost as error:
            self._lost = str(error)

    def close(self) -> None:
        """Their logs are not read any more."""
        try:
            self._cluster.ask("close")
        except NodeLost as error:
            self._lost = str(error)


def merge_seen(seen: Sequence[Seen]) -> Seen:
    """What the logs of all nodes say together."""
    events = [one.out_of_memory for one in seen if one.out_of_memory]
    return Seen(
        step=min((one.step for one in seen), default=0),
        num_steps=max((one.num_steps for one in seen), default=0),
        num_timed_steps=min((one.num_timed_steps for one in seen), default=0),
        step_time_ns=max((one.step_time_ns for one in seen), default=0),
        peak_bytes=max((one.peak_bytes for one in seen if one.peak_bytes is not None), default=None),
        out_of_memory=max(events, key=lambda found: (not found[1].is_host, found[1].missing_bytes or 0), default=None),
        num_finished=sum(one.num_finished for one in seen),
    )


def _placed(event: Ended | OutOfMemory, node: str, step: int) -> Ended | OutOfMemory:
    """With the step of all nodes, and the node in the text."""
    if isinstance(event, Ended) and event.outcome is Outcome.FAILED:
        return replace(event, step=step, text=f"    on {node}:\n{event.text}")
    return replace(event, step=step, text=f"{event.text} on {node}" if event.text else "")


def first_cause(found: Sequence[Ended | OutOfMemory]) -> Ended | OutOfMemory:
    """Of what nodes say after one another's failure, what brought it about: a kill makes others fail."""
    order = (Outcome.KILLED, Outcome.FAILED, Outcome.FINISHED)
    return min(found, key=lambda event: order.index(event.outcome) if isinstance(event, Ended) else -1)
