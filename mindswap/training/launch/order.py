"""EXECUTE_ORDER, one string, to the command of a worker, with the plugin on."""

import re
import shlex
from pathlib import Path

from mindswap.errors import LaunchError

_PLUGIN = ["-m", "mindswap", "run"]
_ENTRY = "run_mindformer.py"
# Quoted text and escaped characters; outside single quotes a shell drops a backslash with the line end after it.
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
_ESCAPED = re.compile(r"\\.", re.DOTALL)


def split_order(order: str) -> list[str]:
    """The words of the order, as a shell splits them, with quotes respected and nothing evaluated.

    Raises:
        LaunchError: quotes are not closed, or there is no word.
    """

    def join_lines(found: re.Match[str]) -> str:
        text = found.group()
        return text if text.startswith("'") else _ESCAPED.sub(lambda one: one[0].replace("\\\n", ""), text)

    try:
        words = shlex.split(_QUOTED.sub(join_lines, order))
    except ValueError as error:
        raise LaunchError(f"EXECUTE_ORDER: {str(error).lower()}: {order!r}\n    fix:     close the quote") from error
    if not words:
        raise LaunchError("EXECUTE_ORDER is empty\n    allowed: a script and its arguments")
    return words


def worker_command(words: list[str], source: str = "EXECUTE_ORDER") -> tuple[list[str], str | None]:
    """What Python shall run in every worker.

    Args:
        words: the order, split: `run_mindformer.py ARGS`, another script, only options (for the
            package's own entry), or any of these after `python` or `python -m mindswap run`.
        source: where the words stand, for messages.

    Returns:
        The arguments of Python, `-m mindswap run ...`, and a remark for the user.

    Raises:
        LaunchError: there is no such script.
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
    if script.suffix == ".py" and _is_file(script):
        return [*_PLUGIN, *words], None
    if script == Path(_ENTRY):
        return [*_PLUGIN, *words[1:]], f"no {_ENTRY} in this folder: mindswap's own entry takes its place"
    raise LaunchError(f"{source}: no script {words[0]!r} in {Path.cwd()}{_ALLOWED}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # for example a name that is too long
        return False


_ALLOWED = (
    f"\n    allowed: a Python script and its arguments, for example: {_ENTRY} --config case1.yaml --run_mode train"
)
