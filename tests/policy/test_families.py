import json
from importlib import resources

import pytest

from mindswap.policy import families
from mindswap.policy.families import load_layer_trees
from mindswap.policy.match import match_pattern
from mindswap.policy.model import DEFAULT_SWAP_PATTERNS

TABLE = {
    "family": "toy",
    "architectures": ["ToyForCausalLM", "toy"],
    "layers_path": "model.layers",
    "generated_with": {"mindspore": "2.9.0", "mindformers": "1.9.0"},
    "defaults": {"flash": True, "concat": False},
    "variants": [
        {
            "when": {"flash": True, "concat": False},
            "tree": {
                "name": "",
                "type": "Toy",
                "children": [{"name": "add", "type": "Add", "primitive": True}, {"name": "mlp", "type": "Mlp"}],
            },
            "uses": {"mlp": ["add"]},
        },
        {"when": {"flash": False, "concat": False}, "tree": {"name": "", "type": "Slow", "children": []}},
    ],
}


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(families, "_tables", lambda: (TABLE,))


def arch(**model_config):
    return {"arch": {"type": "ToyForCausalLM"}, "model_config": model_config}


@pytest.mark.parametrize(
    "section",
    [
        arch(),
        arch(flash=True),
        {"model_config": {"architectures": ["Other", "ToyForCausalLM"]}},
        {"model_config": {"architectures": "ToyForCausalLM"}},
        {"model_config": {"model_type": "toy"}},
    ],
)
def test_a_model_is_known_by_any_of_its_names(table, section):
    trees = load_layer_trees(section, 3)
    assert [child.name for child in trees.layers[2].children] == ["add", "mlp"]
    assert len(trees.layers) == 3 and trees.layers[0] is trees.layers[2]
    assert trees.layers[0].children[0].is_primitive and not trees.layers[0].children[1].is_primitive
    assert trees.uses == {"mlp": ("add",)}
    assert trees.source == "table toy (mindspore 2.9.0 mindformers 1.9.0)"


def test_the_configuration_picks_the_variant(table):
    assert load_layer_trees(arch(flash=False), 1).layers[0].type_name == "Slow"
    assert load_layer_trees(arch(concat=True), 1) is None


@pytest.mark.parametrize(
    "section",
    [{}, {"arch": None}, {"arch": {"type": 3}}, {"arch": {"type": "Other"}}, {"model_config": [1]}, {"arch": "x"}],
)
def test_an_unknown_model_has_no_trees(table, section):
    assert load_layer_trees(section, 1) is None


def shipped():
    folder = resources.files("mindswap") / "data" / "families"
    return [json.loads(file.read_text("utf-8")) for file in folder.iterdir() if file.name.endswith(".json")]


@pytest.mark.parametrize("shipped_table", shipped(), ids=lambda shipped_table: shipped_table["family"])
def test_shipped_tables_answer_for_their_defaults(shipped_table):
    section = {"arch": {"type": shipped_table["architectures"][0]}, "model_config": {"use_flash_attention": True}}
    trees = load_layer_trees(section, 2)
    assert any(match_pattern(pattern, trees.layers[0]) for pattern in DEFAULT_SWAP_PATTERNS)
    operators = {".".join(path) for path, _ in trees.layers[0].walk()}
    assert set(trees.uses) <= operators
    assert {user for users in trees.uses.values() for user in users} <= operators
