from dataclasses import replace

from mindswap.features.prove.checks import make_checks
from mindswap.features.prove.page import figure_rows, format_proof, format_proof_html, proof_to_json
from mindswap.features.prove.proof import Simulated
from mindswap.report.problems import answer_text
from tests.features.dryrun.builders import GIB, LOSSES, MS, measured, proof, with_yaml
from tests.schema import answer_of

# The page of a proof, on made-up runs.


def page(whole):
    return format_proof_html(replace(whole, checks=make_checks(whole)))


def test_a_page_has_measured_beside_simulated_and_asks_for_nothing_from_outside():
    text = page(proof())
    assert "measured on Ascend" in text and "102 ms" in text and "110 ms simulated" in text
    assert "http" not in text.replace("http-equiv", "")


def test_what_is_from_files_is_escaped():
    text = page(proof(notes=("<script>x</script>",), environment={"npu-smi": "<b>"}))
    assert "<script>" not in text and "&lt;b&gt;" in text


def test_a_loss_that_differs_stands_out():
    whole = with_yaml(proof(), measured=measured(15 * GIB, losses=(*LOSSES[:4], 9.0)))
    assert '<b style="color:var(--bad)">9.0</b>' in page(whole)


def test_the_calibration_is_shown_with_what_it_replaces():
    replaced = {"name": "collective_fraction", "before": 600, "fitted": 710, "num_samples": 80, "is_accepted": True}
    kept = {"name": "d2h", "before": 23_000_000_000, "fitted": 20, "num_samples": 2, "is_accepted": False}
    figures = [{**replaced, "objection": ""}, {**kept, "objection": "too few copies"}]
    whole = proof(calibration={"figures": figures, "notes": ["no trace_view.json"]})
    whole = with_yaml(whole, calibrated=Simulated(103 * MS, 15 * GIB, 40 * MS, 4 * MS, 2 * GIB))
    text = page(whole)
    for part in (
        "0.600",
        "0.710",
        "80 samples",
        "23.0 GB/s",
        "stays",
        "too few copies",
        "no trace_view.json",
        "calibrated",
    ):
        assert part in text


def test_a_run_that_never_was_leaves_a_page():
    assert "did not run" in page(with_yaml(proof(), measured=None, skipped="off failed"))


# A proof as text and JSON, on made-up runs.


def checked(whole):
    return replace(whole, checks=make_checks(whole))


def test_figures_stand_side_by_side():
    # 100 ms simulated, 102 measured: 2.0 % less. 36 of 40 ms hidden and 1 beside communication: 3 exposed, 4 simulated.
    assert figure_rows(proof()) == [
        ("off", "step time", "102 ms", "100 ms", "-2.0 %", "-", "-"),
        ("off", "peak memory", "20.0 GiB", "20.0 GiB", "+0.0 %", "-", "-"),
        ("yaml", "step time", "102 ms", "110 ms", "+7.8 %", "-", "-"),
        ("yaml", "peak memory", "15.0 GiB", "15.0 GiB", "+0.0 %", "-", "-"),
        ("yaml", "copies", "40.0 ms", "40.0 ms", "+0.0 %", "-", "-"),
        ("yaml", "copies, exposed", "3.00 ms", "4.00 ms", "+33.3 %", "-", "-"),
        ("yaml", "copied", "2.0 GiB", "2.0 GiB", "+0.0 %", "-", "-"),
    ]


def test_times_of_a_cpu_are_compared_with_nothing():
    rows = figure_rows(replace(proof(), target="CPU"))
    assert {row[4] for row in rows} == {"-"}


def test_the_last_line_sums_up():
    # Off: training, memory, step time; yaml: those, graph, log lines, losses, overlap.
    assert format_proof(checked(proof())).splitlines()[-1] == "10 checks hold, 0 do not"
    on_cpu = format_proof(checked(replace(proof(), target="CPU")))
    assert on_cpu.splitlines()[-1] == "5 checks hold, 0 do not, 5 cannot be checked here (CPU)"
    assert "not visible: the CPU backend counts no device memory" in on_cpu


def test_what_failed_says_what_was_expected_and_seen():
    whole = with_yaml(proof(), measured=measured(15 * GIB, losses=(*LOSSES[:4], 9.0)))
    text = format_proof(checked(whole))
    assert "yaml: losses: expected as with swap off, within 0.001 of it; seen 2 of 10 differ" in text
    assert "    first in worker 0, step 5: 9.5 with swap off, 9.0" in text


def test_the_json_fits_its_schema_and_has_every_step():
    data = answer_of(answer_text("prove", proof_to_json(checked(proof())), True))
    assert data["checks"][0]["verdict"] == "pass"
    assert data["variants"][1]["measured"]["workers"][0]["steps"][0]["loss"] == 10.5
    assert data["variants"][1]["measured"]["overlap"]["hidden_ns"] == 36_000_000
