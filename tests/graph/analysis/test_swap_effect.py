"""What the comparison finds in steps made by hand, with one fault planted in each."""

import dataclasses
from dataclasses import replace

import pytest

from mindswap.graph.analysis.swap_effect import IdleReason, compare_effect, is_replaced_by_gather
from mindswap.graph.passes.gather import GATHER_MARK
from mindswap.graph.storage import Placement, classify_saved
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.policy.resolve import resolve_layer
from tests.builders import layer
from tests.graph import builders
from tests.graph.builders import KIB, copy_in, copy_out, graph

# A layer with two products of one type in one cell.
TREE = layer("""
    mlp
      matmul*
      gelu*
    norm
      mul*
      mul2*
    add*
""")


def node(name, *rest, **attributes):
    """An operator whose scope names a cell."""
    made = builders.node(name, *rest, **attributes)
    return dataclasses.replace(made, scope=f"Default/net-Net/{made.scope}")


def forward():
    """matmul -> gelu -> add; backward needs the first two."""
    return [
        node("matmul", "Matmul", "x"),
        node("gelu", "Gelu", "matmul"),
        node("add", "Add", "gelu x", cell_path=""),
    ]


BASELINE = graph(forward(), saved="matmul gelu")


def gelu_swapped(prefetch_out=5, prefetch_in=5):
    """The same with `gelu` copied out and back."""
    return graph(
        [*forward(), copy_out("out", "gelu", prefetch=prefetch_out)],
        [copy_in("in", "out", prefetch=prefetch_in), node("grad", "Grad", "in matmul_b", size_bytes=0)],
        saved="matmul out",
    )


def compare(step, policy, baseline=BASELINE, index=0):
    (effect,) = compare_effect([resolve_layer(policy, index, TREE)], baseline, step)
    return effect


def policy(*patterns, prefetch=5, **fields):
    swaps = tuple(OpSwap(pattern, ALL_LAYERS, prefetch) for pattern in patterns)
    return Policy(is_swap_enabled=True, op_swap=swaps, **fields)


def ops(nodes):
    return [node.op for node in nodes]


def producers(pairs):
    return [pair.producer.op for pair in pairs]


# As asked.


def test_a_swap_that_is_in_the_graph_is_as_asked():
    effect = compare(gelu_swapped(), policy(r"mlp\.gelu"))
    assert effect.matches_policy
    assert producers(effect.pairs) == ["Gelu"]
    # Two values of 1 KiB before; one of them leaves.
    assert (effect.kept_before_bytes, effect.kept_bytes, effect.swapped_bytes) == (2 * KIB, KIB, KIB)


def test_no_swap_asked_and_none_there_is_as_asked():
    effect = compare(BASELINE, policy())
    assert effect.matches_policy and effect.pairs == ()
    assert (effect.kept_before_bytes, effect.kept_bytes, effect.swapped_bytes) == (2 * KIB, 2 * KIB, 0)


def test_an_operator_that_backward_does_not_need_is_not_missed():
    """`add` is named with the full layer, and nothing is kept of it."""
    both = graph(
        [*forward(), copy_out("o1", "matmul", prefetch=5), copy_out("o2", "gelu", prefetch=5)],
        [copy_in("i1", "o1", prefetch=5), copy_in("i2", "o2", prefetch=5), node("grad", "Grad", "i1 i2", size_bytes=0)],
        saved="o1 o2",
    )
    effect = compare(both, policy(layer_swap=(LayerSwap(ALL_LAYERS, 5),)))
    assert effect.matches_policy
    assert (effect.kept_bytes, effect.swapped_bytes) == (0, 2 * KIB)


# One fault each.


def test_an_operator_that_stays_though_it_was_asked_is_missing():
    effect = compare(gelu_swapped(), policy("mlp"))
    assert ops(effect.missing) == ["Matmul"]
    assert not effect.matches_policy


@pytest.mark.parametrize(("settings", "missing"), [({}, []), ({"offload": True, "backward_prefetch": 5}, ["Matmul"])])
def test_what_has_no_scope_is_asked_for_by_its_own_setting(settings, missing):
    """A function in the cell that the entry names, or the operator of the cell itself."""
    without = builders.node("matmul", "Matmul", "x", **settings)
    before = graph([without, *forward()[1:]], saved="matmul gelu")
    step = graph(
        [without, *forward()[1:], copy_out("out", "gelu", prefetch=5)],
        [copy_in("in", "out", prefetch=5), node("grad", "Grad", "in matmul_b", size_bytes=0)],
        saved="matmul out",
    )
    assert ops(compare(step, policy("mlp"), baseline=before).missing) == missing


def test_a_swap_that_nobody_asked_for_is_unasked():
    effect = compare(gelu_swapped(), policy(r"mlp\.matmul"))
    assert (producers(effect.unasked), effect.wrong_prefetch) == (["Gelu"], ())
    assert ops(effect.missing) == ["Matmul"]
    assert not effect.matches_policy


def test_another_prefetch_is_wrong():
    effect = compare(gelu_swapped(prefetch_in=4), policy(r"mlp\.gelu"))
    assert producers(effect.wrong_prefetch) == ["Gelu"]
    assert not effect.matches_policy


def test_a_copy_that_never_comes_back_is_one_way():
    step = graph([*forward(), copy_out("out", "gelu", prefetch=5)], saved="matmul gelu")
    effect = compare(step, policy(r"mlp\.gelu"))
    assert [node.name for node in effect.one_way] == ["out"]
    assert effect.one_way_bytes == KIB and effect.swapped_bytes == 0
    assert ops(effect.missing) == ["Gelu"]
    assert not effect.matches_policy


def test_a_fault_of_another_layer_is_not_of_this_one():
    effect = compare(gelu_swapped(), policy(), index=1)
    assert effect.matches_policy and effect.pairs == ()


def test_an_entry_acts_in_its_layers_only():
    swap = Policy(is_swap_enabled=True, op_swap=(OpSwap(r"mlp\.gelu", Layers((1,)), 5),))
    assert producers(compare(gelu_swapped(), swap).unasked) == ["Gelu"]


# Outputs of an operator that has several: the `TupleGetItem` that the compiler adds has no layer of its own.


def pair_of_outputs():
    gelu = node("gelu", "Gelu", "x")
    parts = [node(f"part{i}", "TupleGetItem", f"gelu i{i}", layer=None, cell_path="") for i in (0, 1)]
    return [gelu, *parts], {"i0": 0, "i1": 1}


def test_every_output_counts_for_the_layer_of_its_operator():
    nodes, constants = pair_of_outputs()
    before = graph(nodes, saved="part0 part1", **constants)
    step = graph(
        [*nodes, copy_out("o0", "part0", prefetch=5), copy_out("o1", "part1", prefetch=5)],
        [copy_in("i0", "o0", prefetch=5), copy_in("i1", "o1", prefetch=5), node("grad", "Grad", "i0 i1", size_bytes=0)],
        saved="o0 o1",
        **constants,
    )
    effect = compare(step, policy(r"mlp\.gelu"), baseline=before)
    assert effect.matches_policy
    assert len(effect.pairs) == 2
    assert len(compare(step, policy(), baseline=before).unasked) == 2


def test_one_output_that_stays_is_missing():
    nodes, constants = pair_of_outputs()
    before = graph(nodes, saved="part0 part1", **constants)
    step = graph(
        [*nodes, copy_out("o0", "part0", prefetch=5)],
        [copy_in("i0", "o0", prefetch=5), node("grad", "Grad", "i0 part1_b", size_bytes=0)],
        saved="o0 part1",
        **constants,
    )
    effect = compare(step, policy(r"mlp\.gelu"), baseline=before)
    assert [node.name for node in effect.missing] == ["part1"]
    assert not effect.matches_policy


# Several primitives of one type in one cell: the graph does not say which is which.


def two_products(prefetch):
    nodes = [
        node("m1", "Mul", "x", cell_path="norm"),
        node("m2", "Mul", "m1", cell_path="norm"),
        copy_out("out", "m1", prefetch=prefetch),
    ]
    return graph(
        nodes, [copy_in("in", "out", prefetch=prefetch), node("grad", "Grad", "in m2_b", size_bytes=0)], saved="out m2"
    )


TWO_KEPT = graph([node("m1", "Mul", "x", cell_path="norm"), node("m2", "Mul", "m1", cell_path="norm")], saved="m1 m2")


def with_types(tree):
    """Both products are of type `Mul`, as in the graph."""
    children = tuple(
        dataclasses.replace(c, type_name="Mul") if c.name == "mul2" else with_types(c) for c in tree.children
    )
    return dataclasses.replace(tree, children=children)


@pytest.mark.parametrize(("prefetch", "matches_policy"), [(5, True), (6, False)])
def test_of_two_primitives_that_look_alike_one_may_be_swapped(prefetch, matches_policy):
    tree = with_types(TREE)
    actions = resolve_layer(policy(r"norm\.mul"), 0, tree)
    (effect,) = compare_effect([actions], TWO_KEPT, two_products(prefetch))
    assert effect.matches_policy is matches_policy


def in_layer(index, size_bytes):
    """`gelu` of a layer of the model."""
    scope = f"Default/net-Net/layers-CellList/{index}-Layer/mlp-Mlp/Gelu-op0"
    return dataclasses.replace(node(f"gelu{index}", "Gelu", "x", size_bytes, index), scope=scope)


def test_a_layer_is_held_against_the_one_that_is_like_it():
    """Layer 2 is like layer 1 of the network without swap, which has two layers: 2 KiB, and of layer 0 one."""
    plain = graph([in_layer(0, KIB), in_layer(1, 2 * KIB)], saved="gelu0 gelu1")
    step = graph([in_layer(0, KIB), in_layer(1, 2 * KIB), in_layer(2, 2 * KIB)], saved="gelu0 gelu2")
    decided = [resolve_layer(policy(r"mlp\.gelu"), index, TREE) for index in (0, 1, 2)]
    first, second, third = compare_effect(decided, plain, step, {1: 1, 2: 1})
    assert [each.kept_before_bytes for each in (first, second, third)] == [KIB, 2 * KIB, 2 * KIB]
    # All are to be swapped; layer 1 has given its memory away all the same, the others keep it.
    assert [[node.name for node in each.missing] for each in (first, second, third)] == [["gelu0"], [], ["gelu1"]]


# Entries without effect, each with its reason.


def test_an_entry_whose_operators_backward_does_not_need_is_idle():
    effect = compare(BASELINE, policy("add"))
    assert [(idle.entry, idle.reason, idle.keeps_instead) for idle in effect.idle] == [
        ("add", IdleReason.NOT_NEEDED, ())
    ]
    assert not effect.matches_policy


def test_an_idle_entry_names_what_is_kept_instead():
    """Backward keeps the view of the product, so swapping the product moves nothing."""
    nodes = [node("gelu", "Gelu", "x"), node("view", "Reshape", "gelu", cell_path="attention")]
    step = graph(nodes, saved="view")
    (idle,) = compare(step, policy(r"mlp\.gelu"), baseline=step).idle
    assert (idle.reason, idle.keeps_instead) == (IdleReason.NOT_NEEDED, ("attention Reshape",))


def test_an_entry_whose_operators_are_recomputed_is_idle():
    nodes = [node("matmul", "Matmul", "x"), node("gelu", "Gelu", "matmul", recompute=True)]
    backward = [node("again", "Gelu", "matmul_b", is_duplicate=True), node("grad", "Grad", "again", size_bytes=0)]
    step = graph(nodes, backward, saved="matmul")
    wanted = policy(r"mlp\.gelu", select_recompute=(OpRecompute(r"mlp\.gelu", ALL_LAYERS),))
    effect = compare(step, wanted, baseline=step)
    assert [(idle.entry, idle.reason) for idle in effect.idle] == [(r"mlp\.gelu", IdleReason.RECOMPUTED)]
    assert effect.num_recomputed == 1


def test_an_entry_of_which_a_part_is_recomputed_is_idle_as_the_rest_is_not_needed():
    step = graph([node("matmul", "Matmul", "x", recompute=True), node("gelu", "Gelu", "matmul")])
    assert [idle.reason for idle in compare(step, policy("mlp"), baseline=step).idle] == [IdleReason.NOT_NEEDED]


def test_a_copy_of_what_a_recomputed_operator_reads_is_beyond_the_specification():
    """`gelu` reads the product through a view. A view alone that runs again reads nothing."""

    def found(**reader):
        nodes = [
            node("matmul", "Matmul", "x"),
            node("view", "Reshape", "matmul", **reader),
            node("gelu", "Gelu", "view"),
        ]
        if not reader:
            nodes[2] = replace(nodes[2], is_recomputed=True)
        step = graph(
            [*nodes, copy_out("out", "matmul", prefetch=5)],
            [copy_in("in", "out", prefetch=5), node("grad", "Grad", "in", size_bytes=0)],
            saved="out",
        )
        return producers(compare(step, policy(r"mlp\.matmul"), baseline=step).beyond_specification)

    assert (found(), found(is_recomputed=True)) == (["Matmul"], [])


def test_without_lazy_inline_every_entry_is_idle():
    step = dataclasses.replace(BASELINE, has_lazy_inline=False, saved=(), backward=())
    effect = compare(step, policy(r"mlp\.gelu", layer_swap=(LayerSwap(ALL_LAYERS, 5),)))
    assert {(idle.entry, idle.reason) for idle in effect.idle} == {
        (r"mlp\.gelu", IdleReason.NO_LAZY_INLINE),
        ("layer_swap", IdleReason.NO_LAZY_INLINE),
    }
    assert not effect.matches_policy


# Two views in a row: the compiler leaves one, with the settings of the first, at the place of the second.

VIEWS = layer("""
    mlp
      gelu*
      reshape*
    attention
      reshape*
    norm
      reshape*
""")


def one_view(is_swapped, cell_path="attention"):
    """`mlp.reshape` and `attention.reshape` as one, at the place of the second."""
    view = node("view", "Reshape", "gelu", cell_path=cell_path, **({"offload": True} if is_swapped else {}))
    nodes = [node("gelu", "Gelu", "x"), view]
    if not is_swapped:
        return graph(nodes, saved="view")
    moved = copy_in("in", "out", prefetch=5)
    return graph(
        [*nodes, copy_out("out", "view", prefetch=5)],
        [moved, node("grad", "Grad", "in", size_bytes=0)],
        saved="out",
    )


def compare_views(step, wanted):
    (effect,) = compare_effect([resolve_layer(wanted, 0, VIEWS)], one_view(is_swapped=False), step)
    return effect


def test_a_copy_of_a_view_goes_by_the_name_of_the_first_of_two():
    effect = compare_views(one_view(is_swapped=True), policy(r"mlp\.reshape"))
    assert effect.matches_policy
    assert (effect.kept_before_bytes, effect.kept_bytes, effect.swapped_bytes) == (KIB, 0, KIB)


def test_a_view_may_have_its_own_name_all_the_same():
    assert compare_views(one_view(is_swapped=True), policy(r"attention\.reshape")).matches_policy


def test_the_distance_is_that_of_either_name():
    both = policy(r"mlp\.reshape")
    later = dataclasses.replace(both, op_swap=(*both.op_swap, OpSwap(r"attention\.reshape", ALL_LAYERS, 7)))
    assert compare_views(one_view(is_swapped=True), later).matches_policy
    other = policy(r"(mlp|attention)\.reshape", prefetch=6)
    assert len(compare_views(one_view(is_swapped=True), other).wrong_prefetch) == 1


def test_a_copy_of_a_view_is_unasked_if_neither_is_named():
    effect = compare_views(one_view(is_swapped=True), policy(r"norm\.reshape"))
    assert producers(effect.unasked) == ["Reshape"]
    assert not effect.matches_policy


def test_the_name_of_the_second_moves_nothing_and_says_why():
    effect = compare_views(one_view(is_swapped=False), policy(r"attention\.reshape"))
    assert [(idle.entry, idle.reason) for idle in effect.idle] == [(r"attention\.reshape", IdleReason.MERGED_AWAY)]
    assert ops(effect.missing) == ["Reshape"]


def test_an_entry_with_a_merged_view_among_others_says_so_too():
    (idle,) = compare_views(one_view(is_swapped=False), policy(layer_swap=(LayerSwap(ALL_LAYERS, 5),))).idle
    assert (idle.entry, idle.reason) == ("layer_swap", IdleReason.MERGED_AWAY)


def test_a_view_that_has_the_setting_and_stays_is_not_merged_away():
    view = node("view", "Reshape", "gelu", cell_path="attention", offload=True)
    step = graph([node("gelu", "Gelu", "x"), view], saved="view")
    (idle,) = compare_views(step, policy(r"attention\.reshape")).idle
    assert idle.reason is IdleReason.NOT_NEEDED


def test_both_names_and_no_copy_is_missing():
    effect = compare_views(one_view(is_swapped=False), policy(r"(mlp|attention)\.reshape"))
    assert ops(effect.missing) == ["Reshape"]


def test_of_equal_operators_the_compiler_leaves_one_that_stands_for_all():
    """Two cells reshape the same: one view is left, which both read. What a third cell names is not it."""
    tree = layer("""
        mlp
          gelu*
        wq
          reshape*
          matmul*
        wk
          reshape*
          matmul*
        wv
          reshape*
          matmul*
    """)
    gelu, view = node("gelu", "Gelu", "x"), node("view", "Reshape", "gelu", cell_path="wq", offload=True)
    tied = node("tied", "Depend", "view out", cell_path="wq")
    other = node("other", "Reshape", "x", cell_path="wv")
    readers = [
        node(f"m_{cell}", "Matmul", "other" if cell == "wv" else "tied", cell_path=cell) for cell in ("wq", "wk", "wv")
    ]
    step = graph(
        [gelu, view, copy_out("out", "view", prefetch=5), tied, other, *readers],
        [copy_in("in", "out", prefetch=5), node("grad", "Grad", "in", size_bytes=0)],
        saved="out",
    )
    (effect,) = compare_effect([resolve_layer(policy(r"w[qkv]\.reshape"), 0, tree)], step, step)
    assert [(idle.entry, idle.reason) for idle in effect.idle] == []
    wanted = policy(r"wq\.reshape", r"wk\.reshape", r"wv\.reshape")
    (effect,) = compare_effect([resolve_layer(wanted, 0, tree)], step, step)
    assert [(idle.entry, idle.reason) for idle in effect.idle] == [(r"wv\.reshape", IdleReason.NOT_NEEDED)]


def test_communication_that_stands_for_a_named_operator_moves_it():
    """With sequence parallelism the reshape is the AllGather of what it reads; a capture wrote its path on it."""
    tree = layer("""
        wq
          reshape*
    """)
    gathered = replace(
        node("gathered", "AllGather", "x", cell_path="wq", offload=True, backward_prefetch=5), paths=("wq.reshape",)
    )
    step = graph(
        [gathered, copy_out("out", "gathered", prefetch=5)],
        [copy_in("in", "out", prefetch=5), node("grad", "Grad", "in", size_bytes=0)],
        saved="out",
    )
    for paths, idle in ((("wq.reshape",), []), ((), [IdleReason.NOT_NEEDED])):
        forward = (replace(step.forward[0], paths=paths), *step.forward[1:])
        made = replace(step, forward=forward)
        (effect,) = compare_effect([resolve_layer(policy(r"wq\.reshape"), 0, tree)], made, made)
        assert [found.reason for found in effect.idle] == idle


# Copies for nothing.


def test_a_copy_of_memory_that_stays_under_another_name_is_wasted():
    """`view` is the memory of `gelu`: copying `gelu` frees nothing. It was asked for, so it is as asked."""
    nodes = [node("gelu", "Gelu", "x"), node("view", "Reshape", "gelu", cell_path="attention")]
    before = graph(nodes, saved="gelu view")
    step = graph(
        [*nodes, copy_out("out", "gelu", prefetch=5)],
        [copy_in("in", "out", prefetch=5), node("grad", "Grad", "in view_b", size_bytes=0)],
        saved="out view",
    )
    effect = compare(step, policy(r"mlp\.gelu"), baseline=before)
    assert [entry.storage.name for entry in effect.wasted] == ["gelu"]
    assert effect.matches_policy
    assert (effect.kept_before_bytes, effect.kept_bytes, effect.swapped_bytes) == (KIB, KIB, KIB)


@pytest.mark.parametrize(
    ("copied", "shape", "stands"), [("v", (1, 4), True), ("q", (1, 4), False), ("v", (2, 2), False)]
)
def test_a_copy_of_the_last_reshape_of_a_gathered_tensor_is_not_for_nothing(copied, shape, stands):
    """On one rank both are the memory of `x`; on several one AllGather stands for both, with the settings of the last.

    Where the tensor is not gathered along its first dimension, each is memory of its own.
    """
    x = node("x", "Cast", "y", 16)
    x = replace(x, outputs=(replace(x.outputs[0], shape=shape),))
    step = graph(
        [x, *(node(name, "Reshape", "x", 16) for name in "qv"), copy_out("out", copied, 16)],
        [copy_in("in", "out", 16), node("grad", "Grad", "in x_b", size_bytes=0)],
        saved="out x",
    )
    (entry,) = (one for one in classify_saved(step) if one.placement is Placement.WASTED)
    assert is_replaced_by_gather(step, entry) == stands


def test_recompute_of_what_is_no_operator_of_the_step_is_not_without_effect():
    """A cell of views holds no memory of its own, and a shape is no operator: there is nothing to run again."""
    tree = layer("views\n  reshape*\n  shape*\nmlp\n  gelu*")
    forward = [node("gelu", "Gelu", "x"), node("view", "Reshape", "gelu", cell_path="views")]
    step = graph(forward, saved="gelu view")

    def idle(*patterns):
        wanted = policy(select_recompute=tuple(OpRecompute(pattern, ALL_LAYERS) for pattern in patterns))
        (effect,) = compare_effect([resolve_layer(wanted, 0, tree)], step, step)
        return [(found.entry, found.reason) for found in effect.idle]

    assert idle("views", r"views\.shape", r"views\.reshape") == []
    assert idle("mlp", "views") == [("mlp", IdleReason.NOT_RECOMPUTED)]
    tree = replace(tree, children=tuple(replace(cell, is_called=False) for cell in tree.children))
    assert idle("mlp", "views") == [("mlp", IdleReason.NOT_CALLED)]


def idle_recomputes(pattern, again, gathering=()):
    """Entry and reason, where all operators of the tree are there and one runs again in the cell `again`."""
    cells = {"matmul": "mlp", "gelu": "mlp", "mul": "norm", "add": ""}
    forward = [
        node(name, name.title(), "x", cell_path=cell, **({GATHER_MARK: True} if name in gathering else {}))
        for name, cell in cells.items()
    ]
    copy = node("again", "Cast", "x", cell_path=again, is_duplicate=True)
    step = graph(forward, [copy, node("grad", "Grad", "again", size_bytes=0)])
    wanted = policy(select_recompute=(OpRecompute(pattern, ALL_LAYERS),))
    return [(found.entry, found.reason) for found in compare(step, wanted, baseline=step).idle]


@pytest.mark.parametrize(("again", "is_idle"), [("mlp", False), ("mlp.inner", False), ("mlp2", True), ("norm", True)])
def test_recompute_of_an_operator_is_idle_if_nothing_near_it_runs_again(again, is_idle):
    """Of equal operators in a cell the compiler leaves one, which may have the name of another."""
    assert idle_recomputes(r"mlp\.gelu", again) == [(r"mlp.gelu", IdleReason.NOT_RECOMPUTED)] * is_idle


def test_recompute_of_an_operator_of_the_layer_itself_is_idle_if_nothing_runs_again():
    assert idle_recomputes("add", "norm") == []


def test_recompute_is_idle_for_the_parallel_optimizer_if_all_of_it_is_gathered():
    assert idle_recomputes("mlp", "norm", gathering=("matmul", "gelu")) == [("mlp", IdleReason.GATHERED)]
    assert idle_recomputes("mlp", "norm", gathering=("matmul",)) == [("mlp", IdleReason.NOT_RECOMPUTED)]
