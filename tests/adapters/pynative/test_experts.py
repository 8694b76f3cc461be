"""A small DeepSeek-V3 trains on a CPU with `mindswap run`, with swap and without, to the same losses."""

import json

import pytest
import yaml

from tests.adapters.edits import edited
from tests.adapters.graphs import ROOT
from tests.adapters.training import run_python

pytestmark = pytest.mark.mindspore

CONFIG = ROOT / "configs" / "deepseek3" / "cpu" / "op_swap.yaml"
NUM_STEPS = 3


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Without swap, and with it."""
    folder = tmp_path_factory.mktemp("experts")
    data = folder / "newer.mindrecord"
    words = ("prepare-data", str(ROOT / "LICENSE"), "--output", str(data), "--seq-length", "64", "--newer-model")
    assert run_python(folder, "-m", "mindswap", *words, fork=True).exit_code == 0
    # One operator a weight; AdamW has ten, a quarter of the time of the training.
    config = folder / "config.yaml"
    edits = {"optimizer": {"type": "AdamWeightDecay"}}
    config.write_text(yaml.safe_dump(edited(yaml.safe_load(CONFIG.read_text()), edits)))
    return [train(folder / name, config, data, swap) for name, swap in (("off", False), ("on", True))]


def train(folder, config, data, is_swap_on):
    # Three layers and the one of multi-token prediction; `audit_swap` fills what is given back with NaN.
    run = run_python(
        folder, "-m", "mindswap", "run", "--config", str(config), "--mode", "1", "--run_mode", "train",
        "--train_dataset_dir", str(data), "--output_dir", str(folder / "output"), "--num_samples", str(2 * NUM_STEPS),
        "--model.model_config.num_hidden_layers", "3", "--swap_config.swap", str(is_swap_on),
        "--mindswap.audit_swap", "True", fork=True,
    )  # fmt: skip
    assert run.exit_code == 0, run.log[-3000:]
    return run


def test_the_losses_are_those_without_swap(runs):
    off, on = runs
    assert len(on.losses) == NUM_STEPS and on.losses == off.losses
    assert not [loss for loss in on.losses if not float(loss) < 8]  # log(260) = 5.56, and 0.3 times another


def test_activations_leave_and_come_back(runs):
    (path,) = (runs[1].folder / "output" / "swap").glob("rank_*.json")
    report = json.loads(path.read_text())
    assert report["num_passes"] == NUM_STEPS - 1 and report["is_as_predicted"]
    assert report["offloaded_bytes"] == report["prefetched_bytes"] > 0
    assert report["peak_device_bytes"] < report["peak_without_swap_bytes"]
