"""Tied embeddings, layers in two halves and long masks: compiled by MindSpore and simulated."""

import json

import pytest
import yaml

from tests import forked
from tests.adapters.edits import edited
from tests.adapters.graphs import CPU_CASES, ROOT
from tests.adapters.test_capture_rank import SETTINGS

pytestmark = pytest.mark.mindspore

MODEL = "model.model_config"
TENSOR_PARALLEL = {**SETTINGS, "parallel_config.model_parallel": 2, f"{MODEL}.num_layers": 4}
VOCAB, HIDDEN, FLOAT32 = 264, 64, 4


def run(folder, **edits):
    source = yaml.safe_load((CPU_CASES / "case1_default_swap.yaml").read_text())
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(edited(source, {**TENSOR_PARALLEL, **edits})))
    command = ["-m", "mindswap", "simulate", "--json", str(config)]
    return forked.run(command, cwd=ROOT)


def simulated(folder, **edits):
    result = run(folder, **edits)
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
    assert own["weights"] - tied["weights"] == VOCAB * HIDDEN * FLOAT32


@pytest.mark.parametrize(
    ("num_layers", "places"), [(1, [1]), (2, [1, -1]), (3, [1, -2, -1]), (6, [1, 0, 0, 0, -2, -1])]
)
def test_layers_in_two_halves_differ_at_the_begin_and_at_the_end_of_the_model(num_layers, places):
    """As `construct` of the layer tells them apart by `layer_id`, and by it less `num_layers`."""
    from mindformers.models.llama.llama_interleave import LLamaDecodeLayerInterleave

    from mindswap.adapters.graph.experts import layer_position

    sizes = {"dim": 16, "n_heads": 2}
    layers = [LLamaDecodeLayerInterleave(1, 8, i, num_layers=num_layers, **sizes) for i in range(num_layers)]
    assert list(map(layer_position, layers)) == places


def test_communication_of_both_halves_is_found_in_backward(tmp_path):
    report = simulated(tmp_path, **{f"{MODEL}.fine_grain_interleave": 2, "parallel_config.use_seq_parallel": True})
    assert not [note for note in report["notes"] if "communication in backward is not found" in note]


def test_a_mask_of_131072_is_counted_and_not_written_out(tmp_path):
    report = simulated(tmp_path, **{f"{MODEL}.seq_length": 131072, f"{MODEL}.compute_dtype": "float16"})
    # 131072 * 131072 * 2 bytes are 32 GiB; the tables of rotary embedding and the tokens are less than 64 MiB.
    assert 2**35 <= static(report)["constants"] < 2**35 + 2**26


def held(report, stage):
    """Bytes and number of tensors at the peak of a stage, by label."""
    return {one["label"]: (one["size_bytes"], one["num_tensors"]) for one in report["stages"][stage]["holders"]}


PIECES = {
    "parallel_config.model_parallel": 1,
    "parallel_config.pipeline_stage": 2,
    "parallel_config.micro_batch_num": 4,
    "parallel_config.seq_split_num": 4,
}


def test_a_long_mask_of_a_sequence_in_pieces_is_not_written_out_either(tmp_path):
    report = simulated(tmp_path, **PIECES, **{f"{MODEL}.seq_length": 32768, f"{MODEL}.compute_dtype": "float16"})
    # 32768 * 32768 * 2 bytes are 2 GiB; all else, such as tables of rotary embedding, is less than 128 MiB.
    assert 2**31 <= static(report)["constants"] < 2**31 + 2**27
    # A piece of 8192 rows for each of 2 samples, before it becomes uint8: float32, as the mask kept of earlier ones is.
    assert held(report, 0)["model.casual_mask.Mul"] == (2 * 8192 * 32768 * 4, 1)


@pytest.mark.parametrize("data_parallel", [1, 4])
def test_pieces_of_a_sequence(tmp_path, data_parallel):
    """2 samples of 64 tokens in 4 pieces of 16; the last of 2 stages holds 4 + 2 - 1 - 1 = 4 pieces of 2 layers."""
    report = simulated(tmp_path, **PIECES, **{"parallel_config.data_parallel": data_parallel})
    found = held(report, 1)
    # Logits of a piece: 2 x 16 x 264 numbers.
    assert found["loss._log_softmax.Sub"] == (4 * 2 * 16 * VOCAB * FLOAT32, 4)
    # Keys of all 64 tokens for each piece: 2 samples x 8 heads x 64 x 8.
    keys = 2 * 8 * 64 * 8 * FLOAT32
    assert found["attention.add_k"] == (2 * 4 * keys, 8)
    # Caches of keys, values and their gradients in 2 layers; masks and tables are less than 80 KiB.
    assert 0 < static(report)["constants"] - 2 * 4 * keys < 80 * 1024


def test_what_adds_to_the_keys_of_other_pieces_cannot_run_again(tmp_path):
    result = run(tmp_path, **PIECES, **{"recompute_config.select_recompute": {r"attention\.add_k": [1]}})
    assert result.returncode == 1
    assert "attention.add_k cannot be recomputed" in json.loads(result.stdout)["error"]


def test_ring_attention(tmp_path):
    """4 ranks share 2 x 4096 tokens, 2 the heads: a rank keeps one block of queries, keys, values, and one result."""
    ring = {f"{MODEL}.use_ring_attention": True, f"{MODEL}.seq_length": 4096, "parallel_config.context_parallel": 4}
    report = simulated(tmp_path, **ring)
    # The result is 2 x 1024 x 32 numbers, largest scores and sums 2 x 4 x 1024 x 8 each; the third output is empty and
    # takes 512 bytes; 4 layers.
    result, statistic = 2 * 1024 * 32 * FLOAT32, 2 * 4 * 1024 * 8 * FLOAT32
    assert held(report, 0)["attention.flash_attention.flash_attention"] == (4 * (result + 2 * statistic + 512), 16)
    assert report["stages"][0]["exposed_communication_ns"] > 0
