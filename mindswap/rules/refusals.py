"""Conditions under which MindFormers or MindSpore refuse a configuration, as tables of refusals for rules.

`tools/upstream_checks.yaml` lists the checks of both, with the corresponding refusals.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mindswap.config.findings import Finding
from mindswap.config.nodes import is_int, to_data
from mindswap.rules.context import Context
from mindswap.rules.parts import Part, find_part
from mindswap.rules.values import Values

# Values of `run_mode` that MindFormers accepts; only the training modes have something to swap.
TRAIN_MODES = ("train", "finetune")
OTHER_MODES = ("eval", "predict", "predict_with_train_model")
RUN_MODES = (*TRAIN_MODES, *OTHER_MODES)
# Values of `parallel.parallel_mode` in a file (mindformers/tools/utils.py, PARALLEL_MODE).
PARALLEL_MODES = (0, 1, 2, 3, "DATA_PARALLEL", "SEMI_AUTO_PARALLEL", "AUTO_PARALLEL", "HYBRID_PARALLEL", "STAND_ALONE",
                  "MANUAL_PARALLEL")  # fmt: skip
# Data parallel mode, with MindSpore's name, by which MindFormers replaces it when a run starts.
DATA_MODES = (0, "DATA_PARALLEL", "data_parallel")
FLASH = "model.use_flash_attention"


Condition = Callable[[Values], bool]
Text = str | Callable[[Values], str]


@dataclass(frozen=True)
class Refusal:
    """A condition under which a training is refused, and the texts of its problem."""

    name: str  # id in the list of upstream checks
    at: str | tuple[str, ...]  # key paths: the problem is located at the first one that is set
    holds: Condition  # whether the training is refused; exceptions of wrong types count as False
    message: Text  # description, without key path and value
    allowed: Text = ""
    fix: Text = ""  # `{key}` is replaced by the key of the problem
    is_always_read: bool = False  # the key of `parallel` is read even with `use_parallel: False`
    parts: Callable[[Values], list[Part]] | None = None  # wrong parts of the list or mapping; None for all of it


def find_refusals(context: Context, refusals: Sequence[Refusal]) -> Iterator[Finding]:
    """Yield a finding for each refusal whose condition holds in a configuration that trains."""
    values = Values(context.document, context.settings.is_swap_enabled, context.is_training_start)
    if values("run_mode") in OTHER_MODES:
        return
    for refusal in refusals:
        value = values.locate((refusal.at,) if isinstance(refusal.at, str) else refusal.at)
        is_read = refusal.is_always_read or values.is_parallel or value.path.partition(".")[0] != "parallel"
        if not is_read or not _is_true(refusal.holds, values):
            continue
        message, allowed, fix = (_text(text, values) for text in (refusal.message, refusal.allowed, refusal.fix))
        has_parts = refusal.parts is not None and value.node is not None
        for part in refusal.parts(values) if refusal.parts is not None and has_parts else [Part(())]:
            located = find_part(part, value.path, value.node, value.location)
            yield Finding(
                location=located.location,
                message=f"{located.path}:{located.text} {message}",
                allowed=part.allowed or allowed,
                fix=(part.fix or fix).replace("{key}", located.path.rpartition(".")[2]),
                level=context.refusal_level,
            )


def _is_true(condition: Callable[[Any], bool], argument: Any) -> bool:
    """Return whether a condition holds; False for values of a wrong type, which separate refusals report."""
    try:
        return bool(condition(argument))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError, OverflowError):
        return False


def _text(text: Text, values: Values) -> str:
    return text if isinstance(text, str) else text(values)


def of_parts(
    name: str,
    at: str,
    parts: Callable[[Values], list[Part]],
    message: Text,
    allowed: Text = "",
    fix: Text = "",
) -> Refusal:
    """Return the refusal of parts of a list or mapping; each part is a separate problem."""
    return Refusal(name, at, lambda v: bool(parts(v)), message, allowed, fix, parts=parts)


def of_elements(
    name: str,
    at: str,
    is_wrong: Callable[[Any], bool],
    message: Text,
    allowed: Text = "",
    fix: Text = "",
    key: str = "",
    where: Condition = lambda v: True,
) -> Refusal:
    """Return the refusal of elements of a list.

    Args:
        name: name of the refusal.
        at: key path of the list.
        is_wrong: whether an element is refused; exceptions of wrong types count as False.
        message: description.
        allowed: allowed elements.
        fix: suggested element.
        key: key of the wrong value in the element; "" for the element itself.
        where: whether the list is read.
    """

    def parts(v: Values) -> list[Part]:
        elements = v(at)
        if not isinstance(elements, list) or not where(v):
            return []
        return [
            Part((index, key) if key else (index,)) for index, item in enumerate(elements) if _is_true(is_wrong, item)
        ]

    return of_parts(name, at, parts, message, allowed, fix)


# Tests of single values.


def is_bool(value: object) -> bool:
    """Return whether a value is True or False."""
    return isinstance(value, bool)


def is_positive(value: object) -> bool:
    """Return whether a value is an integer of at least 1."""
    return is_int(value) and value >= 1


def is_number(value: object) -> bool:
    """Return whether a value is a number but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def typed(path: str, is_right: Callable[[Any], bool], allowed: str, fix: str, takes_null: bool = False) -> Refusal:
    """Return the refusal of a value of a wrong type.

    Args:
        path: key path of the value.
        is_right: whether a value has the right type.
        allowed: the type in words.
        fix: suggested value.
        takes_null: whether null counts as missing.
    """

    def holds(v: Values) -> bool:
        _, node = v.find(path)
        return node is not None and not (takes_null and node.is_null) and not is_right(to_data(node))

    return Refusal(f"type of {path}", path, holds, f"it is not {allowed}", allowed, fix)


WITH_DOT = "a number with a dot: 1.e-8; 1e-8 is a string in YAML"


def with_dot(value: Any) -> str:
    """Return the fix for a number without a dot, such as 1e-5: `{key}: 1.0e-5`; "" if it is not a number."""
    mantissa, letter, exponent = str(value).lower().partition("e")
    is_number_text = mantissa.lstrip("+-").isdecimal() and (not letter or exponent.lstrip("+-").isdecimal())
    return f"{{key}}: {mantissa}.0{letter}{exponent}" if is_number_text else ""


def of_newer(
    name: str, key: str, holds: Callable[[Any], bool], message: str, allowed: str = "", fix: str = ""
) -> Refusal:
    """Return the refusal of one value of a newer model; `holds` is called with the value if it is set."""
    path = f"model.{key}"
    return Refusal(name, path, lambda v: v.is_newer and v(path) is not None and holds(v(path)), message, allowed, fix)


def lacks_flash_attention(v: Values) -> bool:
    """Return whether flash attention is off; legacy models have it off by default, newer ones on."""
    return not v(FLASH, v.is_newer or not v.is_complete)


def has_latent_attention(v: Values) -> bool:
    """Return whether the model has multi-head latent attention."""
    return bool(v("model.multi_latent_attention")) or v.is_written("model.kv_lora_rank")
