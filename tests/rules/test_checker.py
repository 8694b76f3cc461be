import inspect
from pathlib import Path

import pytest

from mindswap.config.render import document_from_data
from mindswap.config.source import load_document
from mindswap.errors import GraphError, PolicyError
from mindswap.features.check import NameSource, check_config
from mindswap.features.explain import explain_config
from mindswap.policy.model import Policy
from mindswap.rules import checker as check_module
from mindswap.rules.checker import check_document, load_policy, missing_num_layers, require_num_layers
from mindswap.rules.mindformers1 import find_rules
from tests.builders import document, found, layer, trees
from tests.cpu_time import cpu_ratio

CONFIGS = Path(__file__).parents[2] / "configs"


def test_all_problems_come_at_once_in_file_order():
    text = """
        context: {mode: 2, memory_optimize_level: O1}
        recompute_config:
          recompute: [9]
          typo: 1
        swap_config:
          swap: True
          default_prefetch: 0
          op_swap:
            - {op_name: none, backward_prefetch: x, layers: [7, '1']}
    """
    assert found(text) == [
        (1, 17, "context-mode"),
        (1, 43, "memory-optimize-level"),
        (3, 15, "layer-out-of-range"),
        (4, 3, "unknown-key"),
        (7, 21, "bad-prefetch"),
        (7, 21, "unused-default-prefetch"),
        (9, 42, "bad-prefetch"),
        (9, 54, "layer-out-of-range"),
        (9, 57, "wrong-type"),
    ]


def test_warnings_leave_a_policy():
    result = check_document(document("swap_config: {swap: True, op_swap: []}"))
    assert [p.level.value for p in result.problems] == ["warning"]
    assert result.policy == Policy(is_swap_enabled=True)


def test_an_error_leaves_none():
    result = check_document(document("swap_config: {swap: 3}"))
    assert result.policy is None and len(result.errors) == 1


def test_the_number_of_layers_comes_from_the_option_then_the_file_then_the_trees():
    text = document("{model: {model_config: {num_layers: 6}}, swap_config: {swap: True}}")
    assert check_document(text, num_layers=3).num_layers == 3
    assert check_document(text, trees=trees(5)).num_layers == 6
    assert check_document(document("swap_config: {swap: True}"), trees=trees(5)).num_layers == 5
    assert check_document(document("swap_config: {swap: True}")).num_layers is None


def test_the_table_of_the_family_is_taken_without_trees(monkeypatch):
    monkeypatch.setattr(check_module, "load_layer_trees", lambda section, num_layers: trees(num_layers))
    text = """
        model: {model_config: {num_layers: 2}}
        swap_config: {swap: True, op_swap: {none: {layers: True, backward_prefetch: 1}}}
    """
    assert [p.rule for p in check_document(document(text)).problems] == ["unmatched-pattern"]


def test_load_policy(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("swap_config: {swap: True, default_prefetch: 7}")
    assert load_policy(path).default_prefetch == 7
    path.write_text("swap_config: {swap: True, default_prefetch: 0, op_swap: [3]}")
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert [p.rule for p in caught.value.problems] == ["bad-prefetch", "unused-default-prefetch", "wrong-type"]


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(CONFIGS)))
def test_shipped_configurations_have_no_errors(path):
    result = check_document(load_document(path))
    assert [p for p in result.problems if p.rule != "device-target"] == []
    assert result.trees is not None


def test_every_rule_is_named_as_its_function_and_documented():
    for rule_id, rule in find_rules().items():
        assert rule_id == rule.id == rule.find.__name__.replace("_", "-")
        assert "PASS" in rule.text and "FAIL" in rule.text, rule_id


def test_every_file_of_rules_has_a_test_file():
    folder = Path(__file__).parent / "mindformers1"
    files = {Path(inspect.getfile(rule.find)).stem for rule in find_rules().values()}
    assert {f"test_{name}" for name in files} <= {path.stem for path in folder.glob("test_*.py")}


def test_a_configuration_from_python_points_at_what_is_wrong():
    result = check_document(document_from_data({"swap_config": {"swap": True, "default_prefetch": 0}}, "my.py"))
    assert [str(p.location) for p in result.problems] == ["my.py"]


def test_work_grows_with_the_layers():
    """Forty entries and forty recomputed cells of a hundred in each layer."""
    attention = "attention\n" + "".join(f"  cell{i}\n    op{i}*\n" for i in range(100))

    def check(num_layers):
        last = num_layers - 1
        entries = [
            {"op_name": rf"attention\.cell{i}", "backward_prefetch": i + 1, "layers": f"0-{last}"} for i in range(40)
        ]
        recompute = {rf"attention\.cell{i}": list(range(0, num_layers, 2)) for i in range(40, 80)}
        data = {
            "swap_config": {"swap": True, "op_swap": entries, "layer_swap": [{"backward_prefetch": 1, "layers": [3]}]},
            "recompute_config": {"select_recompute": recompute},
        }
        return check_document(document_from_data(data, "data"), trees=models[num_layers])

    models = {num_layers: trees(num_layers, attention) for num_layers in (8, 80)}
    result = check(80)
    assert result.policy is not None and len(result.policy.op_swap) == 40
    assert cpu_ratio(lambda: check(80), lambda: check(8)) < 30  # of a square: 100


def test_layers_that_differ_are_told_apart():
    mixed = trees(2)
    mixed = type(mixed)((layer("mlp\n  mul*"), layer("moe\n  mul*")), {}, "mixed")
    text = "swap_config: {swap: True, op_swap: [{op_name: moe, backward_prefetch: 1, layers: [0]}]}"
    assert found(text, mixed) == [(1, 47, "unmatched-pattern")]
    assert found(text.replace("[0]", "[1]"), mixed) == []


# Where the number of layers is missing, its place and its key are named.


@pytest.mark.parametrize(
    ("text", "place", "fix"),
    [
        (
            "{model: {model_config: {model_type: llama}}}",
            "x.yaml:1:24: model.model_config",
            "add 'num_layers: N' there",
        ),
        (
            "{model: {model_config: {type: T, num_layer: 4}}}",
            "x.yaml:1:45",
            "write 'num_layers' in place of 'num_layer'",
        ),
        ("{model: {model_config: {type: T, Num-Layers: 4}}}", "x.yaml:1:46", "in place of 'Num-Layers'"),
        ("{model: {}}", "x.yaml: model.model_config: it describes no model", "write the model there"),
        ("{seed: 1}", "x.yaml: model.model_config: it describes no model", "write the model there"),
    ],
)
def test_a_missing_number_of_layers_has_place_and_key(text, place, fix):
    missing = missing_num_layers(document(text))
    assert missing.startswith(place) and fix in missing
    with pytest.raises(GraphError) as error:
        require_num_layers(document(text), None)
    assert missing in str(error.value)
    with pytest.raises(GraphError, match="does not say how many layers"):
        explain_config(document(text))
    (note,) = check_config(document("{swap_config: {swap: True}, " + text[1:]), names=NameSource.TABLE).notes
    assert "were not checked" in note and fix in note
