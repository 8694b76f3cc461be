import json
from hashlib import sha256
from importlib import resources

import pytest

from mindswap.policy import cell_tree
from mindswap.policy.cell_tree import load_layer_trees, match_pattern
from mindswap.policy.model import DEFAULT_SWAP_PATTERNS
from tools.make_family_tables import expand_outline, make_outline

TABLE = {
    "family": "toy",
    "architectures": ["ToyForCausalLM", "toy"],
    "layers_path": "model.layers",
    "generated_with": {"mindspore": "2.9.0", "mindformers": "1.9.0"},
    "defaults": {"flash": True, "concat": False},
    "cells": {"Toy": "add:Add mlp=Mlp", "Mlp": "", "Slow": "", "Moe": "", "Dense": ""},
    "uses": {},
    "variants": [
        {"when": {"flash": True, "concat": False}, "tree": "Toy", "uses": {"mlp": "add"}},
        {"when": {"flash": False, "concat": False}, "tree": "Slow", "uses": {}},
    ],
}


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(cell_tree, "_tables", lambda: (TABLE,))


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


def test_the_first_layers_may_be_without_experts(table, monkeypatch):
    """Three by default; a switch is on from a least number on, and by the default of its class."""
    variant = {"when": {"groups": True}, "tree": "Moe", "dense_tree": "Dense", "uses": {}}
    with_experts = {**TABLE, "dense": ["first_k", 3], "switches": {"groups": [2, 8]}, "variants": [variant]}
    monkeypatch.setattr(cell_tree, "_tables", lambda: (with_experts,))

    def types(num_layers, **model_config):
        return [layer.type_name for layer in load_layer_trees(arch(**model_config), num_layers).layers]

    assert types(4) == ["Dense", "Dense", "Dense", "Moe"]
    assert types(2) == ["Dense", "Dense"]
    assert types(2, first_k=0, groups=2) == types(2, first_k=None) == ["Moe", "Moe"]
    assert load_layer_trees(arch(groups=1), 2) is load_layer_trees(arch(groups=None), 2) is None


@pytest.mark.parametrize(
    "section",
    [{}, {"arch": None}, {"arch": {"type": 3}}, {"arch": {"type": "Other"}}, {"model_config": [1]}, {"arch": "x"}],
)
def test_an_unknown_model_has_no_trees(table, section):
    assert load_layer_trees(section, 1) is None


def data_of(node):
    if node.is_primitive:
        return {"name": node.name, "type": node.type_name, "primitive": True}
    return {"name": node.name, "type": node.type_name, "children": [data_of(child) for child in node.children]}


def shipped():
    folder = resources.files("mindswap") / "data" / "families"
    return [json.loads(file.read_text("utf-8")) for file in sorted(folder.iterdir()) if file.name.endswith(".json")]


@pytest.mark.parametrize("shipped_table", shipped(), ids=lambda table: table["family"])
def test_shipped_tables_answer_for_their_variants(shipped_table):
    """Made of its trees again, an outline is as it was."""
    expanded = expand_outline(shipped_table)
    assert make_outline(expanded) == shipped_table
    switches = shipped_table.get("switches", {})
    for variant, whole in zip(shipped_table["variants"], expanded["variants"], strict=True):
        settings = {key: value if key not in switches else 8 * value for key, value in variant["when"].items()}
        section = {"arch": {"type": shipped_table["architectures"][0]}, "model_config": settings}
        trees = load_layer_trees(section, 5)
        assert data_of(trees.layers[-1]) == whole["tree"]
        assert trees.uses == {path: tuple(users) for path, users in whole["uses"].items()}
        assert any(match_pattern(pattern, trees.layers[0]) for pattern in DEFAULT_SWAP_PATTERNS) or not settings.get(
            "use_flash_attention", True
        )
        operators = {".".join(path) for layer in trees.layers for path, _ in layer.walk()}
        assert set(trees.uses) <= operators
        assert {user for users in trees.uses.values() for user in users} <= operators


def test_shipped_trees_are_those_that_were_read_from_networks():
    """The tables as they were made, trees in full, have these fingerprints."""
    found = {
        table["family"]: sha256(json.dumps(expand_outline(table), sort_keys=True).encode()).hexdigest()[:16]
        for table in shipped()
    }
    assert found == {
        "deepseek3": "7c072aba5989b09c",
        "glm2": "8f3683eeb339fba6",
        "llama": "3ddaa16fd42c981c",
        "qwen3": "52363084da63b74f",
        "qwen3_moe": "cd97d72370b92516",
        "telechat3": "8415913b5cc70986",
        "telechat3_moe": "c718726005053063",
    }


def test_an_outline_names_cells_and_primitives():
    cells = {"Layer": "act=Act cast:Cast act2=Act/2", "Act": "", "Act/2": "act:Act"}
    variants = [{"when": {}, "tree": "Layer", "uses": {"act2.act": "cast"}}]
    tree = expand_outline({"cells": cells, "uses": {"cast": "cast act2.act"}, "variants": variants})
    assert tree["variants"][0]["uses"] == {"act2.act": ["cast"], "cast": ["cast", "act2.act"]}
    act, cast, act2 = tree["variants"][0]["tree"]["children"]
    assert act == {"name": "act", "type": "Act", "children": []}
    assert cast == {"name": "cast", "type": "Cast", "primitive": True}
    assert act2 == {"name": "act2", "type": "Act", "children": [{"name": "act", "type": "Act", "primitive": True}]}


def test_the_layer_of_multi_token_prediction_is_around_one_like_the_last():
    deepseek = {"model_config": {"architectures": ["DeepseekV3ForCausalLM"]}}
    trees = load_layer_trees(deepseek, 5)
    assert trees is not None and trees.mtp_layer is not None
    inner = {child.name: child for child in trees.mtp_layer.children}
    assert {"enorm", "hnorm", "eh_proj", "transformer_layer"} <= set(inner)
    assert inner["transformer_layer"].children == trees.layers[-1].children != trees.layers[0].children
    deepseek["model_config"]["num_nextn_predict_layers"] = 0
    assert load_layer_trees(deepseek, 5).mtp_layer is None
