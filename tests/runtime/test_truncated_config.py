"""The configuration of a reduced model: only counts and indices of layers and paths differ from the full one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindswap.config.nodes import Document
from mindswap.config.pipeline_layout import read_pipeline
from mindswap.config.render import document_from_data
from mindswap.config.source import load_document
from mindswap.config.step_settings import read_step_settings
from mindswap.features.dryrun.depths import find_reductions, layer_classes_of
from mindswap.policy.equivalence import truncated_policy
from mindswap.policy.formats.mindformers1.truncate import (
    truncated_layer_classes,
    truncated_layout,
    truncated_offset,
    truncated_sections,
)
from mindswap.policy.model import Policy
from mindswap.rules.checker import check_document, policy_of
from mindswap.runtime.short_run import SyntheticData, write_backend_config
from tests.strength import examples

CASE4 = "configs/llama2_7b/case4_swap_and_recompute.yaml"
DEEPSEEK, QWEN3 = "tests/data/deepseek_v3_small.yaml", "tests/data/qwen3_small.yaml"
OFF = {"swap_config": {"swap": False}}
FLAGS = {"mp_comm_recompute": False, "parallel_optimizer_comm_recompute": False}
STAGES = {"data_parallel": 4, "pipeline_stage": 2, "micro_batch_num": 4}
CHUNKS = {"pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}}
MUL = r"feed_forward\.mul"
# File, layers, and changes by section.
CASES = {
    "swap off, communication not recomputed": (CASE4, 24, OFF | {"recompute_config": {"recompute": True, **FLAGS}}),
    "counts per stage": (
        CASE4, 48, OFF | {"parallel_config": STAGES, "recompute_config": {"recompute": [18, 6], **FLAGS}},
    ),
    "counts of operators": (
        CASE4, 48,
        OFF | {"parallel_config": STAGES, "recompute_config": {
            "recompute": False, "select_recompute": {MUL: [18, 6], r"attention\.wq": True},
        }},
    ),
    "operators in all layers": (CASE4, 24, OFF | {"recompute_config": {"recompute": False, "select_recompute": [MUL]}}),
    "offsets": (
        CASE4, 41,
        OFF | {"parallel_config": STAGES, "model": {"offset": [-2, 3]}, "recompute_config": {"recompute": [6, 10]}},
    ),
    "interleaved, rows of counts": (
        CASE4, 96,
        OFF | {"parallel_config": STAGES, "parallel": CHUNKS, "model": {"pp_interleave_num": 2, "offset": 0},
               "recompute_config": {"recompute": [[20, 12], [20, 8]], **FLAGS}},
    ),
    "interleaved, counts per stage": (
        CASE4, 96,
        OFF | {"parallel_config": STAGES, "parallel": CHUNKS, "model": {"pp_interleave_num": 2, "offset": 0},
               "recompute_config": {"recompute": [40, 20]}},
    ),
    "swap on, indices": (CASE4, 40, {
        "swap_config": {"swap": True, "op_swap": [
            {"op_name": r"attention\.wo", "backward_prefetch": 10, "layers": [*range(20)]},
            {"op_name": MUL, "backward_prefetch": 5, "layers": True},
        ]},
        "recompute_config": {"recompute": [*range(30, 40)], "select_recompute": {MUL: [*range(20, 30)]}, **FLAGS},
        "mindswap": {"output_recompute": [*range(30, 40)]},
    }),
    "swap on, by operator name": (CASE4, 40, {
        "swap_config": {"swap": True, "op_swap": {
            r"attention\.wo": [{"backward_prefetch": 10, "layers": [*range(20)]}],
            MUL: [{"backward_prefetch": 3, "layers": [7]}],
        }},
        "recompute_config": {"recompute": False},
    }),
    "default swap": (CASE4, 24, {"swap_config": {"swap": True, "default_prefetch": 10}, "recompute_config": {}}),
    "experts, first layers without, prediction layer": (DEEPSEEK, 26, {"model": {"first_k_dense_replace": 2}}),
    "experts in a list of layers": (
        DEEPSEEK, 26, {"model": {"first_k_dense_replace": None, "moe_layer_freq": [0] * 2 + [1] * 24}},
    ),
    "rows of counts, without a section on swap": (
        QWEN3, 64,
        {"parallel_config": STAGES, "parallel": CHUNKS, "model": {"pp_interleave_num": 2},
         "swap_config": None, "recompute_config": {"recompute": [[14, 14], [14, 14]], **FLAGS}},
    ),
    "newer model": (QWEN3, 24, OFF | {"recompute_config": {"recompute": True, **FLAGS}}),
}  # fmt: skip
# Paths of the values that may differ.
LAYERED = (
    "model.model_config.num_layers", "model.model_config.num_hidden_layers", "model.model_config.offset",
    "model.model_config.first_k_dense_replace", "model.model_config.moe_layer_freq", "recompute_config.recompute",
    "recompute_config.select_recompute", "swap_config.op_swap", "swap_config.layer_swap", "mindswap.output_recompute",
    "train_dataset.data_loader.dataset_dir", "train_dataset_task.dataset_config.data_loader.dataset_dir",
)  # fmt: skip


def case(name: str) -> Document:
    file, num_layers, changes = CASES[name]
    data = load_document(file).data()
    model = data["model"]["model_config"]
    key = "num_hidden_layers" if "num_hidden_layers" in model else "num_layers"
    model |= {key: num_layers, **changes.get("model", {})}
    data["parallel"].pop("dataset_strategy", None)
    for section in ("parallel", "parallel_config"):
        data[section] |= changes.get(section, {})
    data |= {key: changes[key] for key in ("swap_config", "recompute_config", "mindswap") if key in changes}
    data = {key: value for key, value in data.items() if value is not None}
    return document_from_data(data, f"{name}.yaml")


def differences(full: object, reduced: object, path: str = "") -> set[str]:
    """Paths at which two configurations differ; keys of both have to be the same, but for those of `LAYERED`."""
    if path in LAYERED or not isinstance(full, dict) or not isinstance(reduced, dict):
        return {path} if full != reduced else set()
    assert full.keys() == reduced.keys(), path
    return {at for key in full for at in differences(full[key], reduced[key], f"{path}.{key}".lstrip("."))}


@pytest.mark.parametrize("name", CASES)
def test_a_reduced_model_has_the_configuration_of_the_full_one(name, tmp_path):
    document = case(name)
    checked = check_document(document)
    assert not checked.errors
    num_layers, policy = checked.num_layers, policy_of(document, checked)
    step = read_step_settings(document)
    model = document.data()["model"]["model_config"]
    has_experts = model.get("moe_layer_freq") or [0] * (model.get("first_k_dense_replace") or 0) + [1] * num_layers
    classes = layer_classes_of(policy, has_experts[:num_layers])
    reductions = sorted(find_reductions(step, classes, 16), key=lambda each: each.high.num_layers)
    assert reductions, "it can be reduced"

    def write(kept, folder):
        path = write_backend_config(document, num_layers, step.num_cards, kept, data_of, tmp_path / folder)
        return load_document(str(path))

    def data_of(document):
        return SyntheticData("samples", tuple(document.data()["train_dataset"]["input_columns"]))

    full = write(None, "full")
    for number, reduction in enumerate(reductions[:2]):
        for reduced in (reduction.low, reduction.high):
            kept = reduced.layer_indices
            written = write(kept, f"{number}_{reduced.num_layers}")
            assert differences(full.data(), written.data()) <= set(LAYERED)
            result = check_document(written)
            assert not result.errors
            assert policy_of(written, result) == truncated_policy(policy, kept)
            layout = read_pipeline(written).layout(len(kept))
            assert layout.sizes == truncated_layout(read_pipeline(document).layout(num_layers), kept).sizes
            settings_of_model = written.data()["model"]["model_config"]
            if "moe_layer_freq" in settings_of_model:
                assert settings_of_model["moe_layer_freq"] == [has_experts[layer] for layer in kept]
            elif model.get("first_k_dense_replace"):
                assert settings_of_model["first_k_dense_replace"] == [has_experts[layer] for layer in kept].count(0)


def test_swap_stays_off():
    """It was turned on, for layer indices, and `mp_comm_recompute` acted, which MindFormers does not pass on."""
    document = case("swap off, communication not recomputed")
    assert truncated_sections(document, 24, (0, 23)) == {
        "swap_config": {"swap": False},
        "recompute_config": {"recompute": True, **FLAGS},
    }


def test_counts_are_those_of_each_stage():
    document = case("counts per stage")
    kept = (0, 9, 17, 23, 24, 47)  # 18 of 0 to 23 are recomputed, and 6 of 24 to 47
    assert truncated_sections(document, 48, kept)["recompute_config"]["recompute"] == [3, 1]
    assert truncated_offset(read_pipeline(document), 48, kept) == [1, -1]


def test_entries_without_layers_are_dropped():
    document = case("swap on, by operator name")
    assert truncated_sections(document, 40, (0, 19, 30))["swap_config"]["op_swap"] == {
        r"attention\.wo": [{"backward_prefetch": 10, "layers": [0, 1]}]
    }


def test_a_distance_between_layers_with_experts_becomes_a_list():
    assert truncated_layer_classes({"moe_layer_freq": 2}, (0, 1, 4)) == {"moe_layer_freq": [1, 0, 1]}
    assert truncated_layer_classes({"moe_layer_freq": 1, "first_k_dense_replace": 3}, (0, 2, 9)) == {
        "first_k_dense_replace": 2
    }


counts = st.integers(0, 5)
per_stage = st.lists(counts, min_size=3, max_size=3)
recompute = st.one_of(st.booleans(), per_stage)
layer_lists = st.lists(st.integers(0, 14), unique=True).map(sorted)
select = st.dictionaries(st.sampled_from(["attention", MUL, r"attention\.wq"]), recompute, max_size=2)


@settings(max_examples=examples(20, 200), deadline=None)
@given(
    swaps=st.booleans(),
    whole=recompute,
    selected=select,
    indices=st.lists(layer_lists, min_size=3, max_size=3),
    kept=st.tuples(*[st.sets(st.integers(0, 4), min_size=1)] * 3),
)
def test_each_layer_keeps_its_settings(swaps, whole, selected, indices, kept):
    """Fifteen layers on three stages; with swap on, indices in place of counts."""
    data = load_document(CASE4).data()
    data["model"]["model_config"]["num_layers"] = 15
    data["parallel_config"] |= {"data_parallel": 1, "pipeline_stage": 3, "micro_batch_num": 6}
    data["parallel"].pop("dataset_strategy", None)
    if swaps:
        entries = [{"op_name": MUL, "backward_prefetch": 3, "layers": indices[0]}]
        data["swap_config"] = {"swap": True, "op_swap": [entry for entry in entries if entry["layers"]]}
        data["recompute_config"] = {"recompute": indices[1] or False, "select_recompute": {"attention": indices[2]}}
    else:
        data["swap_config"] = {"swap": False}
        data["recompute_config"] = {"recompute": whole, "select_recompute": selected or False}
    document = document_from_data(data, "x.yaml")
    policy = policy_if_valid(document)
    if policy is None:
        return
    layers = tuple(sorted(5 * stage + index for stage, own in enumerate(kept) for index in own))
    model = data["model"]["model_config"]
    model |= {"num_layers": len(layers), "offset": truncated_offset(read_pipeline(document), 15, layers)}
    reduced = document_from_data(data | truncated_sections(document, 15, layers), "y.yaml")
    assert policy_if_valid(reduced) == truncated_policy(policy, layers)


def policy_if_valid(document: Document) -> Policy | None:
    checked = check_document(document, environ={}, is_training_start=True)
    return None if checked.errors else policy_of(document, checked)
