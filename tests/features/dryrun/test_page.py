"""The page of a dry run: that of the simulated step with the real curve over it."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mindswap.features.dryrun.page import align_to_simulation, format_dry_run_html
from mindswap.features.dryrun.stage_runs import DryRunReport, stage_run
from tests.features.dryrun.test_stage_runs import NET, layer, model, run_of
from tests.report.simulated import GIB, MIB, MS, pipeline_report, small_report
from tests.report.test_step_page import HOSTILE, Page, embedded

# Forward of layers 0 and 1, backward of both and of the embedding, the optimizer; a tick of 2 each.
RUN = run_of(
    [
        (f"{NET}/tok_embeddings-LlamaEmbedding/Gather-op0", 20 * MIB),
        (layer(0), 500 * MIB),
        (layer(1), 600 * MIB),
        (layer(1, True), 3 * GIB),
        (layer(0, True), 300 * MIB),
        (f"Gradients/{NET}/tok_embeddings-LlamaEmbedding/UnsortedSegmentSum-op0", 200 * MIB),
        ("Default/optimizer-AdamW/Mul-op0", 100 * MIB),
    ]
)


def report_of(run=RUN, simulated=None, depth: int = 2, **changes) -> DryRunReport:
    stages = (stage_run(0, 2, {depth: run}),)
    return replace(DryRunReport("case", stages, simulated, 2, (depth,), 5 * GIB, False, ("a note",)), **changes)


def test_layers_lie_on_the_simulated_ones():
    """Simulated: forward of layer 0 at 0 ms, of layer 1 at 5; backward at 7 and 16; 25 ms in all.

    What is outside the layers is between them: the gradient of the embedding half way from 16 to 25 ms.
    """
    time_ns, live_bytes = align_to_simulation(RUN, small_report(), 0)
    assert (time_ns / MS).tolist() == [0, 0, 5, 7, 16, 20.5, 25, 25]
    assert (live_bytes // MIB).tolist() == [20, 500, 600, 3072, 300, 200, 100, 0]


def test_micro_batches_lie_on_the_simulated_ones():
    """Layer 0 runs twice, and nothing else is known: its middles lie on each other, what is between is spread."""
    simulated = small_report()
    program = simulated.timeline.program
    twice = replace(
        program, ops=replace(program.ops, layer=np.zeros(4, np.int32), micro_batch=np.array([0, 1, 0, 1], np.int32))
    )
    simulated = replace(simulated, timeline=replace(simulated.timeline, program=twice))
    levels = [(layer(0), 500 * MIB), (f"{NET}/Mul-op0", 7 * MIB), (layer(0), 500 * MIB), ("Default/a/Mul-op0", MIB)]
    time_ns, _ = align_to_simulation(run_of(levels), simulated, 0)
    assert (time_ns / MS).tolist() == [0, 2.5, 5, 25, 25]  # the second forward begins at 5 ms


def test_the_page_is_that_of_the_simulated_step_with_the_real_curve():
    text = format_dry_run_html(report_of(simulated=small_report()), replace(report_of(), title="off"))
    data, page = embedded(text), Page(text)
    real, other = data["stages"][0]["real"]
    assert (real["name"], real["colour"]) == ("dry run, rank 0", "real")
    assert (other["name"], other["colour"]) == ("off, rank 0", "other-real")
    assert real["time"] == [0, 0, 5 * MS, 2 * MS, 9 * MS, 9 * MS // 2, 9 * MS // 2, 0]
    # with the gigabyte of workspace that is simulated
    levels = [level * data["memory_unit_bytes"] // MIB - 1024 for level in real["level"]]
    assert levels == [20, 500, 600, 3072, 300, 200, 100, 0]
    for words in ("Where the time goes", "simulated and dry run", "dry run: peak", "3072 MiB", "Dry run: rank 0, stage",
                  "backward, in the layers", "saved activations", "a note", "lines over them are memory"):  # fmt: skip
        assert words in page.text, words


def test_a_stage_has_the_curves_of_its_ranks():
    stages = (stage_run(0, 2, {2: RUN}), stage_run(1, 2, {2: replace(RUN, rank=5)}))
    data = embedded(format_dry_run_html(report_of(simulated=pipeline_report(), stages=stages)))
    assert [[curve["name"] for curve in stage["real"]] for stage in data["stages"]] == [
        ["dry run, rank 0"],
        ["dry run, rank 5"],
    ]


def test_a_short_model_has_its_curve_beside_the_simulated_step():
    text = format_dry_run_html(report_of(simulated=small_report(), depth=1))
    assert embedded(text)["stages"][0]["real"] == []
    assert "the optimizer at the end, 1 of 2 layers" in Page(text).text and text.count("<polyline") == 1


def test_without_a_simulated_step_the_page_has_the_curve_alone():
    text = format_dry_run_html(report_of())
    points = [tuple(map(float, point.split(","))) for point in re.search(r'points="([^"]+)"', text)[1].split()]
    assert (points[0][0], points[-1][0], min(y for _, y in points)) == (0, 600, 5)
    assert "3072 MiB" in Page(text).text and "<script" not in text


def test_names_cannot_become_elements():
    for simulated in (None, small_report()):
        text = format_dry_run_html(report_of(simulated=simulated, title=HOSTILE, notes=(HOSTILE,)))
        assert "<script>alert" not in text and HOSTILE in Page(text).text


# The topmost row of the picture that has the colour of the dry run.
FIND = """<script>
const canvas = document.getElementById("chart");
const points = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
let at = 0;
while (at < points.length && !(points[at] === 0xc2 && points[at + 1] === 0x18 && points[at + 2] === 0x5b)) at += 4;
document.title = "row " + Math.floor(at / 4 / canvas.width) + " of " + canvas.height;
</script>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_picture_has_the_line(tmp_path: Path):
    """As a browser draws it: 3 GiB above the workspace, and at the workspace."""
    found = []
    for run in (RUN, model(2)):
        page = tmp_path / "page.html"
        page.write_text(format_dry_run_html(report_of(run, small_report())).replace("</body>", FIND + "</body>"))
        words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,900", "--dump-dom"]
        done = subprocess.run([*words, page.as_uri()], check=True, capture_output=True, text=True, timeout=60)
        row, height = map(int, re.search(r"<title>row (\d+) of (\d+)<", done.stdout).groups())
        found.append(row)
        assert row < height  # it is there
    # 250 points are 5 GiB and 12 %: 3 GiB are 134
    assert found[1] - found[0] == pytest.approx(134, abs=3)
