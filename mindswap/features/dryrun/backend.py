"""Processes of a dry run: one for each rank, each a training by `mindswap run` on MindSpore's Ascend backend."""

import contextlib
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from mindswap.errors import LaunchError
from mindswap.features.dryrun.cann_stand_ins import environment, has_cann, mindspore_libraries, stub_libraries
from mindswap.features.dryrun.memory_pool import LOG, TRACKER, DryRun, read_rank
from mindswap.runtime.logs.read import find_last_error, find_last_step, read_tail
from mindswap.system.children import module_command, started
from mindswap.system.environment import CANN_VARIABLES, package_environment
from mindswap.system.scratch import plain_name

POLL_S = 0.2
STACK_BYTES = 2**26  # with 1 GiB, which each thread reserves then, no host memory was left for copies
MAX_S = 1800.0
# What builds where MindSpore 2.9.0 fails: layer_swap leaves a graph that is not inlined, for which there is no kernel.
NOT_INLINED = {"MS_DEV_RUNTIME_CONF": "switch_inline:False"}
INLINE_FAULT = "The pointer[ker_ptr] is null"
StatusCallback = Callable[[str], None]  # takes a line for the user


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
    """Run one rank of a configuration to its end, in a folder that it makes.

    What MindSpore does not build with inlined conditionals is run again, in a folder beside it, without.

    Args:
        config: made for a dry run: data that is there, one or two steps, no checkpoints.
        folder: where it runs; must not be there yet.
        rank: whose pipeline stage it is.
        num_ranks: of the training; 1 for one without parallelism.
        report_status: called now and then, with a line on the progress.
        stop: whether to end it now.
        max_s: after so many seconds it is given up.
        is_inlined: as MindSpore does by default.

    Raises:
        LaunchError: it failed, with the signal or the last error, the last operator, and where its log is; or it left
            no figures of memory.
    """
    try:
        return _run_rank(config, folder, rank, num_ranks, report_status, stop, max_s, is_inlined)
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
        first, variables = _ascend_backend(stack)
        variables |= _simulated_rank(rank, num_ranks) | ({} if is_inlined else NOT_INLINED)
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        command = module_command("mindswap", "run", *words, first=first)
        with started(command, variables, cwd=folder, **streams) as process:
            code = _wait(process, log, report_status, lambda: stop() or time.monotonic() - begin_s > max_s)
    wall_s = time.monotonic() - begin_s
    log.stat()  # raises if the folder is gone
    if code == 0:
        return read_rank(folder, rank, wall_s, is_inlined)
    why = _failure_message(code, folder, rank, wall_s)
    if INLINE_FAULT not in why or not is_inlined:
        raise LaunchError(why)
    report_status("MindSpore does not build it with inlined conditionals; again with switch_inline:False")
    again = folder.with_name(f"{folder.name}_not_inlined")
    return run_rank(config, again, rank, num_ranks, report_status, stop, max_s, is_inlined=False)


def _raise_stack_limit() -> None:
    """Let what this process starts go deep: the compiler walks long steps by recursion.

    With 8 MiB, which is usual, it crashed on 12 layers and 128 micro-batches.
    """
    limit, most = resource.getrlimit(resource.RLIMIT_STACK)
    if limit != resource.RLIM_INFINITY and limit < STACK_BYTES:
        wanted = STACK_BYTES if most == resource.RLIM_INFINITY else min(STACK_BYTES, most)
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, most))


def _ascend_backend(stack: contextlib.ExitStack) -> tuple[list[Path], dict[str, str]]:
    """First paths of modules, and variables: with CANN the backend takes its libraries, else the stand-ins."""
    variables = package_environment()
    # The compiler asks for small pieces of memory all the time: with larger lists of free ones it takes a tenth less.
    variables.setdefault("GLIBC_TUNABLES", "glibc.malloc.tcache_count=60000")
    if has_cann():
        return [], variables
    cann, libraries = (stack.enter_context(plain_name(folder)) for folder in (stub_libraries(), mindspore_libraries()))
    variables = {name: text for name, text in variables.items() if name not in CANN_VARIABLES}
    return [cann / "python"], variables | environment(cann, libraries)


def _simulated_rank(rank: int, num_ranks: int) -> dict[str, str]:
    """Variables for a dry run of a rank, and for the figures of its memory."""
    ranks = {"RANK_SIZE": str(num_ranks), "RANK_ID": str(rank)} if num_ranks > 1 else {}
    return ranks | {
        "PYTHONUNBUFFERED": "1",
        "MS_SIMULATION_LEVEL": "1",
        "MS_MEMORY_STATISTIC": "1",
        "ENABLE_LAZY_INLINE_NO_PIPELINE": "1",
        # Relative to its working folder: a comma in a path would end it.
        "MS_ALLOC_CONF": f"memory_tracker:True,memory_tracker_path:{TRACKER}",
    }


def _wait(
    process: "subprocess.Popen[bytes]", log: Path, report_status: StatusCallback, stop: Callable[[], bool]
) -> int | None:
    """Its exit code; None if it took too long, or is to end."""
    said = ""
    while (code := process.poll()) is None:
        time.sleep(POLL_S)
        if stop():
            return None
        step = find_last_step(read_tail(log))
        doing = f"step {step}" if step else "compiling"
        if doing != said:
            said = doing
            report_status(doing)
    return code


def _failure_message(code: int | None, folder: Path, rank: int, wall_s: float) -> str:
    lines = read_tail(folder / LOG)
    if code is None:
        what = f"given up after {wall_s:.0f} s"
    elif code < 0:
        what = f"the backend crashed ({signal.Signals(-code).name})"
    else:
        what = find_last_error(lines) or f"exit code {code}"
    operator = last_operator(folder)
    last = f"\n    last operator: {operator}" if operator else ""
    return f"dry run of rank {rank}: {what}{last}\n    log:     {folder / LOG}"


def last_operator(folder: Path) -> str:
    """The operator that the memory tracker saw last; "" before the first."""
    for path in sorted((folder / TRACKER).rglob("task.csv")):
        names = [line.split(",")[2] for line in read_tail(path) if line.count(",") > 2]
        return next((name for name in reversed(names) if "/" in name), "")
    return ""
