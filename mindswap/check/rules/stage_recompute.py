"""With swap off, MindFormers stops at recompute_config, or does less than it says.

Errors are what stops MindFormers when it builds the network: more counts than stages, values that are
no counts, an offset that does not fit the model. Warnings are what it takes without a word: counts
above the number of layers, operator names that match nothing, flags that it does not pass on.
`mindswap run` leaves such a configuration to MindFormers; only `mindswap check` and the like say it.
An offset that does not fit the model is an error with swap on, too.

PASS (swap off; 8 layers on 2 stages):
    recompute_config:
      recompute: [2, 1]

FAIL (swap off; 8 layers on 2 stages):
    recompute_config:
      recompute: [2, 1, 1]
"""

from collections.abc import Iterator
from dataclasses import replace

from mindswap.check.context import Context
from mindswap.check.rules import bad_regex, plain_dot, unmatched_pattern
from mindswap.document.problem import Level, Problem
from mindswap.policy.match import match_pattern
from mindswap.policy.settings import Statement
from mindswap.stage.expand import RULE, expand_stage_recompute, find_layout_problem

ID = RULE
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """What MindFormers refuses or leaves out; where swap is on the other rules judge all but the offset."""
    if context.num_layers is None or context.document.root is None:
        return
    if context.settings.is_swap_enabled:
        problem = find_layout_problem(context.document, context.num_layers)
        if problem is not None and problem.location.line:  # else no key says how layers are spread
            yield problem
        return
    expansion = expand_stage_recompute(context.document, context.num_layers)
    yield from expansion.problems
    names = replace(context, settings=replace(context.settings, recompute=expansion.statements))
    for problem in bad_regex.check(names):
        yield replace(problem, rule=ID)
    for rule in (plain_dot, unmatched_pattern):  # MindFormers takes these, and does nothing
        for problem in rule.check(names):
            yield replace(problem, level=Level.WARNING)
    for statement in expansion.statements:
        if statement.option.endswith("_exclude") and _names_only_cells(context, statement):
            message = f"{statement.path}: '{statement.pattern}' names a cell, and MindFormers excludes operators only"
            yield Problem(statement.location, ID, Level.WARNING, message, fix="name the operators in it")


def _names_only_cells(context: Context, statement: Statement) -> bool:
    if context.coverage is None or not statement.pattern or context.coverage.error(statement.pattern):
        return False
    kinds = context.coverage.layers_by_kind(statement.layers)
    found = [match for kind in kinds for match in match_pattern(statement.pattern, context.coverage.kinds[kind])]
    return bool(found) and not any(match.node.is_primitive for match in found)
