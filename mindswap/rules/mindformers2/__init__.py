"""Rules for files of MindFormers 2.x, one module per subject, as in `mindformers1/`; ids start with `pynative-`.

Levels: settings that MindFormers refuses, or that have no effect at all, are errors; settings with another effect than
expected are warnings.
"""

from typing import Any

from mindswap.config.findings import Rule, load_rules


def find_rules_2x() -> dict[str, Rule[Any]]:
    """Return all rules by id, in alphabetical order."""
    return load_rules(__name__)
