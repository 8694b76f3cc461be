"""`mindswap run --adaptive-memory-optimization`: plan, train, watch, and plan again; also for the launcher script.

options:
  --adaptive-memory-optimization  plan for the memory there is, and again when it runs out
  --memory SIZE       of each card: auto, 54GiB
  --run-dir DIR       for state and logs (the --log_dir of msrun)
  --max-restarts N    starts after the first one (8)
  --measured-steps N  steps that judge a plan (10)
  --ray ADDRESS       train on the nodes of a Ray cluster: its address, or auto
  --nodes N           nodes of the cluster that train
  --spare K           more nodes, to take the place of lost ones (0)
  --replace           plan instead of the swap and recompute in the YAML
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindswap.check.doctor.gather import host_memory
from mindswap.check.doctor.software import installed_version
from mindswap.commands import Parser
from mindswap.commands.options import add_options, number_from
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
ARGUMENTS: dict[str, dict[str, Any]] = {
    "--memory": {"default": "auto"},
    "--run-dir": {"type": Path},
    "--max-restarts": {"type": number_from(0), "default": 8},
    "--measured-steps": {"type": number_from(0), "default": 10},
    "--nodes": {"type": number_from(1)},
    "--spare": {"type": number_from(0), "default": 0},
}


def find_planner(run_dir: Path) -> Planner:
    """The planner of the package; what it starts is marked as part of the run in this folder."""
    return planner_in_child({**os.environ, MARKER: str(run_dir)})


def run_adaptive(args: argparse.Namespace, command_words: Sequence[str]) -> int:
    """Run a training command with the options of `split_words`.

    Raises:
        MindswapError: it cannot be started.
    """
    if os.environ.get("MS_ROLE"):
        raise LaunchError(f"{FLAG} inside a worker\n    fix:     mindswap run {FLAG} -- msrun ... (in front of msrun)")
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


def split_words(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options of the adaptive run, and the training command, with or without `--` between them."""
    parser = Parser(prog="mindswap run", usage=USAGE, allow_abbrev=False)
    add_options(parser, (__doc__ or "").partition("options:\n")[2], ARGUMENTS)
    end = words.index("--") if "--" in words else len(words)
    args, rest = parser.parse_known_args(words[:end])
    if end == len(words) or rest and (rest[0] == words[0] or not rest[0].startswith("--")) or rest == words[:end]:
        return args, [*rest, *words[end:]]
    if rest:  # whatever is wrong before `--` is an option of mindswap
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args, words[end + 1 :]


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
