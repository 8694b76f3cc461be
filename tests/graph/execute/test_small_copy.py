from mindswap.graph.execute.small_copy import small_copy


def config(model, **sections):
    return {"runner_config": {"batch_size": 1}, "model": {"model_config": model}, **sections}


SMALL = {"seq_length": 64, "hidden_size": 64, "num_layers": 4, "num_heads": 4, "vocab_size": 260}
# 4096 * 4096 * 32 elements, above 2**22.
LARGE = {
    "seq_length": 4096,
    "hidden_size": 4096,
    "num_layers": 32,
    "num_heads": 32,
    "vocab_size": 32000,
    "pad_token_id": 31999,
    "multiple_of": 256,
}


def test_what_is_small_runs_as_it_is():
    assert small_copy(config(SMALL, parallel_config={"data_parallel": 8})) == (None, ())


def test_a_large_model_keeps_its_layers_and_loses_the_rest():
    original = config(LARGE)
    small, notes = small_copy(original)
    assert small["model"]["model_config"] == {
        "seq_length": 64,
        "hidden_size": 64,
        "num_layers": 32,
        "num_heads": 4,
        "vocab_size": 256,
        "pad_token_id": 255,
        "multiple_of": 32,
    }
    assert notes[0].startswith("a small copy of the model, the same operators and layers: num_heads 32 -> 4, ")
    assert original["model"]["model_config"]["hidden_size"] == 4096


def test_heads_that_share_keys_still_do():
    grouped, _ = small_copy(config({**LARGE, "n_kv_heads": 8}))
    own, _ = small_copy(config({**LARGE, "n_kv_heads": 32}))
    assert grouped["model"]["model_config"]["n_kv_heads"] == 2
    assert own["model"]["model_config"]["n_kv_heads"] == 4


def test_one_rank_has_the_whole_model():
    parallel = {"data_parallel": 2, "model_parallel": 4, "pipeline_stage": 2, "micro_batch_num": 8}
    small, notes = small_copy(config(SMALL, parallel_config=parallel))
    assert small["parallel_config"] == {
        "data_parallel": 2, "model_parallel": 1, "pipeline_stage": 1, "micro_batch_num": 1,
    }  # fmt: skip
    assert notes == (
        "one rank that has the whole model, one micro-batch: without model_parallel, pipeline_stage, micro_batch_num",
    )


def test_weights_are_whole_because_no_frontend_gathers_them():
    small, notes = small_copy(config(SMALL, parallel={"parallel_mode": 1, "enable_parallel_optimizer": True}))
    assert small["parallel"] == {"parallel_mode": 1, "enable_parallel_optimizer": False}
    assert notes == ("whole weights, so no gathered copies of them: without enable_parallel_optimizer",)
