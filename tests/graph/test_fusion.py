"""Bytes that element-wise operators do not move when they are fused; every tensor has 1 KiB."""

from mindswap.graph.fusion import fuse_work
from mindswap.graph.work import measure_work
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
