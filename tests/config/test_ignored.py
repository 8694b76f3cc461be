from mindswap.config.ignored import ignored_rules, misused_ignore, split_ignored
from mindswap.document.problem import Level, Location, Problem
from tests.builders import document


def problem(rule, level, line=1):
    return Problem(Location("x", line, 1), rule, level, "")


def test_only_warnings_are_silenced_and_both_parts_are_in_order():
    late, early = problem("overlap", Level.WARNING, 5), problem("overlap", Level.WARNING, 2)
    other, error = problem("swap-off", Level.WARNING, 4), problem("overlap", Level.ERROR, 3)
    assert split_ignored([late, other, error, early], {"overlap"}) == ((error, other), (early, late))


def test_names_are_read_from_the_configuration():
    assert ignored_rules(document("mindswap: {ignore: [overlap, swap-off]}")) == {"overlap", "swap-off"}
    assert ignored_rules(document("mindswap: {}")) == frozenset()


def test_what_is_no_list_and_what_is_no_rule():
    assert [(p.level, p.fix) for p in misused_ignore(document("mindswap: {ignore: overlap}"), {"overlap"})] == [
        (Level.ERROR, "ignore: [overlap]")
    ]
    found = list(misused_ignore(document("mindswap: {ignore: [overlap, overlp]}"), {"overlap"}))
    assert [(p.level, p.location.column, p.allowed) for p in found] == [(Level.WARNING, 30, "overlap")]
