"""One node of an adaptive run: its msrun, logs and checkpoints. On a cluster it runs in a Ray actor on the node."""

import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mindswap.config.nodes import show
from mindswap.config.problem import find_errors
from mindswap.config.source import load_document
from mindswap.errors import LaunchError
from mindswap.files import replace_file
from mindswap.runtime.attempt.checkpoints import CheckpointFolder, CheckpointKey
from mindswap.runtime.attempt.command import TrainingCommand
from mindswap.runtime.attempt.state import attempt_folder, full_disks, prepare_attempt
from mindswap.runtime.attempt.workers import Workers
from mindswap.runtime.msrun import PLAIN_FOR_MSRUN, check_port, free_port, worker_environment
from mindswap.runtime.ray_cluster import NPU, package_versions, version_mistakes
from mindswap.system.children import lifeline, with_package
from mindswap.system.environment import readable_environment
from mindswap.system.process_tree import become_subreaper, raise_process_limit
from mindswap.system.scratch import plain_name
from mindswap.system.signals import LIFELINE

# Limit of the difference between clocks; with more, logs of several nodes cannot be compared.
MAX_CLOCK_S = 10.0
# Environment variable of every process of a run; its value is the run directory.
MARKER = "MINDSWAP_ADAPTIVE_RUN"


@dataclass(frozen=True)
class NodeTask:
    """Task of a node in a run; paths are equal on all nodes."""

    command: TrainingCommand
    run_dir: Path  # absolute path
    checkpoints: Path  # on a shared or a local disk
    working_folder: Path
    is_parallel: bool  # whether MindFormers treats the processes as one parallel training
    is_alone: bool = True  # whether this is the only node
    variables: Mapping[str, str] = field(default_factory=dict)  # additional environment variables of the workers
    # files that a node creates if they are missing, as is its working folder; None: all must exist
    files: Mapping[Path, bytes] | None = None


@dataclass(frozen=True)
class NodeFacts:
    """Properties that must be equal on all nodes."""

    name: str  # address of the node
    versions: Mapping[str, str] = field(default_factory=dict)  # package -> version
    config: Mapping[Any, Any] | None = None  # the YAML with its bases merged; None if it cannot be read
    clock_offset_s: float = 0.0  # relative to the clock of the driver


def node_mistakes(facts: Sequence[NodeFacts], config_path: Path, local: NodeFacts) -> list[str]:
    """Compare the nodes with the driver (`local`), and return a message for each difference."""
    mistakes = []
    for node in facts:
        mistakes += version_mistakes(node.name, node.versions, local.versions)
        if node.config is None:
            mistakes.append(f"node {node.name}: {config_path}, or what it is based on, cannot be read there")
        elif difference := first_difference(node.config, local.config):
            key, remote_text, local_text = difference
            mistakes.append(f"node {node.name}: {config_path}: {key} is {remote_text}, here it is {local_text}")
        if abs(node.clock_offset_s) > MAX_CLOCK_S:
            limit = f"allowed: {MAX_CLOCK_S:.0f} s"
            mistakes.append(f"node {node.name}: its clock is {node.clock_offset_s:+.1f} s off the one here; {limit}")
    return mistakes


class Difference(NamedTuple):
    """A value that differs between two configurations."""

    path: str  # key path
    remote: str  # value on the other node, as YAML or `missing`
    local: str  # value on this node, as YAML or `missing`


def first_difference(remote: object, local: object, path: str = "") -> Difference | None:
    """Return the first difference between two configurations; None if they are equal."""
    if isinstance(remote, Mapping) and isinstance(local, Mapping):
        pairs = [(key, remote.get(key, _MISSING), local.get(key, _MISSING)) for key in {**local, **remote}]
    elif isinstance(remote, list) and isinstance(local, list):
        pairs = [(index, *pair) for index, pair in enumerate(itertools.zip_longest(remote, local, fillvalue=_MISSING))]
    else:
        return None if repr(remote) == repr(local) else Difference(path, _shown(remote), _shown(local))
    for key, remote_value, local_value in pairs:
        if difference := first_difference(remote_value, local_value, f"{path}.{key}" if path else str(key)):
            return difference
    return None


_MISSING = object()


def _shown(value: object) -> str:
    return "missing" if value is _MISSING else show(value)


def read_config(path: Path) -> dict[Any, Any] | None:
    """Return the YAML with its bases merged; None if any file cannot be read."""
    document = load_document(path)
    return None if find_errors(document.problems) else document.data()


def choose_nodes(
    alive: Sequence[Mapping[str, Any]], local_node: str, num_local: int, counts: tuple[int, int]
) -> list[Mapping[str, Any]]:
    """Choose training and spare nodes.

    The order is stable, so that ranks keep their nodes: the local node first, then by address. If any node has NPUs,
    nodes with fewer NPUs than workers are excluded.

    Args:
        alive: nodes as listed by Ray.
        local_node: id of the local node.
        num_local: workers per node.
        counts: numbers of training nodes and of spare nodes.

    Returns:
        The training nodes, then the spare nodes.

    Raises:
        LaunchError: if there are too few nodes.
    """
    cards = {node["NodeID"]: round(node["Resources"].get(NPU, 0)) for node in alive}
    fit = [node for node in alive if not any(cards.values()) or cards[node["NodeID"]] >= num_local]
    num_nodes, num_spare = counts
    if len(fit) < num_nodes + num_spare:
        node_list = ", ".join(f"{node['NodeManagerAddress']} ({cards[node['NodeID']]} NPU)" for node in alive)
        raise LaunchError(
            f"--nodes {num_nodes} --spare {num_spare}: the cluster has {len(fit)} nodes for --local_worker_num="
            f"{num_local}\n    found:   {node_list}\n    fix:     ray start --address=ADDRESS on the others"
        )
    fit.sort(key=lambda node: (node["NodeID"] != local_node, *_place(node["NodeManagerAddress"]), node["NodeID"]))
    return fit[: num_nodes + num_spare]


def _place(address: str) -> tuple[int, str]:
    return len(address), address  # sorts 10.0.0.9 before 10.0.0.10


class TrainingNode(Workers):
    """Node of a run. The driver calls its methods one at a time, and they run on the node.

    The workers hold the lifeline of this process, so the kernel ends them when this process ends for any reason.
    """

    def __init__(self, task: NodeTask) -> None:
        self._task = task
        self._rank = 0
        self._stack = contextlib.ExitStack()
        self._line = self._stack.enter_context(lifeline())
        self._words: list[str] = []
        self.turn_to(self._folder_of(0), (), has_msrun=False)  # no workers before the first attempt
        become_subreaper()
        raise_process_limit()
        if task.files is not None:
            task.working_folder.mkdir(parents=True, exist_ok=True)
            for path, content in task.files.items():
                if not path.exists() or path.stat().st_size != len(content):
                    replace_file(path, content)

    def facts(self) -> tuple[dict[str, str], dict[Any, Any] | None]:
        """Return the versions of packages, and the YAML."""
        return package_versions(), read_config(self._task.command.config_path)

    def clock_s(self) -> float:
        """Return the wall-clock time of this node in seconds."""
        return time.time()

    def enter(self, rank: int) -> None:
        """Set the rank of this node."""
        if not self._task.working_folder.is_dir():
            raise LaunchError(f"{self._task.working_folder}: no such folder")
        self._rank = rank

    def choose_port(self, address: str, may_differ: bool) -> int:
        """Return a free port for the scheduler on this node, see `Nodes.choose_port`."""
        port = self._task.command.master_port
        if self._task.command.msrun_options is None:
            return port
        try:
            check_port(address, port, fix="add --master_port=")
        except LaunchError:
            if not may_differ:
                raise
            return free_port()  # the scheduler of the previous attempt may still hold it
        return port

    def marks(self) -> tuple[str, ...]:
        """Return the marks of the checkpoint files of this node's ranks."""
        return self._checkpoints(()).marks()

    def complete(self, ignored: tuple[str, ...]) -> frozenset[CheckpointKey]:
        """Return the checkpoints that are complete for all ranks of this node."""
        return self._checkpoints(ignored).complete()

    def prepare(
        self, number: int, yaml_text: str, key: CheckpointKey | None, ignored: tuple[str, ...], master: tuple[str, int]
    ) -> None:
        """Write the input files of the workers of an attempt; `master` is address and port of the scheduler."""
        task, (address, port) = self._task, master
        checkpoint = self._checkpoints(ignored).at(key) if key else None
        path, folder = task.command.config_path, self._folder_of(number)
        config = prepare_attempt(folder, yaml_text, path, checkpoint, is_parallel=task.is_parallel)
        logs = self._stack.enter_context(plain_name(folder, also=PLAIN_FOR_MSRUN))
        place = None if task.is_alone else (address, self._rank)
        self._words = task.command.words(config, logs, port, key is not None, place)

    def open(self, number: int) -> None:
        """Switch to the logs of an attempt."""
        super().close()
        first, command = self._first_rank, self._task.command
        ranks, has_msrun = range(first, first + command.num_local), command.msrun_options is not None
        self.turn_to(self._folder_of(number), ranks, has_msrun=has_msrun)

    def start(self) -> None:
        """Start the workers of this node, in the environment of this node."""
        folder = self._task.working_folder
        environment = worker_environment(with_package(readable_environment()), folder)
        if not self._task.is_alone:
            environment.pop("OMP_NUM_THREADS", None)  # Ray sets it to 1 for an actor
        environment |= {**self._task.variables, "PYTHONUNBUFFERED": "1"}
        environment |= {LIFELINE: self._line, MARKER: str(self._task.run_dir)}
        self.start_words(self._words, {"MS_MEMORY_STATISTIC": "1", **environment}, folder)

    def full_disks(self) -> tuple[str, ...]:
        """Return a line for each full file system of this node."""
        return full_disks(self._checkpoints(()), self._task.run_dir)

    def logs(self, number: int) -> dict[str, bytes]:
        """Return relative path and content of each log of an attempt."""
        folder = self._folder_of(number)
        return {str(path.relative_to(folder.parent)): path.read_bytes() for path in folder.glob("*.log")}

    def close(self) -> None:
        """Release all resources; workers that are still running end."""
        super().close()
        self._stack.close()

    @property
    def _first_rank(self) -> int:
        return self._rank * self._task.command.num_local

    def _folder_of(self, number: int) -> Path:
        folder = attempt_folder(self._task.run_dir, number)
        return folder if self._task.is_alone else folder / f"node_{self._rank}"

    def _checkpoints(self, ignored: tuple[str, ...]) -> CheckpointFolder:
        return CheckpointFolder(self._task.checkpoints, self._task.command.num_local, ignored, self._first_rank)
