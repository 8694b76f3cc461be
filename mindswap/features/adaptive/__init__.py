"""Adaptive run: plan, train, measure, and replan. The planner runs in a child process, see `planner_process`."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mindswap.config.device_memory import ALLOWED, PATH, read_device_memory
from mindswap.config.nodes import Document, show
from mindswap.config.step_settings import is_on_cpu, read_device_target
from mindswap.errors import LaunchError, PolicyError
from mindswap.features.adaptive.report import format_summary
from mindswap.features.adaptive.supervise import AdaptiveRun
from mindswap.graph.capture_cache import make_key
from mindswap.rules.machine.probe import host_memory
from mindswap.rules.machine.software import installed_version
from mindswap.runtime.attempt.command import (
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
from mindswap.runtime.attempt.model import Planner, Settings, State
from mindswap.runtime.attempt.node import MARKER, NodeTask
from mindswap.runtime.attempt.nodes import Nodes
from mindswap.runtime.attempt.ray_nodes import RayNodes
from mindswap.runtime.attempt.workers import planner_in_child
from mindswap.runtime.logs.scan import REPORT_MEMORY
from mindswap.runtime.training_command import ADAPTIVE_FLAG, load_trainable
from mindswap.units import format_bytes, parse_bytes
from mindswap.version import __version__

__all__ = ["format_summary", "train_adaptively"]

# Memory limit that MindFormers sets if `context.max_device_memory` is missing.
DEFAULT_DEVICE_MEMORY = "58GiB"
# Percentage of the free host memory that the workers may use on a machine without devices.
HOST_SHARE_PERCENT = 80


def train_adaptively(  # noqa: PLR0913 an argument for each option of `mindswap run`
    words: Sequence[str],
    report_status: Callable[[str], None],
    *,
    memory: str = "auto",
    run_dir: Path | None = None,
    max_restarts: int = 8,
    measured_steps: int = 10,
    ray: str | None = None,
    nodes: int | None = None,
    spare: int = 0,
    is_replaced: bool = False,
) -> tuple[int, State]:
    """Run a training with plans for the available memory; after an out-of-memory error, replan and resume.

    Args:
        words: the training command.
        report_status: function that prints a line for the user.
        memory: memory budget per device; `"auto"` for the available memory.
        run_dir: folder of state and logs; None for the --log_dir of msrun.
        max_restarts: limit of starts after the first one.
        measured_steps: number of steps after which a plan is evaluated.
        ray: address of the Ray cluster to train on; None for this machine.
        nodes: number of training nodes of the cluster.
        spare: number of additional nodes that replace lost ones.
        is_replaced: replace swap and recompute settings of the user instead of refusing them.

    Returns:
        Exit code of the training, and the final state.

    Raises:
        MindswapError: if it cannot be started.
    """
    if os.environ.get("MS_ROLE"):
        fix = f"mindswap run {ADAPTIVE_FLAG} -- msrun ... (in front of msrun)"
        raise LaunchError(f"{ADAPTIVE_FLAG} inside a worker\n    fix:     {fix}")
    if (ray is None) != (nodes is None) or (spare and ray is None):
        raise LaunchError(
            "--ray, --nodes, --spare: a cluster needs its address and its nodes\n    fix:     --ray auto --nodes N"
        )
    command = parse_command(words, nodes)
    document = load_trainable(command.config_path)
    command = _without_exclusions(command, document, is_replaced, report_status)
    for place in single_checkpoints(document):
        report_status(
            f"{place}: warning: keep_checkpoint_max is 1: MindFormers deletes the old checkpoint before it writes the "
            "new one; killed in between, the training begins at step 0\n    fix:     keep_checkpoint_max: 2"
        )
    memory_bytes, source = find_memory(memory, document, command.num_local)
    report_status(f"memory {format_bytes(memory_bytes)} ({source})")
    folder = (run_dir or command.log_dir).absolute()
    checkpoints, parallel = checkpoint_folder(command, document, Path.cwd()), is_parallel(command, document)
    settings = Settings(memory_bytes, max_restarts)
    task = NodeTask(
        command=command,
        run_dir=folder,
        checkpoints=checkpoints,
        working_folder=Path.cwd(),
        is_parallel=parallel,
        is_alone=ray is None,
        variables={REPORT_MEMORY: "1"},
    )
    machines = Nodes(task) if ray is None or nodes is None else RayNodes(ray, nodes, spare, task)
    saves = saves_checkpoints(document)
    key, planner = _key(command, document), find_planner(folder)
    return AdaptiveRun(
        task=task,
        nodes=machines,
        key=key,
        settings=settings,
        saves_checkpoints=saves,
        planner=planner,
        report_status=report_status,
        num_measured_steps=measured_steps,
    ).train()


def find_planner(run_dir: Path) -> Planner:
    """Return the planner; its processes are marked as part of the run in this folder."""
    return planner_in_child({MARKER: str(run_dir)})


def _without_exclusions(
    command: TrainingCommand, document: Document, is_replaced: bool, report_status: Callable[[str], None]
) -> TrainingCommand:
    problems = find_exclusions(document, command.options)
    if problems and not is_replaced:
        raise PolicyError(problems)
    for problem in problems:
        report_status(f"{problem.location}: {problem.subject} is replaced by the plan (--replace)")
    return replace(command, options=tuple(without_options(command.options, is_excluded)))


def find_memory(text: str, document: Document, num_workers: int) -> tuple[int, str]:
    """Return the memory budget per device in bytes, and its source.

    Args:
        text: size from the command line, or `auto`.
        document: the configuration.
        num_workers: workers per node, which share the host memory of a machine without devices.

    Raises:
        LaunchError: if the size is not valid, or cannot be determined.
    """
    if text != "auto":
        try:
            return parse_bytes(text), "--memory"
        except ValueError as error:
            raise LaunchError(f"--memory: {error}") from None
    if is_on_cpu(document):
        free = host_memory()
        if not free:
            problem = (
                "how much host memory is free cannot be read here" if free is None else "no host memory is free here"
            )
            raise LaunchError(f"{problem}\n    fix:     --memory SIZE")
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
    """Return the key of saved states that this run can resume."""
    return make_key(
        config=repr(document.data()),
        options=list(command.options),
        script=str(command.script),
        num_workers=command.num_workers,
        device=read_device_target(document),
        versions={name: installed_version(name) or "none" for name in ("mindspore", "mindformers")}
        | {"mindswap": __version__},
    )
