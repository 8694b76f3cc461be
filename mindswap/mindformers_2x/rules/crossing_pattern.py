"""A pattern matches more than one reads in it: `.*` crosses levels, and a plain `.` is any character.

In MindFormers 1.9 each part matched one level. The message lists what is matched, methods of cells as well. What stands
below another match of the same section is left out there.

PASS:
    op_swap: [{op_name: 'mlp\\.linear_fc1', layers: [0]}]

FAIL (also `self_attention.linear_qkv` and everything else with this word in its path):
    op_swap: [{op_name: '.*linear.*', layers: [0]}]
"""

import re
from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context
from mindswap.policy.words import format_names

ID = "pynative-crossing-pattern"
LEVEL = Level.WARNING

# A dot that is any character, repeated: what can swallow a level.
CROSSING = re.compile(r"(?<!\\)\.[*+{]")


def check(context: Context) -> Iterator[Problem]:
    """Every pattern with matches on more levels than it has parts, or with a star where the model is not known."""
    for target in context.settings.targets:
        pattern = target.pattern
        if pattern is None or not CROSSING.search(pattern):
            continue
        if context.effect.model is None:
            found: tuple[str, ...] = ()
        else:
            found = next((paths for paths in context.effect.matches(target).values() if paths), ())
            depth = len(re.split(r"\\\.", pattern))
            if all(path.count(".") + 1 == depth for path in found):
                continue
        what = f"; here it is {len(found)} paths: {format_names(found, 6)}" if found else ""
        message = f"{target.pattern_path}: '{pattern}' matches on any level{what}"
        fix = r"write '[^.]*' for one level, '\.' between levels"
        yield Problem(target.pattern_location, ID, LEVEL, message, fix=fix)
