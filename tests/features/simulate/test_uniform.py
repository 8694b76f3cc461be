"""Groups of layers that are recomputed together, as Megatron's uniform N, against dry runs of the same files."""

from pathlib import Path

import pytest
import yaml

from mindswap.features.step import load_step
from tests.adapters.edits import edited
from tests.adapters.graphs import ROOT

pytestmark = pytest.mark.mindspore

EDITS = {
    "model.model_config": {
        "num_layers": 8,
        "hidden_size": 1024,
        "num_heads": 8,
        "seq_length": 2048,
        "vocab_size": 1024,
    },
    "types": {"compute_dtype": "bfloat16", "param_init_type": "float16", "rotary_dtype": "float32"},
}
# Peaks of rank 0, MiB, of `mindswap dryrun` with MindSpore 2.9.0 on 2026-11-30.
PEAKS_MIB = {1: 486, 2: 559, 4: 731, 8: 1081}
MIB = 2**20


def config_of(num_layers: int) -> dict:
    """Llama with 8 layers, groups of so many of which are recomputed together."""
    base = yaml.safe_load((ROOT / "configs/llama2_7b/pretrain_llama2_7b.yaml").read_text())
    model = {f"model.model_config.{key}": value for part in EDITS.values() for key, value in part.items()}
    config = edited(base, {**model, "recompute_config": {"recompute": True}})
    config["swap_config"] = {"swap": True, "op_swap": []}
    config["mindswap"] = {"output_recompute": [index for index in range(8) if (index + 1) % num_layers]}
    return config


def test_the_peak_is_that_of_the_dry_run(tmp_path: Path):
    path = tmp_path / "uniform.yaml"
    path.write_text(yaml.safe_dump(config_of(1)))
    step = load_step(path)
    simulated = {}
    for num_layers in PEAKS_MIB:
        path.write_text(yaml.safe_dump(config_of(num_layers)))
        run = load_step(path, captured=step.model.layers.source).simulate()
        workspace_bytes = run.simulated.static[0].workspace_bytes  # a dry run knows no workspace
        simulated[num_layers] = (run.peak_bytes - workspace_bytes) / MIB
    assert simulated == pytest.approx(PEAKS_MIB, rel=0.03)
