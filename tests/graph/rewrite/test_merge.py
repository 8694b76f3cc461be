"""Equal operators of a tagged step become one, as the compiler makes them without tags."""

from mindswap.graph.rewrite.fusion import merge_equal
from mindswap.graph.storage import classify_saved
from tests.graph.builders import KIB, graph, node

# wq and wk each cast x; the casts differ in nothing but their tag. Backward of each product reads its own cast.
STEP = graph(
    [
        node("x", "Add", "a b"),
        node("cast_q", "Cast", "x", paths=("wq.cast",)),
        node("cast_k", "Cast", "x", paths=("wk.cast",)),
        node("q", "MatMul", "cast_q wq", paths=("wq.matmul",)),
        node("k", "MatMul", "cast_k wk", paths=("wk.matmul",)),
    ],
    [node("q_grad", "MatMul", "cast_q_b"), node("k_grad", "MatMul", "cast_k_b")],
    saved="cast_q cast_k",
)


def names(step):
    return [n.name for n in step.forward]


def test_equal_operators_are_merged_forward_and_backward():
    merged = merge_equal(STEP)
    assert names(merged) == ["x", "cast_q", "q", "k"]
    assert [n.inputs for n in merged.forward[2:]] == [("cast_q", "wq"), ("cast_q", "wk")]
    assert [n.inputs for n in merged.backward] == [("cast_q_b",), ("cast_q_b",)]
    assert [(s.forward_name, s.backward_name) for s in merged.saved] == [("cast_q", "cast_q_b")]
    assert sum(entry.kept_bytes for entry in classify_saved(merged)) == KIB


def test_what_is_left_has_the_paths_of_all():
    assert merge_equal(STEP).forward_nodes["cast_q"].paths == ("wq.cast", "wk.cast")


def test_unequal_settings_keep_them_apart():
    merged = merge_equal(STEP, lambda n: n.name == "cast_k")
    assert names(merged) == names(STEP)
    assert sum(entry.kept_bytes for entry in classify_saved(merged)) == 2 * KIB


def test_merging_goes_on_behind_what_was_merged():
    forward = [
        *STEP.forward[:3],
        node("q", "Mul", "cast_q", paths=("q.mul",)),
        node("k", "Mul", "cast_k", paths=("k.mul",)),
    ]
    assert names(merge_equal(graph(forward, []))) == ["x", "cast_q", "q"]


def test_what_is_not_equal_stays():
    forward = [
        node("other_layer", "Cast", "x", layer=1, paths=("wq.cast",)),
        node("one", "Cast", "x", paths=("wq.cast",)),
        node("untagged", "Cast", "x"),  # the compiler has looked at it already
        node("other_type", "Cast", "x", size_bytes=2 * KIB, paths=("wk.cast",)),
        node("other_attribute", "Cast", "x", paths=("wk.cast",), in_strategy="((1,),)"),
        node("drop", "DropoutExt", "x", paths=("d.dropout",)),
        node("drop_again", "DropoutExt", "x", paths=("e.dropout",)),
    ]
    assert names(merge_equal(graph(forward, []))) == [n.name for n in forward]


def test_nothing_to_merge_gives_the_same_graph():
    step = graph([node("x", "Add", "a b", paths=("add",))], [])
    assert merge_equal(step) is step
