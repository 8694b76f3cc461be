"""Driver side of the nodes of an adaptive run: the nodes of a Ray cluster."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindswap.errors import LaunchError
from mindswap.runtime.attempt.node import NodeFacts, NodeTask, TrainingNode, choose_nodes, node_mistakes, read_config
from mindswap.runtime.attempt.nodes import Arguments, Nodes
from mindswap.runtime.ray_cluster import (
    NPU,
    NodeLostError,
    alive_nodes,
    answer_of,
    connect,
    on_node,
    package_versions,
    refuse,
)


@dataclass(frozen=True)
class _RayNode:
    name: str  # its address
    actor: Any


class RayNodes(Nodes):
    """Nodes of a Ray cluster, with one actor each; `num_spare` additional ones replace lost nodes."""

    def __init__(self, address: str, num_nodes: int, num_spare: int, task: NodeTask) -> None:
        super().__init__(task)
        self._ray: Any = None  # until it is connected
        self._address = address
        self._num_nodes, self._num_spare = num_nodes, num_spare
        self._nodes: list[_RayNode] = []
        self._spare: list[_RayNode] = []
        self._lost: dict[int, str] = {}  # rank -> name

    def connect(self) -> None:
        """Start the actors, and compare the nodes.

        Raises:
            LaunchError: if the nodes differ; names node and value.
        """
        self._ray = connect(self._address)
        path = self._task.command.config_path
        local = NodeFacts("here", package_versions(), read_config(path))
        nodes, facts = self._reach(alive_nodes(self._ray))
        refuse(node_mistakes(facts, path, local))
        self._nodes, self._spare = nodes[: self._num_nodes], nodes[self._num_nodes :]
        self.ask("enter", lambda rank: (rank,))

    def _reach(self, alive: list[Mapping[str, Any]]) -> tuple[list[_RayNode], list[NodeFacts]]:
        """Choose nodes, start their actors and query them; retry with other nodes if Ray reports one as dead."""
        local_node, counts = self._ray.get_runtime_context().get_node_id(), (self._num_nodes, self._num_spare)
        nodes = [self._on(node) for node in choose_nodes(alive, local_node, self._task.command.num_local, counts)]
        try:
            return nodes, [self._facts(node) for node in nodes]
        except NodeLostError as error:
            alive_now = alive_nodes(self._ray)
            if len(alive_now) >= len(alive):
                fix = "ray status: are its NPUs free?"
                raise LaunchError(f"{error}: nothing starts there\n    fix:     {fix}") from error
            for node in nodes:
                self._ray.kill(node.actor)
            return self._reach(alive_now)

    def _on(self, node: Mapping[str, Any]) -> _RayNode:
        options: dict[str, Any] = {"num_cpus": 0, **on_node(node)}
        if node["Resources"].get(NPU):
            options["resources"] = {NPU: self._task.command.num_local}
        actor = self._ray.remote(TrainingNode).options(**options).remote(self._task)
        return _RayNode(node["NodeManagerAddress"], actor)

    def _facts(self, node: _RayNode) -> NodeFacts:
        versions, config = self._get(node, node.actor.facts.remote())  # waits for its process
        before_s = time.time()
        clock_s = self._get(node, node.actor.clock_s.remote())
        return NodeFacts(node.name, versions, config, clock_s - (before_s + time.time()) / 2)

    def ask(self, method: str, arguments: Arguments = lambda _: (), ranks: Sequence[int] | None = None) -> list[Any]:
        """See `Nodes.ask`."""
        calls = {
            rank: getattr(node.actor, method).remote(*arguments(rank))
            for rank, node in enumerate(self._nodes)
            if rank not in self._lost and (ranks is None or rank in ranks)
        }
        answers = []
        for rank, call in calls.items():
            try:
                answers.append(self._get(self._nodes[rank], call))
            except NodeLostError:
                self._lost[rank] = self._nodes[rank].name
        if self._lost:
            raise NodeLostError(
                "; ".join(f"node {name} (node_rank {rank}) is lost" for rank, name in self._lost.items())
            )
        return answers

    def _get(self, node: _RayNode, call: Any) -> Any:
        return answer_of(self._ray, node.name, call)

    def reconnect_lost(self) -> list[str]:
        """See `Nodes.reconnect_lost`."""
        messages = []
        while self._lost:
            rank, name = min(self._lost.items())
            if not self._spare:
                raise LaunchError(
                    f"node {name} (node_rank {rank}) is lost, and no spare node is left\n"
                    "    fix:     --spare 1, or bring it back; the same command continues from the newest checkpoint"
                )
            self._ray.kill(self._nodes[rank].actor)
            self._nodes[rank] = self._spare.pop(0)
            del self._lost[rank]
            try:
                self._get(self._nodes[rank], self._nodes[rank].actor.enter.remote(rank))
            except NodeLostError:
                self._lost[rank] = self._nodes[rank].name
            else:
                messages.append(f"node {self._nodes[rank].name} takes the place of {name} (node_rank {rank})")
        return messages

    def name_of(self, rank: int) -> str:
        """See `Nodes.name_of`."""
        return f"node {self._nodes[rank].name} (node_rank {rank})"

    def master_address(self) -> str:
        """See `Nodes.master_address`."""
        return self._nodes[0].name

    def close(self) -> None:
        """See `Nodes.close`."""
        super().close()
        self._ray.shutdown()
