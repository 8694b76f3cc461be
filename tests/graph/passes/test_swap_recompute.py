"""What recompute and swap make of steps made by hand.

The layer of most tests is mlp: matmul -> gelu -> mul, where mul reads both; then `add` outside the cell.
Backward reads the inputs of each operator: mul_grad reads matmul and gelu, gelu_grad reads matmul, matmul_grad x.
"""

from dataclasses import replace

import pytest

from mindswap.graph.analysis.saved_tensors import OperatorNames
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import Saved, TensorType
from mindswap.graph.passes.fusion import merge_equal
from mindswap.graph.passes.swap_recompute import (
    NodeSettings,
    has_held_output,
    normalize_saved_names,
    rewrite_graph,
    settings_of_policy,
)
from mindswap.graph.storage import Placement, classify_saved
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.policy.resolve import resolve_layer
from tests.builders import layer
from tests.graph.builders import KIB, graph, node

TREE = layer("""
    mlp
      matmul*
      gelu*
      mul*
    add*
""")


def op(name, op_name, inputs="", layer_index=0, cell_path="mlp", size_bytes=KIB):
    """An operator of the model: the cells in its scope have classes."""
    made = node(name, op_name, inputs, size_bytes, layer_index, cell_path=cell_path)
    return replace(made, scope=f"Default/{layer_index}-Layer/{cell_path}-Cell/{op_name}-{name}")


def with_outputs(made, count):
    return replace(made, outputs=(TensorType((256,), "float32", KIB),) * count)


def cast(name, inputs, layer_index=0):
    """A cast that the compiler put there for mixed precision: its scope names no cell."""
    return node(name, "Cast", inputs, layer=layer_index, cell_path="")


def layer_forward(index=0, source="x"):
    n = str(index)
    return [
        op(f"matmul{n}", "Matmul", source, index),
        op(f"gelu{n}", "Gelu", f"matmul{n}", index),
        op(f"mul{n}", "Mul", f"gelu{n} matmul{n}", index),
        op(f"add{n}", "Add", f"mul{n} {source}", index, cell_path=""),
    ]


def layer_backward(index=0, source="x_b"):
    n = str(index)
    return [
        node(f"mul_grad{n}", "MulGrad", f"gelu{n}_b matmul{n}_b", layer=index),
        node(f"gelu_grad{n}", "GeluGrad", f"mul_grad{n} matmul{n}_b", layer=index),
        node(f"matmul_grad{n}", "MatmulGrad", f"gelu_grad{n} {source}", layer=index),
    ]


ONE = graph(layer_forward(), layer_backward(), saved="matmul0 gelu0 x")
TWO = graph(
    [*layer_forward(0), *layer_forward(1, "add0")],
    [*layer_backward(1, "add0_b"), *layer_backward(0)],
    saved="matmul0 gelu0 x matmul1 gelu1 add0",
)


def settings(step, tree=TREE, **policy):
    num_layers = 1 + max(n.layer_index or 0 for n in step.forward)
    names = OperatorNames([tree] * num_layers, step)
    actions = [resolve_layer(Policy(True, **policy), index, tree) for index in range(num_layers)]
    return settings_of_policy(step, names, actions)


def rewritten(step, tree=TREE, **policy):
    return rewrite_graph(step, settings(step, tree, **policy))


def recompute(*patterns, layers=ALL_LAYERS):
    return tuple(OpRecompute(pattern, layers) for pattern in patterns)


def swap(pattern, distance=2, layers=ALL_LAYERS):
    return OpSwap(pattern, layers, distance)


def backward(step):
    """Each operator of backward with what it reads."""
    return [f"{n.name} <- {' '.join(n.inputs)}" for n in step.backward]


def saved(step):
    return {entry.forward_name for entry in step.saved}


def fates(step, key="name"):
    """Maker of each storage -> placement, kept bytes, copied bytes."""
    return {getattr(e.storage, key): (e.placement, e.kept_bytes, e.copied_bytes) for e in classify_saved(step)}


@pytest.mark.parametrize(
    ("class_name", "recomputed", "is_held"),
    [
        ("TransformerLayer", "mlp", True),
        ("TransformerLayer", r"mlp\.mul", False),
        ("TransformerLayer", "norm", False),
        ("LLamaDecodeLayer", "mlp", False),
    ],
)
def test_the_output_of_a_layer_that_returns_a_tuple_stays_where_its_last_cell_is_recomputed(
    class_name, recomputed, is_held
):
    """Later layers read a `Depend` of it; compiled in tests/adapters/test_rewrites.py."""
    tree = replace(layer("norm\n  cast*\nmlp\n  mul*\nadd*"), type_name=class_name)
    policy = Policy(True, select_recompute=(OpRecompute(recomputed, ALL_LAYERS),))
    assert has_held_output(resolve_layer(policy, 0, tree)) is is_held


def test_without_settings_the_step_stays_as_it_is():
    step = rewrite_graph(ONE, NodeSettings())
    assert step.forward == ONE.forward
    assert saved(step) == {"matmul0", "gelu0", "x"}
    assert fates(step) == fates(ONE)


# -- recompute ----------------------------------------------------------------------------------


def test_one_operator_runs_again_before_its_first_reader():
    step = rewritten(ONE, select_recompute=recompute(r"mlp\.gelu"))
    assert backward(step) == [
        "gelu0@again <- matmul0@saved",
        "mul_grad0 <- gelu0@again matmul0@saved",
        "gelu_grad0 <- mul_grad0 matmul0@saved",
        "matmul_grad0 <- gelu_grad0 x@saved",
    ]
    assert [n.name for n in step.forward if n.is_recomputed] == ["gelu0"]
    assert step.backward[0].is_duplicate and step.backward[0].origin == "gelu0"
    assert fates(step) == {"matmul0": (Placement.KEPT, KIB, 0)}


def test_a_cell_runs_again_but_for_its_output():
    # mul is the output of mlp: `add` reads it. Backward does not need it, so nothing is kept for it here.
    assert settings(ONE, select_recompute=recompute("mlp")).recomputed == {"matmul0", "gelu0"}
    step = rewritten(ONE, select_recompute=recompute("mlp"))
    assert backward(step)[:3] == [
        "matmul0@again <- x",
        "gelu0@again <- matmul0@again",
        "mul_grad0 <- gelu0@again matmul0@again",
    ]
    assert fates(step) == {}  # only x, an input, is left
    assert saved(step) == {"x"}


def test_a_cell_of_which_only_methods_are_called_does_not_run_again():
    uncalled = replace(TREE, children=(replace(TREE.children[0], is_called=False), *TREE.children[1:]))
    assert settings(ONE, uncalled, select_recompute=recompute("mlp")).recomputed == set()
    assert settings(ONE, uncalled, select_recompute=recompute(r"mlp\.gelu")).recomputed == {"gelu0"}


def test_the_output_of_a_recomputed_cell_is_kept_where_backward_needs_it():
    late = [*layer_backward(), node("late", "Grad", "mul0_b")]
    step = rewritten(graph(layer_forward(), late, saved="matmul0 gelu0 mul0 x"), select_recompute=recompute("mlp"))
    assert fates(step) == {"mul0": (Placement.KEPT, KIB, 0)}


def test_a_primitive_runs_again_also_if_it_is_the_output_of_its_cell():
    late = [*layer_backward(), node("late", "Grad", "mul0_b")]
    base = graph(layer_forward(), late, saved="matmul0 gelu0 mul0 x")
    step = rewritten(base, select_recompute=recompute(r"mlp\.mul"))
    assert backward(step)[-2:] == ["mul0@again <- gelu0@saved matmul0@saved", "late <- mul0@again"]


def test_a_whole_layer_keeps_only_its_output():
    step = rewritten(TWO, layer_recompute=ALL_LAYERS)
    # Layer 1 runs again from add0, which is the output of layer 0 and kept.
    assert fates(step) == {"add0": (Placement.KEPT, KIB, 0)}
    assert [n.name for n in step.backward if n.is_duplicate] == [
        "matmul1@again", "gelu1@again", "matmul0@again", "gelu0@again",
    ]  # fmt: skip


def test_a_layer_recomputed_with_its_output_keeps_nothing():
    step = rewritten(TWO, layer_recompute=ALL_LAYERS, output_recompute=Layers((0,)))
    # add0 is made again from mul0 and x, and mul0 from the two before it.
    assert fates(step) == {}
    again = [n.name.removesuffix("@again") for n in step.backward if n.is_duplicate]
    assert again == ["matmul0", "gelu0", "mul0", "add0", "matmul1", "gelu1"]


def test_what_runs_again_runs_once_however_many_read_it():
    step = rewritten(ONE, select_recompute=recompute(r"mlp\.matmul"))
    assert [n.name for n in step.backward].count("matmul0@again") == 1
    assert backward(step)[:2] == ["matmul0@again <- x", "mul_grad0 <- gelu0@saved matmul0@again"]


def test_a_policy_for_some_layers_leaves_the_others():
    step = rewritten(TWO, select_recompute=recompute("mlp", layers=Layers((1,))))
    assert fates(step) == {name: (Placement.KEPT, KIB, 0) for name in ("matmul0", "gelu0", "add0")}


def test_an_excluded_operator_does_not_run_again():
    asked = {"select_recompute": recompute("mlp"), "select_recompute_exclude": recompute(r"mlp\.gelu")}
    assert settings(ONE, **asked).recomputed == {"matmul0"}
    assert fates(rewritten(ONE, **asked)) == {"gelu0": (Placement.KEPT, KIB, 0)}


def test_an_operator_is_excluded_from_a_whole_layer():
    asked = {"layer_recompute": ALL_LAYERS, "select_recompute_exclude": recompute(r"mlp\.gelu")}
    assert settings(ONE, **asked).recomputed == {"matmul0", "mul0", "add0"}


def test_a_cast_of_the_compiler_goes_with_the_operator_that_reads_it():
    forward = [
        op("matmul", "Matmul", "x"),
        cast("cast", "matmul"),
        op("gelu", "Gelu", "cast"),
        op("mul", "Mul", "gelu"),
    ]
    step = graph(forward, [node("reader", "Grad", "cast_b gelu_b")], saved="cast gelu")
    assert settings(step, select_recompute=recompute(r"mlp\.gelu")).recomputed == {"gelu", "cast"}
    # ... and stays where another operator reads it too.
    shared = graph([*forward, op("late", "Add", "cast", cell_path="")], saved="cast gelu")
    assert settings(shared, select_recompute=recompute(r"mlp\.gelu")).recomputed == {"gelu"}


def test_weights_are_read_again_and_not_recomputed():
    forward = [node("load", "Load", "w"), op("matmul", "Matmul", "x load"), op("gelu", "Gelu", "matmul")]
    step = graph(forward, [node("reader", "Grad", "matmul_b")], saved="matmul")
    again = rewrite_graph(step, NodeSettings(frozenset({"load", "matmul"})))
    assert backward(again) == ["matmul@again <- x load", "reader <- matmul@again"]


def test_a_view_of_a_weight_runs_again_and_a_copy_of_a_value_as_well():
    forward = [node("load", "Load", "w"), op("view", "Reshape", "load"), op("matmul", "Matmul", "x view")]
    forward.append(op("moved", "TensorMove", "matmul"))
    step = graph(forward, [node("reader", "Grad", "view_b moved_b")], saved="view moved")
    again = rewrite_graph(step, NodeSettings(frozenset({"load", "view", "moved"})))
    assert backward(again) == [
        "view@again <- load",
        "moved@again <- matmul@saved",
        "reader <- view@again moved@again",
    ]


def test_what_the_step_runs_again_by_itself_runs_once():
    """`gelu_again` is there without a policy: for what reads it, and with recompute for all that reads `gelu`."""
    forward = [op("matmul", "Matmul", "x"), op("gelu", "Gelu", "matmul"), op("mul", "Mul", "gelu")]
    own = replace(node("gelu_again", "Gelu", "matmul_b", is_duplicate=True), origin="gelu")
    step = graph(
        forward,
        [own, node("first", "Grad", "gelu_again"), node("second", "Grad", "gelu_b")],
        saved="matmul gelu",
    )
    assert backward(rewrite_graph(step, NodeSettings())) == [
        "gelu_again <- matmul@saved", "first <- gelu_again", "second <- gelu@saved",
    ]  # fmt: skip
    assert backward(rewrite_graph(step, NodeSettings(frozenset({"gelu"})))) == [
        "gelu_again <- matmul@saved", "first <- gelu_again", "second <- gelu_again",
    ]  # fmt: skip


def test_an_output_of_a_cell_stays_though_its_own_name_is_asked_for_too():
    assert settings(ONE, select_recompute=recompute("mlp", r"mlp\.mul")).recomputed == {"matmul0", "gelu0"}
    assert settings(ONE, select_recompute=recompute(r"mlp\.mul")).recomputed == {"mul0"}


@pytest.mark.parametrize("tie", ["UpdateState", "MakeTuple"])
def test_what_only_ties_a_value_does_not_read_it_outside_its_cell(tie):
    forward = [*layer_forward(), op("tied", tie, "gelu0", layer_index=1, cell_path="")]
    step = graph(forward, layer_backward(), saved="matmul0 gelu0 x")
    assert settings(step, select_recompute=recompute("mlp")).recomputed == {"matmul0", "gelu0"}


def test_of_operators_that_are_to_communicate_again_only_communication_does():
    gather = replace(op("gather", "AllGather", "matmul"), paths=("mlp.mul",))  # a reshape that was one by this name
    step = graph([op("matmul", "Matmul", "x"), gather, op("gelu", "Gelu", "gather")], saved="matmul gather gelu")
    assert settings(step, select_comm_recompute=recompute(r"mlp\.(mul|gelu)")).recomputed == {"gather"}
    assert settings(step, select_comm_recompute=recompute(r"mlp\.gelu")).recomputed == set()


def test_members_of_a_tuple_go_with_the_operator_that_makes_it():
    split = with_outputs(op("split", "Split", "x"), 2)
    forward = [split, op("first", "TupleGetItem", "split zero"), op("second", "TupleGetItem", "split one")]
    step = graph(forward, [node("reader", "Grad", "first_b second_b")], saved="first second", zero=0, one=1)
    again = rewritten(step, layer_recompute=ALL_LAYERS)
    assert backward(again) == [
        "split@again <- x",
        "first@again <- split@again zero",
        "second@again <- split@again one",
        "reader <- first@again second@again",
    ]
    assert saved(again) == set()


def norm_step(*late):
    """A norm gives its result and its scale. The next operator reads the result, the gradient of the norm the scale."""
    forward = [
        with_outputs(op("norm", "Norm", "x", cell_path="norm"), 2),
        op("result", "TupleGetItem", "norm zero", cell_path="norm"),
        op("matmul", "Matmul", "result"),
        op("scale", "TupleGetItem", "norm one", cell_path="norm"),
        *late,
    ]
    gradients = [
        replace(node("matmul_grad", "MatmulGrad", "result_b"), origin="matmul"),
        replace(node("norm_grad", "NormGrad", "matmul_grad scale_b"), origin="norm"),
    ]
    return graph(forward, gradients, saved="result scale", zero=0, one=1)


NORM_TREE = layer("""
    norm
      norm*
    mlp
      matmul*
""")


def test_of_a_recomputed_cell_the_member_that_leaves_it_is_kept_and_the_other_made_again():
    # Seen with RmsNorm of Qwen3: MindSpore runs the norm again for its scale, and keeps its result.
    again = rewritten(norm_step(), NORM_TREE, select_recompute=recompute("norm"))
    assert backward(again) == [
        "matmul_grad <- result@saved",
        "norm@again <- x",
        "scale@again <- norm@again one",
        "norm_grad <- matmul_grad scale@again",
    ]


def test_of_a_swapped_tuple_only_what_its_own_gradient_reads_is_moved():
    # Seen with RmsNorm and SplitWithSize of Qwen3: members that others read carry no mark.
    moved = rewritten(norm_step(), NORM_TREE, op_swap=(swap(r"norm\.norm"),))
    assert [pair.copy_out.inputs for pair in moved.swap_pairs] == [("scale",)]
    assert fates(moved, "output_index") == {0: (Placement.KEPT, KIB, 0), 1: (Placement.SWAPPED, 0, KIB)}


def test_what_ties_values_in_backward_reads_them_for_the_gradient_behind_it():
    """A member of a swapped tuple is moved for the gradient of its operator, and so it is for what waits with it."""
    step = norm_step()
    tied = node("tied", "Depend", "scale_b dy")
    step = replace(step, backward=(tied, *step.backward))
    moved = rewritten(step, NORM_TREE, op_swap=(swap(r"norm\.norm"),))
    assert backward(moved) == [
        "scale@in <- scale@out@saved",
        "tied <- scale@in dy",
        "matmul_grad <- result@saved",
        "norm_grad <- matmul_grad scale@in",
    ]


# Two reshapes in a row: the compiler leaves one, with the name of the first and in the cell of the second.
RESHAPES = layer("""
    first
      reshape*
    second
      reshape*
      reshape2*
    mlp
      matmul*
""")
SECOND = RESHAPES.children[1]
SECOND = replace(SECOND, children=(SECOND.children[0], replace(SECOND.children[1], type_name="Reshape")))
RESHAPES = replace(RESHAPES, children=(RESHAPES.children[0], SECOND, RESHAPES.children[2]))


@pytest.mark.parametrize(
    ("patterns", "mark", "is_again"),
    [
        ((r"first\.reshape", r"second\.reshape", r"second\.reshape2"), {}, True),
        # Which of the second cell it is the graph does not say; without a mark on the first one nothing runs again.
        ((r"first\.reshape", r"second\.reshape"), {}, False),
        ((r"second\.reshape", r"second\.reshape2"), {}, False),
        ((r"second\.reshape", r"second\.reshape2"), {"recompute": True}, True),
        ((r"second\.reshape", r"second\.reshape2"), {"recompute": False}, False),
    ],
)
def test_a_reshape_that_was_merged_runs_again_if_both_do(patterns, mark, is_again):
    view = replace(op("view", "Reshape", "matmul", cell_path="second"), paths=("first.reshape",), attributes=mark)
    step = graph([op("matmul", "Matmul", "x"), view], saved="view")
    assert settings(step, RESHAPES, select_recompute=recompute(*patterns)).recomputed == (
        {"view"} if is_again else set()
    )


# -- swap ---------------------------------------------------------------------------------------


def test_a_swapped_value_leaves_behind_its_maker_and_comes_back_before_its_reader():
    step = rewritten(ONE, op_swap=(swap(r"mlp\.gelu", 3),))
    assert [n.name for n in step.forward] == ["matmul0", "gelu0", "gelu0@out", "mul0", "add0"]
    assert backward(step)[:2] == ["gelu0@in <- gelu0@out@saved", "mul_grad0 <- gelu0@in matmul0@saved"]
    (pair,) = step.swap_pairs
    assert (pair.producer.name, pair.num_prefetch_ops, pair.size_bytes) == ("gelu0", 3, KIB)
    assert fates(step) == {"matmul0": (Placement.KEPT, KIB, 0), "gelu0": (Placement.SWAPPED, 0, KIB)}


def test_what_backward_does_not_need_is_not_copied():
    assert rewritten(ONE, op_swap=(swap(r"mlp\.mul"),)).swap_pairs == ()


# matmul -> gelu, marked `recompute` by the model or by nobody, -> add. Backward reads x and what `extra` names.
def marked_step(mark, extra=""):
    forward = [op("matmul", "Matmul", "x"), op("gelu", "Gelu", "matmul"), op("add", "Add", "gelu x", cell_path="")]
    forward[1] = replace(forward[1], attributes=mark)
    return graph(forward, saved=f"x {extra}")


def copies(step):
    return [copy.inputs for copy in step.index.one_way_copies], [pair.producer.name for pair in step.swap_pairs]


def test_what_a_marked_operator_reads_is_copied_out_also_if_backward_does_not_need_it():
    swapped = {"op_swap": (swap(r"mlp\.matmul", 3),)}
    step = rewritten(marked_step({"recompute": True}), **swapped)
    assert copies(step) == ([("matmul",)], [])
    assert [n.name for n in step.forward] == ["matmul", "matmul@out", "gelu", "add"]
    (copy,) = step.index.one_way_copies
    assert (copy.attributes["backward_prefetch"], copy.size_bytes, saved(step)) == (3, KIB, {"x"})
    assert copies(rewritten(marked_step({"recompute": False}), **swapped)) == ([], [])
    # Where backward reads it, the same copy comes back; where the policy marks the reader, it is a mark as well.
    assert copies(rewritten(marked_step({"recompute": True}, "matmul"), **swapped)) == ([], ["matmul"])
    both = {"op_swap": (swap(r"mlp\.matmul", 3), swap(r"mlp\.gelu", 3))}
    assert copies(rewritten(marked_step({"recompute": True}, "gelu"), **both)) == ([], ["gelu"])
    by_policy = rewritten(marked_step({}), **swapped, select_recompute=recompute(r"mlp\.gelu"))
    assert copies(by_policy) == ([("matmul",)], [])


def test_a_marked_operator_itself_is_not_copied():
    step = rewritten(
        marked_step({"recompute": True}), op_swap=(swap(r"mlp\.gelu", 3),), select_recompute=recompute(r"add")
    )
    assert copies(step) == ([], [])


def test_swapping_one_of_two_names_copies_and_frees_nothing():
    forward = [op("matmul", "Matmul", "x"), op("view", "Reshape", "matmul"), op("gelu", "Gelu", "view")]
    step = graph(forward, [node("reader", "Grad", "matmul_b view_b")], saved="matmul view")
    assert fates(rewritten(step, op_swap=(swap(r"mlp\.matmul"),))) == {"matmul": (Placement.WASTED, KIB, KIB)}
    # With both names swapped the bytes leave, and cross the link twice.
    both = rewrite_graph(step, NodeSettings(prefetch={"matmul": 1, "view": 1}))
    assert fates(both) == {"matmul": (Placement.SWAPPED, 0, 2 * KIB)}


def test_a_swapped_value_feeds_a_recomputed_one():
    step = rewritten(ONE, op_swap=(swap(r"mlp\.matmul"),), select_recompute=recompute(r"mlp\.gelu"))
    assert backward(step)[:3] == [
        "matmul0@in <- matmul0@out@saved",
        "gelu0@again <- matmul0@in",
        "mul_grad0 <- gelu0@again matmul0@in",
    ]
    assert fates(step) == {"matmul0": (Placement.SWAPPED, 0, KIB)}


@pytest.mark.parametrize("where", [r"mlp\.gelu", "mlp"])
def test_recompute_wins_over_swap_on_one_operator(where):
    asked = settings(ONE, op_swap=(swap(r"mlp\.gelu"),), select_recompute=recompute(where))
    assert asked.prefetch == {} and "gelu0" in asked.recomputed


def test_offload_has_no_effect_on_the_kept_output_of_a_recomputed_cell():
    assert settings(ONE, op_swap=(swap(r"mlp\.mul"),), select_recompute=recompute("mlp")).prefetch == {}


def test_a_later_entry_overrides_an_earlier_one_and_op_swap_goes_before_layer_swap():
    asked = settings(ONE, layer_swap=(LayerSwap(ALL_LAYERS, 7),), op_swap=(swap("mlp", 2), swap(r"mlp\.gelu", 5)))
    assert asked.prefetch == {"matmul0": 2, "gelu0": 5, "mul0": 2, "add0": 7}


def test_an_operator_without_a_name_in_the_model_is_not_swapped():
    forward = [op("matmul", "Matmul", "x"), op("strange", "Sqrt", "matmul")]
    asked = settings(graph(forward, saved="matmul strange"), layer_swap=(LayerSwap(ALL_LAYERS, 1),))
    assert asked.prefetch == {"matmul": 1}


def test_an_operator_that_runs_again_does_the_same_work():
    # float32, 1 KiB each: reads x, which has no type here, and the weight; writes its output.
    forward = [node("load", "Load", "w"), op("matmul", "MatMul", "x load"), op("gelu", "Gelu", "matmul")]
    step = graph(forward, [node("reader", "Grad", "matmul_b")], saved="matmul")
    again = rewrite_graph(step, NodeSettings(frozenset({"matmul"})))
    of_forward, of_backward = measure_work(again)
    assert of_backward[0] == of_forward[1]
    assert (of_backward[0].read_bytes, of_backward[0].written_bytes) == (KIB, KIB)


def test_equal_operators_with_paths_are_merged_before():
    tagged = graph(
        [node("a", "Cast", "x", paths=("a.cast",)), node("b", "Cast", "x", paths=("b.cast",))],
        [node("grads", "Grad", "a_b b_b")],
        saved="a b",
    )
    nothing = NodeSettings(frozenset(), {})
    assert [n.name for n in rewrite_graph(merge_equal(tagged, nothing.of), nothing).forward] == ["a"]
    assert [n.name for n in rewrite_graph(tagged, nothing).forward] == ["a", "b"]
    for other in (NodeSettings(frozenset({"a"})), NodeSettings(frozenset({"a", "b"}), {"a": 1})):
        assert merge_equal(tagged, other.of) is tagged


def test_a_chain_of_recomputed_operators_may_be_of_any_length():
    """Only the last one is read by backward, and each reads the one before: all run again, in their order."""
    count = 5000
    chain = [op(f"op{i}", "Gelu", f"op{i - 1}" if i else "x", i // 36) for i in range(count)]
    step = graph(chain, [node("grad", "GeluGrad", f"op{count - 1}_b")], saved=f"op{count - 1}")
    made = rewrite_graph(step, NodeSettings(recomputed=frozenset(made.name for made in chain)))
    assert [made.origin for made in made.backward[:-1]] == [made.name for made in chain]
    assert made.saved == ()


def test_no_number_of_layers_that_run_again_is_too_large():
    """All operators of 400 layers, each made of what the one before gives: more than Python lets functions nest."""
    number = 400
    sources = ["x", *(f"add{index}" for index in range(number))]
    forward = [made for index in range(number) for made in layer_forward(index, sources[index])]
    backward = [made for index in range(number) for made in layer_backward(index, f"{sources[index]}_b")[::-1]][::-1]
    saved = [name for index in range(number) for name in (f"matmul{index}", f"gelu{index}", sources[index])]
    whole = rewrite_graph(
        graph(forward, backward, " ".join(saved)), NodeSettings(recomputed={made.name for made in forward})
    )
    assert [entry.forward_name for entry in whole.saved] == ["x"]
    again = [made.origin for made in whole.backward if made.is_duplicate]
    assert len(again) == len(set(again)) == number * 3 - 1 + number - 1


def test_operators_that_read_what_is_kept_stay_where_it_has_its_name_already():
    named = normalize_saved_names(replace(ONE, saved=(*ONE.saved, Saved("x", "x_again_b"))))
    assert [saved.backward_name for saved in named.saved] == ["matmul0@saved", "gelu0@saved", "x@saved", "x_again_b"]
    for swapped in ({}, {"gelu0": 1}):
        rewritten = rewrite_graph(named, NodeSettings(frozenset(), swapped))
        plain = rewrite_graph(ONE, NodeSettings(frozenset(), swapped))
        assert (rewritten.forward, rewritten.backward, rewritten.saved) == (plain.forward, plain.backward, plain.saved)
        assert rewritten.backward[-1] is named.backward[-1]
