"""The configuration of the runs."""

import pytest

from mindswap.config.nodes import to_data
from mindswap.config.parse import parse_document
from mindswap.errors import LaunchError
from mindswap.runtime.short_run import RunOptions, SyntheticData, derive, format_config, switched_off

CONFIG = {
    "load_checkpoint": "/weights",
    "runner_config": {"epochs": 2, "batch_size": 1, "sink_size": 2},
    "callbacks": [{"type": "CheckpointMonitor"}],
    "train_dataset": {"data_loader": {"type": "MindDataset", "dataset_dir": "/data", "shuffle": True}, "repeat": 3},
    "parallel_config": {"data_parallel": 32, "model_parallel": 2, "pipeline_stage": 2},
    "model": {"model_config": {"num_layers": 32, "offset": [1, -1]}},
    "swap_config": {"swap": True},
}


def test_the_runs_are_short_and_write_no_weights():
    config, changes = derive(CONFIG, RunOptions(5, 8))
    assert config["load_checkpoint"] == "" and config["runner_config"]["epochs"] == 1
    assert [callback["type"] for callback in config["callbacks"]] == ["MFLossMonitor", "StepReport", "TrainCallBack"]
    assert config["callbacks"][2]["stop_step"] == 5
    assert "load_checkpoint: '/weights' -> ''" in changes


def test_data_parallelism_takes_what_is_left_of_the_workers():
    config, _ = derive(CONFIG, RunOptions(5, 8))
    assert config["parallel_config"] == {"data_parallel": 2, "model_parallel": 2, "pipeline_stage": 2}
    assert config["use_parallel"] is True


def test_workers_that_do_not_divide_are_refused_with_a_number_that_does():
    with pytest.raises(LaunchError, match="--worker-num 8"):
        derive(CONFIG, RunOptions(5, 6))


def test_one_worker_runs_alone():
    assert derive(CONFIG, RunOptions(5, 1))[0]["use_parallel"] is False


def test_the_model_is_cut_and_its_stages_are_even():
    config, changes = derive(CONFIG, RunOptions(5, 8, num_layers=4))
    assert config["model"]["model_config"] == {"num_layers": 4, "offset": 0}
    assert "model.model_config.num_layers: 32 -> 4" in changes


def test_the_newer_models_name_their_layers_differently():
    config, _ = derive({"use_legacy": False, "model": {"model_config": {}}}, RunOptions(5, 1, num_layers=4))
    assert config["model"]["model_config"] == {"num_hidden_layers": 4}


def test_the_data_of_the_user_is_not_shuffled():
    config, _ = derive(CONFIG, RunOptions(5, 8))
    loader = config["train_dataset"]["data_loader"]
    assert loader == {"type": "MindDataset", "dataset_dir": "/data", "shuffle": False}
    assert config["train_dataset_task"]["dataset_config"] == config["train_dataset"]


def test_data_made_on_the_spot_takes_its_place():
    config, _ = derive(CONFIG, RunOptions(5, 8), lambda document: SyntheticData("/p/s.mindrecord", ("input_ids",)))
    assert config["train_dataset"]["data_loader"]["dataset_dir"] == "/p/s.mindrecord"
    assert config["train_dataset"]["repeat"] == 1
    assert config["train_dataset_task"]["dataset_config"]["input_columns"] == ["input_ids"]


def test_a_class_that_needs_a_tokenizer_reads_no_data_made_on_the_spot():
    task = {"type": "MultiTurnDataset", "dataset_config": {"tokenizer": {"type": "ChatGLM3Tokenizer"}}}
    given = {**CONFIG, "train_dataset": task["dataset_config"], "train_dataset_task": task}
    config, _ = derive(given, RunOptions(5, 8), lambda document: SyntheticData("/p/s.mindrecord", ("input_ids",)))
    assert config["train_dataset_task"]["type"] == "CausalLanguageModelDataset"
    assert "tokenizer" not in config["train_dataset"]
    assert derive(given, RunOptions(5, 8))[0]["train_dataset_task"]["type"] == "MultiTurnDataset"


@pytest.mark.parametrize("is_profiled", [True, False])
def test_the_last_step_is_profiled(is_profiled):
    config, _ = derive(CONFIG, RunOptions(5, 8, is_profiled=is_profiled))
    assert config["profile"] is is_profiled
    assert config.get("profile_start_step") == config.get("profile_stop_step") == (5 if is_profiled else None)


@pytest.mark.parametrize(("given", "seed"), [({}, 0), ({"seed": 7}, 7)])
def test_all_runs_begin_with_the_same_weights(given, seed):
    assert derive({**CONFIG, **given}, RunOptions(5, 8))[0]["seed"] == seed


def test_what_the_user_has_stays_as_it_is():
    before = repr(CONFIG)
    derive(CONFIG, RunOptions(5, 8, num_layers=4))
    assert repr(CONFIG) == before


def test_off_has_neither_swap_nor_recompute():
    off = switched_off(
        {"mindswap": {"output_recompute": [1], "device": "cpu"}, "recompute_config": {"recompute": True}}
    )
    assert off["swap_config"] == {"swap": False} and off["mindswap"] == {"device": "cpu"}
    assert not any(off["recompute_config"].values())


def test_the_file_reads_back():
    text = format_config(CONFIG, "one\ntwo")
    assert text.startswith("# one\n# two\n")
    document = parse_document(text.encode(), "x")
    assert document.root is not None and to_data(document.root) == CONFIG
