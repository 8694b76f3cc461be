r"""Plain data -> YAML as a user would write it: `True`, `[0, 3]`, `'mlp\.mul'`, entries as blocks."""

import re
from collections.abc import Mapping

import yaml

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_inline(value: object) -> bool:
    """True for what is written on one line: a scalar, a list of scalars, nothing."""
    if isinstance(value, Mapping):
        return not value
    if isinstance(value, (list, tuple)):
        return not any(isinstance(item, (Mapping, list, tuple)) for item in value)
    return True


def inline_text(value: object) -> str:
    """A value on one line, collections in brackets."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key_text(key)}: {inline_text(child)}" for key, child in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(inline_text(item) for item in value) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "True", False: "False", None: "null"}[value]
    if isinstance(value, str):
        return _quoted(value)
    return yaml.safe_dump(value, width=float("inf")).removesuffix("\n").removesuffix("\n...")


def block_lines(value: object, indent: int, step: int) -> list[str]:
    """The lines of a mapping, or of a list of mappings (what `is_inline` refuses), without line ends.

    Each begins with so many spaces, `step` more per level.
    """
    lines = []
    margin = " " * indent
    if isinstance(value, Mapping):
        for key, child in value.items():
            head = f"{margin}{key_text(key)}:"
            if is_inline(child):
                lines.append(f"{head} {inline_text(child)}")
            else:
                lines += [head, *block_lines(child, indent + step, step)]
        return lines
    assert isinstance(value, (list, tuple))
    for item in value:
        if isinstance(item, Mapping) and item:
            first, *rest = block_lines(item, indent + 2, step)
            lines += [f"{margin}- {first.lstrip()}", *rest]
        else:
            lines.append(f"{margin}- {inline_text(item)}")
    return lines


def key_text(key: object) -> str:
    """A key: plain where it is a plain word, else quoted."""
    is_word = isinstance(key, str) and _PLAIN_KEY.fullmatch(key) and isinstance(yaml.safe_load(key), str)
    return str(key) if is_word else inline_text(key)


def _quoted(text: str) -> str:
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    dumped = yaml.safe_dump(text, default_style='"', allow_unicode=False, width=float("inf"))
    return dumped.removesuffix("\n")
