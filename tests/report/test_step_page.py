import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from mindswap.report.html import FILES
from mindswap.report.step_page import format_html, page_data, part_rows
from mindswap.simulator.report_data import DeviceFigure
from mindswap.simulator.timeline import StepTerm
from tests.report.simulated import MIB, MS, large_program, pipeline_report, report_of, small_program, small_report

VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = "<script>alert(1)</script>\"'&</td>"


class Page(HTMLParser):
    """Elements with their attributes, text outside scripts; fails on elements that are not closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def embedded(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def test_the_page_shows_the_figures_and_says_simulated():
    page = Page(format_html(small_report()))
    for words in ("simulated", "25.0 ms", "163840", "40.0 %", "4.1 GiB", "fits in 5.0 GiB with 960.0 MiB to spare",
                  "prefetch (H2D) of ffn Mul, layer 0", "20.0 GB/s measured", "layer 1 was not compiled"):  # fmt: skip
        assert words in page.text, words


def test_the_page_asks_for_nothing():
    text = format_html(small_report())
    assert "http:" not in text and "https:" not in text and "@import" not in text and "url(" not in text
    page = Page(text)
    assert not [tag for tag, attributes in page.elements if {"src", "href", "srcset", "action"} & set(attributes)]
    assert {tag for tag, _ in page.elements}.isdisjoint({"link", "img", "iframe", "object", "form", "base"})
    (policy,) = [a["content"] for tag, a in page.elements if tag == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'")


def test_names_cannot_become_elements():
    program = replace(small_program(), labels=[HOSTILE, HOSTILE + "1", HOSTILE + "2", HOSTILE + "3"])
    text = format_html(
        report_of(
            program,
            title=HOSTILE,
            device_title=HOSTILE,
            notes=(HOSTILE,),
            figures=(DeviceFigure(HOSTILE, HOSTILE, HOSTILE),),
            terms=(StepTerm(HOSTILE, MS),),
        )
    )
    page = Page(text)
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 2  # the data and ours
    assert text.count("<script>alert") == 0
    assert embedded(text)["labels"][0] == HOSTILE
    assert page.text.count("<script>alert(1)</script>") >= 5  # as words


def test_the_picture_has_the_times_of_the_step():
    data = embedded(format_html(small_report()))
    (stage,) = data["stages"]
    bars = stage["bars"]
    # Starts are differences; lanes follow each other: compute, copy out, copy in.
    assert bars["lane"] == [0, 0, 0, 0, 0, 0, 3, 4]
    assert bars["start"][:6] == [0, 2 * MS, 3 * MS, 2 * MS, 4 * MS, 5 * MS]
    assert bars["start"][6:] == [2 * MS - 16 * MS, 9 * MS]
    assert bars["duration"] == [2 * MS, 3 * MS, 2 * MS, 4 * MS, 5 * MS, 4 * MS, 3 * MS, 5 * MS]
    assert bars["size"][6:] == [64 * MIB, 64 * MIB]
    assert data["terms"] == [["optimizer", 5 * MS]]
    kept = [kind for kind, _ in data["memory_kinds"]].index(0)
    assert [level * data["memory_unit_bytes"] for level in stage["memory"]["kinds"][kept]] == [0, 32 * MIB, 0, 0, 0]


def test_a_pipeline_shows_every_stage():
    text = format_html(pipeline_report())
    assert [stage["stage"] for stage in embedded(text)["stages"]] == [0, 1]
    assert "stages 0-1" not in Page(text).text  # their memory differs
    assert "bubble" in text


def test_the_legends_of_a_stage_name_what_is_in_its_picture():
    """The compute streams of all stages are above the one that is shown; a term of no time is nowhere."""
    (only,) = embedded(format_html(report_of(small_program(), terms=(StepTerm("optimizer", 0),))))["stages"]
    names = [name for _, name in only["bar_legend"]]
    assert names == [
        "forward",
        "backward",
        "offload (D2H)",
        "prefetch (H2D)",
        "waits for an offload (D2H)",
        "waits for a prefetch (H2D)",
    ]
    stages = embedded(format_html(pipeline_report()))["stages"]
    for stage in stages:
        drawn = {f"memory-{kind}" for kind, level in enumerate(stage["memory"]["kinds"]) if any(level)}
        assert {name for name, _ in stage["memory_legend"]} == drawn | ({"static"} if stage["static_bytes"] else set())
    assert ["bar-0", "forward"] in stages[1]["bar_legend"]


def test_the_card_of_the_step_time_is_short_and_its_parts_stand_below():
    text = format_html(report_of(small_program(), terms=(StepTerm("optimizer", 5 * MS), StepTerm("clip", 6 * MS))))
    card = re.search(r'step time</div>.*?remark">(.*?)</div>', text, re.S)[1]
    assert card == "11.0 ms of it after the last operator"
    assert "After the last operator: 6.00 ms clip; 5.00 ms optimizer" in Page(text).text


@pytest.mark.long
@pytest.mark.parametrize(
    ("stages", "micro_batches", "layers", "ops"), [(1, 1, 80, 130), (16, 16, 5, 40)], ids=["80-layers", "16-stages"]
)
def test_large_steps_stay_below_two_megabytes(stages, micro_batches, layers, ops):
    report = report_of(large_program(stages, micro_batches, layers, ops))
    assert len(format_html(report).encode()) < 2_000_000
    assert sum(len(stage["bars"]["kind"]) for stage in page_data(report)["stages"]) > 2000  # still worth a look


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_parses():
    done = subprocess.run(["node", "--check", str(FILES / "script.js")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_table_of_parts_adds_up_to_the_peak():
    (stage,) = small_report().stages
    assert part_rows(stage) == [
        ["weights", "1.0 GiB", "24.6 %"],
        ["optimizer states", "1.0 GiB", "24.6 %"],
        ["accumulated gradients", "1.0 GiB", "24.6 %"],
        ["saved activations", "64.0 MiB", "1.5 %"],
        ["workspace", "1.0 GiB", "24.6 %"],
    ]
