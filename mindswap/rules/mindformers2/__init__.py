"""The checks of 2.x files, by subject, as in `mindswap/rules/mindformers1/`; ids begin with `pynative-`.

Levels: an error is what upstream refuses, and what is written and has no effect at all; what acts in another way than
it reads is a warning.
"""

from typing import Any

from mindswap.config.findings import Rule, load_rules


def find_rules_2x() -> dict[str, Rule[Any]]:
    """Every rule by its id, in alphabetical order."""
    return load_rules(__name__)
