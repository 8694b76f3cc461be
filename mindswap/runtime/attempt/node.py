"""One node of an adaptive run: its msrun, its logs, its checkpoints. On a cluster it lives in a Ray actor there."""

import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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

# Clocks that differ by more than this make logs of nodes unreadable side by side.
MAX_CLOCK_S = 10.0
# Set to the run directory for every process of a run.
MARKER = "MINDSWAP_ADAPTIVE_RUN"


@dataclass(frozen=True)
class NodeTask:
    """Part of a node in a run; paths are those on each node."""

    command: TrainingCommand
    run_dir: Path  # absolute
    checkpoints: Path  # a shared disk or its own
    working_folder: Path
    is_parallel: bool  # MindFormers takes its processes for parts of one training
    is_alone: bool = True  # no other node takes part
    variables: Mapping[str, str] = field(default_factory=dict)  # more of them for the workers
    # what a node writes that has not got it, beside its working folder; None: all has to be there
    files: Mapping[Path, bytes] | None = None


@dataclass(frozen=True)
class NodeFacts:
    """Facts that have to be the same on all nodes."""

    name: str  # its address
    versions: Mapping[str, str] = field(default_factory=dict)  # of packages
    config: Mapping[Any, Any] | None = None  # the YAML with what it is based on; None where it cannot be read
    clock_offset_s: float = 0.0  # against the driver


def node_mistakes(facts: Sequence[NodeFacts], config_path: Path, here: NodeFacts) -> list[str]:
    """Reasons against a start, each with node and value; `here` is of the driver."""
    found = []
    for node in facts:
        found += version_mistakes(node.name, node.versions, here.versions)
        if node.config is None:
            found.append(f"node {node.name}: {config_path}, or what it is based on, cannot be read there")
        elif difference := first_difference(node.config, here.config):
            key, there, value = difference
            found.append(f"node {node.name}: {config_path}: {key} is {there}, here it is {value}")
        if abs(node.clock_offset_s) > MAX_CLOCK_S:
            limit = f"allowed: {MAX_CLOCK_S:.0f} s"
            found.append(f"node {node.name}: its clock is {node.clock_offset_s:+.1f} s off the one here; {limit}")
    return found


def first_difference(there: object, here: object, path: str = "") -> tuple[str, str, str] | None:
    """The first key at which two configurations differ, and both values as YAML, or `missing`."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        pairs = [(key, there.get(key, _MISSING), here.get(key, _MISSING)) for key in {**here, **there}]
    elif isinstance(there, list) and isinstance(here, list):
        pairs = [(index, *pair) for index, pair in enumerate(itertools.zip_longest(there, here, fillvalue=_MISSING))]
    else:
        return None if repr(there) == repr(here) else (path, _shown(there), _shown(here))
    for key, one, other in pairs:
        if found := first_difference(one, other, f"{path}.{key}" if path else str(key)):
            return found
    return None


_MISSING = object()


def _shown(value: object) -> str:
    return "missing" if value is _MISSING else show(value)


def read_config(path: Path) -> dict[Any, Any] | None:
    """The YAML with what it is based on; None where some of it cannot be read."""
    document = load_document(path)
    return None if find_errors(document.problems) else document.data()


def choose_nodes(
    alive: Sequence[Mapping[str, Any]], here: str, num_local: int, wanted: tuple[int, int]
) -> list[Mapping[str, Any]]:
    """Of the nodes as Ray tells of them those that train and those that stand by: `wanted` of each.

    This one first, then by address, so that ranks stay where they are. Where some nodes have NPUs, those with fewer
    than workers are left out.

    Raises:
        LaunchError: there are not enough.
    """
    cards = {node["NodeID"]: round(node["Resources"].get(NPU, 0)) for node in alive}
    fit = [node for node in alive if not any(cards.values()) or cards[node["NodeID"]] >= num_local]
    num_nodes, num_spare = wanted
    if len(fit) < num_nodes + num_spare:
        found = ", ".join(f"{node['NodeManagerAddress']} ({cards[node['NodeID']]} NPU)" for node in alive)
        raise LaunchError(
            f"--nodes {num_nodes} --spare {num_spare}: the cluster has {len(fit)} nodes for --local_worker_num="
            f"{num_local}\n    found:   {found}\n    fix:     ray start --address=ADDRESS on the others"
        )
    fit.sort(key=lambda node: (node["NodeID"] != here, *_place(node["NodeManagerAddress"]), node["NodeID"]))
    return fit[: num_nodes + num_spare]


def _place(address: str) -> tuple[int, str]:
    return len(address), address  # 10.0.0.9 before 10.0.0.10


class TrainingNode(Workers):
    """Methods that the driver calls on a node; they run there, one at a time.

    The workers hang on a pipe of this process: however it ends, with the driver for example, they end, too.
    """

    def __init__(self, task: NodeTask) -> None:
        self._task = task
        self._rank = 0
        self._stack = contextlib.ExitStack()
        self._line = self._stack.enter_context(lifeline())
        self._words: list[str] = []
        self.turn_to(self._folder_of(0), (), has_msrun=False)  # none, until an attempt begins
        become_subreaper()
        raise_process_limit()
        if task.files is not None:
            task.working_folder.mkdir(parents=True, exist_ok=True)
            for path, content in task.files.items():
                if not path.exists() or path.stat().st_size != len(content):
                    replace_file(path, content)

    def facts(self) -> tuple[dict[str, str], dict[Any, Any] | None]:
        """Versions, and the YAML."""
        return package_versions(), read_config(self._task.command.config_path)

    def clock_s(self) -> float:
        """The time of day."""
        return time.time()

    def enter(self, rank: int) -> None:
        """Take the place of a node of this rank."""
        if not self._task.working_folder.is_dir():
            raise LaunchError(f"{self._task.working_folder}: no such folder")
        self._rank = rank

    def choose_port(self, address: str, may_differ: bool) -> int:
        """The port of the scheduler, which runs here."""
        port = self._task.command.master_port
        if self._task.command.msrun_options is None:
            return port
        try:
            check_port(address, port, fix="add --master_port=")
        except LaunchError:
            if not may_differ:
                raise
            return free_port()  # the scheduler of the attempt before may hold it for a while
        return port

    def marks(self) -> tuple[str, ...]:
        """Of the checkpoint files of the ranks of this node."""
        return self._checkpoints(()).marks()

    def complete(self, ignored: tuple[str, ...]) -> frozenset[CheckpointKey]:
        """Checkpoints of which all ranks of this node have a complete file."""
        return self._checkpoints(ignored).complete()

    def prepare(
        self, number: int, yaml_text: str, key: CheckpointKey | None, ignored: tuple[str, ...], master: tuple[str, int]
    ) -> None:
        """Write what the workers of an attempt read; `master` is where the scheduler is."""
        task, (address, port) = self._task, master
        checkpoint = self._checkpoints(ignored).at(key) if key else None
        path, folder = task.command.config_path, self._folder_of(number)
        config = prepare_attempt(folder, yaml_text, path, checkpoint, is_parallel=task.is_parallel)
        logs = self._stack.enter_context(plain_name(folder, also=PLAIN_FOR_MSRUN))
        place = None if task.is_alone else (address, self._rank)
        self._words = task.command.words(config, logs, port, key is not None, place)

    def open(self, number: int) -> None:
        """Turn to the logs of an attempt."""
        super().close()
        first, command = self._first_rank, self._task.command
        ranks, has_msrun = range(first, first + command.num_local), command.msrun_options is not None
        self.turn_to(self._folder_of(number), ranks, has_msrun=has_msrun)

    def start(self) -> None:
        """Start the workers of this node, in its own environment."""
        folder = self._task.working_folder
        environment = worker_environment(with_package(readable_environment()), folder)
        if not self._task.is_alone:
            environment.pop("OMP_NUM_THREADS", None)  # Ray sets it to 1 for an actor
        environment |= {**self._task.variables, "PYTHONUNBUFFERED": "1"}
        environment |= {LIFELINE: self._line, MARKER: str(self._task.run_dir)}
        self.start_words(self._words, {"MS_MEMORY_STATISTIC": "1", **environment}, folder)

    def full_disks(self) -> tuple[str, ...]:
        """Missing room, where this node writes."""
        return full_disks(self._checkpoints(()), self._task.run_dir)

    def logs(self, number: int) -> dict[str, bytes]:
        """Contents of the logs of an attempt, by their names in its folder."""
        folder = self._folder_of(number)
        return {str(path.relative_to(folder.parent)): path.read_bytes() for path in folder.glob("*.log")}

    def close(self) -> None:
        """Let go of everything; a worker that is still there ends."""
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
