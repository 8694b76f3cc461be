"""Parse the 1-, 2-, 6- and 9-argument forms of the launcher, as in MindFormers' msrun_launcher.sh."""

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindswap.config.step_settings import DEFAULT_MASTER_PORT
from mindswap.errors import LaunchError

DEFAULT_LOG_DIR = "output/msrun_log"


@dataclass(frozen=True)
class Job:
    """One call of the launcher."""

    order: str  # EXECUTE_ORDER as given
    num_workers: int = 8  # on all machines
    num_local_workers: int = 8  # on this machine
    # address and port of the scheduler
    master_addr: str = "127.0.0.1"
    master_port: int = DEFAULT_MASTER_PORT
    node_rank: int = 0  # number of this machine; -1: MindSpore numbers the workers
    log_dir: str = DEFAULT_LOG_DIR  # log folder as given, without MF_LOG_SUFFIX
    join: bool = False  # whether to wait for the workers
    timeout_s: int = 7200  # timeout of the workers' start; negative for none

    @property
    def is_single_node(self) -> bool:
        """Return whether all workers are on this machine, so that the address is not needed."""
        return self.num_workers == self.num_local_workers

    @property
    def ranks(self) -> range:
        """Ranks of the workers of this machine, as in the names of msrun's logs."""
        first = 0 if self.is_single_node else max(self.node_rank, 0) * self.num_local_workers
        return range(first, first + self.num_local_workers)


def parse_arguments(words: list[str]) -> Job:
    """Parse the arguments of the launcher.

    Raises:
        LaunchError: if any are wrong; has one line for each problem.
    """
    if len(words) not in _FORMS:
        raise LaunchError(f"{len(words)} arguments\n    allowed: 1, 2, 6 or 9")
    values: dict[str, Any] = {}
    problems = []
    for name, word in zip(_FORMS[len(words)], words, strict=True):
        field, parse, allowed = _PARSERS[name]
        try:
            values[field] = parse(word)
        except (KeyError, ValueError):
            problems.append(f"{name} is {word!r}\n    allowed: {allowed}")
    if "num_workers" in values and len(words) != 9:
        values["num_local_workers"] = values["num_workers"]
    problems += _check_counts(values)
    if problems:
        raise LaunchError("\n".join(problems))
    return Job(**values)


def _check_counts(values: dict[str, Any]) -> list[str]:
    total, local, node = (values.get(name) for name in ("num_workers", "num_local_workers", "node_rank"))
    if total is None or local is None:
        return []
    if local > total:
        return [f"LOCAL_WORKER is {local}, WORKER_NUM is {total}\n    allowed: at most WORKER_NUM on one machine"]
    if node is None or node < 0:
        return []
    if total == local:
        fix = f"a larger WORKER_NUM, or 0; {local} workers here are all of them"
        return [f"NODE_RANK is {node}\n    allowed: {fix}"] if node else []
    if total % local:
        return [f"WORKER_NUM {total}, LOCAL_WORKER {local}\n    allowed: the same number of workers on every machine"]
    if node >= total // local:
        return [f"NODE_RANK is {node}\n    allowed: 0 to {total // local - 1}, with {local} of {total} workers each"]
    return []


def _number(low: int, high: int | None = None) -> Callable[[str], int]:
    def parse(word: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,9}", word) or int(word) < low or (high is not None and int(word) > high):
            raise ValueError
        return int(word)

    return parse


def _text(word: str) -> str:
    if not word.strip() or "\0" in word:
        raise ValueError
    return word


_PARSERS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "EXECUTE_ORDER": ("order", _text, "a script and its arguments"),
    "WORKER_NUM": ("num_workers", _number(1), "a number from 1"),
    "LOCAL_WORKER": ("num_local_workers", _number(1), "a number from 1"),
    "MASTER_ADDR": ("master_addr", _text, "an IP address or a host name"),
    "MASTER_PORT": ("master_port", _number(1024, 65535), "a number from 1024 to 65535"),
    "NODE_RANK": ("node_rank", _number(-1), "a number from 0 (or -1: MindSpore numbers the workers)"),
    "LOG_DIR": ("log_dir", _text, "a folder"),
    "JOIN": ("join", {"True": True, "False": False}.__getitem__, "True or False"),
    "CLUSTER_TIME_OUT": ("timeout_s", _number(-(10**9)), "a number of seconds (negative: for ever)"),
}
_FORMS: dict[int, tuple[str, ...]] = {
    1: ("EXECUTE_ORDER",),
    2: ("EXECUTE_ORDER", "WORKER_NUM"),
    6: ("EXECUTE_ORDER", "WORKER_NUM", "MASTER_PORT", "LOG_DIR", "JOIN", "CLUSTER_TIME_OUT"),
    9: tuple(_PARSERS),
}


# Conversion of the string EXECUTE_ORDER to the command of a worker with the plugin.

_PLUGIN = ["-m", "mindswap", "run"]
_ENTRY = "run_mindformer.py"
# Quoted text and escaped characters; outside of single quotes a shell drops a backslash and the newline after it.
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
_ESCAPED = re.compile(r"\\.", re.DOTALL)


def split_order(order: str) -> list[str]:
    """Split the order into words like a shell, with quotes but without any expansion.

    Raises:
        LaunchError: if a quote is not closed, or there is no word.
    """

    def join_lines(match: re.Match[str]) -> str:
        text = match.group()
        return text if text.startswith("'") else _ESCAPED.sub(lambda escape: escape[0].replace("\\\n", ""), text)

    try:
        words = shlex.split(_QUOTED.sub(join_lines, order))
    except ValueError as error:
        raise LaunchError(f"EXECUTE_ORDER: {str(error).lower()}: {order!r}\n    fix:     close the quote") from error
    if not words:
        raise LaunchError("EXECUTE_ORDER is empty\n    allowed: a script and its arguments")
    return words


def worker_command(words: list[str], source: str = "EXECUTE_ORDER") -> tuple[list[str], str | None]:
    """Return the Python command of every worker.

    Args:
        words: the split order: `run_mindformer.py ARGS`, another script, only options (for the entry of this package),
            or any of these after `python` or `python -m mindswap run`.
        source: origin of the words, for messages.

    Returns:
        The arguments of Python, `-m mindswap run ...`, and a remark for the user (None without any).

    Raises:
        LaunchError: if the script does not exist.
    """
    if words[0] in ("python", "python3"):
        words = words[1:]
    if words[: len(_PLUGIN)] == _PLUGIN:
        words = words[len(_PLUGIN) :]
    if words and words[0] == "-m":
        raise LaunchError(f"{source}: python -m {' '.join(words[1:2])} cannot run with the plugin{_ALLOWED}")
    if not words or words[0].startswith("-"):
        return [*_PLUGIN, *words], None
    script = Path(words[0])
    if script.suffix == ".py" and os.path.isfile(script):  # noqa: PTH113 False also for a name that is too long
        return [*_PLUGIN, *words], None
    if script == Path(_ENTRY):
        return [*_PLUGIN, *words[1:]], f"no {_ENTRY} in this folder: mindswap's own entry takes its place"
    raise LaunchError(f"{source}: no script {words[0]!r} in {Path.cwd()}{_ALLOWED}")


_ALLOWED = (
    f"\n    allowed: a Python script and its arguments, for example: {_ENTRY} --config case1.yaml --run_mode train"
)
