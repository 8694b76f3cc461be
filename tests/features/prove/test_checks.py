"""Checks on made-up runs; see builders.py for their numbers."""

from dataclasses import replace

import pytest

from mindswap.features.prove.checks import make_checks
from mindswap.features.prove.proof import MeasuredRun, Simulated, Verdict
from mindswap.simulator.profile.overlap import Overlap
from tests.features.dryrun.builders import GIB, LAYER, LOSSES, MS, measured, proof, with_yaml

NAMES = ["training", "compiled graph", "log lines", "losses", "peak memory", "step time", "copies overlap compute"]


def checks(whole, variant="yaml"):
    return {check.name: check for check in make_checks(whole) if check.variant == variant}


def test_a_good_proof_passes_every_check():
    found = make_checks(proof())
    assert [check.name for check in found if check.variant == "yaml"] == NAMES
    assert {check.verdict for check in found} == {Verdict.PASS}


def test_the_step_time_is_that_of_the_slowest_worker_without_first_and_profiled_step():
    # Worker 1 is 1 ms slower: 103, 101, 102, the middle of which is 102 ms.
    assert measured().step_ns == 102 * MS
    # With the last one: 103, 101, 102, 5001; the middle of four is taken above.
    assert measured(is_profiled=False).step_ns == 103 * MS


def test_on_a_cpu_figures_of_the_device_are_not_visible_and_nothing_fails():
    found = checks(replace(proof(), target="CPU"))
    unseen = [name for name, check in found.items() if check.verdict is Verdict.UNSEEN]
    assert unseen == ["peak memory", "step time", "copies overlap compute"]
    assert all(found[name].reason for name in unseen)
    assert found["losses"].verdict is Verdict.PASS


@pytest.mark.parametrize(("peak", "verdict"), [(1052, Verdict.PASS), (1053, Verdict.FAIL), (952, Verdict.FAIL)])
def test_peak_memory_may_be_5_percent_off(peak, verdict):
    # Simulated 1000: 52 of 1052 are 4.94 %, 53 of 1053 are 5.03 %, 48 of 952 are 5.04 %.
    whole = with_yaml(proof(), simulated=Simulated(110 * MS, 1000, 0, 0, 0), measured=measured(peak))
    assert checks(whole)["peak memory"].verdict is verdict


@pytest.mark.parametrize(("simulated_ms", "verdict"), [(87, Verdict.PASS), (86, Verdict.FAIL), (118, Verdict.FAIL)])
def test_step_time_may_be_15_percent_off(simulated_ms, verdict):
    # Measured 102 ms, of which 15 % are 15.3.
    whole = with_yaml(proof(), simulated=Simulated(simulated_ms * MS, 15 * GIB, 0, 0, 0))
    assert checks(whole)["step time"].verdict is verdict


def test_without_statistics_the_peak_is_not_visible():
    check = checks(with_yaml(proof(), measured=measured(None)))["peak memory"]
    assert check.verdict is Verdict.UNSEEN and "MS_MEMORY_STATISTIC" in check.reason


def test_a_plan_must_stay_in_its_budget():
    for budget, verdict in ((15 * GIB, Verdict.PASS), (15 * GIB - 1, Verdict.FAIL)):
        assert checks(with_yaml(proof(), budget_bytes=budget))["memory budget"].verdict is verdict


@pytest.mark.parametrize(("hidden", "verdict"), [(32, Verdict.PASS), (31, Verdict.FAIL)])
def test_copies_may_be_hidden_10_percent_less_than_simulated(hidden, verdict):
    # Simulated 90 % of 40 ms; 80 % are 32 ms.
    run = measured(15 * GIB, overlap=Overlap(16, None, 40 * MS, hidden * MS, 0, 90 * MS))
    assert checks(with_yaml(proof(), measured=run))["copies overlap compute"].verdict is verdict


def test_a_swap_without_a_copy_in_the_profile_fails():
    run = measured(15 * GIB, overlap=Overlap(0, None, 0, 0, 0, 90 * MS))
    assert checks(with_yaml(proof(), measured=run))["copies overlap compute"].verdict is Verdict.FAIL


def test_a_loss_that_differs_by_more_than_the_tolerance_fails_and_is_named():
    run = measured(15 * GIB, losses=(*LOSSES[:3], 10.25, 9.5))
    check = checks(with_yaml(proof(), measured=run))["losses"]
    # 10.0 and 10.25 in step 4 of both workers: 2 of 10 losses, by 2.5 %.
    assert (check.verdict, check.seen) == (Verdict.FAIL, "2 of 10 differ, by 0.025 at most")
    assert check.reason == "first in worker 0, step 4: 10.0 with swap off, 10.25"


def test_the_last_bit_counts_where_kernels_are_deterministic():
    run = measured(15 * GIB, losses=(*LOSSES[:4], 9.500001))
    whole = with_yaml(proof(), measured=run)
    assert checks(whole)["losses"].verdict is Verdict.PASS
    assert checks(replace(whole, is_deterministic=True))["losses"].verdict is Verdict.FAIL


def test_losses_that_are_no_numbers_prove_nothing():
    losses = (float("nan"),) * 5
    whole = proof()
    whole = replace(whole, variants=(replace(whole.variants[0], measured=measured(losses=losses)), whole.variants[1]))
    whole = with_yaml(whole, measured=measured(15 * GIB, losses=losses))
    assert checks(whole)["losses"].verdict is Verdict.FAIL


LOGS = {"ok": False, "findings": [{"level": "error", "message": "no log"}, {"level": "note", "message": "CPU"}]}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"ok": True, "layers": [LAYER, LAYER]}, {"compiled graph": ("pass", "16 D2H and H2D copies, 2.0 GiB", "")}),
        (
            {"ok": False, "layers": [LAYER], "logs": LOGS},
            {
                "compiled graph": ("pass", "8 D2H and H2D copies, 1.0 GiB", ""),
                "log lines": ("fail", "they do not", "error: no log"),
            },
        ),
        (
            {"ok": False, "layers": [{**LAYER, "ok": False}], "logs": LOGS},
            {
                "compiled graph": ("fail", "8 D2H and H2D copies, 1.0 GiB", "mindswap verify yaml.yaml"),
                "log lines": ("fail", "they do not", "error: no log"),
            },
        ),
        ({"ok": True, "layers": []}, {}),
    ],
)
def test_graph_and_log_lines_are_what_verify_found(said, expected):
    found = checks(with_yaml(proof(), effect=said))
    shown = {name: (check.verdict.value, check.seen, check.reason) for name, check in found.items()}
    assert {name: shown[name] for name in ("compiled graph", "log lines") if name in shown} == expected


def test_a_graph_that_cannot_be_compiled_fails():
    check = checks(with_yaml(proof(), effect={"error": "no"}))["compiled graph"]
    assert (check.verdict, check.reason) == (Verdict.FAIL, "no")


def test_too_few_steps_fail():
    check = checks(replace(proof(), num_steps=6))["training"]
    assert (check.verdict, check.seen, check.reason) == (
        Verdict.FAIL, "5 steps in 2 workers, exit code 0", "see yaml/logs",
    )  # fmt: skip


def test_off_may_run_out_of_memory_and_the_others_may_not():
    failed = MeasuredRun(1, 5.0, is_out_of_memory=True)
    whole = proof()
    whole = replace(whole, variants=tuple(replace(variant, measured=failed) for variant in whole.variants))
    assert checks(whole, "off")["training"].verdict is Verdict.UNSEEN
    assert checks(whole)["training"].verdict is Verdict.FAIL
    assert checks(whole)["losses"].verdict is Verdict.UNSEEN


def test_what_did_not_run_says_why_and_is_no_success_after_ctrl_c():
    whole = with_yaml(proof(is_interrupted=True), measured=None, effect=None)
    check = checks(whole)["training"]
    assert (check.verdict, check.reason) == (Verdict.UNSEEN, "interrupted")
    assert not replace(whole, checks=make_checks(whole)).is_ok
