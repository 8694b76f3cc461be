"""The launcher that scripts/msrun_launch.sh runs: start the workers, wait for them, stop them."""

import contextlib
import math
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mindswap.command_line.parser import say, write_out
from mindswap.errors import LaunchError, PolicyError, StoppedBySignal
from mindswap.report.problems import format_problems
from mindswap.rules.machine.software import has_cards
from mindswap.runtime.attempt.watch import MsrunOutput
from mindswap.runtime.crashes import crash_signal, is_training_over
from mindswap.runtime.launcher_arguments import Job, parse_arguments, split_order, worker_command
from mindswap.runtime.msrun import (
    PLAIN_FOR_MSRUN,
    archive_old_logs,
    check_port,
    failure_report,
    find_msrun,
    find_python,
    log_folder,
    msrun_arguments,
    worker_environment,
    worker_log,
)
from mindswap.runtime.training_command import ADAPTIVE_FLAG, check_configuration
from mindswap.system.process_tree import become_subreaper, raise_process_limit, stop_descendants
from mindswap.system.scratch import plain_name
from mindswap.system.signals import held_signals, signals_raise
from mindswap.system.streams import prepare_streams, print_text

POLL_S = 0.2  # how often the end of a process is looked for while it writes nothing
BLOCK_BYTES = 1 << 16

USAGE = """usage: bash scripts/msrun_launch.sh EXECUTE_ORDER
       bash scripts/msrun_launch.sh EXECUTE_ORDER WORKER_NUM
       bash scripts/msrun_launch.sh EXECUTE_ORDER WORKER_NUM MASTER_PORT LOG_DIR JOIN CLUSTER_TIME_OUT
       bash scripts/msrun_launch.sh EXECUTE_ORDER WORKER_NUM LOCAL_WORKER MASTER_ADDR MASTER_PORT NODE_RANK \\
                                    LOG_DIR JOIN CLUSTER_TIME_OUT

  EXECUTE_ORDER     script and its arguments in one string, as in a shell, but nothing is evaluated:
                    "run_mindformer.py --config case1.yaml --run_mode train --use_parallel True"
  WORKER_NUM        workers of the job, on all machines together (8)
  LOCAL_WORKER      workers on this machine (WORKER_NUM)
  MASTER_ADDR       address of the machine with NODE_RANK 0 (127.0.0.1)
  MASTER_PORT       its port, 1024 to 65535 (8118)
  NODE_RANK         0, 1, ...: number of this machine (0)
  LOG_DIR           folder for worker_0.log ... (output/msrun_log)
  JOIN              True: wait, and return the exit code of the training; False: return once all are started (False)
  CLUSTER_TIME_OUT  seconds that workers wait for each other (7200)

--adaptive-memory-optimization before EXECUTE_ORDER: plan swap and recompute for the memory there is, watch the
training, plan again when memory runs out; options as of `mindswap run` (mindswap run --help)

environment: MF_LOG_SUFFIX=x makes LOG_DIR end with _x; LOG_MF_PATH is the folder of MindFormers' own logs;
PLOG_REDIRECT_TO_OUTPUT=True puts Ascend's logs under output/plog"""


def main(words: list[str] | None = None) -> int:
    """Run one call of the launcher; prints, as commands do.

    Returns:
        The exit code of the training (with JOIN False: of starting it); 1 for a wrong call;
        128 + the signal's number after Ctrl-C, SIGTERM or SIGHUP.
    """
    if words is None:
        prepare_streams()
    words = sys.argv[1:] if words is None else words
    if words in (["-h"], ["--help"]):
        print_text(USAGE)
        return 0
    usage = ""
    try:
        if ADAPTIVE_FLAG in words:
            return _run_adaptive(words)
        usage = f"{USAGE}\n\n"  # for a call that cannot be read
        job, command = _read(words)
        usage = ""
        check_configuration(command, job.num_workers)
        with signals_raise():
            return _run_single_worker(job, command) if job.num_workers == 1 else _run_msrun(job, command)
    except LaunchError as error:
        print_text(f"{usage}{_as_error(error)}", is_message=True)
    except PolicyError as error:
        print_text(format_problems(error.problems), is_message=True)
    except StoppedBySignal as stop:
        return stop.exit_code
    return 1


def _run_adaptive(words: list[str]) -> int:
    """Run the job as an adaptive run; JOIN is ignored, because the launcher always waits for the end."""
    from mindswap.features.run.adaptive_options import run_adaptive, split_words

    args, job_words = split_words(words)
    job, command = _read(job_words)
    python, logs = [find_python(), *command], str(log_folder(job, os.environ))
    msrun = ["msrun", *msrun_arguments(job, logs, python, bind_core=has_cards())]
    args.run_dir = args.run_dir or Path(logs)
    return run_adaptive(args, python if job.num_workers == 1 else msrun)


def _read(words: list[str]) -> tuple[Job, list[str]]:
    """Parse the job and the worker's command, and report all problems of both."""
    problems = []
    job = command = None
    try:
        job = parse_arguments(words)
    except LaunchError as error:
        problems.append(str(error))
    if words and words[0].strip():
        try:
            command, remark = worker_command(split_order(words[0]))
            if remark:
                say(remark)
        except LaunchError as error:
            problems.append(str(error))
    if problems or job is None or command is None:
        raise LaunchError("\n".join(problems))
    return job, command


def _run_msrun(job: Job, command: list[str]) -> int:
    msrun, python = find_msrun(), find_python()
    check_port("127.0.0.1" if job.is_single_node else job.master_addr, job.master_port)
    folder = _prepare_folder(job)
    with plain_name(folder, also=PLAIN_FOR_MSRUN) as name:
        arguments = msrun_arguments(job, str(name), [python, *command], bind_core=has_cards())
        say(f"running: {shlex.join(['msrun', *arguments])}")
        say(f"logs: {folder.absolute()}")
        environment = worker_environment(os.environ, Path.cwd())
        messages = MsrunOutput() if job.join else None
        code = _wait([*msrun, *arguments], environment, keep_workers=not job.join, messages=messages)
    signals = [crash_signal(each) for _, each in messages.exits()] if messages else []
    if code and all(signals) and is_training_over(folder, job.ranks):
        # Without an exit of a worker it was msrun's scheduler, which has the same library.
        _tell_late_crash(f"a worker crashed with {signals[0]}" if signals else "the scheduler of msrun failed")
        return 0
    if code:
        print_text(f"mindswap: error: the training failed\n{failure_report(folder, job.ranks)}", is_message=True)
        return code if code > 0 else 128 - code
    if not job.join:
        say(
            f"JOIN is False: {job.num_local_workers} workers run in the background, see "
            f"{worker_log(folder, job.ranks[0])}; JOIN True waits and returns the exit code of the training"
        )
    return 0


def _run_single_worker(job: Job, command: list[str]) -> int:
    folder = _prepare_folder(job)
    log = worker_log(folder, 0)
    say(f"WORKER_NUM is 1: python runs without msrun, and JOIN has no effect; log: {log.absolute()}")
    environment = {**worker_environment(os.environ, Path.cwd()), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as file:
        code = _wait([sys.executable, *command], environment, keep_workers=True, log=file)
    if (crash := crash_signal(code)) and is_training_over(folder, job.ranks):
        _tell_late_crash(f"the worker crashed with {crash}")
        return 0
    if code:
        print_text(f"mindswap: error: the training failed, exit code {code}\n    log: {log}", is_message=True)
    return code if code >= 0 else 128 - code


def _tell_late_crash(crash: str) -> None:
    """Say that a process crashed after the training; nothing is lost by it."""
    say(f"{crash} after the training was over: this is no failure of the training")


def _wait(
    command: list[str],
    environment: dict[str, str],
    *,
    keep_workers: bool,
    log: BinaryIO | None = None,
    messages: MsrunOutput | None = None,
) -> int:
    """Run a command to its end; if this process is stopped, all processes of the command are stopped.

    With `log`, all of its output is also written there; with `messages`, what it writes to stderr.
    """
    raise_process_limit()
    become_subreaper()
    with _stopping_all():
        # In a new session Ctrl-C reaches this process only, which then stops the others in order.
        out, error = (subprocess.PIPE, subprocess.STDOUT) if log else (None, subprocess.PIPE if messages else None)
        with held_signals():
            process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=out, stderr=error)
        while log and process.stdout and (block := os.read(process.stdout.fileno(), BLOCK_BYTES)):
            log.write(block)
            log.flush()
            write_out(block)
        if messages and process.stderr:
            for block in _read_until_end(process, process.stderr.fileno()):
                messages.take(block)
                sys.stderr.buffer.write(block)
                sys.stderr.flush()
        code = process.wait()
    if not (keep_workers and code == 0):
        stop_descendants()
    return code


def _read_until_end(process: subprocess.Popen[bytes], descriptor: int) -> Iterator[bytes]:
    """Yield the blocks of a stream until its process ends; children of the process may hold the stream open longer."""
    deadline_s = math.inf
    while time.monotonic() < deadline_s:
        has_ended = process.poll() is not None  # before the look at the stream: what was written before is there
        if has_ended:
            deadline_s = min(deadline_s, time.monotonic() + POLL_S)
        if select.select([descriptor], [], [], 0 if has_ended else POLL_S)[0]:
            if not (block := os.read(descriptor, BLOCK_BYTES)):
                return
            yield block
        elif has_ended:
            return


@contextlib.contextmanager
def _stopping_all() -> Iterator[None]:
    try:
        yield
    except BaseException:
        say("stopping all workers")
        stop_descendants()
        raise


def _prepare_folder(job: Job) -> Path:
    folder = log_folder(job, os.environ)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_master = job.is_single_node or job.node_rank <= 0
        old = archive_old_logs(folder, job.ranks, job.num_workers, with_scheduler=is_master)
    except OSError as error:
        raise LaunchError(f"LOG_DIR {folder}: {error.strerror}: {error.filename}") from error
    if old:
        say(f"{len(old)} logs of an earlier run are now {folder}/*.log.old")
    return folder


def _as_error(error: LaunchError) -> str:
    return "\n".join(line if line.startswith(" ") else f"mindswap: error: {line}" for line in str(error).splitlines())
