"""A pattern is no regular expression, or takes too long to match. The first stops upstream, the second matches nothing.

PASS:
    op_swap: [{op_name: '.*linear_fc1', layers: [0]}]

FAIL (nothing stands before the star):
    op_swap: [{op_name: '*linear_fc1', layers: [0]}]
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.match import match_paths
from mindswap.mindformers_2x.rule_context import Context
from mindswap.policy.match import MAX_PATTERN_CHARS, PatternError

ID = "pynative-bad-regex"
LEVEL = Level.ERROR

# Where the model is not known, a pattern is at least tried on paths like those of real models.
TYPICAL_PATHS = ("mlp", "self_attention.core_attention", "mlp.linear_fc1.matmul", "pre_mlp_layernorm")


def check(context: Context) -> Iterator[Problem]:
    """Every pattern that cannot be matched, in the words of the regex compiler."""
    model = context.effect.model
    paths = model.layers[0].order if model is not None and model.layers else TYPICAL_PATHS
    for target in context.settings.targets:
        try:
            if target.pattern is not None:
                match_paths(target.pattern, paths)
        except PatternError as error:
            message = f"{target.pattern_path}: {error}"
            allowed = f"a regex for a whole dotted path, of at most {MAX_PATTERN_CHARS} characters"
            fix = "write '.*' for any name" if str(target.pattern).startswith("*") else ""
            yield Problem(target.pattern_location, ID, LEVEL, message, allowed, fix)
