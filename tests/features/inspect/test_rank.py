"""`mindswap inspect --rank` on the Llama block at tensor parallel 8, against sums worked out by hand."""

import json
import re
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).resolve().parents[3]
CASE = ROOT / "configs" / "llama2_7b" / "case1_default_swap.yaml"

pytestmark = pytest.mark.mindspore

# Llama2-7B, batch 1, seq 4096, hidden 4096, heads 32, ffn 11008; weights float32, computed in float16.
HIDDEN, FFN = 4096 * 4096 * 2, 4096 * 11008 * 2  # bytes of a float16 tensor of (seq, hidden), (seq, ffn)
WEIGHT, FFN_WEIGHT = 4096 * 4096 * 2, 4096 * 11008 * 2  # bytes of a weight cast to float16
SOFTMAX = 2 * 32 * 4096 * 8 * 4  # maximum and sum of flash attention, float32, 8 per row and head
RSTD = 2 * 4096 * 4  # of both norms, float32
EMPTY = 2  # an output of flash attention without content
# Cut over the 8 ranks, by heads or along the ffn: rotated q and k, transposed v, output of attention and the
# same merged (5 hidden-sized), outputs of w1, w3, SiLU, product (4 ffn-sized), every weight, softmax.
CUT = (5 * HIDDEN + 4 * FFN + 4 * WEIGHT + 3 * FFN_WEIGHT + SOFTMAX) // 8


def inspect(config, *arguments, **settings):
    """The command on a copy of the case with these `key: value` lines changed."""
    text = CASE.read_text()
    for key, value in settings.items():
        text, count = re.subn(rf"(?m)^(\s*){key}: [^#\n]*", rf"\g<1>{key}: {value} ", text)
        assert count, key
    config.write_text(text)
    command = ["-m", "mindswap", "inspect", "--no-cache", "--json", *arguments, str(config)]
    return forked.run(command, cwd=ROOT)


def layer_bytes(result):
    """What each layer keeps or swaps."""
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    return [layer["kept_bytes"] + layer["swapped_bytes"] for layer in report["layers"][:-1]]


def test_tensor_parallel_cuts_heads_and_ffn_and_nothing_else(tmp_path):
    # Whole on every rank: inputs of q/k/v and of the ffn (2), both residual sums (2), rstd.
    result = inspect(tmp_path / "tp8.yaml", "--rank", "3", data_parallel=1, model_parallel=8)
    assert layer_bytes(result) == [4 * HIDDEN + CUT + RSTD + EMPTY] * 4
    notes = json.loads(result.stdout)["notes"]
    assert notes[0] == "rank 3 of 8, stage 0 of 1 (parallel: data 1, tensor 8)"
    assert not any("not resolved" in note for note in notes)


def test_sequence_parallel_cuts_the_residual_sums_and_gathers_what_products_read(tmp_path):
    # Both residual sums and rstd are cut along the sequence. The inputs of q/k/v and of the ffn are gathered
    # before the products, and backward of the products reads them whole. The norm after the layers keeps what it
    # gathers, and not the sum that it is gathered from (dry run of `llama tp2 sp`). The first norm reads a slice of
    # the embedding's output in float32, and backward keeps that slice.
    settings = {"data_parallel": 1, "model_parallel": 8, "use_seq_parallel": "True", "num_layers": 2}
    result = inspect(tmp_path / "sp8.yaml", "--rank", "0", **settings)
    whole = 2 * HIDDEN + 2 * HIDDEN // 8 + CUT + RSTD // 8 + EMPTY
    assert layer_bytes(result) == [whole + 2 * HIDDEN // 8, whole - HIDDEN // 8]


def test_data_parallel_leaves_each_rank_its_micro_batch(tmp_path):
    whole = 4 * HIDDEN + 5 * HIDDEN + 4 * FFN + 4 * WEIGHT + 3 * FFN_WEIGHT + SOFTMAX + RSTD + EMPTY
    assert layer_bytes(inspect(tmp_path / "dp8.yaml", "--rank", "7", num_layers=2)) == [whole] * 2


def test_a_stage_has_its_layers_and_only_the_last_has_the_loss(tmp_path):
    settings = {"data_parallel": 1, "model_parallel": 8, "pipeline_stage": 2, "micro_batch_num": 2}
    reports = {}
    for rank in (0, 15):
        reports[rank] = json.loads(inspect(tmp_path / f"pp{rank}.yaml", "--rank", str(rank), **settings).stdout)
    assert [layer["layer"] for layer in reports[0]["layers"]] == [0, 1, None]
    assert [layer["layer"] for layer in reports[15]["layers"]] == [2, 3, None]
    paths = {rank: {row["path"] for row in report["layers"][-1]["operators"]} for rank, report in reports.items()}
    assert not any(path.startswith(("loss", "lm_head")) for path in paths[0])
    assert any(path.startswith("loss") for path in paths[15])
    for report in reports.values():
        sizes = [layer["kept_bytes"] + layer["swapped_bytes"] for layer in report["layers"][:-1]]
        assert sizes == [4 * HIDDEN + CUT + RSTD + EMPTY] * 2


def test_a_rank_that_does_not_exist_is_refused(tmp_path):
    result = inspect(tmp_path / "dp8.yaml", "--rank", "8")
    assert result.returncode == 1
    assert "ranks 0-7" in result.stderr
    assert "Traceback" not in result.stderr
