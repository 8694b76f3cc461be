"""Two entries swap the same operator; the message says which one acts.

op_swap goes before layer_swap. In op_swap, the pattern that appears later goes before the earlier
one. A pattern that names a cell concerns every operator in it.

PASS:
    op_swap:
      - {op_name: attention, backward_prefetch: 20, layers: [0]}
      - {op_name: feed_forward, backward_prefetch: 10, layers: [0]}

FAIL (wq is in attention; there 10 acts):
    op_swap:
      - {op_name: attention, backward_prefetch: 20, layers: [0]}
      - {op_name: 'attention\\.wq', backward_prefetch: 10, layers: [0]}
"""

from collections.abc import Iterator

from mindswap.check.context import Context, Meeting
from mindswap.document.problem import Level, Problem
from mindswap.policy.settings import Statement
from mindswap.policy.words import format_layers, format_names

ID = "overlap"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """Every pair of entries that swap the same operator, at the pattern that acts."""
    settings = context.settings
    op_swap = [statement for statement in settings.of("op_swap") if not statement.is_default]
    for weaker, stronger, meeting in context.meetings(settings.of("layer_swap"), op_swap):
        yield _problem(weaker, stronger, meeting)
    first_place: dict[str | None, int] = {}
    for statement in op_swap:
        first_place.setdefault(statement.pattern, len(first_place))
    ordered = sorted(op_swap, key=lambda statement: first_place[statement.pattern])
    earlier = context.nearby()
    for stronger in ordered:
        for weaker in earlier.to(stronger, with_own_pattern=False):
            shared = context.meeting(weaker, stronger)
            if shared is not None:
                yield _problem(weaker, stronger, shared)
        earlier.add(stronger)


def _problem(weaker: Statement, stronger: Statement, meeting: Meeting) -> Problem:
    operators = f" ({format_names(meeting.operators)})" if meeting.operators else ""
    is_same = weaker.num_prefetch_ops == stronger.num_prefetch_ops
    what_acts = (
        "with the same distance"
        if is_same
        else f"this one counts, with backward_prefetch {stronger.num_prefetch_ops} instead of {weaker.num_prefetch_ops}"
    )
    message = (
        f"{stronger.pattern_path}: '{stronger.pattern}' and {weaker.path} ({weaker.pattern_location}) swap the same "
        f"operators in {format_layers(meeting.layers)}{operators}; {what_acts}"
    )
    fix = "leave it out, the other entry covers it" if is_same else "name each operator in one entry"
    return Problem(stronger.pattern_location, ID, LEVEL, message, fix=fix)
