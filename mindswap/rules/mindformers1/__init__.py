"""Rules for files of MindFormers 1.9, one module per subject; `find_rules` imports all modules of this package.

A rule is a function with `@rule(level)`: its name with dashes is its id in messages, and its docstring (description, a
PASS and a FAIL example) its documentation. It yields findings, and neither prints nor raises. Its test is in
`tests/rules/mindformers1/`.
"""

from typing import Any

from mindswap.config.findings import Rule, load_rules


def find_rules() -> dict[str, Rule[Any]]:
    """Return all rules by id, in alphabetical order."""
    return load_rules(__name__)
