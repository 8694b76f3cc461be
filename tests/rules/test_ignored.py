from mindswap.config.findings import find_ignore_problems, split_ignored
from mindswap.config.problem import Level, Location, Problem
from tests.builders import document


def problem(rule, level, line=1):
    return Problem(Location("x", line, 1), rule, level, "")


def test_only_warnings_are_silenced_and_both_parts_are_in_order():
    late, early = problem("overlap", Level.WARNING, 5), problem("overlap", Level.WARNING, 2)
    other, error = problem("swap-off", Level.WARNING, 4), problem("overlap", Level.ERROR, 3)
    found = [late, other, error, early]
    both = document("mindswap: {ignore: [overlap, repeated-layer]}")
    assert split_ignored(both, found, (), ()) == ((error, other), (early, late))
    assert split_ignored(document("mindswap: {}"), found, (), {"overlap"}) == ((error, other), (early, late))
    assert split_ignored(both, found, (), {"swap-off"}) == ((error,), (early, other, late))
    assert split_ignored(both, found, {"swap-off"}, ()) == ((error,), (early, late))
    assert split_ignored(document("{}"), found, (), ()) == ((early, error, other, late), ())


def test_what_is_no_list_and_what_is_no_rule():
    assert [(p.level, p.fix) for p in find_ignore_problems(document("mindswap: {ignore: overlap}"), {"overlap"})] == [
        (Level.ERROR, "ignore: [overlap]")
    ]
    found = list(find_ignore_problems(document("mindswap: {ignore: [overlap, overlp]}"), {"overlap"}))
    assert [(p.level, p.location.column, p.allowed) for p in found] == [(Level.WARNING, 30, "overlap")]
