"""What one rank of a newer model (GPTModel) keeps, against a sum worked out from the architecture."""

import pytest
import yaml

from tests.adapters.edits import edited
from tests.adapters.graphs import DEEPSEEK, QWEN3
from tests.adapters.reports import inspect_jobs
from tests.strength import is_nightly

pytestmark = pytest.mark.mindspore

# name -> (data, tensor parallel, sequence parallel, pipeline stages, micro-batch of a rank), rank
MIXES = {
    "whole": ((1, 1, False, 1, 1), 0),
    "tensor": ((1, 2, False, 1, 1), 1),
    "sequence": ((1, 2, True, 1, 1), 1),
    "data and sequence": ((2, 2, True, 1, 2), 3),
    "second stage": ((1, 2, False, 2, 1), 3),
}
# "data and sequence" and "second stage" have all that these have.
NIGHTLY = ("tensor", "sequence")
BY_DAY = [name for name in MIXES if is_nightly() or name not in NIGHTLY]
# Two to a stage; in "whole" there is one between two others.
NUM_LAYERS = {name: 3 if name == "whole" else 2 * mix[0][3] for name, mix in MIXES.items()}
SEQ, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN = 64, 64, 4, 2, 16, 128


def layer_bytes(tensor, has_sequence, batch):
    """What backward of one Qwen3 layer reads on one rank.

    All float32 but attention, which is float16 since the kernel has no float32; its maximum and sum are float32.
    """
    tokens = SEQ * batch
    # Outputs of two norms: backward reads them as they arrive at linear_qkv and linear_fc1, gathered.
    gathered = 2 * tokens * HIDDEN * 4
    # Cut by sequence parallel only: rstd of two norms (what they read is counted with its maker), two residual sums,
    # two masks of dropout, a bit for each element.
    rows = 2 * tokens * 4 + 2 * tokens * HIDDEN * 4 + 2 * tokens * HIDDEN // 8
    # Cut by heads: q and k, which their norms read, and rstd of each head.
    heads = tokens * (HEADS + KV_HEADS) * (HEAD_DIM + 1) * 4
    # Rotated q and k, and v, in float16; maximum and sum, 8 times for each row; the output, and its float32 cast.
    heads += tokens * (HEADS + 2 * KV_HEADS) * HEAD_DIM * 2
    heads += 2 * tokens * HEADS * 8 * 4 + tokens * HEADS * HEAD_DIM * (2 + 4)
    # Both halves of linear_fc1, SiLU, and the product, which linear_fc2 reads.
    ffn = 4 * tokens * FFN * 4
    one_element = 2  # an output of flash attention that holds nothing
    return gathered + rows // (tensor if has_sequence else 1) + (heads + ffn) // tensor + one_element


# Five layers on two stages of two chunks each, as DeepSeek-V3 of 671B has 61 on 16.
CHUNKS = {
    "parallel_config.pipeline_stage": 2,
    "parallel_config.micro_batch_num": 2,
    "parallel.pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"},
    "model.model_config.num_hidden_layers": 5,
    "model.model_config.pp_interleave_num": 2,
    "model.model_config.offset": [[0, 1], [0, 0]],
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixes")
    source = yaml.safe_load(QWEN3.read_text())
    jobs = []
    for name, ((data, tensor, has_sequence, stages, batch), rank) in MIXES.items():
        parallel = {
            "data_parallel": data,
            "model_parallel": tensor,
            "use_seq_parallel": has_sequence,
            "pipeline_stage": stages,
            "micro_batch_num": stages,
        }
        edits = {
            "parallel_config": parallel,
            "runner_config.batch_size": batch,
            "model.model_config.num_hidden_layers": NUM_LAYERS[name],
        }
        config = folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump(edited(source, edits)))
        if name in BY_DAY:
            jobs.append({"config": str(config), "rank": rank})
    # A file that cuts the model, without --rank: one rank that has all of it.
    config = folder / "without rank.yaml"
    text = (folder / "sequence.yaml").read_text()
    config.write_text(yaml.safe_dump(edited(yaml.safe_load(text), {"model.model_config.num_hidden_layers": 1})))
    jobs.append({"config": str(config), "rank": None})
    config = folder / "chunks.yaml"
    config.write_text(yaml.safe_dump(edited(yaml.safe_load(DEEPSEEK.read_text()), CHUNKS)))
    jobs.append({"config": str(config), "rank": None})
    return dict(zip([*BY_DAY, "without --rank", "chunks"], inspect_jobs(jobs), strict=True))


def test_the_sum_in_plain_numbers():
    # 67072 for norms, sums and masks; 83456 for attention (q and k 24576 + 1536, float16 16384, statistics 16384,
    # outputs 24576); 131072 for the ffn.
    assert layer_bytes(1, False, 1) == 67_072 + 83_456 + 131_072 + 2 == 281_602
    assert layer_bytes(2, True, 1) == (67_072 + 83_456 + 131_072 + 32_768) // 2 + 2


@pytest.mark.parametrize("name", BY_DAY)
def test_bytes_of_a_layer(reports, name):
    (_, tensor, has_sequence, stages, batch), _ = MIXES[name]
    first, *layers, _ = reports[name]["layers"]
    sizes = [layer["kept_bytes"] + layer["swapped_bytes"] for layer in layers]
    assert sizes == [layer_bytes(tensor, has_sequence, batch)] * (NUM_LAYERS[name] // stages - 1)
    # Cosine and sine of the rotary embedding serve all layers; the first one makes them.
    assert first["kept_bytes"] + first["swapped_bytes"] == sizes[0] + 2 * SEQ * HEAD_DIM * 4


def test_without_a_rank_a_file_that_cuts_the_model_is_read_as_one_that_does_not(reports):
    first, outside = (layer["kept_bytes"] for layer in reports["without --rank"]["layers"])
    whole = [layer["kept_bytes"] for layer in reports["whole"]["layers"]]
    assert (first, outside) == (whole[0], whole[-1])


def test_layers_of_several_chunks_are_captured_on_one_stage(reports):
    """MindFormers spreads them over chunks even where there is one stage, and then the offset does not fit."""
    assert len(reports["chunks"]["layers"]) == 5 + 1  # and what is outside of them


@pytest.mark.parametrize("name", [name for name in BY_DAY if name != "whole"])
def test_what_is_not_certain_is_said(reports, name):
    """MindFormers gives no strategy to the concatenations of the rotary embedding."""
    unresolved = [note for note in reports[name]["notes"] if "not resolved" in note]
    assert any("apply_rotary_pos_emb.Concat" in note for note in unresolved)
    assert not any("MatMul" in note or ": Reshape" in note or "AllReduce" in note for note in unresolved)
