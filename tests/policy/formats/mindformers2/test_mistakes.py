"""Planted mistakes: all of them are reported, each at its place and by its own rule.

The first 18 are those that facts of MindFormers 2.1.0 list (MindFormers accepts most of them without a word).
"""

# ruff: noqa: E501 one mistake to a line
import pytest

from mindswap.config.problem import Level
from tests.policy.formats.mindformers2.builders import check_2x, found_2x
from tests.policy.formats.mindformers2.cases import HEADER

# The 18 defects, in their order: text, line, column, rule.
DEFECTS = [
    ("swap: {enable: True, layer_swap: [{layers: [0]}, {layers: [1]}]}", 1, 50, "later-layer-swap"),
    (
        "swap: {enable: True, op_swap: [{op_name: mlp, layers: [0]}, {op_name: mlp, layers: [1]}]}",
        1,
        32,
        "repeated-op-name",
    ),
    ("swap_config: {swap: True}", 1, 1, "section-of-graph-mode"),
    ("swap: {enable: True}", 1, 16, "nothing-swapped"),
    ("swap: {enable: True, layer_swap: [{layers: [0], backward_prefetch: 20}]}", 1, 49, "ignored-key"),
    ("swap: {enable: True, op_swap: [{op_name: attention, layers: [0]}]}", 1, 42, "unmatched-pattern"),
    (
        "recompute: {mode: full, full_recompute_layer: [0]}\nswap: {enable: True, op_swap: [{op_name: mlp, layers: [0-1]}]}",
        2,
        42,
        "swap-below-recompute",
    ),
    (
        "recompute: {mode: full, full_recompute_layer: [0]}\nswap: {enable: True, layer_swap: [{layers: [0-1]}]}",
        2,
        44,
        "swap-of-recomputed",
    ),
    ("swap: {enable: True, layer_swap: [{layers: [0-3]}]}", 1, 45, "last-layers"),
    ("swap: {enable: True, layer_swap: {layers: [0]}}", 1, 34, "single-mapping"),
    ("swap: {enable: True, default_prefetch: 5, layer_swap: [{layers: [0]}]}", 1, 40, "prefetch-unit"),
    ("recompute: {mode: select, full_recompute_layer: [0], select_module: {mlp: ['1-9']}}", 1, 76, "unchecked-select"),
    ("recompute: {mode: None, exclude_op: {mlp: [0]}}", 1, 25, "exclude-without-recompute"),
    ("recompute: {mode: full, full_recompute_layer: [0], select_module: {mlp: [1]}}", 1, 52, "select-with-full"),
    ("swap: {enable: True, layer_swap: [{layers: [9]}]}", 1, 45, "layer-out-of-range"),
    ("recompute: {mode: null}", 1, 19, "recompute-mode"),
    ("swap: {enable: True, op_swap: [{op_name: '.*linear.*', layers: [0]}]}", 1, 42, "crossing-pattern"),
    ("recompute: {mode: full, full_recompute_layer: [0], exclude_op: [MatMul]}", 1, 64, "exclude-op-form"),
]
# 30 more.
MORE = [
    ("swap: {enable: 'yes', layer_swap: [{layers: [0]}]}", 1, 16, "wrong-type"),
    ("swap: {enable: True, layer_swap: [{layers: True}]}", 1, 44, "wrong-type"),
    ("swap: {enable: True, layer_swap: [{layers: '0-2'}]}", 1, 44, "wrong-type"),
    ("swap: {enable: True, layer_swap: [0]}", 1, 35, "wrong-type"),
    ("swap: {enable: True, op_swap: [{op_name: [mlp], layers: [0]}]}", 1, 42, "wrong-type"),
    ("swap: True", 1, 7, "wrong-type"),
    ("swap:", 1, 6, "wrong-type"),
    ("recompute: {mode: select, select_module: [mlp]}", 1, 42, "wrong-type"),
    ("recompute: {mode: select, select_module: {mlp: 0}}", 1, 48, "wrong-type"),
    ("swap: {enable: True, default_prefech: 1, layer_swap: [{layers: [0]}]}", 1, 22, "unknown-key"),
    ("swap: {swap: True}", 1, 8, "unknown-key"),
    ("recompute: {mode: full, full_recompute_layers: [0]}", 1, 25, "unknown-key"),
    ("swapp: {enable: True}", 1, 1, "unknown-key"),
    ("recompute_com: {enable: True}", 1, 1, "unknown-key"),
    ("swap_cfg: {enable: True, layer_swap: [{layers: [0]}]}", 1, 1, "unknown-key"),
    ("extra:\n  offload: {enable: True, op_swap: [{op_name: mlp, layers: [0]}]}", 2, 3, "unknown-key"),
    ("swap: {enable: True, default_prefetch: 0, layer_swap: [{layers: [0]}]}", 1, 40, "bad-prefetch"),
    ("swap: {enable: True, default_prefetch: '1', layer_swap: [{layers: [0]}]}", 1, 40, "bad-prefetch"),
    ("swap: {enable: True, default_prefetch: 4, layer_swap: [{layers: [0]}]}", 1, 40, "bad-prefetch"),
    ("swap: {enable: True, layer_swap: [{layers: ['0 - 2']}]}", 1, 45, "bad-layer"),
    ("swap: {enable: True, layer_swap: [{layers: [-1]}]}", 1, 45, "bad-layer"),
    ("swap: {enable: True, layer_swap: [{layers: [1.0]}]}", 1, 45, "bad-layer"),
    ("recompute: {mode: full, full_recompute_layer: ['3-0']}", 1, 48, "bad-layer"),
    ("recompute: {mode: full, full_recompute_layer: [2, 0]}", 1, 51, "layer-order"),
    ("recompute: {mode: full, full_recompute_layer: [0-1, 1-2]}", 1, 53, "layer-order"),
    ("recompute: {mode: full, full_recompute_layer: [0-4]}", 1, 48, "layer-out-of-range"),
    ("recompute: {mode: select, select_module: {mlp: [4]}}", 1, 49, "layer-out-of-range"),
    ("swap: {enable: True, op_swap: [{op_name: mlp}]}", 1, 32, "missing-key"),
    ("swap: {enable: True, op_swap: [{layers: [0]}]}", 1, 32, "missing-key"),
    ("recompute: {mode: full}", 1, 19, "missing-target"),
    ("recompute: {mode: select}", 1, 19, "missing-target"),
    ("recompute_comm: {enable: True}", 1, 26, "missing-target"),
    ("recompute: {mode: Full, full_recompute_layer: [0]}", 1, 19, "recompute-mode"),
    ("swap:\n  enable: True\n  enable: False", 3, 3, "duplicate-key"),
    ("swap: {enable: True, op_swap: [{op_name: '*mlp', layers: [0]}]}", 1, 42, "bad-regex"),
    ("swap: {enable: True, op_swap: [{op_name: '(a+)+b', layers: [0]}]}", 1, 42, "unmatched-pattern"),
    ("swap: {enable: True, op_swap: [{op_name: mlp, layers: []}]}", 1, 55, "no-layers"),
    ("swap: {enable: False, layer_swap: [{layers: [0]}]}", 1, 23, "section-off"),
    ("recompute: {mode: None, full_recompute_layer: [0]}", 1, 25, "section-off"),
    ("recompute_comm: {enable: True, select_module: {mlp: [0]}}", 1, 48, "comm-cell"),
    ("swap: {enable: True, layer_swap: [{layers: [0]}], op_swap: [{op_name: mlp, layers: [0-1]}]}", 1, 84, "covered"),
    ("recompute_config: {recompute: True}", 1, 1, "section-of-graph-mode"),
]


@pytest.mark.parametrize(("text", "line", "column", "rule"), DEFECTS + MORE, ids=lambda value: str(value)[:60])
def test_a_mistake_is_reported_at_its_place(text, line, column, rule):
    # A prefetch of 5 fits into more than four layers only.
    header = HEADER.replace("num_hidden_layers: 4", "num_hidden_layers: 8") if rule == "prefetch-unit" else HEADER
    assert (line, column, rule) in found_2x(text, header)


def test_there_are_enough_of_them():
    assert len(DEFECTS) == 18 and len(MORE) >= 25


def test_an_entry_whose_op_name_comes_again_is_reported_once():
    """No cell above it is named: another entry took its place."""
    rules = [
        rule
        for *_, rule in found_2x(
            "swap: {enable: True, op_swap: [{op_name: mlp, layers: [0]}, {op_name: mlp, layers: [1]}]}"
        )
    ]
    assert rules == ["repeated-op-name"]


def test_pipeline_stages_and_cpu_with_swap():
    header = "training: {}\nparallelism: {pipeline_parallel: 2}\ncontext: {device_target: CPU}\nmodel: {num_hidden_layers: 4}\n"
    found = found_2x("swap: {enable: True, layer_swap: [{layers: [0]}]}", header, model=None)
    assert found == [(-2, 34, "pipeline"), (-1, 26, "cpu-target")]
    assert found_2x("swap: {enable: False}", header, model=None) == []


@pytest.mark.parametrize(
    ("model", "num_stages", "rules"),
    [("qwen3", 2, ["model-without-stages"]), ("qwen3", 1, []), ("deepseek_v3", 2, []), ("deepseek_v4", 2, [])],
)
def test_a_model_that_cannot_be_divided_into_stages(model, num_stages, rules):
    header = (
        f"training: {{}}\nparallelism: {{pipeline_parallel: {num_stages}}}\n"
        f"model: {{model_type: {model}, num_hidden_layers: 4}}\n"
    )
    found = found_2x("recompute: {mode: full, full_recompute_layer: [0]}", header, model=None)
    assert [rule for *_, rule in found] == rules
    assert all((line, column) == (-1, 34) for line, column, _ in found)


@pytest.mark.parametrize(
    ("setting", "num_stages", "rules"),
    [
        ("", 2, []),
        ("", 3, ["stage-layers"]),
        (", pipeline_parallel_layers_per_stage: auto", 4, []),
        (", pipeline_parallel_layers_per_stage: null", 2, ["stage-layers"]),
        (", pipeline_parallel_layers_per_stage: ['0-2', '3']", 2, []),
        (", pipeline_parallel_layers_per_stage: ['0-2', '3']", 3, ["stage-layers"]),
        (", pipeline_parallel_interleave_num: 2", 2, []),
        (", pipeline_parallel_interleave_num: 3", 2, ["stage-layers"]),
        (", pipeline_parallel_layers_per_stage: null", 1, []),
    ],
)
def test_layers_of_pipeline_stages(setting, num_stages, rules):
    """A model of 4 layers."""
    header = (
        f"training: {{}}\nparallelism: {{pipeline_parallel: {num_stages}{setting}}}\n"
        "model: {model_type: deepseek_v3, num_hidden_layers: 4}\n"
    )
    found = found_2x("recompute: {mode: full, full_recompute_layer: [0]}", header, model=None)
    assert [rule for *_, rule in found] == rules


TWO_CHUNKS = "pipeline_parallel: 2, pipeline_parallel_interleave_num: 2, pipeline_parallel_layers_per_stage"
WITH_SWAP = "swap: {enable: True, layer_swap: [{layers: [0]}]}\nmindswap: {swap_engine: mindswap}"


@pytest.mark.parametrize(
    ("keys", "text", "rules"),
    [
        ("pipeline_parallel: '2'", "", ["stage-layers"]),
        ("pipeline_parallel: 0", "", ["stage-layers"]),
        ("pipeline_parallel: [2]", "", ["stage-layers"]),
        ("pipeline_parallel: True", "", ["stage-layers"]),
        ("pipeline_parallel: 4", "", ["stage-layers"]),
        ("pipeline_parallel: 3", "", []),
        ("pipeline_parallel: 3, pipeline_parallel_interleave_num: 2", "", []),
        ("pipeline_parallel: 2, pipeline_parallel_interleave_num: 2", "", ["stage-layers"]),
        ("pipeline_parallel: 2, pipeline_parallel_layers_per_stage: ['0-1', '2-5']", "", []),
        ("pipeline_parallel: 2, pipeline_parallel_layers_per_stage: [3, 3]", "", ["stage-layers"]),
        ("pipeline_parallel: 2, pipeline_parallel_layers_per_stage: ['0-1', '2', '3-5']", "", ["stage-layers"]),
        ("pipeline_parallel: 2, pipeline_parallel_layers_per_stage: ['0-2', '2-5']", "", ["stage-layers"]),
        ("pipeline_parallel: 2, pipeline_parallel_layers_per_stage: ['0-2', '3-4']", "", ["stage-layers"]),
        ("pipeline_parallel: 2, pipeline_parallel_layers_per_stage: ['0-2', '5-3']", "", ["stage-layers"]),
        ("pipeline_parallel: 2, pipeline_parallel_layers_per_stage: ['3-5', '0-2']", "", ["stage-layers"]),
        ("pipeline_parallel: 2, pipeline_parallel_layers_per_stage: x", "", ["stage-layers"]),
        (f"{TWO_CHUNKS}: ['0-1,3', '2,4-5']", "", []),
        (f"{TWO_CHUNKS}: ['0-1,2', '3,4-5']", "", ["stage-layers"]),
        ("pipeline_parallel: 2, pipeline_parallel_schedule: GPipe", "", []),
        ("pipeline_parallel: 2, pipeline_parallel_schedule: zbv", "", ["stage-schedule"]),
        ("pipeline_parallel: 2, pipeline_parallel_schedule: 7", "", ["stage-schedule"]),
        ("pipeline_parallel: 1, pipeline_parallel_schedule: zbv", "", []),
        ("pipeline_parallel: 3, pipeline_parallel_interleave_num: 2", WITH_SWAP, ["stage-chunks"]),
        ("pipeline_parallel: 3", WITH_SWAP, []),
    ],
)
def test_pipeline_stages_that_cannot_be_made(keys, text, rules):
    header = (
        f"training: {{}}\nparallelism: {{{keys}}}\n"
        "model: {model_type: deepseek_v3, num_hidden_layers: 6}\n"
    )  # fmt: skip
    found = found_2x(text or "recompute: {mode: full, full_recompute_layer: [0]}", header, model=None)
    assert [rule for *_, rule in found] == rules
    assert all(line == -1 for line, *_ in found)


def test_every_problem_says_what_is_allowed_or_how_to_mend_it():
    for text, *_ in DEFECTS + MORE:
        for problem in check_2x(text).problems:
            assert (problem.allowed or problem.fix) and problem.rule.startswith("pynative-"), problem


def test_messages_name_the_key_as_it_is_written():
    """Upstream calls it TrainConfig.swap_config.layer_swap and logs it as [Recompute Config]."""
    (problem,) = check_2x("swap: {enable: True, layer_swap: [{layers: [9]}]}").problems
    assert problem.message == "swap.layer_swap[0].layers[0]: there is no layer 9"
    assert problem.allowed == "0 to 3 (num_hidden_layers: 4)"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("mine: {mode: select, select_module: {mlp: [0]}}", "write 'recompute'"),
        ("mine: {enable: True, select_module: {'self_attention\\.cat': [0]}}", "write 'recompute_comm'"),
        ("a: {b: {mode: full, full_recompute_layer: [0]}}", "move it to the top level, as 'recompute'"),
    ],
)
def test_a_section_under_another_name_is_known_by_its_keys(text, meant):
    assert [problem.fix for problem in check_2x(text).problems] == [meant]


def test_a_layer_that_is_out_of_range_has_a_fix():
    (problem,) = check_2x("swap: {enable: True, layer_swap: [{layers: [0, 9]}]}").problems
    assert problem.fix == "delete it; the last layer is 3"


GOOD = [
    "",
    "mine: {enable: True, mode: full}",
    "swap: {enable: False}\nrecompute: {mode: None}\nrecompute_comm: {enable: False}",
    "swap: {enable: True, default_prefetch: 1, layer_swap: [{layers: ['0-2']}]}",
    "swap: {enable: True, default_prefetch: 2, layer_swap: [{layers: [0]}], op_swap: [{op_name: 'mlp\\.mul', layers: [1]}]}",
    "recompute: {mode: full, full_recompute_layer: [0-3]}",
    "recompute: {mode: select, full_recompute_layer: [0], select_module: {mlp: ['1-3']}}",
    "recompute: {mode: full, full_recompute_layer: [0], exclude_op: {'self_attention\\.core_attention': [0]}}",
    "recompute_comm: {enable: True, select_module: {'self_attention\\.cat': [0-3]}}",
    "recompute: {mode: full, full_recompute_layer: [3]}\nswap: {enable: True, layer_swap: [{layers: ['0-2']}]}",
    "swap: {enable: True, op_swap: [{op_name: 'mlp\\.linear_fc[12]', layers: [0]}]}",
    "swap: {enable: True, op_swap: [{op_name: '[^.]*norm', layers: [0]}]}",
]


@pytest.mark.parametrize("text", GOOD)
def test_good_files_have_no_problems(text):
    assert found_2x(text) == []


def test_without_a_model_only_the_text_is_judged():
    assert found_2x("swap: {enable: True, op_swap: [{op_name: my_cell, layers: [0]}]}", model=None) == []


def test_layers_for_multi_token_prediction_count():
    header = "training: {}\nparallelism: {}\nmodel: {num_hidden_layers: 4, num_nextn_predict_layers: 1}\n"
    assert found_2x("swap: {enable: True, layer_swap: [{layers: [0-3]}]}", header, None) == []
    (problem,) = check_2x("recompute: {mode: full, full_recompute_layer: [5]}", header, None).problems
    assert problem.allowed == "0 to 4 (num_hidden_layers: 4, and 1 for multi-token prediction)"


def test_a_pattern_that_matches_in_part_is_a_warning():
    text = "recompute: {mode: full, full_recompute_layer: [0]}\nswap: {enable: True, op_swap: [{op_name: mlp, layers: [0-1]}]}"
    assert [problem.level for problem in check_2x(text).problems] == [Level.WARNING]


WHOLE = "swap: {enable: True, layer_swap: [{layers: [0]}]}"


@pytest.mark.parametrize(
    ("sections", "mindformers", "is_warned"),
    [
        (WHOLE, "2.0.0", True),
        ("swap: {enable: True, op_swap: [{op_name: self_attention, layers: [1]}]}", "2.0.0", True),
        ("swap: {enable: True, op_swap: [{op_name: mlp, layers: [1]}]}", "2.0.0", False),  # reads no cos and sin
        (WHOLE.replace("True", "False"), "2.0.0", False),
        (WHOLE, "2.1.0", False),
        (WHOLE, "1.9.0", False),
        (WHOLE, "", False),
    ],
)
def test_the_release_that_frees_what_layers_share_is_named(sections, mindformers, is_warned):
    """The wheel of 2.0.0 keeps masks only, that of 2.1.0 every input of the block (both were read)."""
    problems = check_2x(sections, mindformers=mindformers).problems
    found = [(p.level, p.message) for p in problems if p.rule == "pynative-shared-inputs"]
    message = "swap.enable: mindformers 2.0.0 also frees rotary cos and sin, which all layers read"
    assert found == ([(Level.WARNING, message)] if is_warned else [])
