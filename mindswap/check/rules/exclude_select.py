"""An exclude option contradicts a select option, or excludes what nothing selects.

Excluded operators are not recomputed, whatever selects them.

PASS:
    select_recompute: ['feed_forward']
    select_recompute_exclude: ['feed_forward\\.mul']

FAIL (selected and excluded):
    select_recompute: ['feed_forward\\.mul']
    select_recompute_exclude: ['feed_forward\\.mul']
"""

from collections.abc import Iterator

from mindswap.check.context import Context, Meeting
from mindswap.document.problem import Level, Problem
from mindswap.policy.settings import Statement
from mindswap.policy.words import format_layers

ID = "exclude-select"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """Excluded patterns that take all of a selected one, and those that take nothing."""
    for option in ("select_recompute", "select_comm_recompute"):
        selected = context.settings.of(option)
        whole = context.settings.of("recompute") if option == "select_recompute" else ()
        choosing = context.nearby((*selected, *whole))
        for excluded in context.settings.of(f"{option}_exclude"):
            if excluded.is_default:
                continue
            pairs = ((statement, context.meeting(statement, excluded)) for statement in choosing.to(excluded))
            meetings = [(statement, meeting) for statement, meeting in pairs if meeting is not None]
            for statement, meeting in meetings:
                if _takes_all(context, statement, meeting):
                    message = (
                        f"{excluded.pattern_path}: excludes all that {statement.path} ({statement.location}) selects "
                        f"in {format_layers(meeting.layers)}; the exclude option acts"
                    )
                    yield Problem(excluded.pattern_location, ID, LEVEL, message, fix="delete one of the two")
            if not meetings:
                message = f"{excluded.pattern_path}: nothing is recomputed that this excludes, so it has no effect"
                yield Problem(excluded.pattern_location, ID, LEVEL, message, fix="delete it")


def _takes_all(context: Context, statement: Statement, meeting: Meeting) -> bool:
    if statement.pattern is None:
        return False
    if context.coverage is None:
        return True
    by_kind = context.coverage.layers_by_kind(meeting.layers)
    return all(context.coverage.operators(statement.pattern, kind) <= set(meeting.operators) for kind in by_kind)
