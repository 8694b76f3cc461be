# ruff: noqa: E501 configurations in one line
import pytest

from mindswap.errors import PolicyError
from mindswap.policy.formats.mindformers2.conversion import to_1_9, to_2x
from mindswap.policy.formats.mindformers2.renaming import LayerNames, patterns_to_2x, replace_sections
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from tests.builders import LLAMA, layer
from tests.policy.formats.mindformers2.builders import check_2x


def test_entries_become_one_and_the_largest_distance_counts():
    # 25 of 10 operators are 3 layers; of 8 layers the last 3 stay: 5, 6 and 7.
    policy = Policy(True, layer_swap=(LayerSwap(Layers((0, 1)), 5), LayerSwap(Layers((3, 4, 5)), 25)))
    converted = to_2x(policy, 8, 1, 10)
    assert converted.sections["swap"] == {
        "enable": True,
        "default_prefetch": 3,
        "layer_swap": [{"layers": ["0-1", "3-4"]}],
    }
    assert converted.sections["recompute"] == {"mode": "None"}
    assert "swap of layer 5: 2.x swaps none of the last 3 (default_prefetch)" in converted.lost
    assert any("(5, 25)" in line for line in converted.lost)


def test_names_of_the_legacy_model_and_the_default_strategy():
    patterns = (r"feed_forward", r"attention\.wq", r"attention\.wk", r".*\.flash_attention", r"feed_forward\.mul")
    policy = Policy(True, op_swap=tuple(OpSwap(pattern, ALL_LAYERS, 1) for pattern in patterns))
    converted = to_2x(policy, 4, 1, 10)
    assert converted.sections["swap"]["op_swap"] == [
        {"op_name": "mlp", "layers": ["0-2"]},
        {"op_name": r"self_attention\.linear_qkv", "layers": ["0-2"]},
        {"op_name": r"self_attention\.core_attention", "layers": ["0-2"]},
        {"op_name": r"mlp\.mul", "layers": ["0-2"]},
    ]
    # wq and wk are cells; mul is an operator, whose meaning shifts by one.
    assert [line for line in converted.lost if "feed_forward" in line] == [
        r"'feed_forward\.mul': in 1.9 the output of an operator, in 2.x ('mlp\.mul') what it saves, mostly its inputs"
    ]


def test_with_both_layers_known_a_pattern_is_written_out():
    cells, operators = {"mlp", "self_attention.linear_qkv"}, {"mlp.mul", "input_layernorm.norm"}
    names = LayerNames(layer(LLAMA), frozenset(cells | operators), frozenset(cells))
    lost: list[str] = []
    assert patterns_to_2x(r"attention\.w[qv]", names, lost) == [r"self_attention\.linear_qkv"]
    assert patterns_to_2x(r"attention_norm\..*", names, lost) == [r"input_layernorm\.norm"]
    # w2.matmul is an operator of both, but not in this layer of 2.x.
    assert patterns_to_2x(r"feed_forward\.(mul|w2)", names, lost) == [r"mlp\.mul"]
    assert patterns_to_2x(r"feed_forward", names, lost) == ["mlp"]
    assert lost == [
        r"'attention_norm\..*': in 1.9 the output of an operator, in 2.x ('input_layernorm.norm') what it saves, mostly "
        "its inputs",
        r"'feed_forward\.(mul|w2)': a layer of 2.x has no 'mlp.linear_fc2': left out",
        r"'feed_forward\.(mul|w2)': in 1.9 the output of an operator, in 2.x ('mlp.mul') what it saves, mostly its inputs",
    ]


def test_a_plain_dot_does_not_cross_levels():
    policy = Policy(True, op_swap=(OpSwap(r"mlp\..*", Layers((0,)), 1),))
    converted = to_2x(policy, 4, 1, 10)
    assert converted.sections["swap"]["op_swap"] == [{"op_name": r"mlp\.[^.]*", "layers": ["0"]}]


def test_recompute():
    policy = Policy(
        True,
        layer_swap=(LayerSwap(ALL_LAYERS, 1),),
        layer_recompute=Layers((0,)),
        select_recompute=(OpRecompute("feed_forward", Layers((0, 1))),),
        select_recompute_exclude=(OpRecompute(r"attention\.flash_attention", ALL_LAYERS),),
        mp_comm_recompute=False,
    )
    converted = to_2x(policy, 4, 1, 10)
    assert converted.sections["recompute"] == {
        "mode": "select",
        "full_recompute_layer": ["0"],
        "select_module": {"mlp": ["1"]},
        "exclude_op": {r"self_attention\.core_attention": ["0-3"]},
    }
    # Layer 0 is recomputed: 1.9 does not swap it, and 2.x would swap its input.
    assert converted.sections["swap"]["layer_swap"] == [{"layers": ["1-2"]}]
    assert "mp_comm_recompute: False: 2.x has nothing like it" in converted.lost


def test_stages_lose_swap_and_keep_recompute():
    policy = Policy(True, layer_swap=(LayerSwap(ALL_LAYERS, 1),), layer_recompute=Layers((0,)))
    converted = to_2x(policy, 4, 2, 10)
    assert converted.sections["swap"] == {"enable": False}
    assert converted.sections["recompute"] == {"mode": "full", "full_recompute_layer": ["0"]}
    assert converted.lost == ("all of swap: MindFormers 2.x does not swap with 2 pipeline stages",)


def test_back_to_1_9():
    text = (
        "recompute: {mode: select, full_recompute_layer: [3], select_module: {mlp: [2]}}\n"
        r"swap: {enable: True, default_prefetch: 1, layer_swap: [{layers: [0]}], "
        r"op_swap: [{op_name: 'self_attention\.linear.*', layers: [1]}]}"
    )
    converted = to_1_9(check_2x(text).effect, 10, use_legacy=False)
    assert converted.sections == {
        "swap_config": {
            "swap": True,
            "layer_swap": [{"backward_prefetch": 10, "layers": [0]}],
            # A pattern over several levels is written out.
            "op_swap": [
                {"op_name": r"self_attention\.linear_proj", "backward_prefetch": 10, "layers": [1]},
                {"op_name": r"self_attention\.linear_qkv", "backward_prefetch": 10, "layers": [1]},
            ],
        },
        "recompute_config": {"recompute": [3], "select_recompute": {"mlp": [2]}},
    }


def test_back_to_legacy_names():
    text = r"swap: {enable: True, op_swap: [{op_name: 'self_attention\.linear_qkv', layers: [0]}, {op_name: mlp, layers: [1]}]}"
    converted = to_1_9(check_2x(text).effect, 10, use_legacy=True)
    names = [entry["op_name"] for entry in converted.sections["swap_config"]["op_swap"]]
    assert names == [r"attention\.wq", r"attention\.wk", r"attention\.wv", "feed_forward"]


def test_recompute_without_swap_keeps_layer_indices():
    converted = to_1_9(check_2x("recompute: {mode: full, full_recompute_layer: [0-3]}").effect, 10, use_legacy=False)
    assert converted.sections == {
        "swap_config": {"swap": True, "op_swap": []},
        "recompute_config": {"recompute": [0, 1, 2, 3]},
    }


def test_a_pattern_over_levels_of_an_unknown_model_is_lost():
    text = "swap: {enable: True, op_swap: [{op_name: '.*linear.*', layers: [0]}]}"
    converted = to_1_9(check_2x(text, model=None).effect, 10, use_legacy=False)
    assert "op_swap" not in converted.sections["swap_config"] or converted.sections["swap_config"]["op_swap"] == []
    assert any("crosses levels" in line for line in converted.lost)


OLD = """\
# head
a: 1  # one
swap_config:   # why
  swap: True   # on # really
  # below
  name: 'no # comment'
b: 2
recompute_config: {recompute: True}  # all
# end
"""


def test_comments_survive_and_the_rest_stays():
    new = replace_sections(OLD, ("swap_config", "recompute_config"), {"swap": {"enable": True}}, ("made",), "x.yaml")
    assert new == (
        "# head\na: 1  # one\n# why\n# on # really\n# below\n# all\n# mindswap: made\nswap:\n  enable: True\nb: 2\n# end\n"
    )
    again = replace_sections(new, ("swap",), {"swap": {"enable": False}}, ("again",), "x.yaml")
    assert again == new.replace("# mindswap: made", "# mindswap: again").replace("True", "False")
    windows = replace_sections(
        OLD.replace("\n", "\r\n"), ("swap_config", "recompute_config"), {"swap": {"enable": True}}, ("made",), "x.yaml"
    )
    assert windows == new.replace("\n", "\r\n")
    marked = replace_sections(
        f"\ufeff{OLD}", ("swap_config", "recompute_config"), {"swap": {"enable": True}}, ("made",), "x.yaml"
    )
    assert marked == f"\ufeff{new}"


@pytest.mark.parametrize("text", ["{swap_config: {swap: True}}", "swap_config: &x {swap: True}\nb: *x\n"])
def test_what_cannot_be_edited_is_refused(text):
    with pytest.raises(PolicyError, match="cannot be replaced"):
        replace_sections(text, ("swap_config",), {"swap": {"enable": True}}, (), "x.yaml")


def test_a_comment_of_mindswap_in_the_section_above_stays():
    text = "a:\n  b: 1\n  # mindswap: of a\nswap_config: {swap: True}\n"
    new = replace_sections(text, ("swap_config",), {"swap": {"enable": True}}, ("made",), "x.yaml")
    assert new == "a:\n  b: 1\n  # mindswap: of a\n# mindswap: made\nswap:\n  enable: True\n"
