"""A pattern names nothing in its layers. Upstream only warns; in part of the layers it says nothing at all.

Looked up where the model is in a table of mindswap. The pattern must match the whole dotted path.

PASS:
    op_swap: [{op_name: 'self_attention\\.core_attention', layers: [0]}]

FAIL (the cell of MindFormers 2.x is `self_attention`):
    op_swap: [{op_name: attention, layers: [0]}]
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.layers import layers_in_words
from mindswap.mindformers_2x.match import match_paths
from mindswap.mindformers_2x.names import to_2x_path
from mindswap.mindformers_2x.rule_context import Context
from mindswap.mindformers_2x.settings import Target
from mindswap.policy.match import PatternError
from mindswap.policy.words import closest_names

ID = "pynative-unmatched-pattern"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every pattern without a match (an error), or with none in some of its layers (a warning)."""
    model = context.effect.model
    if model is None:
        return
    for target in context.settings.targets:
        if target.pattern is None or not _is_regex(target.pattern):
            continue
        matched = context.effect.matches(target)
        missing = [layer for layer, paths in matched.items() if not paths]
        if not missing:
            continue
        if len(missing) < len(matched):
            message = f"{target.pattern_path}: '{target.pattern}' matches nothing in {layers_in_words(missing)}"
            yield Problem(target.pattern_location, ID, Level.WARNING, message, fix="take them out of the list")
            continue
        message = f"{target.pattern_path}: '{target.pattern}' matches nothing in {model.source}"
        near = _near(target, context)
        allowed = "a regex that matches a whole dotted path; closest: " + ", ".join(f"'{name}'" for name in near)
        yield Problem(target.pattern_location, ID, LEVEL, message, allowed, f"write '{near[0]}'" if near else "")


def _is_regex(pattern: str) -> bool:
    try:
        match_paths(pattern, ("mlp",))
    except PatternError:
        return False
    return True


def _near(target: Target, context: Context) -> list[str]:
    model = context.effect.model
    assert model is not None
    order = model.layers[0].order
    plain = (target.pattern or "").replace("\\", "")
    renamed = to_2x_path(plain)
    same_end = [path for path in order if path.rpartition(".")[2] == plain.rpartition(".")[2]]
    found = [*([renamed] if renamed in order and renamed != plain else []), *same_end, *closest_names(plain, order, 3)]
    return [path.replace(".", "\\.") for path in dict.fromkeys(found)][:3]
