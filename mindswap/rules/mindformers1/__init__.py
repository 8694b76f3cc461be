"""The checks, by subject; found by listing this folder.

A rule is a function with `@rule(level)`: its name with dashes is its id in messages, its docstring (what it finds, a
PASS and a FAIL example) its page of documentation. It yields findings, prints and raises nothing. Its test goes to
`tests/rules/mindformers1/`.
"""

from typing import Any

from mindswap.config.findings import Rule, load_rules


def find_rules() -> dict[str, Rule[Any]]:
    """Every rule by its id, in alphabetical order."""
    return load_rules(__name__)
