"""`data/check/model_keys.yaml` (names that newer models have under other keys) against the installed MindFormers."""

import importlib
from typing import Any

import pytest

from mindswap.config.parse import parse_document
from mindswap.files import package_data
from mindswap.rules.checker import check_document

TABLES = package_data("check/model_keys.yaml")
CLASSES = {
    "qwen3": "qwen3.configuration_qwen3.Qwen3Config",
    "qwen3_moe": "qwen3_moe.configuration_qwen3_moe.Qwen3MoeConfig",
    "deepseek_v3": "deepseek3.configuration_deepseek_v3.DeepseekV3Config",
    "telechat3": "telechat3.configuration_telechat3.TeleChat3Config",
    "telechat3_moe": "telechat3_moe.configuration_telechat3_moe.TeleChat3MoeConfig",
}


def _refused(model_config: str) -> list[tuple[str, str]]:
    """Return the refused names of a newer model, with the fixes."""
    document = parse_document(f"use_legacy: False\nmodel: {{model_config: {{{model_config}}}}}", "x.yaml")
    errors = [problem for problem in check_document(document).errors if "stops at both" in problem.message]
    return [(problem.message.partition(": ")[0].rpartition(".")[2], problem.fix) for problem in errors]


def test_a_name_is_refused_alone_where_the_class_has_a_value_for_its_key() -> None:
    assert _refused("model_type: qwen3, num_layers: 4") == [("num_layers", "num_hidden_layers: 4")]
    assert _refused("architectures: [DeepseekV3ForCausalLM], num_moe_experts: 8") == [
        ("num_moe_experts", "n_routed_experts: 8")
    ]
    assert _refused("model_type: qwen3_moe, kv_channels: 128") == []
    assert _refused("model_type: qwen3_moe, kv_channels: 128, head_dim: 128") == [("kv_channels", "delete it")]
    assert _refused("model_type: deepseek_v3, kv_channels: 128, head_dim: 128") == []  # has no head_dim


def test_of_an_unknown_class_only_both_are_refused() -> None:
    assert _refused("num_layers: 4") == []
    assert _refused("num_layers: 4, num_hidden_layers: 4, n_group: 2, moe_router_num_groups: 2") == [
        ("num_layers", "delete it"),
        ("moe_router_num_groups", "delete it"),
    ]
    assert _refused("data_parallel_size: 2") == [("data_parallel_size", "parallel_config.data_parallel: 2")]


@pytest.mark.mindspore
def test_the_file_has_the_keys_of_mindformers() -> None:
    from mindformers.parallel_core.config_converter import ConfigConverter, ConfigLogHandler

    in_every = {rule if isinstance(rule, str) else rule[0] for rule in ConfigConverter.CONFIG_MAPPING.values()}
    assert set(TABLES["every"]) == in_every
    assert [model["names"][0] for model in TABLES["models"]] == list(CLASSES)
    for model in TABLES["models"]:
        module, _, name = CLASSES[model["names"][0]].rpartition(".")
        content = vars(importlib.import_module(f"mindformers.models.{module}"))
        (converter,) = (value for key, value in content.items() if key.endswith("ConfigConverter"))
        defaults = content[name]().to_dict()
        names: dict[str, list[str]] = {}
        rules = converter._get_final_mapping(ConfigLogHandler(), bool(defaults.get("multi_latent_attention")))
        converter._get_reversed_mapping(rules, names)
        own = {n: key for n, keys in names.items() for key in keys if key != n and n not in in_every}
        assert {n: key for n, key in own.items() if key in defaults} == model["with_default"]
        assert {n: key for n, key in own.items() if key not in defaults} == model["without_default"]


CASES = [
    (model["names"][0], name, key, is_alone)
    for model in TABLES["models"]
    for is_alone, kind in ((True, "with_default"), (False, "without_default"))
    for name, key in model[kind].items()
] + [("qwen3", name, key, True) for name, key in TABLES["every"].items()]


@pytest.mark.mindspore
def test_mindformers_stops_at_names_that_have_a_key() -> None:
    """One test of all, for its cost is the import."""
    from tests.rules.upstream_calls import build_parallel_config, by_name, parallel, read

    config = read("use_legacy: False")
    build_parallel_config(config)

    def is_conflict(model: str, **values: Any) -> bool:
        made = by_name(f"mindformers.models.{CLASSES[model]}")(**values, parallel_config=config.parallel_config)
        try:
            with parallel(config):
                made.convert_to_transformer_config(is_mla_model=bool(getattr(made, "multi_latent_attention", False)))
        except (RuntimeError, ValueError) as error:
            return "Mapping Conflicts" in str(error)
        return False

    for model, name, key, is_alone in CASES:
        value = by_name(f"mindformers.models.{CLASSES[model]}")().to_dict().get(key, True)
        assert is_conflict(model, **{name: value}) == is_alone, (model, name)
        if "." not in key:
            assert is_conflict(model, **{name: value, key: value}), (model, name)
