r"""What MindFormers' own swap handling gets wrong, and mindswap gets right: facts-mindformers.md section 4.

One test per line that concerns the policy, named after the line.
"""

import pytest

from mindswap.config.render import document_from_data
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap
from mindswap.rules.checker import check_shape
from tests.builders import LLAMA_USES, QWEN, check, found, trees


def op_swap(entry, more=""):
    return f"swap_config: {{swap: True, op_swap: [{{{entry}}}{more}]}}"


# For the newer models swap_config is dropped, and the default pattern matches nothing there.


def test_the_default_strategy_reaches_flash_attention_of_the_newer_models():
    result = check("{use_legacy: False, swap_config: {swap: True, default_prefetch: 10}}", trees(outline=QWEN))
    assert result.problems == ()
    assert {swap.prefetch for swap in result.policy.op_swap} == {10}


# Crashes.


@pytest.mark.parametrize("name", [".*", r"feed_forward\\..*"])
def test_star_as_the_last_level_is_good(name):
    assert found(op_swap(f'op_name: "{name}", backward_prefetch: 1, layers: [0]')) == []


def test_bool_prefetch_is_refused_when_it_is_read():
    assert found(op_swap("op_name: add, backward_prefetch: True, layers: [0]")) == [(1, 71, "bad-prefetch")]


def test_tuple_layers_are_good():
    data = {"swap_config": {"swap": True, "layer_swap": ({"backward_prefetch": 1, "layers": (0, 3)},)}}
    assert check_shape(document_from_data(data, "d")).policy.layer_swap == (LayerSwap(Layers((0, 3)), 1),)


def test_a_message_names_the_key_that_is_wrong():
    problem = check("swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: x}]}").problems[0]
    assert problem.message.startswith("swap_config.layer_swap[0].layers: ")


def test_a_bad_regex_is_found_when_it_is_read():
    assert found(op_swap("op_name: '(', backward_prefetch: 1, layers: [0]"), None) == [(1, 47, "bad-regex")]


def test_a_missing_op_name_is_named():
    assert found(op_swap("backward_prefetch: 1, layers: [0]")) == [(1, 37, "missing-key")]


def test_the_mapping_form_is_good():
    text = "swap_config: {swap: True, op_swap: {add: [{backward_prefetch: 1, layers: [0]}]}}"
    assert check(text).policy.op_swap == (OpSwap("add", Layers((0,)), 1),)


def test_what_to_dict_writes_is_good():
    data = {"layer_swap": [], "default_prefetch": 1, "op_swap": {"add": [{"layers": [0], "backward_prefetch": 5}]}}
    policy = check_shape(document_from_data({"swap_config": data | {"swap": True}}, "d")).policy
    assert policy.op_swap == (OpSwap("add", Layers((0,)), 5),)


def test_bad_entries_stop_nothing_while_swap_is_off():
    assert check("swap_config: {swap: False, op_swap: [{layers: x}]}").errors == ()


# Silent.


@pytest.mark.parametrize(
    ("text", "rule", "level"),
    [
        (op_swap("op_name: mull, backward_prefetch: 1, layers: [0]"), "unmatched-pattern", "error"),
        (op_swap("op_name: attention.wq, backward_prefetch: 1, layers: [0]"), "plain-dot", "error"),
        (op_swap("op_name: add, backward_prefetch: 1, layers: [4]"), "layer-out-of-range", "error"),
        (op_swap("op_name: add, backward_prefetch: 1, layers: [-1]"), "layer-out-of-range", "error"),
        (op_swap("op_name: add, backward_prefetch: 1, layers: [0], layer: 1"), "unknown-key", "error"),
        (
            op_swap(
                "op_name: add, backward_prefetch: 1, layers: [0]", ", {op_name: add, backward_prefetch: 2, layers: [0]}"
            ),
            "conflicting-prefetch",
            "error",
        ),
        (
            "swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: True}], "
            "op_swap: [{op_name: add, backward_prefetch: 2, layers: [0]}]}",
            "overlap",
            "warning",
        ),
        (
            op_swap(
                "op_name: attention, backward_prefetch: 1, layers: [0]",
                r", {op_name: 'attention\.wq', backward_prefetch: 2, layers: [0]}",
            ),
            "overlap",
            "warning",
        ),
        (
            "swap_config: {swap: True, default_prefetch: 3, layer_swap: [{backward_prefetch: 1, layers: True}]}",
            "unused-default-prefetch",
            "warning",
        ),
        (
            r"{swap_config: {swap: True, op_swap: [{op_name: 'attention\.wq', backward_prefetch: 1, layers: [0]}]}, "
            "recompute_config: {select_recompute: {attention: [0]}}}",
            "recompute-wins",
            "warning",
        ),
    ],
)
def test_what_is_silent_upstream_is_reported(text, rule, level):
    assert [(p.rule, p.level.value) for p in check(text).problems] == [(rule, level)]


def test_recompute_of_a_user_takes_no_swap_away():
    """The backend does otherwise than the specification (docs/rule_effects.md)."""
    text = r"""
        swap_config: {swap: True, op_swap: [{op_name: 'feed_forward\.w1', backward_prefetch: 1, layers: [0]}]}
        recompute_config: {select_recompute: {'feed_forward\.mul': [0]}}
    """
    assert [rule for *_, rule in found(text, trees(uses=LLAMA_USES))] == []


# With swap on, excludes reach no layer.


def test_excludes_are_in_the_policy():
    text = r"""
        swap_config: {swap: True}
        recompute_config:
          select_recompute: [feed_forward]
          select_recompute_exclude: ['feed_forward\.mul']
          select_comm_recompute: True
          select_comm_recompute_exclude: {'attention_norm\.norm': [1]}
    """
    result = check(text)
    assert result.problems == ()
    assert result.policy.select_recompute_exclude == (OpRecompute(r"feed_forward\.mul", ALL_LAYERS),)
    assert result.policy.select_comm_recompute_exclude == (OpRecompute(r"attention_norm\.norm", Layers((1,))),)
