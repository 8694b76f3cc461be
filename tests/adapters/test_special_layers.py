"""Tied embeddings, layers in two halves and long masks: compiled by MindSpore and simulated."""

import json
import subprocess
import sys

import pytest
import yaml

from tests.adapters.edits import edited
from tests.adapters.graphs import CPU_CASES, ROOT
from tests.adapters.test_capture_rank import SETTINGS

pytestmark = pytest.mark.mindspore

MODEL = "model.model_config"
TENSOR_PARALLEL = {**SETTINGS, "parallel_config.model_parallel": 2, f"{MODEL}.num_layers": 4}
VOCAB, HIDDEN, FLOAT32 = 264, 64, 4


def simulated(folder, **edits):
    source = yaml.safe_load((CPU_CASES / "case1_default_swap.yaml").read_text())
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(edited(source, {**TENSOR_PARALLEL, **edits})))
    command = [sys.executable, "-m", "mindswap", "simulate", "--json", str(config)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.stderr == "", result.stderr
    report = json.loads(result.stdout)
    assert result.returncode == (0 if report["fits"] else 1)
    return report


def static(report):
    return report["stages"][0]["static_bytes"]


def test_a_tied_table_is_one_parameter(tmp_path):
    own = static(simulated(tmp_path))
    tied = static(simulated(tmp_path, **{f"{MODEL}.tie_word_embeddings": True}))
    # Both tables are whole on each rank (vocab_emb_dp).
    assert own["parameters"] - tied["parameters"] == VOCAB * HIDDEN * FLOAT32


def test_communication_of_both_halves_is_found_in_backward(tmp_path):
    report = simulated(tmp_path, **{f"{MODEL}.fine_grain_interleave": 2, "parallel_config.use_seq_parallel": True})
    assert not [note for note in report["notes"] if "communication in backward is not found" in note]


def test_a_mask_of_131072_is_counted_and_not_written_out(tmp_path):
    report = simulated(tmp_path, **{f"{MODEL}.seq_length": 131072, f"{MODEL}.compute_dtype": "float16"})
    # 131072 * 131072 * 2 bytes are 32 GiB; the tables of rotary embedding and the tokens are less than 64 MiB.
    assert 2**35 <= static(report)["constants"] < 2**35 + 2**26
