"""Child processes of a dry run: one per rank, each runs `mindswap run` on MindSpore's Ascend backend."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mindswap.config.nodes import Document, to_data
from mindswap.config.problem import Level, Problem
from mindswap.errors import LaunchError, PolicyError
from mindswap.features.dryrun.cann_stand_ins import environment, has_cann, mindspore_libraries, stub_libraries
from mindswap.features.dryrun.memory_pool import LOG, TRACKER, DryRun, read_rank
from mindswap.rules.mindformers1.machine import JIT_LEVEL_PATHS
from mindswap.runtime.logs.read import find_last_error, find_last_step, read_tail
from mindswap.system.children import module_command, started
from mindswap.system.environment import CANN_VARIABLES, package_environment
from mindswap.system.scratch import plain_name

POLL_S = 0.2
STACK_BYTES = 2**26  # with 1 GiB per thread, no host memory was left for copies
MAX_S = 7200.0
# Without a new phase, the current one is reported again after so long.
REPEAT_S = 25.0
# Workaround for MindSpore 2.9.0: with layer_swap, some graphs are not inlined, and there is no kernel for the call.
NOT_INLINED = {"MS_DEV_RUNTIME_CONF": "switch_inline:False"}
BUILDING = "building the network"
# `2026-11-29-13:22:23.372.793: Start performing graph optimization.`, printed with MS_JIT_DISPLAY_PROGRESS.
_PHASE = re.compile(r"[-\d:.]+: (Start|End) (.+?)\.?$")
INLINE_FAULT = "The pointer[ker_ptr] is null"
StatusCallback = Callable[[str], None]  # called with one line of progress


def refuse_graph_engine(document: Document) -> None:
    """Refuse a configuration that MindSpore hands to CANN's graph engine, which plans the memory itself.

    Args:
        document: a configuration of MindFormers 1.9.

    Raises:
        PolicyError: `jit_level` is O2.
    """
    for path in JIT_LEVEL_PATHS:
        node = document.get(*path)
        if node is not None and to_data(node) == "O2":
            message = f"{'.'.join(path)}: 'O2': CANN's graph engine plans the memory, and a dry run has no such engine"
            fix = 'jit_level: "O1", which swap needs as well'
            raise PolicyError([Problem(node.location, "jit-level", Level.ERROR, message, "'O0' or 'O1'", fix)])


def run_rank(
    config: Path,
    folder: Path,
    rank: int,
    num_ranks: int,
    report_status: StatusCallback,
    stop: Callable[[], bool] = lambda: False,
    max_s: float = MAX_S,
    is_inlined: bool = True,
) -> DryRun:
    """Run one rank of a configuration until it ends.

    If MindSpore cannot build the graph with inlined conditionals, the rank runs a second time without, in a folder
    with the suffix `_not_inlined`.

    Args:
        config: configuration for a dry run: existing data, one or two steps, no checkpoints.
        folder: folder for its files; it is created.
        folder: where it runs; must not be there yet.
        rank: whose pipeline stage it is.
        num_ranks: of the training; 1 for one without parallelism.
        report_status: called now and then, with a line on the progress.
        stop: polled; True ends the process.
        max_s: time limit in seconds.
        is_inlined: inline conditionals, the default of MindSpore.

    Raises:
        LaunchError: the process failed (with signal or last error, last operator and path of the log), or it did not
            write its memory tables.
    """
    try:
        return _run_rank(
            config=config,
            folder=folder,
            rank=rank,
            num_ranks=num_ranks,
            report_status=report_status,
            stop=stop,
            max_s=max_s,
            is_inlined=is_inlined,
        )
    except OSError as error:  # somebody cleaned up the temporary folder, or the disk is full
        raise LaunchError(
            f"dry run of rank {rank}: {error.filename or folder}: {error.strerror or error}\n"
            "    fix:     --keep FOLDER, or another TMPDIR: one with room, which nobody empties meanwhile"
        ) from error


def _run_rank(
    config: Path,
    folder: Path,
    rank: int,
    num_ranks: int,
    report_status: StatusCallback,
    stop: Callable[[], bool],
    max_s: float,
    is_inlined: bool,
) -> DryRun:
    folder.mkdir(parents=True)
    log = folder / LOG
    words = ["--config", str(config.absolute()), "--run_mode", "train", "--use_parallel", str(num_ranks > 1)]
    words += ["--output_dir", str(folder.absolute() / "output")]
    _raise_stack_limit()
    begin_s = time.monotonic()
    with log.open("wb") as file, contextlib.ExitStack() as stack:
        first, variables = ascend_backend(stack)
        variables |= _simulated_rank(rank, num_ranks) | ({} if is_inlined else NOT_INLINED)
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        command = module_command("mindswap", "run", *words, first=first)
        with started(command, variables, cwd=folder, **streams) as process:
            ended = wait(process, log, report_status, lambda: stop() or time.monotonic() - begin_s > max_s)
    wall_s = time.monotonic() - begin_s
    log.stat()  # raises OSError if the folder was deleted
    if ended.code == 0:
        return read_rank(folder, rank, wall_s, is_inlined, ended.cpu_s)
    message = _failure_message(ended.code, folder, rank, wall_s)
    if INLINE_FAULT not in message or not is_inlined:
        raise LaunchError(message)
    report_status("MindSpore does not build it with inlined conditionals; again with switch_inline:False")
    second_folder = folder.with_name(f"{folder.name}_not_inlined")
    return run_rank(
        config=config,
        folder=second_folder,
        rank=rank,
        num_ranks=num_ranks,
        report_status=report_status,
        stop=stop,
        max_s=max_s,
        is_inlined=False,
    )


def _raise_stack_limit() -> None:
    """Raise the stack limit of child processes, because the compiler recurses over the step.

    With the usual 8 MiB it crashed on 12 layers and 128 micro-batches.
    """
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_STACK)
    if limit != resource.RLIM_INFINITY and limit < STACK_BYTES:
        new_limit = STACK_BYTES if hard_limit == resource.RLIM_INFINITY else min(STACK_BYTES, hard_limit)
        resource.setrlimit(resource.RLIMIT_STACK, (new_limit, hard_limit))


def ascend_backend(stack: contextlib.ExitStack) -> tuple[list[Path], dict[str, str]]:
    """Return paths for the front of `sys.path`, and the environment: of CANN if it is installed, else of the stubs."""
    variables = package_environment()
    # The compiler allocates many small blocks: larger thread caches and huge pages of malloc each make it 10 % faster.
    variables.setdefault("GLIBC_TUNABLES", "glibc.malloc.tcache_count=60000:glibc.malloc.hugetlb=1")
    if has_cann():
        return [], variables
    cann, libraries = (stack.enter_context(plain_name(folder)) for folder in (stub_libraries(), mindspore_libraries()))
    variables = {name: text for name, text in variables.items() if name not in CANN_VARIABLES}
    return [cann / "python"], variables | environment(cann, libraries)


def _simulated_rank(rank: int, num_ranks: int) -> dict[str, str]:
    """Return the environment variables for a dry run of a rank with memory tracking."""
    ranks = {"RANK_SIZE": str(num_ranks), "RANK_ID": str(rank)} if num_ranks > 1 else {}
    return ranks | {
        "PYTHONUNBUFFERED": "1",
        "MS_SIMULATION_LEVEL": "1",
        "MS_JIT_DISPLAY_PROGRESS": "1",
        "MS_MEMORY_STATISTIC": "1",
        "ENABLE_LAZY_INLINE_NO_PIPELINE": "1",
        # A relative path, because a comma in an absolute one would end the value.
        "MS_ALLOC_CONF": f"memory_tracker:True,memory_tracker_path:{TRACKER}",
    }


@dataclass(frozen=True)
class _Exit:
    """End of a process."""

    code: int | None  # exit code; None if it was ended
    cpu_s: float  # CPU time of the process


def wait(
    process: "subprocess.Popen[bytes]", log: Path, report_status: StatusCallback, stop: Callable[[], bool]
) -> _Exit:
    """Wait for the process and report its progress: each phase, and the current one every `REPEAT_S` seconds."""
    last_status, cpu_s = "", 0.0
    begin_s = reported_s = time.monotonic()
    while (code := process.poll()) is None:
        cpu_s = max(cpu_s, _read_cpu_s(process.pid))
        time.sleep(POLL_S)
        if stop():
            return _Exit(None, cpu_s)
        status, now_s = find_phase(read_tail(log)) or last_status or BUILDING, time.monotonic()
        if status != last_status:
            report_status(status)
        elif now_s - reported_s > REPEAT_S:
            report_status(f"{status}, {now_s - begin_s:.0f} s")
        else:
            continue
        last_status, reported_s = status, now_s
    return _Exit(code, cpu_s)


def find_phase(lines: list[str]) -> str:
    """Return the phase of a training from its last log lines, `generating kernels` or `step 1/2`; "" if unknown."""
    if step := find_last_step(lines):
        return f"step {step}"
    matches = (_PHASE.match(line) for line in reversed(lines))
    match = next(filter(None, matches), None)
    if match is None:
        return ""
    return match[2] if match[1] == "Start" else "launching the step"


def _read_cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far in seconds; 0 if the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _failure_message(code: int | None, folder: Path, rank: int, wall_s: float) -> str:
    lines = read_tail(folder / LOG)
    if code is None:
        cause = f"given up after {wall_s:.0f} s"
    elif code < 0:
        cause = f"the backend crashed ({signal.Signals(-code).name})"
    else:
        cause = find_last_error(lines) or f"exit code {code}"
    operator = last_operator(folder)
    last = f"\n    last operator: {operator}" if operator else ""
    return f"dry run of rank {rank}: {cause}{last}\n    log:     {folder / LOG}"


def last_operator(folder: Path) -> str:
    """Return the last operator in the table of the memory tracker; "" if there is none."""
    for path in sorted((folder / TRACKER).rglob("task.csv")):
        names = [line.split(",")[2] for line in read_tail(path) if line.count(",") > 2]
        return next((name for name in reversed(names) if "/" in name), "")
    return ""
