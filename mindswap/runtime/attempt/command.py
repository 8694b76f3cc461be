"""Parse the user's training command, and build the command of an attempt from it."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mindswap.config.nodes import Document, DocumentNode
from mindswap.config.problem import Level, Location, Problem
from mindswap.config.render import COMMAND_LINE
from mindswap.config.step_settings import DEFAULT_MASTER_PORT
from mindswap.errors import LaunchError
from mindswap.runtime.launcher_arguments import DEFAULT_LOG_DIR, worker_command
from mindswap.runtime.msrun import find_msrun, find_python
from mindswap.runtime.training_command import ADAPTIVE_FLAG, find_option, parse_training

# Options that a resumed attempt sets in the YAML; on the command line they would override it.
_RESUME_OPTIONS = ("--load_checkpoint", "--resume_training", "--load_ckpt_format")
# Excludes the working folder from the module search path; Python 3.10 has no such option.
SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) else ()
# Options of a node in the cluster, which the driver sets.
_NODE_OPTIONS = ("--master_addr", "--node_rank")


@dataclass(frozen=True)
class TrainingCommand:
    """Training command of the user."""

    msrun_options: tuple[str, ...] | None  # options of msrun as given; None for one process without msrun
    script: Path | None  # training script; None for the entry of this package
    options: tuple[str, ...]  # options of the script, without `--config`
    config_path: Path  # absolute path of the YAML
    num_workers: int = 1  # worker processes over all nodes
    num_local: int = 1  # worker processes on each node
    log_dir: Path = Path(DEFAULT_LOG_DIR)  # log folder as given, the default run directory
    master_port: int = DEFAULT_MASTER_PORT  # port of the scheduler

    def words(
        self, config_path: Path, log_dir: Path, port: int, is_resumed: bool, place: tuple[str, int] | None = None
    ) -> list[str]:
        """Build the command of an attempt.

        Args:
            config_path: configuration of the attempt.
            log_dir: log folder; its name must be plain because msrun puts it into a shell command.
            port: port of the scheduler.
            is_resumed: whether the configuration names a checkpoint.
            place: address of the scheduler and rank of this node; None for one node.

        Returns:
            The words of the command.
        """
        options = without_options(self.options, lambda name: is_resumed and name in _RESUME_OPTIONS)
        # A script imports modules from its folder; without a script, training and planner import the same MindFormers.
        start = ["-m", "mindswap", "run", str(self.script)] if self.script else [*SAFE_PATH, "-m", "mindswap", "run"]
        worker = [*start, "--config", str(config_path), *options]
        if self.msrun_options is None:
            return [sys.executable, *worker]
        msrun_options = without_options(self.msrun_options, lambda name: place is not None and name in _NODE_OPTIONS)
        return [
            *find_msrun(),
            *msrun_options,
            *([f"--master_addr={place[0]}", f"--node_rank={place[1]}"] if place else []),
            f"--log_dir={log_dir}",
            f"--master_port={port}",
            "--join=True",
            f"--tail_worker_log={self.num_workers}",  # not the rank of any worker: msrun copies no log to the terminal
            "--",
            find_python(),
            *worker,
        ]


def parse_command(words: Sequence[str], num_nodes: int | None = None) -> TrainingCommand:
    """Parse `msrun [OPTIONS] [python ...] [SCRIPT.py] --config CONFIG ...`, or the same without msrun.

    Args:
        words: the command.
        num_nodes: nodes of the cluster, which needs msrun; None for this machine.

    Returns:
        The parsed command.

    Raises:
        LaunchError: if the command is not supported.
    """
    if not words:
        fix = f"mindswap run {ADAPTIVE_FLAG} -- msrun ... (as you start it now)"
        raise LaunchError(f"{ADAPTIVE_FLAG}: no training command\n    fix: {fix}")
    if Path(words[0]).name != "msrun":
        if num_nodes is not None:
            raise LaunchError(f"--ray: the training command is {words[0]}\n    allowed: msrun, which every node starts")
        return _with_training(None, list(words), {}, None)
    values, training_words = _split_msrun(list(words[1:]))
    options = words[1 : len(words) - len(training_words)]
    return _with_training(tuple(word for word in options if word != "--"), training_words, values, num_nodes)


def _split_msrun(words: list[str]) -> tuple[Mapping[str, str], list[str]]:
    """Return the values of msrun's options, and the remaining words."""
    values, index = {}, 0
    while index < len(words) and words[index].startswith("--") and words[index] != "--":
        name, equals, value = words[index].partition("=")
        if not equals and index + 1 < len(words):
            index += 1
            value = words[index]
        values[name] = value
        index += 1
    return values, words[index + 1 :] if words[index : index + 1] == ["--"] else words[index:]


def _with_training(
    msrun_options: tuple[str, ...] | None, worker: list[str], values: Mapping[str, str], num_nodes: int | None
) -> TrainingCommand:
    if not worker:
        raise LaunchError(
            "msrun has nothing to start\n    fix: msrun [OPTIONS] python -m mindswap run --config CONFIG.yaml"
        )
    if worker[:2] == ["mindswap", "run"]:
        worker = worker[2:]
    training = parse_training(worker_command(worker, f"{ADAPTIVE_FLAG}: the training command")[0][3:] if worker else [])
    options = without_options(training.options, lambda name: name in ("--config", ADAPTIVE_FLAG))
    command = TrainingCommand(msrun_options, training.script, tuple(options), training.config_path.absolute())
    if msrun_options is None:
        return command
    total = _integer(values, "--worker_num", 8)
    local = _integer(values, "--local_worker_num", 8)
    if num_nodes is not None and local * num_nodes != total:
        raise LaunchError(
            f"--nodes {num_nodes}: --worker_num={total}, --local_worker_num={local}\n"
            "    allowed: --worker_num is --nodes times --local_worker_num"
        )
    if num_nodes is None and local != total:
        fix = f"\n    fix:     add --local_worker_num={total}" if "--local_worker_num" not in values else ""
        raise LaunchError(
            f"{ADAPTIVE_FLAG}: --worker_num={total}, --local_worker_num={local}\n"
            f"    allowed: all workers on one machine, or --ray auto --nodes N{fix}"
        )
    return replace(
        command,
        num_workers=total,
        num_local=local,
        log_dir=Path(values.get("--log_dir") or DEFAULT_LOG_DIR),
        master_port=_integer(values, "--master_port", DEFAULT_MASTER_PORT),
    )


def _integer(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, str(default))
    if not text.isdecimal():
        raise LaunchError(f"msrun {name} is {text!r}\n    allowed: a number")
    return int(text)


def without_options(words: Sequence[str], is_left_out: Callable[[str], bool]) -> list[str]:
    """Return the words without the options whose name `is_left_out` accepts, and without their values."""
    kept: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        name, equals, _ = word.partition("=")
        if not is_left_out(name):
            kept.append(word)
        elif not equals and remaining and not remaining[0].startswith("--"):
            remaining.pop(0)
    return kept


def checkpoint_folder(command: TrainingCommand, document: Document, working_folder: Path) -> Path:
    """Return the folder with the checkpoints of each rank (`rank_0`, ...): `checkpoint` in the output folder."""
    output = find_option(list(command.options), "--output_dir")
    if output is None:
        output = str(document.value("output_dir") or "./output")
    for monitor in _checkpoint_monitors(document):
        directory = monitor.get("directory")
        if directory is not None and directory.value:
            output = str(directory.value)
    return working_folder / output / "checkpoint"


def saves_checkpoints(document: Document) -> bool:
    """Return whether the configuration has a callback that saves checkpoints."""
    return any(_checkpoint_monitors(document))


def single_checkpoints(document: Document) -> Iterator[Location]:
    """Yield the location of each callback that keeps one checkpoint only.

    A crash can then lose the checkpoint, because MindFormers deletes it before it writes the next one.
    """
    for monitor in _checkpoint_monitors(document):
        # mindformers 1.9.0, core/callback/callback.py:1878: deletes the oldest one, then writes the new one
        kept = monitor.get("keep_checkpoint_max")
        if kept is not None and kept.value == 1:
            yield kept.location


def _checkpoint_monitors(document: Document) -> Iterator[DocumentNode]:
    callbacks = document.get("callbacks")
    for callback in (callbacks.items or ()) if callbacks is not None else ():
        kind = callback.get("type")
        if kind is not None and kind.value == "CheckpointMonitor":
            yield callback


def is_parallel(command: TrainingCommand, document: Document) -> bool:
    """Return whether MindFormers treats its processes as one parallel training, which is off by default."""
    option = find_option(list(command.options), "--use_parallel")
    return option.lower() == "true" if option is not None else document.value("use_parallel") is True


# Settings that a configuration must not have because the plan sets them.

RULE = "adaptive-exclusion"
_FIX = "delete it, or --replace: the plan takes its place, your file stays as it is"


def find_exclusions(document: Document, options: Sequence[str]) -> tuple[Problem, ...]:
    """Find swap and recompute settings of the user, in the file and in the options of the training script.

    MindSpeed's adaptive memory optimization excludes full recompute, selective recompute and prefetching swap, too.

    Args:
        document: the user's configuration.
        options: options of the training script.

    Returns:
        An error for each setting.
    """
    return (*_in_file(document), *_in_options(options))


def is_excluded(option: str) -> bool:
    """Return whether an option of the training script sets swap or recompute."""
    return option.startswith(("--swap_config.", "--recompute_config."))


def _in_file(document: Document) -> Iterator[Problem]:
    swap = document.get("swap_config", "swap")
    if swap is not None and _is_on(swap):
        yield _problem(swap.location, "swap_config.swap", "the plan decides what is swapped", ": True")
    for key in ("recompute", "select_recompute", "select_comm_recompute"):
        node = document.get("recompute_config", key)
        if node is not None and _is_on(node):
            yield _problem(node.location, f"recompute_config.{key}", "the plan decides what is recomputed")


def _in_options(options: Sequence[str]) -> Iterator[Problem]:
    for word in options:
        if is_excluded(word):
            yield _problem(Location(COMMAND_LINE), word.split("=", 1)[0], "it would override the plan")


def _is_on(node: DocumentNode) -> bool:
    if node.items is not None:
        return any(_is_on(item) for item in node.items)
    if node.entries is not None:
        return any(_is_on(entry.value) for entry in node.entries)
    return bool(node.value) and node.value not in ("False", "false")


def _problem(location: Location, subject: str, why: str, value: str = "") -> Problem:
    message = f"{subject}{value}: set by hand, together with --adaptive-memory-optimization: {why}"
    return Problem(location, RULE, Level.ERROR, message, fix=_FIX, subject=subject)
