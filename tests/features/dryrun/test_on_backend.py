"""Small models on MindSpore's Ascend backend, without a card: what the simulator says of their memory is so."""

import json
from pathlib import Path

import pytest

from mindswap.config.source import load_document
from mindswap.files import write_new
from mindswap.runtime.short_run import format_config
from tests import forked

pytestmark = pytest.mark.mindspore

ROOT = Path(__file__).parents[3]
OFF = {"swap_config": {"swap": False}, "recompute_config": {"recompute": False, "select_recompute": False}}
FULL = {"recompute_config": {"recompute": True}}
ALL_LAYERS = {"swap_config": {"swap": True, "layer_swap": [{"backward_prefetch": 10, "layers": True}]}}
OPERATORS = {
    "swap_config": {
        "swap": True,
        "op_swap": [
            {"op_name": "attention", "backward_prefetch": 10, "layers": True},
            {"op_name": "feed_forward", "backward_prefetch": 10, "layers": True},
        ],
    }
}
ONE_SWAP = {
    "swap_config": {"swap": True, "op_swap": [{"op_name": "attention_norm", "backward_prefetch": 10, "layers": [0]}]}
}
TENSORS = {"parallel_config": {"model_parallel": 2, "data_parallel": 4, "vocab_emb_dp": False}}
PIPELINE = {
    "parallel_config": {
        "pipeline_stage": 2, "model_parallel": 2, "data_parallel": 2, "micro_batch_num": 4, "vocab_emb_dp": False,
    }
}  # fmt: skip


def llama(num_layers: int, *changes: dict) -> dict:
    """Case 4 of the specification with hidden size 1024, 2048 tokens, 4 samples; 8 ranks."""
    data = load_document(str(ROOT / "configs/llama2_7b/case4_swap_and_recompute.yaml")).data()
    sizes = {"hidden_size": 1024, "num_heads": 8, "num_layers": num_layers, "seq_length": 2048, "vocab_size": 8000}
    data["model"]["model_config"].update(sizes, batch_size=4)
    data["runner_config"]["batch_size"] = 4
    return changed(data, OFF, *changes)


def llama_with_full_head() -> dict:
    """Two layers and 16000 tokens; each rank has the full head, and of the loss its part of the vocabulary."""
    data = llama(2, TENSORS, {"parallel_config": {"vocab_emb_dp": True, "use_seq_parallel": True}})
    data["model"]["model_config"]["vocab_size"] = 16000
    return data


def qwen3(*changes: dict) -> dict:
    """A Qwen3 of hidden size 1024 with as many tokens; 8 ranks."""
    data = load_document(str(ROOT / "tests/data/qwen3_small.yaml")).data()
    data["model"]["model_config"].update(
        hidden_size=1024, intermediate_size=3072, num_attention_heads=8, num_key_value_heads=4, head_dim=128,
        vocab_size=8000, seq_length=2048, max_position_embeddings=2048, compute_dtype="bfloat16",
    )  # fmt: skip
    data["parallel_config"].update(data_parallel=4, model_parallel=2, micro_batch_num=1)
    return changed(data, {"swap_config": {"swap": False}}, *changes)


def changed(data: dict, *changes: dict) -> dict:
    for change in changes:
        for key, value in change.items():
            data[key] = {**data[key], **value}
    return data


# Peaks of rank 0 without fragments, MiB, as MindSpore 2.9.0 printed them on 2026-11-23.
CASES = {
    "nothing moved": (llama(2), 1663),
    "full recompute": (llama(2, FULL), 1047),
    "swap of operators, and of the weights that they gather": (llama(4, OPERATORS), 1324),
    "recompute with swap on, which holds weights as they are stored": (llama(4, FULL, ONE_SWAP), 1263),
    "tensor parallel": (llama(2, TENSORS), 949),
    "pipeline, tensor parallel, swap of layers": (llama(4, PIPELINE, ALL_LAYERS), 624),
    "Qwen3, tensor parallel": (qwen3(), 841),
    "full head, of whose logits each rank computes a part of the loss": (llama_with_full_head(), 1741),
}


@pytest.mark.parametrize("name", [name for name in CASES if name != "nothing moved"])  # that one is below
def test_the_backend_needs_what_is_simulated(name, tmp_path):
    """By the command, in a process of its own: legacy and newer models are not captured in one."""
    data, peak_mib = CASES[name]
    path = tmp_path / "case.yaml"
    write_new(path, format_config(data, name))
    words = ["-m", "mindswap", "dryrun", path, "--ranks", "0", "--full", "--json"]
    done = forked.run(words)
    (stage,) = json.loads(done.stdout)["stages"]
    used, actual = stage["used_peak_bytes"], stage["actual_peak_bytes"]
    assert used >> 20 == pytest.approx(peak_mib, rel=0.01)
    assert used <= actual < 1.3 * used
    assert 0.97 <= stage["simulated_peak_bytes"] / used <= 1.08
    (run,) = stage["runs"]
    assert run["copies_out"] == run["copies_back"]
    recomputes_all = data["recompute_config"]["recompute"] is True  # then nothing is left to be copied
    assert bool(run["copies_out"]) == (data["swap_config"]["swap"] and not recomputes_all)
    assert_same_parts(stage, MODEL_ERRORS.get(name, ()))


# Parts whose memory is simulated with too many tensors between layers, or between stages.
MODEL_ERRORS = {
    "full recompute": ("saved activations",),
    "recompute with swap on, which holds weights as they are stored": ("saved activations",),
    # The simulated peak is some operators later, at 670 of 624 MiB.
    "pipeline, tensor parallel, swap of layers": (
        *("activation gradients", "communication", "prefetched copies", "saved activations", "temporaries"),
    ),
}


def assert_same_parts(stage: dict, excluded: tuple[str, ...]) -> None:
    """Parts of both sides add up to their peaks, and each of more than 3 % of the peak is simulated within 10 %."""
    parts, simulated, peak_bytes = stage["parts"], stage["simulated_parts"], stage["used_peak_bytes"]
    assert abs(sum(parts.values()) - peak_bytes) < 2**20  # MindSpore prints whole MiB
    assert sum(simulated.values()) == stage["simulated_peak_bytes"]
    assert list(parts) == list(simulated)
    assert max(parts["other"], simulated["other"]) < 0.03 * peak_bytes
    large = [part for part in parts if max(parts[part], simulated[part]) > 0.03 * peak_bytes and part not in excluded]
    assert {part: simulated[part] for part in large} == {part: pytest.approx(parts[part], rel=0.1) for part in large}


def test_short_models_are_extrapolated_to_what_all_layers_take(tmp_path):
    """Swap is off, so `mp_comm_recompute: False` has no effect; in a short model with swap on it had.

    All six layers need 916 MiB, as MindSpore 2.9.0 printed on 2026-11-29 (`--full`).
    """
    flags = {"mp_comm_recompute": False, "parallel_optimizer_comm_recompute": False, "select_recompute": False}
    data = qwen3({"recompute_config": {"recompute": True, **flags}, "parallel_config": {"use_seq_parallel": True}})
    data["model"]["model_config"]["num_hidden_layers"] = 6
    path = tmp_path / "six.yaml"
    write_new(path, format_config(data, "six layers"))
    done = forked.run(["-m", "mindswap", "dryrun", path, "--layers", "2,3", "--json"])
    (stage,) = json.loads(done.stdout)["stages"]
    assert not stage["is_exact"] and stage["extrapolation_error"] < 0.01
    assert stage["used_peak_bytes"] >> 20 == pytest.approx(916, rel=0.01)


FILL = """
import sys
from mindswap.features.dryrun.rank_runs import _cached_samples
from mindswap.config.source import load_document
from mindswap.features.dryrun.cann_stand_ins import stub_libraries
stub_libraries()
_cached_samples(load_document(sys.argv[1]))
"""


def test_a_damaged_cache_is_made_anew(tmp_path, monkeypatch):
    """A library and a MindRecord that end in the middle: the backend died of them with words that led nowhere."""
    monkeypatch.setenv("MINDSWAP_CACHE", str(tmp_path / "cache"))
    data, peak_mib = CASES["nothing moved"]
    path = tmp_path / "case.yaml"
    write_new(path, format_config(data, "damaged"))
    forked.run(["-c", FILL, path], check=True)
    for pattern in ("stand_ins/*/*/lib/libascendcl.so", "samples/*/*.mindrecord"):
        (damaged,) = (tmp_path / "cache").glob(pattern)
        with damaged.open("r+b") as file:
            file.truncate(damaged.stat().st_size // 2)
    done = forked.run(["-m", "mindswap", "dryrun", path, "--ranks", "0", "--full", "--json"])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("made a cache entry anew that is not as it was written") == 2
    (stage,) = json.loads(done.stdout)["stages"]
    assert stage["used_peak_bytes"] >> 20 == pytest.approx(peak_mib, rel=0.01)


@pytest.mark.parametrize(
    ("operators", "fault"),
    [
        ([r"feed_forward\.w[13]\..*", r"feed_forward\.mul"], None),
        (["feed_forward"], "Graph cycle exists"),
        ([r"feed_forward\.w1", r"feed_forward\.w3"], "need to broadcast"),
    ],
)
def test_what_is_warned_of_in_halves_of_layers_is_what_the_backend_does_not_compile(operators, fault, tmp_path):
    """All four layers are unlike here, and on two stages."""
    recompute = {"recompute_config": {"recompute": False, "select_recompute": {key: [0] for key in operators}}}
    data = changed(llama(4), PIPELINE, recompute, {"swap_config": {"swap": True, "op_swap": []}})
    data["parallel_config"]["use_seq_parallel"] = True
    data["model"]["model_config"]["fine_grain_interleave"] = 2
    path = tmp_path / "halves.yaml"
    write_new(path, format_config(data, "halves"))
    checked = forked.run(["-m", "mindswap", "check", path, "--json"])
    assert ("interleaved-cell" in checked.stdout) == (fault is not None)
    done = forked.run(["-m", "mindswap", "dryrun", path, "--ranks", "0", "--full", "--json"])
    if fault:
        assert done.returncode == 1 and fault in done.stdout
    else:
        (stage,) = json.loads(done.stdout)["stages"]
        assert 0.97 <= stage["simulated_peak_bytes"] / stage["used_peak_bytes"] <= 1.08


@pytest.mark.parametrize(("names", "is_wasted"), [(("wq", "wk", "wv"), False), (("wq",), True)])
def test_what_equal_reshapes_gather_moves_if_all_of_them_are_named(names, is_wasted, tmp_path):
    """With sequence parallelism one AllGather stands for three reshapes; 2 of 4 layers here, 4 micro-batches."""
    entries = [{"op_name": rf"attention\.{one}\.reshape", "backward_prefetch": 10, "layers": True} for one in names]
    data = changed(llama(4), PIPELINE, {"swap_config": {"swap": True, "op_swap": entries}})
    data["parallel_config"]["use_seq_parallel"] = True
    path = tmp_path / "equal.yaml"
    write_new(path, format_config(data, "equal"))
    verified = json.loads(forked.run(["-m", "mindswap", "verify", path, "--json"]).stdout)
    layers = verified["layers"]
    assert all(not layer["without_effect"] for layer in layers)
    assert all(bool(layer["wasted_bytes"]) == is_wasted for layer in layers)
    done = forked.run(["-m", "mindswap", "dryrun", path, "--ranks", "0", "--full", "--json"])
    (stage,) = json.loads(done.stdout)["stages"]
    (run,) = stage["runs"]
    assert run["copies_out"] == run["copies_back"] == 8
    assert 0.97 <= stage["simulated_peak_bytes"] / stage["used_peak_bytes"] <= 1.08


@pytest.mark.parametrize(
    ("swapped", "recomputed", "num_copies"),
    [
        (r"attention\.wq\.reshape", None, 0),
        (r"attention\.wv\.reshape", None, 4),
        (None, r"feed_forward\.w3\.reshape", 0),
        (None, r"feed_forward\.w1\.reshape", 0),
    ],
)
def test_of_reshapes_that_one_gather_stands_for_the_last_decides(swapped, recomputed, num_copies, tmp_path):
    """One sample on each rank: what is gathered is what all of them read. Of two layers, in two micro-batches."""
    changes: dict = {"parallel_config": {**TENSORS["parallel_config"], "use_seq_parallel": True}}
    if swapped:
        entry = {"op_name": swapped, "backward_prefetch": 10, "layers": True}
        changes["swap_config"] = {"swap": True, "op_swap": [entry]}
    else:
        changes["recompute_config"] = {"recompute": False, "select_recompute": [recomputed]}
    data = changed(llama(2), changes, {"runner_config": {"batch_size": 1, "gradient_accumulation_steps": 2}})
    data["model"]["model_config"].update(batch_size=1, seq_length=8192)
    path = tmp_path / "gathered.yaml"
    write_new(path, format_config(data, "gathered"))
    if swapped:
        verified = json.loads(forked.run(["-m", "mindswap", "verify", path, "--json"]).stdout)
        assert all(bool(layer["wasted_bytes"]) == (not num_copies) for layer in verified["layers"])
    done = forked.run(["-m", "mindswap", "dryrun", path, "--ranks", "0", "--full", "--json"])
    (stage,) = json.loads(done.stdout)["stages"]
    (run,) = stage["runs"]
    assert run["copies_out"] == run["copies_back"] == num_copies
    assert stage["simulated_peak_bytes"] == pytest.approx(stage["used_peak_bytes"], rel=0.002)
