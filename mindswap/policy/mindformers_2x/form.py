"""Which form a configuration has: MindFormers 1.9 (graph mode) or MindFormers 2.x (PyNative)."""

from enum import Enum

from mindswap.config.nodes import Document
from mindswap.config.problem import Level, Location, Problem
from mindswap.errors import PolicyError

RULE = "form-2x"


class Form(Enum):
    """The form of a configuration, in words."""

    GRAPH = "MindFormers 1.9 (graph mode)"
    PYNATIVE = "MindFormers 2.x (PyNative)"


def find_form(document: Document) -> Form:
    """The form by the top-level keys: `training` and `parallelism`, and none of `trainer`, `runner_config`.

    Source: `TrainConfig` in mindformers/pynative/config/config.py of the mindformers 2.1.0 wheel.
    """
    has_new = all(document.get(key) is not None for key in ("training", "parallelism"))
    has_old = any(document.get(key) is not None for key in ("trainer", "runner_config"))
    return Form.PYNATIVE if has_new and not has_old else Form.GRAPH


def form_problem(document: Document) -> Problem | None:
    """What a command says that reads the graph form only; None for a file of that form."""
    if find_form(document) is Form.GRAPH:
        return None
    entry = document.entry("training")
    location = entry.location if entry is not None else Location(document.file)
    readers = "`check`, `explain`, `convert` and `plan`"
    message = f"this is a configuration of {Form.PYNATIVE.value}, which only {readers} read so far"
    allowed = f"a configuration of {Form.GRAPH.value}, with `trainer` or `runner_config`"
    fix = "use mindswap check, explain, convert or plan --trace; for the rest a 1.9 configuration of the same model"
    return Problem(location, RULE, Level.ERROR, message, allowed, fix)


def refuse_pynative(document: Document) -> None:
    """Stop a command that reads the graph form only. Raises PolicyError: the file has the 2.x form."""
    problem = form_problem(document)
    if problem is not None:
        raise PolicyError([problem])
