"""`mindswap run --adaptive-memory-optimization`: plan, train, watch, and plan again; also for the launcher script."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mindswap.check.doctor.gather import host_memory
from mindswap.check.doctor.software import installed_version
from mindswap.commands import Parser
from mindswap.commands.options import number_from, option
from mindswap.config.nodes import Document, show
from mindswap.config.step import ALLOWED, PATH, is_on_cpu, read_device_memory, read_device_target
from mindswap.errors import LaunchError, PolicyError
from mindswap.graph.cache import make_key
from mindswap.report.adaptive import format_summary
from mindswap.training.adaptive.command import (
    FLAG,
    TrainingCommand,
    checkpoint_folder,
    find_exclusions,
    is_excluded,
    is_parallel,
    parse_command,
    saves_checkpoints,
    single_checkpoints,
    without_options,
)
from mindswap.training.adaptive.model import Planner, Settings
from mindswap.training.adaptive.node import MARKER, NodeTask
from mindswap.training.adaptive.nodes import Nodes, RayNodes
from mindswap.training.adaptive.supervise import AdaptiveRun, supervise
from mindswap.training.adaptive.workers import planner_in_child
from mindswap.training.launch.training import load_trainable
from mindswap.training.logs.scan import REPORT_MEMORY
from mindswap.units import format_bytes, parse_bytes
from mindswap.version import __version__

# What MindFormers lets MindSpore take of a card where `context.max_device_memory` does not say.
DEFAULT_DEVICE_MEMORY = "58GiB"
# Share of the free memory of a machine without cards that its workers may take.
HOST_SHARE_PERCENT = 80

USAGE = f"mindswap run {FLAG} [OPTIONS] [--] COMMAND"
_SWITCHES = (FLAG, "--replace")
_VALUES = ("--memory", "--run-dir", "--max-restarts", "--measured-steps", "--ray", "--nodes", "--spare")


def find_planner(run_dir: Path) -> Planner:
    """The planner of the package; what it starts is marked as part of the run in this folder."""
    return planner_in_child({**os.environ, MARKER: str(run_dir)})


def run_adaptive(words: Sequence[str]) -> int:
    """Run the words behind `mindswap run`: `FLAG [OPTIONS] [--] COMMAND`, or a training command with the flag in it.

    Raises:
        MindswapError: it cannot be started.
    """
    if os.environ.get("MS_ROLE"):
        raise LaunchError(f"{FLAG} inside a worker\n    fix:     mindswap run {FLAG} -- msrun ... (in front of msrun)")
    own, command_words = split_words(list(words))
    parser = Parser(prog="mindswap run", usage=USAGE, allow_abbrev=False)
    add_options(parser)
    args = parser.parse_args(own)
    if (args.ray is None) != (args.nodes is None) or args.spare and args.ray is None:
        raise LaunchError(
            "--ray, --nodes, --spare: a cluster needs its address and its nodes\n    fix:     --ray auto --nodes N"
        )
    command = parse_command(command_words, args.nodes)
    document = load_trainable(command.config_path)
    command = _without_exclusions(command, document, args.replace)
    for place in single_checkpoints(document):
        _say(
            f"{place}: warning: keep_checkpoint_max is 1: MindFormers deletes the old checkpoint before it writes the "
            "new one; killed in between, the training begins at step 0\n    fix:     keep_checkpoint_max: 2"
        )
    memory_bytes, source = _memory(args.memory, document, command.num_local)
    _say(f"memory {format_bytes(memory_bytes)} ({source})")
    run_dir = (args.run_dir or command.log_dir).absolute()
    checkpoints, parallel = checkpoint_folder(command, document, Path.cwd()), is_parallel(command, document)
    is_alone, settings = args.ray is None, Settings(memory_bytes, args.max_restarts)
    task = NodeTask(command, run_dir, checkpoints, Path.cwd(), parallel, is_alone, {REPORT_MEMORY: "1"})
    nodes = Nodes(task) if is_alone else RayNodes(args.ray, args.nodes, args.spare, task)
    saves = saves_checkpoints(document)
    run = AdaptiveRun(task, nodes, _key(command, document), settings, saves, args.measured_steps)
    code, state = supervise(run, find_planner(run_dir), _say)
    _print(format_summary(state))
    return code


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of an adaptive run."""
    option(parser, FLAG, "plan for the memory there is, and again when it runs out")
    option(parser, "--memory SIZE", "of each card: auto, 54GiB", default="auto")
    option(parser, "--run-dir DIR", "for state and logs (the --log_dir of msrun)", Path)
    option(parser, "--max-restarts N", "starts after the first one (8)", number_from(0), 8)
    option(parser, "--measured-steps N", "steps that judge a plan (10)", number_from(0), 10)
    option(parser, "--ray ADDRESS", "train on the nodes of a Ray cluster: its address, or auto")
    option(parser, "--nodes N", "nodes of the cluster that train", number_from(1))
    option(parser, "--spare K", "more nodes, to take the place of lost ones (0)", number_from(0), 0)
    option(parser, "--replace", "plan instead of the swap and recompute in the YAML")


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Options of the adaptive run, and the training command, with or without `--` between them."""
    own: list[str] = []
    rest: list[str] = []
    queue = list(words)
    while queue and queue[0] != "--":
        word = queue.pop(0)
        name, equals, _ = word.partition("=")
        if name not in (*_SWITCHES, *_VALUES):
            rest.append(word)
            continue
        own.append(word)
        if name in _VALUES and not equals and queue:
            own.append(queue.pop(0))
    if queue and own and (not rest or rest[0].startswith("--") and words[0] == own[0]):
        return [*own, *rest], queue[1:]  # whatever is wrong before `--` is an option of mindswap
    return own, [*rest, *queue]


def _without_exclusions(command: TrainingCommand, document: Document, is_replaced: bool) -> TrainingCommand:
    problems = find_exclusions(document, command.options)
    if problems and not is_replaced:
        raise PolicyError(problems)
    for problem in problems:
        _say(f"{problem.location}: {problem.subject} is replaced by the plan (--replace)")
    return replace(command, options=tuple(without_options(command.options, is_excluded)))


def _memory(text: str, document: Document, num_workers: int) -> tuple[int, str]:
    """Memory of a card, and where the figure is from."""
    if text != "auto":
        try:
            return parse_bytes(text), "--memory"
        except ValueError as error:
            raise LaunchError(f"--memory: {error}") from None
    if is_on_cpu(document):
        free = host_memory()
        if not free:
            what = "how much host memory is free cannot be read here" if free is None else "no host memory is free here"
            raise LaunchError(f"{what}\n    fix:     --memory SIZE")
        return free * HOST_SHARE_PERCENT // 100 // num_workers, f"{HOST_SHARE_PERCENT} % of what is free, per worker"
    stated = read_device_memory(document)
    if stated is not None:
        return stated.size_bytes, stated.source
    node = document.get(*PATH.split("."))
    if node is None or not node.value:
        return parse_bytes(DEFAULT_DEVICE_MEMORY), f"MindFormers' default of {PATH}"
    raise LaunchError(
        f"{node.location}: {PATH}: {show(node)}\n    allowed: {ALLOWED}\n    fix:     write that, or --memory SIZE"
    )


def _key(command: TrainingCommand, document: Document) -> str:
    """Key by which a saved state holds for this run."""
    return make_key(
        config=repr(document.data()),
        options=list(command.options),
        script=str(command.script),
        num_workers=command.num_workers,
        device=read_device_target(document),
        versions={name: installed_version(name) or "none" for name in ("mindspore", "mindformers")}
        | {"mindswap": __version__},
    )


def _say(text: str) -> None:
    _print("\n".join(f"mindswap: {line}" for line in text.splitlines()))


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `mindswap run ... | head`: the training goes on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
