"""What a dry run of MindFormers 2.x changes in the configuration, without MindSpore."""

from pathlib import Path

import pytest
import yaml

from mindswap.config.parse import parse_document
from mindswap.config.render import document_from_data
from mindswap.config.step_settings import read_step_settings
from mindswap.errors import GraphError, LaunchError
from mindswap.features.dryrun.trainer import _own_effect
from mindswap.features.dryrun.trainer_config import (
    fully_recomputed_2x,
    num_micro_batches,
    switched_off_2x,
    trainer_request,
    truncate_layers,
)
from mindswap.features.dryrun.trainer_trace import graph_mode_text
from mindswap.policy.formats.mindformers1.read import find_num_layers
from mindswap.rules.checker import check_document

SMALL = Path(__file__).parents[3] / "docs/qwen3_2x.yaml"


def document(**sections):
    data = yaml.safe_load(SMALL.read_text("utf-8"))
    for name, section in sections.items():
        data[name] = {**data.get(name, {}), **section}
    return document_from_data(data, "small.yaml")


def test_one_process_reads_no_data_and_writes_no_checkpoint():
    request = trainer_request(
        document(
            checkpoint={"enable_save": True, "load_path": "/weights"},
            parallelism={"tensor_parallel": 2, "expert_parallel": 4},
            train_dataset={"dataloader": {"type": "Megatron", "column_names": ["input_ids", "labels"]}},
            training={"global_batch_size": 4},
        ),
        num_cards=4,
    )
    assert request.config["checkpoint"] == {"enable_save": False, "no_load_optim": True}
    assert request.config["parallelism"]["tensor_parallel"] == request.config["parallelism"]["expert_parallel"] == 1
    assert request.config["training"]["global_batch_size"] == 2  # 4 samples on 4 / 2 data parallel ranks
    assert request.sample == {
        "batch_size": 1, "num_micro_batches": 2, "seq_length": 8192, "vocab_size": 32000,
        "columns": ["input_ids", "labels"],
    }  # fmt: skip
    assert request.config["swap"] == {"enable": True, "default_prefetch": 1, "layer_swap": [{"layers": ["0-6"]}]}


@pytest.mark.parametrize(
    ("engine", "is_enabled", "swapped"),
    [("mindswap", True, range(7)), ("mindswap", False, None), ("upstream", True, None)],
)
def test_the_own_executor_runs_only_if_the_file_enables_its_swap(engine, is_enabled, swapped):
    file = document(mindswap={"swap_engine": engine}, swap={"enable": is_enabled})
    effect = _own_effect(file, trainer_request(file))
    indices = None if effect is None else [index for index, each in enumerate(effect.layers) if each.is_swapped]
    assert indices == (None if swapped is None else list(swapped))


@pytest.mark.parametrize(
    ("training", "parallelism", "num_cards", "expected"),
    [
        ({"global_batch_size": 8}, {}, None, 8),
        ({"global_batch_size": 8}, {}, 8, 1),
        ({"global_batch_size": 8, "local_batch_size": 2}, {}, 2, 2),
        ({"global_batch_size": 8}, {"tensor_parallel": 2, "pipeline_parallel": 2}, 8, 4),
        ({"global_batch_size": 8}, {"tensor_parallel": 2}, None, 8),
    ],
)
def test_micro_batches_are_the_batch_by_the_data_parallel_ranks(training, parallelism, num_cards, expected):
    assert num_micro_batches(document(training=training, parallelism=parallelism), num_cards) == expected


def test_further_micro_batches_are_like_the_second():
    request = trainer_request(document(training={"global_batch_size": 64}))
    assert (request.sample["num_micro_batches"], request.config["training"]["global_batch_size"]) == (2, 2)


@pytest.mark.parametrize(
    ("schedule", "num_run"),
    [({}, 5), ({"pipeline_parallel_schedule": "1F1B"}, 5), ({"pipeline_parallel_schedule": "gpipe"}, 16)],
)
def test_in_1f1b_further_micro_batches_than_one_more_than_stages_need_no_more(schedule, num_run):
    """In GPipe all are in flight."""
    staged = document(training={"global_batch_size": 16}, parallelism={"pipeline_parallel": 4, **schedule})
    assert trainer_request(staged).sample["num_micro_batches"] == num_run


@pytest.mark.parametrize(
    ("training", "parallelism", "num_cards", "text"),
    [
        ({"global_batch_size": 8}, {"tensor_parallel": 2}, 3, "--cards 3: no multiple of 2"),
        ({"global_batch_size": 8}, {}, 3, "training.global_batch_size 8 is no multiple of 3"),
    ],
)
def test_a_batch_that_cannot_be_distributed(training, parallelism, num_cards, text):
    with pytest.raises(LaunchError, match=text):
        num_micro_batches(document(training=training, parallelism=parallelism), num_cards)


@pytest.mark.parametrize("name", ["seq_length", "vocab_size", "num_hidden_layers"])
def test_a_size_that_is_missing_is_named(name):
    with pytest.raises(GraphError, match=name):
        trainer_request(document(model={name: None}))


def test_a_truncated_model_keeps_its_first_layers_and_those_of_multi_token_prediction():
    config = {
        "model": {"num_hidden_layers": 6, "num_nextn_predict_layers": 1, "compress_ratios": [0, 1, 2, 3, 4, 5, 9],
                  "first_k_dense_replace": 3},
        "swap": {"enable": True, "default_prefetch": 1, "layer_swap": [{"layers": ["0-5"]}],
                 "op_swap": [{"op_name": "mlp", "layers": [1, 5]}]},
        "recompute": {"mode": "select", "select_module": {"mlp": ["1-6"]}, "full_recompute_layer": ["4-5"]},
    }  # fmt: skip
    truncate_layers(config, full_layers=6, num_layers=2, num_mtp_layers=1)
    assert config["model"] == {
        "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "compress_ratios": [0, 1, 9],
        "first_k_dense_replace": 2,
    }  # fmt: skip
    # The last layer, that of multi-token prediction, is not swapped with a distance of 1; it is layer 2 now.
    assert config["swap"]["layer_swap"] == [{"layers": ["0", "1"]}]
    assert config["swap"]["op_swap"] == [{"op_name": "mlp", "layers": ["1"]}]
    assert config["recompute"] == {
        "mode": "select", "select_module": {"mlp": ["1", "2"]}, "full_recompute_layer": [],
    }  # fmt: skip


def test_more_layers_than_the_model_has():
    with pytest.raises(LaunchError, match="--layers 9: the model has 8\n    allowed: 1 to 8"):
        trainer_request(document(), 9)


def test_what_is_compared_with():
    data = document(recompute={"mode": "full", "full_recompute_layer": ["7"]}).data()
    assert not {"swap", "recompute", "recompute_comm"} & switched_off_2x(data).keys()
    assert fully_recomputed_2x(data, 9)["recompute"] == {"mode": "full", "full_recompute_layer": ["0-8"]}
    assert "swap" not in fully_recomputed_2x(data, 9)
    assert data["recompute"]["full_recompute_layer"] == ["7"]


def test_a_trace_keeps_the_sizes_in_the_form_of_1_9():
    text = graph_mode_text(document(training={"local_batch_size": 2, "global_batch_size": 8}))
    read = parse_document(text, "step.json")
    assert not check_document(read).errors
    assert find_num_layers(read) == 8
    settings = read_step_settings(read)
    assert (settings.batch_size, settings.seq_length, settings.num_micro_batches) == (2, 8192, 4)


def test_a_trace_does_not_tell_the_folders_of_its_writer():
    data = document().data()
    text = graph_mode_text(document_from_data(data, "/home/someone/secret/small.yaml"))
    assert text.startswith("# from small.yaml of MindFormers 2.x") and "someone" not in text


def test_layers_of_multi_token_prediction_count_as_layers_of_the_trace():
    read = parse_document(graph_mode_text(document(model={"num_nextn_predict_layers": 1})), "step.json")
    assert find_num_layers(read) == 9
    assert read.get("model", "model_config", "num_nextn_predict_layers") is None
