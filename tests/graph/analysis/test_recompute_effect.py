"""What the comparison of recompute finds in steps made by hand, with one fault planted in each."""

from dataclasses import replace

from mindswap.graph.analysis.recompute_effect import compare_recompute, possible_operator_keys
from mindswap.policy.model import ALL_LAYERS, OpRecompute, Policy
from mindswap.policy.resolve import resolve_layer
from tests.builders import layer
from tests.graph.builders import KIB, graph, node

TREE = layer("""
    mlp
      matmul*
      gelu*
      gelu2*
      cast*
    norm
      mul*
""")
MLP = ("matmul", "gelu")
BASELINE = graph([node("matmul", "Matmul", "x"), node("gelu", "Gelu", "matmul")], saved="matmul gelu")


def step(marked=(), again=(), saved="matmul gelu", **attributes):
    """matmul -> gelu, of which some are marked in forward and run again in backward."""
    forward = [
        node("matmul", "Matmul", "x", is_recomputed="matmul" in marked, **attributes),
        node("gelu", "Gelu", "matmul", is_recomputed="gelu" in marked),
    ]
    copies = [node(f"{name}_again", name.title(), "x", is_duplicate=True) for name in again]
    reader = node("reader", "Grad", " ".join(f"{name}_b" for name in saved.split()), size_bytes=0)
    return graph(forward, [*copies, reader], saved=saved)


def compare(compiled, baseline=BASELINE, **policy):
    actions = resolve_layer(Policy(is_swap_enabled=True, **policy), 0, TREE)
    (effect,) = compare_recompute([actions], baseline, compiled)
    return effect


def select(*patterns):
    return tuple(OpRecompute(pattern, ALL_LAYERS) for pattern in patterns)


def test_a_recomputed_cell_that_runs_again_is_as_asked():
    effect = compare(step(MLP, MLP, saved=""), select_recompute=select("mlp"))
    assert effect.matches_policy
    assert effect.operators == ("mlp Matmul", "mlp Gelu") and effect.num_recomputed == 2
    # Both outputs of 1 KiB are kept without recompute, none with it.
    assert (effect.kept_before_bytes, effect.kept_bytes) == (2 * KIB, 0)


def test_what_is_marked_by_itself_in_a_recomputed_cell_runs_again_by_its_scope():
    """MindSpore 2.9 marks none of it as a duplicate; gradients of it have such a scope behind `Gradients/`."""
    compiled = step(MLP, ("matmul",), saved="")
    gelu = node("gelu_again", "Gelu", "x", is_recomputed=True)
    gradient = replace(node("gelu_grad", "Gelu", "x"), scope="Gradients/recompute_Default/gelu_grad")
    compiled = replace(compiled, backward=(gelu, gradient, *compiled.backward))
    effect = compare(compiled, select_recompute=select("mlp", r"mlp\.gelu"))
    assert effect.matches_policy and effect.num_recomputed == 2


def test_a_whole_layer():
    assert compare(step(MLP, MLP), layer_recompute=ALL_LAYERS).matches_policy
    effect = compare(step(MLP), layer_recompute=ALL_LAYERS)
    assert effect.is_whole and effect.idle == ("the full layer",) and not effect.matches_policy


def test_nothing_asked_and_nothing_done():
    assert compare(step()).matches_policy


def test_an_operator_that_nobody_asked_for():
    effect = compare(step(MLP, MLP))
    assert effect.unasked == ("mlp Matmul", "mlp Gelu") and not effect.matches_policy


def test_another_layer_than_the_one_asked_for():
    actions = [
        replace(resolve_layer(Policy(is_swap_enabled=True, layer_recompute=ALL_LAYERS), i, TREE)) for i in (0, 1)
    ]
    first, second = compare_recompute(actions, BASELINE, step(MLP, MLP))
    assert first.matches_policy and second.idle == ("the full layer",)


def test_an_operator_that_is_asked_for_and_not_marked():
    effect = compare(step(["gelu"], ["gelu"]), select_recompute=select("mlp"))
    assert effect.missing == ("mlp Matmul",) and not effect.matches_policy


def test_what_the_model_recomputes_by_itself_was_not_asked_for():
    effect = compare(step(MLP, MLP), baseline=step(["gelu"], ["gelu"]))
    assert effect.unasked == ("mlp Matmul",) and effect.operators == ("mlp Matmul",)
    assert effect.num_recomputed == 2


def test_an_excluded_operator_must_not_run_again():
    # matmul is excluded from the full layer, and runs again all the same.
    policy = {"layer_recompute": ALL_LAYERS, "select_recompute_exclude": select(r"mlp\.matmul")}
    assert compare(step(["gelu"], ["gelu"]), **policy).matches_policy
    assert compare(step(MLP, MLP), **policy).unasked == ("mlp Matmul",)


def test_a_part_of_which_nothing_runs_again():
    effect = compare(step(MLP), select_recompute=select(r"mlp\.matmul", r"mlp\.cast"))
    assert effect.idle == ("mlp.matmul",)  # cast is in the tree and not in the graph: nothing to recompute


def test_what_runs_again_may_have_no_place():
    """A primitive that is marked by itself loses its scope, and its copy with it (`linear_fc1.matmul` of Qwen3)."""
    first, second = (node(name, "Matmul", "x", cell_path="", recompute=True) for name in ("matmul", "matmul2"))
    copies = {name: replace(node(f"{name}_again", "Matmul", "x", cell_path="", is_duplicate=True), origin=name)
              for name in ("matmul", "matmul2")}  # fmt: skip
    reader = node("reader", "Grad", "matmul_again", size_bytes=0)
    policy = {"select_recompute": select(r"mlp\.matmul")}
    assert compare(graph([first], [copies["matmul"], reader]), **policy).idle == ()
    # The layer of what has no scope is a guess: its copy may be in the layer that it really belongs to.
    elsewhere = replace(copies["matmul"], layer_index=1)
    assert compare(graph([first], [elsewhere, reader]), **policy).idle == ()
    # Of two without a place, one of which is kept, either may be the one that was asked for.
    both = node("reader", "Grad", "matmul2_again matmul_b", size_bytes=0)
    kept = graph([first, second], [copies["matmul2"], both], saved="matmul")
    assert compare(kept, **policy).idle == ("mlp.matmul",)
    # One that backward does not need says nothing: the output of a cast that runs again as well.
    assert compare(graph([first, second], [copies["matmul2"], reader]), **policy).idle == ()
    assert compare(graph([first], [reader]), **policy).idle == ("mlp.matmul",)


def test_names_on_the_operators_tell_what_runs_again():
    """`linear_fc2.cast` of TeleChat3 casts a weight, in its place, and its input, which has none."""
    tree = layer("mlp\n  cast*\n  matmul*")
    weight = replace(node("weight", "Cast", "w", cell_path="mlp"), paths=("mlp.cast",))
    given = replace(node("given", "Cast", "x", cell_path=""), paths=("mlp.cast",))
    again = replace(node("again", "Cast", "x", cell_path="", is_duplicate=True), origin="given")
    (effect,) = compare_recompute(
        [resolve_layer(Policy(is_swap_enabled=True, select_recompute=select(r"mlp\.cast")), 0, tree)],
        graph([weight, given]),
        graph([weight, given], [again, node("reader", "Grad", "again", size_bytes=0)]),
    )
    assert effect.idle == ()


def test_one_of_two_primitives_of_a_type_may_run_again():
    """gelu and gelu2 look the same in the graph when both are called Gelu."""
    tree = layer("mlp\n  matmul*\n  gelu*\n  gelu2*")
    cell = tree.children[0]
    renamed = replace(cell, children=tuple(replace(c, type_name=c.type_name.rstrip("2")) for c in cell.children))
    tree = replace(tree, children=(renamed,))
    actions = resolve_layer(Policy(is_swap_enabled=True, select_recompute=select(r"mlp\.gelu")), 0, tree)
    for compiled in (step(["gelu"], ["gelu"]), step()):
        (effect,) = compare_recompute([actions], BASELINE, compiled)
        assert effect.unasked == () and effect.missing == ()


def test_communication_is_compared_by_its_mark():
    asked = {"select_comm_recompute": select(r"mlp\.matmul")}
    assert compare(step(recompute_comm_op=True), **asked).matches_policy
    assert compare(step(), **asked).comm_missing == ("mlp Matmul",)
    assert compare(step(recompute_comm_op=True)).comm_unasked == ("mlp Matmul",)


def test_an_operator_that_lost_its_mark_and_runs_again_is_not_missing():
    """As `split` of latent attention, which has no scope; without the second run it is missing."""
    effect = compare(step(("matmul",), MLP), layer_recompute=ALL_LAYERS)
    assert effect.missing == () and effect.matches_policy
    assert compare(step(("matmul",), ("matmul",)), layer_recompute=ALL_LAYERS).missing == ("mlp Gelu",)


def test_a_reshape_with_the_mark_of_the_one_before_it_was_asked_for():
    """Of wq.reshape and attention.reshape in a row the compiler leaves one, in the cell of the second."""
    tree = layer("""
        attention
          wq
            reshape*
          reshape*
    """)
    policy = Policy(True, select_comm_recompute=select(r"attention\.wq\.reshape"))
    asked, nothing = (resolve_layer(which, 0, tree) for which in (policy, Policy(True)))
    product = node("wq", "MatMul", "x", cell_path="attention.wq")
    merged = graph([product, node("q", "Reshape", "wq", cell_path="attention", recompute_comm_op=True)])
    plain = graph([product, node("q", "Reshape", "wq", cell_path="attention")])
    assert compare_recompute([asked], plain, merged)[0].comm_unasked == ()
    assert compare_recompute([nothing], plain, merged)[0].comm_unasked == ("attention Reshape",)


def test_a_layer_is_held_against_the_one_that_is_like_it():
    """Layer 1 is like layer 0 of the network without recompute, which keeps 2 KiB and runs gelu again by itself."""
    one = step(MLP, MLP, saved="")
    second = replace(
        one, forward=tuple(replace(node, layer_index=1) for node in one.forward),
        backward=tuple(replace(node, layer_index=1) for node in one.backward),
    )  # fmt: skip
    actions = resolve_layer(Policy(is_swap_enabled=True, select_recompute=select(r"mlp\.matmul")), 1, TREE)
    (effect,) = compare_recompute([actions], step(["gelu"], ["gelu"]), second, {1: 0})
    assert (effect.kept_before_bytes, effect.kept_bytes, effect.unasked) == (2 * KIB, 0, ())


def test_what_the_compiler_adds_to_a_cell_that_was_asked_for_was_asked_for():
    """A read of a weight, which the tree does not have."""
    copy = node("w_again", "Load", "w", is_duplicate=True)
    compiled = step(MLP, MLP, saved="")
    compiled = replace(compiled, backward=(copy, *compiled.backward))
    effect = compare(compiled, select_recompute=select("mlp"))
    assert effect.matches_policy and effect.operators == ("mlp Load", "mlp Matmul", "mlp Gelu")
    assert compare(compiled, select_recompute=select("norm")).unasked == ("mlp Load", "mlp Matmul", "mlp Gelu")


def test_a_view_may_be_in_every_cell_around_it_and_around_what_it_shows():
    gelu = node("gelu", "Gelu", "x", cell_path="mlp")
    view = node("view", "Reshape", "gelu", cell_path="attention.core")
    of_input = node("of_input", "Reshape", "x", cell_path="norm")
    found = graph([gelu, view, of_input])
    assert possible_operator_keys(found, gelu) == {("mlp", "Gelu")}
    assert possible_operator_keys(found, of_input) == {("norm", "Reshape")}
    assert possible_operator_keys(found, view) == {
        (cell, "Reshape") for cell in ("", "attention", "attention.core", "mlp")
    }
