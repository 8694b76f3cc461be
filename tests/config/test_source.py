import json

import pytest

from mindswap import cli
from mindswap.config.nodes import to_data
from mindswap.config.source import FOLDER_RULE, load_document, use_folder
from mindswap.errors import GraphError
from mindswap.files import package_data
from mindswap.rules.checker import require_num_layers


@pytest.fixture
def write(tmp_path):
    def write_files(**files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return load_document(tmp_path / "main.yaml")

    return write_files


def rules(document):
    return [p.rule for p in document.problems]


def test_a_file_without_base(write):
    assert to_data(write(main="a: 1").root) == {"a": 1}


def test_the_file_is_merged_into_its_base_key_by_key(write):
    main = "base_config: base.yaml\na: {x: 2, z: 3}\nb: [9]\n"
    document = write(main=main, base="a: {x: 1, y: 1}\nb: [1, 2]\nc: 4\n")
    assert to_data(document.root) == {"a": {"x": 2, "y": 1, "z": 3}, "b": [9], "c": 4}


def test_every_value_keeps_the_file_it_stands_in(write):
    document = write(main="base_config: sub/base.yaml\na: {x: 2}\n", sub__base="\na: {y: 1}\n")
    assert document.get("a", "x").location.file.endswith("main.yaml")
    assert document.get("a", "y").location.file.endswith("sub/base.yaml")
    assert document.get("a", "y").location.line == 2


def test_of_several_bases_a_later_one_replaces_whole_sections(write):
    document = write(main="base_config: [one.yaml, two.yaml]\n", one="a: {x: 1}\nb: 1\n", two="a: {y: 2}\n")
    assert to_data(document.root) == {"a": {"y": 2}, "b": 1}


def test_a_base_has_a_base_relative_to_its_own_folder(write):
    document = write(main="base_config: sub/one.yaml\n", sub__one="base_config: two.yaml\na: 1\n", sub__two="b: 2\n")
    assert to_data(document.root) == {"a": 1, "b": 2}


@pytest.mark.parametrize("below", ["1", "text", "[]", "[1]", "False"])
def test_a_mapping_over_what_is_none_is_an_error_as_in_mindformers(write, below):
    """`MindFormerConfig._merge_a_into_b` copies what is below, and sets keys in it; only null it replaces."""
    document = write(main="base_config: base.yaml\na: {x: 2}\n", base=f"a: {below}\n")
    (problem,) = document.problems
    assert (problem.rule, problem.location.line) == ("base-config", 2)


@pytest.mark.parametrize("below", ["null", "{}"])
def test_a_mapping_over_nothing_is_the_mapping(write, below):
    document = write(main="base_config: base.yaml\nmodel: {x: 2}\n", base=f"model: {below}\n")
    assert document.problems == () and to_data(document.root) == {"model": {"x": 2}}


@pytest.mark.parametrize(
    "files",
    [
        {"main": "base_config: main.yaml\na: 1"},
        {"main": "base_config: one.yaml\na: 1", "one": "base_config: main.yaml\nb: 1"},
    ],
)
def test_a_loop_is_found(write, files):
    document = write(**files)
    assert rules(document) == ["base-config"]
    assert to_data(document.root)["a"] == 1


def test_a_missing_base_is_reported_and_the_rest_is_read(write):
    document = write(main="base_config: none.yaml\na: 1")
    assert rules(document) == ["yaml-file"]
    assert to_data(document.root) == {"a": 1}


@pytest.mark.parametrize("value", ["3", "[1]", "{a: b}", "''", "null"])
def test_a_base_that_is_no_path(write, value):
    assert rules(write(main=f"base_config: {value}\na: 1")) == ["base-config"]


def test_files_that_name_each_other_many_times_are_read_once(write):
    files = {f"f{i}": f"base_config: [{', '.join([f'f{i + 1}.yaml'] * 10)}]\nk{i}: 1\n" for i in range(30)}
    document = write(main="base_config: f0.yaml", f30="seed: 1", **files)
    assert document.problems == ()
    assert len(document.root.entries) == 31


def test_an_endless_chain_of_files_is_cut(write):
    document = write(main="base_config: f0.yaml", **{f"f{i}": f"base_config: f{i + 1}.yaml" for i in range(200)})
    assert rules(document) == ["base-config"]


def test_duplicates_and_problems_of_the_base_are_kept(write):
    document = write(main="base_config: base.yaml\na: 1", base="b: 1\nb: 2\nc: *none\n")
    assert [d.path for d in document.duplicates] == ["b"]
    assert rules(document) == ["yaml-alias"]


# The model of a folder with Hugging Face's config.json below what the YAML says.


def model_folder_write(tmp_path, text, **folders):
    for name, model in folders.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(model))
    path = tmp_path / "main.yaml"
    path.write_text(text.replace("HERE", str(tmp_path)))
    return path


def test_the_yaml_goes_over_the_folder_key_by_key_and_only_one_level_deep(tmp_path):
    # merge_model_config: dict.update, so rope_scaling of the YAML replaces that of the folder as a whole.
    path = model_folder_write(
        tmp_path,
        "pretrained_model_dir: HERE/hf\nmodel: {model_config: {hidden_size: 8, rope_scaling: {factor: 2}}}\n",
        hf={"num_hidden_layers": 4, "hidden_size": 16, "rope_scaling": {"factor": 4, "type": "yarn"}},
    )
    model = load_document(path).get("model", "model_config")
    assert to_data(model) == {"num_hidden_layers": 4, "hidden_size": 8, "rope_scaling": {"factor": 2}}
    assert model.get("num_hidden_layers").location.file.endswith("hf/config.json")


def test_a_configuration_without_any_model_has_that_of_the_folder(tmp_path):
    path = model_folder_write(tmp_path, "pretrained_model_dir: HERE/hf\n", hf={"num_hidden_layers": 3})
    assert to_data(load_document(path).get("model", "model_config")) == {"num_hidden_layers": 3}


def test_the_command_line_goes_before_the_configuration(tmp_path):
    path = model_folder_write(tmp_path, "pretrained_model_dir: HERE/a\n", a={"num_layers": 1}, b={"num_layers": 2})
    with use_folder(str(tmp_path / "b")):
        assert load_document(path).get("model", "model_config", "num_layers").value == 2
    assert load_document(path).get("model", "model_config", "num_layers").value == 1


def test_a_folder_that_is_not_there_is_named_with_place_and_fix(tmp_path):
    document = load_document(model_folder_write(tmp_path, "seed: 1\npretrained_model_dir: /no/such\n"))
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
    document = load_document(
        model_folder_write(tmp_path, "pretrained_model_dir: ''\nmodel: {model_config: {num_layers: 2}}\n")
    )
    assert not document.problems
    assert to_data(document.get("model")) == {"model_config": {"num_layers": 2}}


# A file that is no configuration.

NO_CONFIGURATION = ['{"a": 1}', "{}", "name: prometheus\nscrape: {interval: 5s}", "hidden_size: 64\nn_head: 4", "1: 2"]
READERS = (
    ["check"], ["verify"], ["explain"], ["inspect"], ["simulate"], ["compare"], ["plan"], ["dryrun"],
    ["run", "--config"], ["convert", "--to", "index"], ["convert", "--to", "1.9"], ["convert", "--to", "2.x"],
    ["trace", "-o", "t.json"], ["prove", "-o", "proof"],
)  # fmt: skip


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_every_command_refuses_a_file_that_is_no_configuration(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for number, text in enumerate(NO_CONFIGURATION):
        (tmp_path / f"{number}.yaml").write_text(text)
        assert cli.main([*command, f"{number}.yaml"]) == 1
        said = "".join(capsys.readouterr())
        assert f"{number}.yaml:1:1: error: the file is no configuration of MindFormers" in said
    assert not (tmp_path / "proof").exists() and not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    "text", ["swap_config: {swap: True}", "swap_confg: {}", "seed: 0", "training: {}", "Model: {}"]
)
def test_a_part_of_a_configuration_is_one(write, text):
    assert rules(write(main=text)) == []


@pytest.mark.parametrize(
    "key", ["processor", "metric", "grouped_lr_schedule", "load_ckpt_format", "profile", "swap_confg", "paralell"]
)
def test_a_fragment_of_one_key_is_a_configuration(tmp_path, key):
    (tmp_path / "a.yaml").write_text(f"{key}: {{a: 1}}\n")
    assert load_document(tmp_path / "a.yaml").problems == ()


def test_other_keys_alone_are_no_configuration(tmp_path):
    (tmp_path / "a.yaml").write_text("name: x\nservices: {}\n")
    (problem,) = load_document(tmp_path / "a.yaml").problems
    assert problem.rule == "no-configuration"


@pytest.mark.mindspore
def test_every_key_that_mindformers_has_at_the_top_level_is_known():
    from mindformers.tools.register.template import ConfigTemplate, GeneralConfig

    parts = ("general_configs", "train_configs", "do_eval_configs", "predict_configs", "eval_configs")
    sections = {name for part in parts for name in getattr(ConfigTemplate, part)} - {"general_config"}
    assert sections | set(GeneralConfig.keys()) <= set(package_data("check/top_level.yaml"))
