"""The model of a folder with Hugging Face's config.json below what the YAML says."""

import json

from mindswap.check.check import require_num_layers
from mindswap.config.nodes import to_data
from mindswap.config.source import FOLDER_RULE, load_document, use_folder
from mindswap.errors import GraphError


def write(tmp_path, text, **folders):
    for name, model in folders.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(model))
    path = tmp_path / "main.yaml"
    path.write_text(text.replace("HERE", str(tmp_path)))
    return path


def test_the_yaml_goes_over_the_folder_key_by_key_and_only_one_level_deep(tmp_path):
    # merge_model_config: dict.update, so rope_scaling of the YAML replaces that of the folder as a whole.
    path = write(
        tmp_path,
        "pretrained_model_dir: HERE/hf\nmodel: {model_config: {hidden_size: 8, rope_scaling: {factor: 2}}}\n",
        hf={"num_hidden_layers": 4, "hidden_size": 16, "rope_scaling": {"factor": 4, "type": "yarn"}},
    )
    model = load_document(path).get("model", "model_config")
    assert to_data(model) == {"num_hidden_layers": 4, "hidden_size": 8, "rope_scaling": {"factor": 2}}
    assert model.get("num_hidden_layers").location.file.endswith("hf/config.json")


def test_a_configuration_without_any_model_has_that_of_the_folder(tmp_path):
    path = write(tmp_path, "pretrained_model_dir: HERE/hf\n", hf={"num_hidden_layers": 3})
    assert to_data(load_document(path).get("model", "model_config")) == {"num_hidden_layers": 3}


def test_the_command_line_goes_before_the_configuration(tmp_path):
    path = write(tmp_path, "pretrained_model_dir: HERE/a\n", a={"num_layers": 1}, b={"num_layers": 2})
    with use_folder(str(tmp_path / "b")):
        assert load_document(path).get("model", "model_config", "num_layers").value == 2
    assert load_document(path).get("model", "model_config", "num_layers").value == 1


def test_a_folder_that_is_not_there_is_named_with_place_and_fix(tmp_path):
    document = load_document(write(tmp_path, "seed: 1\npretrained_model_dir: /no/such\n"))
    (problem,) = document.problems
    assert (problem.rule, problem.location.line, problem.location.column) == (FOLDER_RULE, 2, 23)
    assert "/no/such/config.json: the file does not exist" in problem.message
    try:
        require_num_layers(document, None, "--rank: ")
    except GraphError as error:
        text = str(error)
    assert text.startswith("--rank: the configuration does not say how many layers")
    assert "/no/such/config.json: the file does not exist" in text
    assert "--pretrained_model_dir DIR" in text


def test_without_a_folder_nothing_changes(tmp_path):
    document = load_document(write(tmp_path, "pretrained_model_dir: ''\nmodel: {model_config: {num_layers: 2}}\n"))
    assert not document.problems
    assert to_data(document.get("model")) == {"model_config": {"num_layers": 2}}
