"""The declared set of dry runs: what its rows are, and what is said of their figures."""

import pytest
import yaml

from benchmarks.dryrun.compare import FOLDER, Row, cells, configuration, is_good, merged, summary
from mindswap.config.render import document_from_data
from mindswap.config.step_settings import read_step_settings

DECLARED = yaml.safe_load((FOLDER / "set.yaml").read_text(encoding="utf-8"))


def row(name, used, actual, simulated, simulated_actual=0):
    return Row(name, 0, used << 20, actual << 20, simulated << 20, simulated_actual << 20)


def test_there_are_48_different_configurations():
    data = [configuration(DECLARED, name) for name in DECLARED["rows"]]
    assert all(one not in data[:index] for index, one in enumerate(data))
    assert len(data) >= 48


@pytest.mark.parametrize("name", DECLARED["rows"])
def test_a_row_uses_its_8_cards(name):
    assert read_step_settings(document_from_data(configuration(DECLARED, name), name)).num_cards == 8


def test_a_change_is_merged_and_an_equals_sign_replaces():
    data = {"swap": {"swap": True, "prefetch": 1}, "kept": 2}
    assert merged(data, {"swap": {"prefetch": 3}}) == {"swap": {"swap": True, "prefetch": 3}, "kept": 2}
    assert merged(data, {"=swap": {"swap": False}}) == {"swap": {"swap": False}, "kept": 2}


def test_the_table_says_how_far_each_figure_is():
    # 1020 of 1000: +2.0 %. With fragments 1111 of 1080: +2.9 %.
    shown = ["a", "0", "1000 MiB", "1020 MiB", "+2.0 %", "1080 MiB", "1111 MiB", "+2.9 %"]
    assert cells(row("a", 1000, 1080, 1020, 1111)) == shown
    assert cells(Row("b", 0, 0, 0, error="no kernel\nlog"))[-2:] == ["-", "no kernel"]


def test_the_summary_names_the_worst_and_counts_no_row_without_figures():
    rows = [
        row("a", 1000, 1110, 1020, 1110),
        row("b", 1000, 1110, 960, 1046),
        Row("c", 0, 0, 0, error="not dry run yet"),
    ]
    assert summary(rows) == (
        "3 configurations declared, 2 with both figures (2 stages): mean absolute error 3.0 %, "
        "lowest -4.0 % (b, stage 0), highest +2.0 % (a, stage 0); with fragments 2.9 %"
    )


@pytest.mark.parametrize(("simulated", "good"), [(1000, True), (1020, True), (1031, False), (969, False)])
def test_one_row_alone_is_good_within_3_percent(simulated, good):
    assert is_good([row("a", 1000, 1100, simulated)]) is good


def test_a_mean_that_is_good_does_not_hide_a_row_that_is_not():
    assert not is_good([row("a", 1000, 1100, 1000)] * 9 + [row("b", 1000, 1100, 1081)])
    assert is_good([row("a", 1000, 1100, 1000)] * 9 + [row("b", 1000, 1100, 1079)])
