"""Command line of msrun, environment and logs of its workers."""

import importlib.util
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mindswap.errors import LaunchError
from mindswap.policy.wording import name_indices
from mindswap.runtime.launcher_arguments import Job
from mindswap.runtime.logs.read import find_last_error, read_tail
from mindswap.system.children import module_command
from mindswap.units import format_bytes

# Characters allowed in the name of the log folder: msrun puts it unquoted into a shell command.
PLAIN_FOR_MSRUN = ":,"


def msrun_arguments(job: Job, log_dir: str, command: list[str], *, bind_core: bool) -> list[str]:
    """Build the arguments of msrun.

    Args:
        job: workers, address and timeout.
        log_dir: log folder; its name must be plain because msrun puts it into a shell command.
        command: `python` and its arguments. They follow `--`, else msrun parses some of them as its own options.
        bind_core: whether to bind each worker to separate CPU cores near its device.

    Returns:
        The arguments, without `msrun` itself.
    """
    return [
        *(["--bind_core=True"] if bind_core else []),
        f"--worker_num={job.num_workers}",
        f"--local_worker_num={job.num_local_workers}",
        *([] if job.is_single_node else [f"--master_addr={job.master_addr}"]),
        f"--master_port={job.master_port}",
        *([] if job.is_single_node else [f"--node_rank={job.node_rank}"]),
        f"--log_dir={log_dir}",
        f"--join={job.join}",
        f"--cluster_time_out={job.timeout_s}",
        "--",
        *command,
    ]


def find_python() -> str:
    """Return the name, `python` or `python3`, by which msrun finds this interpreter.

    msrun supports these two names only; `worker_environment` puts the folder of this interpreter first in PATH.

    Raises:
        LaunchError: if the folder has neither.
    """
    interpreter = Path(sys.executable)
    for name in ("python", "python3"):
        if (interpreter.parent / name).exists() and (interpreter.parent / name).resolve() == interpreter.resolve():
            return name
    raise LaunchError(
        f"msrun starts workers as 'python', which {interpreter.parent} lacks\n    fix:     a virtual environment"
    )


def find_msrun() -> list[str]:
    """Return the command that starts msrun of this interpreter's MindSpore.

    Raises:
        LaunchError: if MindSpore is not installed.
    """
    if importlib.util.find_spec("mindspore") is None:
        raise LaunchError(
            f"MindSpore is not installed for {sys.executable}\n"
            "    fix:     pip install mindspore==2.9.0, or on Ascend the MindSpore that matches your CANN"
        )
    beside = Path(sys.executable).with_name("msrun")
    return [str(beside)] if beside.exists() else module_command("mindspore.parallel.cluster.run")


def log_folder(job: Job, environment: Mapping[str, str]) -> Path:
    """Return LOG_DIR with MF_LOG_SUFFIX appended."""
    return Path(job.log_dir + _suffix(environment))


def worker_environment(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of msrun and its workers; MindFormers writes to `output/` in `folder`."""
    suffix = _suffix(environment)
    result = dict(environment)
    result["PATH"] = os.pathsep.join(filter(None, [str(Path(sys.executable).parent), environment.get("PATH")]))
    if not environment.get("LOG_MF_PATH"):
        result["LOG_MF_PATH"] = f"{folder}/output/log{suffix}"
    if environment.get("PLOG_REDIRECT_TO_OUTPUT", "False") not in ("", "False"):
        result["ASCEND_PROCESS_LOG_PATH"] = f"{folder}/output/plog{suffix}"
    return result


def _suffix(environment: Mapping[str, str]) -> str:
    suffix = environment.get("MF_LOG_SUFFIX", "")
    return f"_{suffix}" if suffix else ""


# Logs of the workers: archive old ones, report errors.


def worker_log(folder: Path, rank: int) -> Path:
    """Return the path of the log in which msrun writes the output of a worker."""
    return folder / f"worker_{rank}.log"


def archive_old_logs(folder: Path, ranks: Iterable[int], num_workers: int, *, with_scheduler: bool) -> list[Path]:
    """Rename logs of an earlier run to `*.log.old`, so that they are not mistaken for logs of this run.

    Other logs are kept, because in a shared folder other machines of the same job may be writing them.

    Args:
        folder: log folder.
        ranks: workers of this machine, whose logs are renamed.
        num_workers: workers of the job; logs with a higher number are renamed, too.
        with_scheduler: whether to rename `scheduler.log`.

    Returns:
        The renamed logs, by their former paths.
    """
    mine = set(ranks)
    logs = [folder / "scheduler.log"] if with_scheduler else []
    for path in sorted(folder.glob("worker_*.log")):
        rank = path.stem.removeprefix("worker_")
        if rank.isdecimal() and (int(rank) in mine or int(rank) >= num_workers):
            logs.append(path)
    old = [path for path in logs if path.exists()]
    for path in old:
        path.replace(path.with_name(f"{path.name}.old"))
    return old


def failure_report(folder: Path, ranks: Iterable[int]) -> str:
    """Format the last errors of failed workers; workers with equal errors are grouped, those with an error first."""
    ranks_by_reason: dict[tuple[bool, str], list[int]] = {}
    for rank in ranks:
        ranks_by_reason.setdefault(_examine(worker_log(folder, rank)), []).append(rank)
    causes = [text for is_cause, text in ranks_by_reason if is_cause]
    causes_first = sorted(ranks_by_reason.items(), key=lambda finding: not finding[0][0])
    lines = [f"    {_name(same)}: {text}" for (_, text), same in causes_first]
    scheduler = folder / "scheduler.log"
    is_cause, text = _examine(scheduler)
    if is_cause and text not in causes and scheduler.exists():
        lines.append(f"    scheduler.log: {text}")
    elif not causes:
        lines.append("    no error in any log: was a worker killed, for want of memory? (dmesg)")
    return "\n".join([*lines, f"    logs: {folder}"])


def _name(ranks: list[int]) -> str:
    return f"worker_{ranks[0]}.log" if len(ranks) == 1 else name_indices("worker", ranks)


def _examine(log: Path) -> tuple[bool, str]:
    """Return whether a log has a cause of the failure, and a text for the report."""
    try:
        lines = read_tail(log)
    except OSError:
        return True, "no log: this worker was not started"
    if error := find_last_error(lines):
        return True, error
    return False, "no error in the log; msrun stops all workers when one fails" if lines else "its log is empty"


# Port of the scheduler.


def check_port(address: str, port: int, fix: str = "") -> None:
    """Check that the port of the scheduler is free, if it runs on this machine.

    Args:
        address: address of the scheduler; another machine is not checked.
        port: port of the scheduler.
        fix: text before the free port in the error, such as `add --master_port=`.

    Raises:
        LaunchError: if the port is in use (names a free one), or the address is unknown.
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(address.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise LaunchError(f"MASTER_ADDR is {address!r}: {error}\n    allowed: an IP address or a host name") from error
    is_local = _can_listen(family, place, 0)  # port 0 selects any free port
    if not is_local or _can_listen(family, place, port):
        return
    candidates = (*range(port + 1, min(port + 1000, 65536)), *range(1024, port))
    free = next((candidate for candidate in candidates if _can_listen(family, place, candidate)), None)
    use = f"{fix}{free}" if fix else f"{free} is free"
    raise LaunchError(f"MASTER_PORT {port} of {address} is in use\n    fix:     {use} (ss -ltnp shows who has {port})")


def free_port() -> int:
    """Return an unused port of this machine."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def _can_listen(family: int, place: tuple[Any, ...], port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as server:
        # As MindSpore's scheduler: connections of an earlier run in TIME_WAIT do not block the port.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((place[0], port, *place[2:]))
            server.listen(1)
        except OSError:
            return False
    return True


# Free space of the file systems that a run writes to.

# Size of plan, state and logs of a short run; assumes about 100 KiB of logs per rank before the first step.
RUN_DIR_BYTES = 1 << 20


def describe_full(folder: Path, needed_bytes: int, purpose: str) -> str:
    """Describe a file system with too little space; without free inodes it has none.

    Args:
        folder: a folder on the file system, which need not exist.
        needed_bytes: required space.
        purpose: purpose of the space, for the message.

    Returns:
        The message; "" if there is enough space.
    """
    place = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    status = os.statvfs(place)
    free = 0 if status.f_files and not status.f_favail else status.f_bavail * status.f_frsize
    if free >= needed_bytes:
        return ""
    size_bytes = status.f_blocks * status.f_frsize
    return (
        f"{folder}: {format_bytes(free)} of {format_bytes(size_bytes)} are free on its file system; "
        f"{purpose} needs {format_bytes(needed_bytes)}, {format_bytes(needed_bytes - free)} more"
    )


def require_disk_space(run_dir: Path) -> None:
    """Fail early, before planning, if the logs of a run do not fit on its file system.

    Raises:
        LaunchError: if they do not fit; names folder and missing space.
    """
    if missing := describe_full(run_dir, RUN_DIR_BYTES, "a run"):
        raise LaunchError(
            f"{missing}\n    fix:     make room there, or take another --run-dir; the same command continues"
        )
