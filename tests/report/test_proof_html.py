"""The page of a proof, on made-up runs."""

from dataclasses import replace

from mindswap.report.proof_html import format_proof_html
from mindswap.training.proof.checks import make_checks
from mindswap.training.proof.model import Fit, Simulated
from tests.training.proof.builders import GIB, LOSSES, MS, measured, proof, with_yaml


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
    fits = (
        Fit("memory_bandwidth_fraction", 600, 710, "80 kernels"),
        Fit("d2h", 23_000_000_000, None, "too few copies"),
    )
    whole = proof(calibration=fits, calibration_notes=("no trace_view.json",))
    whole = with_yaml(whole, calibrated=Simulated(103 * MS, 15 * GIB, 40 * MS, 4 * MS, 2 * GIB))
    text = page(whole)
    for part in (
        "0.600",
        "0.710",
        "80 kernels",
        "23.0 GB/s",
        "stays",
        "too few copies",
        "no trace_view.json",
        "calibrated",
    ):
        assert part in text


def test_a_run_that_never_was_leaves_a_page():
    assert "did not run" in page(with_yaml(proof(), measured=None, skipped="off failed"))
