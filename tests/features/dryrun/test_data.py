"""The data of a proof: whose it is, and what is made."""

import pytest

from mindswap.adapters.mindrecord import write_synthetic_data
from mindswap.config.render import document_from_data
from mindswap.runtime.input_paths import has_dataset, with_absolute_paths


def loader(**keys):
    return {"train_dataset": {"data_loader": keys}}


def test_a_mindrecord_that_is_there_is_used(tmp_path):
    file = tmp_path / "x.mindrecord"
    file.write_text("")
    assert has_dataset(loader(type="MindDataset", dataset_dir=str(file)))
    assert has_dataset(loader(dataset_files=[str(file)]))


@pytest.mark.parametrize("config", [loader(type="MindDataset", dataset_dir=""), loader(dataset_dir="/no"), {}])
def test_without_one_data_is_made(config):
    assert not has_dataset(config)


def test_a_loader_of_another_type_is_left_to_itself():
    assert has_dataset(loader(type="BlendedMegatronDatasetDataLoader", dataset_dir=""))


def test_paths_of_files_that_are_read_hold_from_any_folder(tmp_path):
    (tmp_path / "x.mindrecord").write_text("")
    config = loader(dataset_dir="x.mindrecord", dataset_files=["x.mindrecord", "no"]) | {"output_dir": "x.mindrecord"}
    config["context"] = {"ascend_config": {"parallel_speed_up_json_path": "./x.mindrecord"}}
    found = with_absolute_paths(config, tmp_path)
    path = str(tmp_path / "x.mindrecord")
    assert found["train_dataset"]["data_loader"] == {"dataset_dir": path, "dataset_files": [path, "no"]}
    assert found["output_dir"] == "x.mindrecord"
    assert found["context"]["ascend_config"]["parallel_speed_up_json_path"] == path


@pytest.mark.mindspore
def test_made_data_of_the_newer_models_is_read_back_by_mindspore(tmp_path):
    """The legacy models train on theirs in test_prove.py."""
    from mindspore.dataset import MindDataset

    config = {
        "use_legacy": False,
        "use_parallel": True,
        "runner_config": {"batch_size": 2},
        "parallel_config": {"data_parallel": 3},
        "model": {"model_config": {"seq_length": 8, "vocab_size": 10}},
    }
    data = write_synthetic_data(tmp_path, document_from_data(config, "x"), 4)
    rows = list(MindDataset(data.path, shuffle=False).create_dict_iterator(output_numpy=True))
    # Four steps and one more, of 2 x 3 samples.
    assert len(rows) == 30 and set(rows[0]) == {"input_ids", "labels", "loss_mask", "position_ids"}
    assert all(3 <= token < 10 for row in rows for token in row["input_ids"])
    assert list(rows[0]["labels"][:-1]) == list(rows[0]["input_ids"][1:])
    assert list(rows[0]["loss_mask"]) == [1] * 8 and list(rows[0]["position_ids"]) == list(range(8))
    assert len({tuple(row["input_ids"]) for row in rows}) == 30
