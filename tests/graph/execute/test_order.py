from mindswap.graph.execute.order import follow
from tests.graph.builders import node


def names(nodes):
    return [entry.name for entry in nodes]


NODES = [node("a", "MatMul"), node("b", "Mul"), node("c", "MatMul", "b", is_duplicate=True), node("d", "Add", "a c")]


def test_operators_go_where_the_other_order_has_them():
    # b and c come before a in the other order: c stands two places further on, b one.
    order, num_moved = follow(NODES, [("Mul", False), ("MatMul", True), ("MatMul", False), ("Add", False)])
    assert names(order) == ["b", "c", "a", "d"]
    assert num_moved == 2


def test_nothing_moves_where_the_operators_are_others():
    order, num_moved = follow(NODES, [("Mul", False), ("MatMul", False), ("Add", False)])
    assert (names(order), num_moved) == (["a", "b", "c", "d"], 0)


def test_nothing_moves_before_what_it_reads():
    order, num_moved = follow(NODES, [("Add", False), ("Mul", False), ("MatMul", True), ("MatMul", False)])
    assert (names(order), num_moved) == (["a", "b", "c", "d"], 0)
