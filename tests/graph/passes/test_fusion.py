"""Bytes that element-wise operators do not move when they are fused; every tensor has 1 KiB."""

from dataclasses import replace

import pytest

from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import TensorType
from mindswap.graph.passes.fusion import (
    find_unwritten,
    fuse_forward,
    fuse_work,
    merge_equal,
    merge_gathers,
    min_recompute_work,
    readers_of_saved,
)
from mindswap.graph.storage import classify_saved
from tests.graph.builders import KIB, graph, node


def moved(forward, saved=""):
    """(read, written, is fused into the one before it) of each operator of forward, in KiB."""
    step = graph(forward, saved=saved)
    return [
        (work.read_bytes // KIB, work.written_bytes // KIB, work.is_fused)
        for work in fuse_work(step, measure_work(step))[0]
    ]


START = node("start", "MatMul", "x w")


def test_a_value_that_only_the_next_one_reads_is_neither_written_nor_read():
    assert moved([START, node("cast", "Cast", "start"), node("mul", "Mul", "cast start")]) == [
        (0, 1, False),
        (1, 0, False),
        (1, 1, True),
    ]


def test_a_value_that_backward_needs_is_written():
    assert moved([START, node("cast", "Cast", "start"), node("mul", "Mul", "cast")], saved="cast")[1:] == [
        (1, 1, False),
        (0, 1, True),
    ]


def test_the_same_behind_a_view():
    steps = [START, node("cast", "Cast", "start"), node("view", "Reshape", "cast"), node("mul", "Mul", "view")]
    assert moved(steps) == [(0, 1, False), (1, 0, False), (0, 0, False), (0, 1, True)]
    assert moved(steps, saved="view")[1] == (1, 1, False)


def test_a_value_that_two_read_is_not_fused():
    steps = [START, node("cast", "Cast", "start"), node("mul", "Mul", "cast"), node("add", "Add", "cast")]
    assert moved(steps) == [(0, 1, False), (1, 1, False), (1, 1, False), (1, 1, False)]


def test_matrix_products_end_a_cluster():
    assert moved([START, node("cast", "Cast", "start"), node("end", "MatMul", "cast w")])[1:] == [
        (1, 1, False),
        (1, 1, False),
    ]


def again(forward, backward, saved, has_second_reader=False):
    """(read, written, is fused) of each operator of forward if it runs again, in KiB."""
    step = graph(forward, backward, saved)
    return [
        (work.read_bytes // KIB, work.written_bytes // KIB, work.is_fused)
        for work in min_recompute_work(step, measure_work(step)[0], readers_of_saved(step), has_second_reader)
    ]


@pytest.mark.parametrize(
    ("before", "after", "is_fused"),
    [
        ((8, 16), (8, 16), True),
        ((1, 16), (8, 16), True),  # broadcast
        ((16,), (8, 16), True),
        ((8, 16), (8, 4), False),  # a slice: the loss has parts of the vocabulary, the head all of it
        ((4, 16), (8, 16), False),  # an AllGather
    ],
)
def test_operators_that_are_split_unlike_are_not_fused(before, after, is_fused):
    cast, add = node("cast", "Cast", "start"), node("add", "Add", "cast")
    cast = replace(cast, outputs=(TensorType(before, "float32", KIB),))
    add = replace(add, outputs=(TensorType(after, "float32", KIB),))
    assert find_unwritten(graph([START, cast, add])) == ({"cast": "add"} if is_fused else {})


def test_a_copy_that_is_fused_with_its_only_reader_is_not_written():
    silu = node("silu", "SiLU", "start")
    step = graph([START, silu], [node("g", "SiLUGrad", "silu_b")], "silu")
    assert again([START, silu], [node("g", "SiLUGrad", "silu_b")], "silu")[1] == (1, 0, False)
    assert [user.name for user in readers_of_saved(step)["silu"]] == ["g"]


def test_what_backward_does_not_hold_is_not_written():
    """The activation is fused with the product behind it: written for backward alone."""
    steps = [START, node("silu", "SiLU", "start"), node("mul", "Mul", "silu start")]
    step = graph(steps, [node("g", "SiLUGrad", "silu_b")], "silu")
    works = measure_work(step)
    held, unsaved = (fuse_forward(step, works[0], is_saved) for is_saved in (True, False))
    assert [(work.written_bytes // KIB) for work in held] == [1, 1, 1]
    assert [(work.read_bytes // KIB) for work in held] == [0, 1, 1]  # the product reads `start`
    assert [(work.written_bytes // KIB) for work in unsaved] == [1, 0, 1]


def test_a_copy_that_another_copy_reads_too_is_written():
    silu = node("silu", "SiLU", "start")
    steps = [START, silu], [node("g", "SiLUGrad", "silu_b")], "silu"
    assert again(*steps)[1] == (1, 0, False)
    assert again(*steps, has_second_reader=True)[1] == (1, 1, False)


def test_a_copy_for_a_matrix_product_or_for_two_readers_is_written():
    cast = node("cast", "Cast", "start")
    assert again([START, cast], [node("g", "MatMul", "cast_b")], "cast")[1] == (1, 1, False)
    two = [node("g", "Mul", "cast_b"), node("h", "Mul", "cast_b")]
    assert again([START, cast], two, "cast")[1] == (1, 1, False)


def test_a_copy_may_get_what_it_reads_from_another_copy():
    steps = [START, node("cast", "Cast", "start"), node("mul", "Mul", "cast start")]
    # The cast is read by nobody in backward: its copy writes nothing. The product reads only `start`.
    assert again(steps, [node("g", "MatMul", "mul_b")], "mul")[1:] == [(1, 0, False), (1, 1, True)]


def test_a_copy_that_reads_the_same_copy_twice_reads_nothing():
    steps = [START, node("cast", "Cast", "start"), node("mul", "Mul", "cast cast")]
    step = graph(steps, [node("g", "MatMul", "mul_b")], "mul")
    works = [replace(work, read_bytes=min(work.read_bytes, KIB)) for work in measure_work(step)[0]]
    assert min_recompute_work(step, works, readers_of_saved(step))[2].read_bytes == 0


def test_what_is_not_element_wise_takes_what_it_takes():
    assert again([START], [node("g", "Mul", "start_b")], "start") == [(0, 1, False)]  # its inputs have no types here


def test_a_sum_ends_a_kernel_and_what_it_sums_up_is_not_in_memory():
    steps = [
        START,
        node("exp", "Exp", "start"),
        node("sum", "ReduceSum", "exp"),
        node("log", "Log", "sum"),
        node("mul", "Mul", "log"),
        node("view", "Reshape", "mul"),
        node("end", "Mul", "view"),
    ]
    step = graph(steps, saved="end")
    # `sum` is written, and `mul`, which another kernel reads behind the Reshape.
    assert find_unwritten(step) == {"exp": "sum", "log": "mul"}
    assert find_unwritten(graph(steps, saved="exp end")) == {"log": "mul"}


# Equal operators of a tagged step become one, as the compiler makes them without tags.


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
    assert merge_equal(STEP).index.forward_nodes["cast_q"].paths == ("wq.cast", "wk.cast")


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


# AllGathers of one tensor.


def gather(name, path, shape):
    made = node(name, "AllGather", "x", 2 * KIB, paths=(path,))
    return replace(made, outputs=(replace(made.outputs[0], shape=shape),))


def gathered(part, whole):
    """`q`, `k` and `v` each gather what is cut; each is read by a product, and `q` and `v` by backward."""
    cut = node("x", "Cast", "y")
    cut = replace(cut, outputs=(replace(cut.outputs[0], shape=part),))
    gathers = [gather(name, f"attention.w{name}.reshape", whole) for name in "qkv"]
    products = [node(f"product_{name}", "MatMul", f"{name} w{name}") for name in "qkv"]
    return graph([cut, *gathers, *products], saved="q v")


def test_of_gathers_of_one_tensor_one_is_left_where_the_first_is_with_the_settings_of_the_last():
    merged = merge_gathers(gathered((1, 4, 64), (8, 64)))
    assert names(merged) == ["x", "q", "product_q", "product_k", "product_v"]
    assert merged.index.forward_nodes["q"].paths == ("attention.wv.reshape",)
    assert [n.inputs[0] for n in merged.forward[2:]] == ["q"] * 3
    assert [n.inputs for n in merged.backward] == [("q_b", "q_b")]
    assert [(s.forward_name, s.backward_name) for s in merged.saved] == [("q", "q_b")]


def test_gathers_along_another_dimension_stay():
    step = gathered((4, 16, 16), (128, 16))
    assert merge_gathers(step) is step


@pytest.mark.parametrize(("is_marked", "unwritten"), [(True, {}), (False, {"logits": "zeroed"})])
def test_logits_are_written_for_both_readers_of_a_removed_addition_of_zero(is_marked, unwritten):
    """The cast of logits is a kernel of its own in dry runs of `llama tp2 sp ops_10`, read by ReduceMax and by Sub."""
    logits, zeroed = node("logits", "Cast", "h"), node("zeroed", "Add", "logits zero")
    zeroed = replace(zeroed, attributes={"keep_alive": True} if is_marked else {})
    readers = [node("max", "ReduceMax", "zeroed"), node("shifted", "Sub", "zeroed max")]
    assert find_unwritten(graph([logits, zeroed, *readers])) == unwritten
