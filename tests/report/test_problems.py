from mindswap.config.problem import Level, Location, Problem
from mindswap.report.problems import escape, format_counts, format_problems, problems_to_data

ERROR = Problem(Location("x.yaml", 41, 16), "unmatched-pattern", Level.ERROR, "a.b: 'c' is wrong", "this", "that")
WARNING = Problem(Location("x.yaml", 3, 1), "overlap", Level.WARNING, "a: twice")


def test_the_format_of_the_style_guide_in_file_order():
    assert format_problems([ERROR, WARNING]) == (
        "x.yaml:3:1: warning: a: twice [overlap]\n"
        "x.yaml:41:16: error: a.b: 'c' is wrong [unmatched-pattern]\n"
        "    allowed: this\n"
        "    fix:     that"
    )


def test_a_place_without_text_has_no_line():
    problem = Problem(Location("command line"), "context-mode", Level.ERROR, "m")
    assert format_problems([problem]) == "command line: error: m [context-mode]"


def test_colour_is_for_terminals():
    assert "\033" not in format_problems([ERROR])
    assert "\033[1;31merror\033[0m" in format_problems([ERROR], colour=True)


def test_control_characters_of_the_file_are_shown_not_sent():
    problem = Problem(Location("x\x1b.yaml", 1, 1), "r", Level.ERROR, "a\nb\x1b[31m \udcff é")
    assert format_problems([problem]) == "x\\x1b.yaml:1:1: error: a\\nb\\x1b[31m \\udcff é [r]"
    assert escape(r"a\.b") == r"a\.b"


def test_counts():
    assert format_counts([]) == "no problems"
    assert format_counts([ERROR, WARNING, WARNING]) == "1 error, 2 warnings"
    assert format_counts([], [WARNING, WARNING]) == "no problems, 2 warnings ignored (overlap)"


def many(num_warnings, num_errors):
    """Warnings in the first lines, errors behind them."""
    places = [Location("x", line) for line in range(1, num_warnings + num_errors + 1)]
    levels = [Level.WARNING] * num_warnings + [Level.ERROR] * num_errors
    return [Problem(place, "r", level, "m") for place, level in zip(places, levels, strict=True)]


def test_the_first_hundred_are_shown_errors_before_warnings():
    lines = format_problems(many(1000, 3)).splitlines()
    assert len(lines) == 101 and lines[-1] == "... 100 of 1003 problems are shown"
    assert [lines[0], lines[96], lines[97]] == [
        "x:1:0: warning: m [r]",
        "x:97:0: warning: m [r]",
        "x:1001:0: error: m [r]",
    ]
    data = problems_to_data(many(1000, 3))
    assert (len(data["problems"]), data["num_problems"]) == (100, 1003)
    assert len(format_problems(many(100, 0)).splitlines()) == 100
