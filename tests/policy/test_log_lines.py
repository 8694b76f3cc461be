import pytest

from mindswap.policy.applied import format_log_lines
from mindswap.policy.cell_tree import PatternError
from mindswap.policy.model import ALL_LAYERS, DEFAULT_SWAP_PATTERNS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.policy.resolve import LayerDecisions, resolve_layer, unique_matches
from tests.builders import LLAMA, QWEN, layer

LAYER = layer(LLAMA)
EVERYTHING = [".".join(path) for path, node in LAYER.walk() if node.is_primitive]  # 12 operators


def op(pattern, prefetch, layers=(0,)):
    return OpSwap(pattern, ALL_LAYERS if layers is None else Layers(tuple(layers)), prefetch)


def recompute(pattern, layers=(0,)):
    return OpRecompute(pattern, Layers(tuple(layers)))


def plan(index=0, tree=LAYER, **fields):
    return resolve_layer(Policy(is_swap_enabled=True, **fields), index, tree)


def swaps(actions):
    """What is offloaded, in order, with its prefetch."""
    return [(swap.match.name, swap.entry.prefetch) for swap in actions.op_swaps]


def names(claims):
    return [match.name for match in unique_matches(claims)]


def prefetch_of(actions):
    """Prefetch of every operator once everything is set, in order: the later one stays."""
    prefetch = dict.fromkeys(EVERYTHING, actions.layer_prefetch)
    for name, value in swaps(actions):
        prefetch |= {path: value for path in prefetch if path == name or path.startswith(f"{name}.")}
    return {path: value for path, value in prefetch.items() if value is not None}


# Which layers.


def test_a_disabled_policy_asks_for_nothing():
    policy = Policy(False, layer_swap=(LayerSwap(ALL_LAYERS, 1),), op_swap=(op("add", 1),), layer_recompute=ALL_LAYERS)
    assert resolve_layer(policy, 0, LAYER) == LayerDecisions(0, LAYER)


def test_an_entry_acts_only_in_its_layers():
    fields = {
        "layer_swap": (LayerSwap(Layers((1,)), 2),),
        "op_swap": (op("add", 3, [1]),),
        "layer_recompute": Layers((2,)),
        "select_recompute": (recompute("feed_forward", [3]),),
    }
    assert plan(0, **fields) == LayerDecisions(0, LAYER)
    assert (plan(1, **fields).layer_prefetch, swaps(plan(1, **fields))) == (2, [("add", 3)])
    found = plan(2, **fields)
    assert (found.is_fully_recomputed, names(found.recomputes), found.offloads) == (True, [], ())
    assert names(plan(3, **fields).recomputes) == ["feed_forward"]


def test_all_layers_is_every_layer():
    assert swaps(plan(17, op_swap=(op("add", 3, None),))) == [("add", 3)]


# Swap: which entry wins.


def test_the_first_layer_swap_entry_with_the_layer_wins():
    entries = (LayerSwap(Layers((1, 2)), 5), LayerSwap(Layers((0, 1)), 7))
    assert [plan(index, layer_swap=entries).layer_prefetch for index in (0, 1, 2, 3)] == [7, 5, 5, None]


def test_op_swap_overrides_layer_swap_on_what_it_names():
    actions = plan(layer_swap=(LayerSwap(ALL_LAYERS, 5),), op_swap=(op(r"attention\.w.", 9),))
    assert prefetch_of(actions) == dict.fromkeys(EVERYTHING, 5) | {"attention.wq.matmul": 9, "attention.wo.matmul": 9}


def test_a_later_pattern_overrides_an_earlier_one_inside_it():
    actions = plan(op_swap=(op("attention", 5), op(r"attention\.wq", 9)))
    assert swaps(actions) == [("attention", 5), ("attention.wq", 9)]
    assert prefetch_of(actions) == {
        "attention.wq.matmul": 9,
        "attention.wo.matmul": 5,
        "attention.flash_attention.flash_attention": 5,
        "attention.merger_head": 5,
    }


def test_a_later_pattern_overrides_an_earlier_one_around_which_it_lies():
    actions = plan(op_swap=(op(r"attention\.wq", 9), op("add", 1), op("attention", 5)))
    assert swaps(actions) == [("add", 1), ("attention", 5)]
    assert prefetch_of(actions)["attention.wq.matmul"] == 5


def test_two_patterns_for_one_operator_give_it_the_prefetch_of_the_later():
    actions = plan(op_swap=(op(r"feed_forward\.w[13]", 3), op(r"feed_forward\.w[12]", 4)))
    assert sorted(swaps(actions)) == [("feed_forward.w1", 4), ("feed_forward.w2", 4), ("feed_forward.w3", 3)]


def test_a_pattern_that_stands_twice_acts_with_its_first_entry_that_has_the_layer():
    entries = (op("attention", 20, [0, 1, 2]), op("attention", 10, [2, 3]))
    assert [swaps(plan(index, op_swap=entries)) for index in (1, 2, 3)] == [
        [("attention", 20)], [("attention", 20)], [("attention", 10)],
    ]  # fmt: skip


def test_the_second_entry_of_a_pattern_does_not_come_after_what_stands_between():
    """`attention` is decided by its first entry; the narrower pattern after it keeps its prefetch."""
    actions = plan(op_swap=(op("attention", 5), op(r"attention\.wq", 9), op("attention", 7)))
    assert swaps(actions) == [("attention", 5), ("attention.wq", 9)]


def test_star_names_every_cell_and_primitive_of_the_first_level():
    actions = plan(op_swap=(op(".*", 2),))
    assert [name for name, _ in swaps(actions)] == ["attention_norm", "ffn_norm", "attention", "feed_forward", "add"]
    assert prefetch_of(actions) == dict.fromkeys(EVERYTHING, 2)


@pytest.mark.parametrize(
    ("outline", "found"),
    [(LLAMA, "attention.flash_attention"), (QWEN, "self_attention.core_attention.flash_attention")],
)
def test_the_default_patterns_find_flash_attention_of_both_families(outline, found):
    entries = tuple(op(pattern, 10, None) for pattern in DEFAULT_SWAP_PATTERNS)
    assert swaps(plan(tree=layer(outline), op_swap=entries)) == [(found, 10)]


def test_a_pattern_that_is_no_regular_expression_is_refused():
    with pytest.raises(PatternError, match="missing"):
        plan(op_swap=(op("(", 1),))


# Recompute.


def test_full_recompute_goes_before_select_recompute():
    actions = plan(
        layer_recompute=ALL_LAYERS,
        select_recompute=(recompute("attention"),),
        select_comm_recompute=(recompute("add"),),
    )
    assert (actions.is_fully_recomputed, names(actions.recomputes), actions.comm_recomputes) == (True, [], ())


def test_an_operator_named_twice_is_recomputed_once():
    actions = plan(select_recompute=(recompute(r"feed_forward\.mul"), recompute(r"feed_forward\.m.*")))
    assert names(actions.recomputes) == ["feed_forward.mul"]


def test_communication_is_recomputed_of_primitives_only():
    actions = plan(select_comm_recompute=(recompute(r".*norm\.norm"), recompute("attention"), recompute("add")))
    assert names(actions.comm_recomputes) == ["attention_norm.norm", "ffn_norm.norm", "add"]


def test_an_excluded_operator_is_not_recomputed():
    actions = plan(
        select_recompute=(recompute(r"feed_forward\.w."), recompute(r"feed_forward\.mul")),
        select_recompute_exclude=(recompute(r"feed_forward\.mul"), recompute(r"feed_forward\.w2")),
    )
    assert names(actions.recomputes) == ["feed_forward.w1", "feed_forward.w3"]


def test_an_operator_inside_an_excluded_cell_is_not_recomputed():
    actions = plan(
        select_recompute=(recompute(r"feed_forward\.w1\.activation"), recompute(r"attention\.wq")),
        select_recompute_exclude=(recompute("feed_forward"),),
    )
    assert names(actions.recomputes) == ["attention.wq"]


def test_an_exclude_inside_a_recomputed_cell_stays_to_be_set():
    """The cell is recomputed; of it, the excluded operator is then set not to be."""
    actions = plan(
        select_recompute=(recompute("feed_forward"),), select_recompute_exclude=(recompute(r"feed_forward\.mul"),)
    )
    assert names(actions.recomputes) == ["feed_forward"]
    assert names(actions.excludes) == ["feed_forward.mul"]


def test_an_exclude_holds_with_full_recompute():
    actions = plan(layer_recompute=ALL_LAYERS, select_recompute_exclude=(recompute(r"attention\.wq"),))
    assert actions.is_fully_recomputed
    assert names(actions.excludes) == ["attention.wq"]


def test_an_exclude_acts_only_in_its_layers():
    fields = {
        "select_recompute": (recompute("feed_forward", [0, 1]),),
        "select_recompute_exclude": (recompute("feed_forward", [1]),),
    }
    assert [names(plan(index, **fields).recomputes) for index in (0, 1)] == [["feed_forward"], []]


def test_communication_excludes_hold_for_communication_only():
    actions = plan(
        select_recompute=(recompute("add"),),
        select_comm_recompute=(recompute("add"), recompute(r"attention_norm\.norm")),
        select_comm_recompute_exclude=(recompute("add"),),
    )
    assert names(actions.recomputes) == ["add"]
    assert names(actions.comm_recomputes) == ["attention_norm.norm"]
    assert names(actions.comm_excludes) == ["add"]


# The log lines, byte for byte.


def lines(index=0, **fields):
    return list(format_log_lines(plan(index, **fields)))


def test_case_1_of_the_specification():
    entries = tuple(op(pattern, 10, None) for pattern in DEFAULT_SWAP_PATTERNS)
    assert lines(0, op_swap=entries) == ["Set op_swap at layer 0: attention.flash_attention, value=10"]


def test_case_2_of_the_specification():
    entries = (LayerSwap(Layers((0, 3)), 20),)
    assert [lines(index, layer_swap=entries) for index in range(4)] == [
        ["Set layer swap at layer 0 and value is: 20"],
        [],
        [],
        ["Set layer swap at layer 3 and value is: 20"],
    ]


CASE_3 = (op("attention", 20, [0, 1, 2]), op("attention", 10, [3]), op("feed_forward", 15, [1, 2]))


def test_case_3_of_the_specification():
    assert [line for index in range(4) for line in lines(index, op_swap=CASE_3)] == [
        "Set op_swap at layer 0: .attention, value=20",
        "Set op_swap at layer 1: .attention, value=20, .feed_forward, value=15",
        "Set op_swap at layer 2: .attention, value=20, .feed_forward, value=15",
        "Set op_swap at layer 3: .attention, value=10",
    ]


def test_case_4_of_the_specification():
    fields = {"op_swap": CASE_3, "select_recompute": (recompute("feed_forward", [0, 3]),)}
    assert [line for index in range(4) for line in lines(index, **fields)] == [
        "Set select recompute at layer 0: feed_forward",
        "Set op_swap at layer 0: .attention, value=20",
        "Set op_swap at layer 1: .attention, value=20, .feed_forward, value=15",
        "Set op_swap at layer 2: .attention, value=20, .feed_forward, value=15",
        "Set select recompute at layer 3: feed_forward",
        "Set op_swap at layer 3: .attention, value=10",
    ]


def test_every_kind_of_line_in_its_order():
    assert lines(
        7,
        layer_recompute=Layers((7,)),
        select_recompute_exclude=(recompute(r"attention\.w.", [7]),),
        select_comm_recompute_exclude=(recompute("add", [7]),),
        layer_swap=(LayerSwap(ALL_LAYERS, 1),),
        op_swap=(op("add", 2, None),),
    ) == [
        "Set full recompute at layer 7",
        "Set select recompute exclude at layer 7: attention.wq, attention.wo",
        "Set select comm recompute exclude at layer 7: add",
        "Set layer swap at layer 7 and value is: 1",
        "Set op_swap at layer 7: .add, value=2",
    ]
    assert lines(select_comm_recompute=(recompute(r".*norm\.norm"),), select_recompute=(recompute("add"),)) == [
        "Set select recompute at layer 0: add",
        "Set select comm recompute at layer 0: attention_norm.norm, ffn_norm.norm",
    ]


def test_every_match_is_in_the_line():
    assert lines(op_swap=(op(r"feed_forward\..*", 15),)) == [
        "Set op_swap at layer 0: feed_forward.w1, value=15, feed_forward.w2, value=15, feed_forward.w3, value=15, "
        "feed_forward.mul, value=15"
    ]


def test_a_layer_with_nothing_to_set_has_no_line():
    assert lines(op_swap=(op("add", 1, [1]),)) == []


def test_the_output_is_recomputed_only_with_the_whole_layer():
    # Layer 0: both; layer 1: whole, its output is kept; layer 2: the output is named, but the layer is not recomputed.
    fields = {"layer_recompute": Layers((0, 1)), "output_recompute": Layers((0, 2))}
    found = [plan(index, **fields) for index in range(3)]
    assert [(a.is_fully_recomputed, a.is_output_recomputed) for a in found] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    assert [format_log_lines(actions) for actions in found] == [
        ("Set full recompute at layer 0, with its output",),
        ("Set full recompute at layer 1",),
        (),
    ]
