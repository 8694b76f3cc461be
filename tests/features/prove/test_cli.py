"""`mindswap prove`: a small Llama, run for real by two msrun workers on CPU; and what is refused before."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.features.prove import calibrated
from mindswap.features.prove.proof import Proof, Simulated, Variant
from mindswap.features.prove.request import ProofRequest
from mindswap.features.prove.worker_runs import read_measured
from mindswap.runtime.short_run import RunOptions
from mindswap.simulator.cost.calibration_file import load_measured
from mindswap.simulator.cost.hardware import OPTIONS as FIGURES
from tests.command_line.option_cases import PROOF
from tests.features.prove.test_results import write_run_with_profile

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "configs" / "llama2_7b" / "cpu" / "case3_op_swap.yaml"
ASCEND_CONFIG = CONFIG.parents[1] / "pretrain_llama2_7b.yaml"
OPTIONS = ("--layers", "2", "--worker-num", "2", "--steps", "3")


def command(folder, *options):
    return [sys.executable, "-m", "mindswap", "prove", str(CONFIG), *OPTIONS, "-o", str(folder), *options]


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The runs `off` and `plan`, at once with everything behind them."""
    folder = tmp_path_factory.mktemp("prove") / "proof"
    result = subprocess.run(
        command(folder, "--variants", "off,plan", "--memory", "19.3MiB"),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return folder, result


@pytest.mark.mindspore
def test_a_proof_on_cpu_runs_for_real_and_says_what_it_cannot_show(done):
    folder, result = done
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads((folder / "report.json").read_text())
    verdicts = {(check["variant"], check["name"]): check["verdict"] for check in report["checks"]}
    unseen = "not visible here"
    assert verdicts == {
        ("off", "training"): "pass",
        ("off", "peak memory"): unseen,
        ("off", "step time"): unseen,
        ("plan", "training"): "pass",
        ("plan", "compiled graph"): "pass",
        ("plan", "log lines"): "pass",
        ("plan", "losses"): "pass",
        ("plan", "peak memory"): unseen,
        ("plan", "memory budget"): unseen,
        ("plan", "step time"): unseen,
        ("plan", "copies overlap compute"): unseen,
    }
    assert (report["schema"], report["ok"], report["is_interrupted"]) == ("mindswap.prove", True, False)
    assert "5 checks hold, 0 do not, 6 cannot be checked here (CPU)" in result.stdout


@pytest.mark.mindspore
def test_both_workers_report_losses_that_fall_and_are_equal_with_and_without_the_plan(done):
    report = json.loads((done[0] / "report.json").read_text())
    losses = [
        [[step["loss"] for step in worker["steps"]] for worker in variant["measured"]["workers"]]
        for variant in report["variants"]
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 2
    # Each worker has samples of its own.
    assert losses[0][0] != losses[0][1] and losses[0][0][2] < losses[0][0][0]
    plan = report["variants"][1]
    assert (
        any(layer["num_pairs"] for layer in plan["effect"]["layers"])
        and plan["simulated"]["peak_bytes"] <= plan["budget_bytes"]
    )


@pytest.mark.mindspore
def test_the_folder_has_all_that_is_sent_back(done):
    folder, _ = done
    there = {path.name for path in folder.iterdir()}
    assert {"off.yaml", "yaml.yaml", "plan.yaml", "report.html", "report.json", "support_bundle.tar.gz"} <= there
    assert list(folder.glob("off/profile/rank_0/*/ASCEND_PROFILER_OUTPUT/trace_view.json"))
    assert not list(folder.glob("**/*.safetensors")) and not list(folder.glob("**/*.ckpt"))


@pytest.mark.mindspore
def test_a_profile_of_a_device_calibrates_the_simulation(done, tmp_path):
    """No card is here: a profile written by hand takes the place of that of the run."""
    folder, _ = done
    report = json.loads((folder / "report.json").read_text())
    simulated = Simulated(**report["variants"][1]["simulated"])
    write_run_with_profile(tmp_path / "plan")
    bench = ProofRequest(folder, CONFIG, ("plan",), RunOptions(3, 2, 2), None, False, (), lambda text: None)
    run = read_measured(tmp_path / "plan", 0, 1.0)
    variant = Variant("plan", "a plan", str(folder / "plan.yaml"), simulated, measured=run)
    proof = calibrated(bench, Proof("c", "Ascend", "d", 2, 3, variants=(variant,)))
    assert proof.calibration_problem == ""
    assert "d2h" in [fit["name"] for fit in proof.calibration["figures"]]
    assert list(load_measured(folder / "device.yaml").values()) == [600_000]
    again = proof.variants[0].calibrated
    assert again is not None and again.peak_bytes == simulated.peak_bytes
    assert (folder / "device.yaml").is_file()


@pytest.mark.mindspore
def test_ctrl_c_stops_all_workers_and_leaves_a_report(done, tmp_path):
    """The step is in the cache from the proof before, so that the first run starts at once."""
    folder = tmp_path / "proof"
    with subprocess.Popen(
        command(folder, "--variants", "off"), env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        assert any("off: nothing swapped" in line for line in lines)
        while not (folder / "off" / "attempt_1" / "worker_1.log").exists():
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        rest = "".join(lines)
    assert process.returncode == 130
    assert "interrupted: all workers are stopped" in rest and "interrupted before the end" in rest
    report = json.loads((folder / "report.json").read_text())
    assert report["is_interrupted"] and not report["ok"]
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in read(path)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture
def prove(capsys):
    def run_command_line(*words):
        code = cli.main(["prove", *map(str, words)])
        error = capsys.readouterr().err
        assert "a bug" not in error, error
        return code, error

    return run_command_line


def test_a_folder_that_is_there_is_left_alone(prove, tmp_path, monkeypatch):
    monkeypatch.setattr("mindswap.features.prove.cli.require_mindformers", lambda: None)
    (tmp_path / "mine").write_text("x")
    code, error = prove(CONFIG, "-o", tmp_path)
    assert code == 1 and error.startswith(f"mindswap: error: {tmp_path}: already exists")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_options_are_those_of_the_runs_and_figures_those_of_the_commands_that_it_calls(prove, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("mindswap.features.prove.cli.require_mindformers", lambda: None)
    monkeypatch.setattr("mindswap.features.prove.cli.prove", lambda *request: asked.append(request) or (None, None, 7))
    words = PROOF.words.format(config=CONFIG, folder=tmp_path).split()[1:]
    assert prove(*words, "-o", tmp_path / "proof") == (7, "")
    ((request, document, is_overwritten, _),) = asked
    assert (document.file, is_overwritten, request.wants_synthetic_data) == (str(CONFIG), True, True)
    assert request.options == RunOptions(5, 0, None, is_profiled=False, is_deterministic=True)
    assert request.budget_bytes is None
    options = dict(zip(request.device_words[::2], request.device_words[1::2], strict=True))
    figures = [name for name in FIGURES if name != "memory"]
    assert options.keys() == {"--device", *(f"--{name.replace('_', '-')}" for name in figures)}
    assert options["--d2h"] == FIGURES["d2h"].kind.example


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--variants", "off,on"), "write one or more of off,yaml,plan"),
        (("--layers", "0"), "expected an integer between 1 and"),
        (("--steps", "2"), "expected an integer between 3 and"),
        (("--memory", "40"), "write a number with its unit"),
        (("--device", "910B"), "device '910B': no such device"),
    ],
)
def test_options_that_make_no_sense_are_refused(prove, tmp_path, monkeypatch, options, message):
    monkeypatch.setattr("mindswap.features.prove.cli.require_mindformers", lambda: None)
    code, error = prove(CONFIG, "-o", tmp_path / "proof", *options)
    assert code == 1 and message in error
    assert not (tmp_path / "proof").exists()


def test_a_configuration_for_cards_is_refused_at_once_where_there_are_none(prove, tmp_path, monkeypatch):
    monkeypatch.setattr("mindswap.features.prove.cli.require_mindformers", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))  # no npu-smi, and CI has no /dev/davinci*
    code, error = prove(ASCEND_CONFIG, "-o", tmp_path / "proof")
    assert code == 1 and error.startswith("mindswap: error: no Ascend card was found here") and "    fix: " in error
    assert not (tmp_path / "proof").exists()


def test_a_worker_needs_a_card(prove, tmp_path, monkeypatch):
    monkeypatch.setattr("mindswap.features.prove.cli.require_mindformers", lambda: None)
    for module in ("run", "prove"):
        monkeypatch.setattr(f"mindswap.features.{module}.count_cards", lambda: 8)
    assert prove(ASCEND_CONFIG, "-o", tmp_path / "proof", "--worker-num", "16") == (
        1,
        "mindswap: error: --worker-num 16: this machine has 8 cards, and a worker needs one\n",
    )


def test_more_layers_than_the_model_has_are_refused(prove, tmp_path, monkeypatch):
    monkeypatch.setattr("mindswap.features.prove.cli.require_mindformers", lambda: None)
    assert prove(CONFIG, "-o", tmp_path / "proof", "--layers", "5") == (
        1,
        "mindswap: error: --layers 5: the model has 4\n",
    )
