"""What every command says with `--json`: one object, of one outer shape, on success and on error.

`{"schema": "mindswap.COMMAND", "version": 1, "ok": ..., "error": ..., "problems": [...], DATA}`; `data/schema/` has the
rest. `ok` is exit code 0. Where there is an error there is no data; where `ok` is false without one, the data says why:
nothing fits, or the graph does not do what is asked.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from mindswap.config.problem import Problem
from mindswap.report.problems import problems_to_data

# Of the outer shape and of all data; one more where a key goes or changes its meaning, not where one is new.
VERSION = 1


def answer_text(command: str, data: Mapping[str, Any], is_ok: bool, error: str | None = None) -> str:
    """The answer of a command: JSON values, `problems` among them if there are any.

    `command` is "" where there is no such one; `is_ok` says that it exits with 0, `error` why there is no data.
    """
    name = f"mindswap.{command}" if command else "mindswap"
    outer = {"schema": name, "version": VERSION, "ok": is_ok, "error": error}
    return json.dumps({**outer, "problems": [], **data, **outer}, indent=1)


def error_text(command: str, error: str, problems: Iterable[Problem] = ()) -> str:
    """What a command answers that cannot do what it is asked: what is wrong, or what is wrong in the configuration."""
    return answer_text(command, problems_to_data(problems), False, error)
