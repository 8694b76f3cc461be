"""Constants of a step: stand-ins, and what they take. Counted by hand."""

from dataclasses import replace

from mindswap.graph.constants import constant_bytes, constant_operator_bytes, constant_operators, restore_constants
from mindswap.graph.model import TensorType
from tests.graph.builders import KIB, graph, node


def masked():
    return graph(
        [
            node("load", "Load", "▸CR_model.casual_mask.lower_triangle_mask u", 4 * KIB, layer=None),
            node("mask", "TensorMove", "load", 4 * KIB, layer=None),
            node("weight", "Load", "▸CR_model.w u"),
            node("scores", "Mul", "weight mask table"),
        ]
    )


def test_a_stand_in_is_a_constant_again():
    restored = restore_constants(masked())
    assert [entry.name for entry in restored.forward] == ["weight", "scores"]
    assert restored.types["mask"].size_bytes == 4 * KIB


def test_a_step_without_stand_ins_comes_back():
    plain = graph([node("weight", "Load", "▸CR_model.w u"), node("scores", "Mul", "weight mask")])
    assert restore_constants(plain) is plain


def test_constants_count_once_and_weights_do_not():
    restored = restore_constants(masked())
    table = TensorType((64,), "float32", 256)
    step = replace(restored, types={**restored.types, "table": table, "▸CR_model.w": table, "unread": table})
    # The mask of 4 KiB and the table of 256 bytes, which layer 0 alone reads.
    assert constant_bytes(step) == {0: 4 * KIB + 256}


def test_what_two_layers_read_is_of_neither():
    table = TensorType((64,), "float32", 256)
    nodes = [node("first", "Mul", "x both own"), node("second", "Mul", "first both", layer=1)]
    assert constant_bytes(replace(graph(nodes), types={"both": table, "own": table})) == {None: 256, 0: 256}


# What several micro-batches make once, of constants alone.


def constant_step():
    """A mask that forward reads, tables that backward reads too; what depends on tokens or weights is neither."""
    forward = [
        node("tokens", "StridedSlice", "ids zero", layer=None),
        node("spread", "ExpandDims", "triangle zero", 4 * KIB, layer=None),  # a copy of the constant
        node("row", "Reshape", "spread shape", 4 * KIB, layer=None),  # and a view of it
        node("mask", "Mul", "tokens row", 4 * KIB, layer=None),
        node("outer", "Outer", "positions", 2 * KIB, layer=None),  # read by what is made once only
        node("cos", "Cos", "outer", 2 * KIB, layer=None),
        node("again", "Cos", "positions", 2 * KIB),  # of a layer
        node("weight", "Load", "▸CR_model.w u", layer=None),
        node("scaled", "Mul", "weight positions", layer=None),
        node("scores", "Mul", "mask cos again scaled"),
    ]
    types = {name: TensorType((KIB,), "float32", 4 * KIB) for name in ("ids", "triangle", "positions", "▸CR_model.w")}
    return replace(graph(forward, saved="mask cos"), types=types, inputs=("ids", "▸CR_model.w"))


def test_what_is_made_of_constants_alone():
    owners = {"spread": {"spread"}, "row": {"spread"}, "outer": {"outer"}, "cos": {"cos"}}
    assert constant_operators(constant_step()) == owners


def test_what_forward_reads_and_what_backward_reads_are_apart():
    assert constant_operator_bytes(constant_step()) == (4 * KIB, 2 * KIB)


def test_what_a_step_is_fed_is_no_constant():
    fed = replace(constant_step(), inputs=("ids", "▸CR_model.w", "triangle", "positions"))
    assert constant_operators(fed) == {}
    assert constant_operator_bytes(fed) == (0, 0)


def test_members_of_a_tuple_are_each_there():
    step = constant_step()
    more = [
        node("sin", "Sin", "outer", KIB, layer=None),
        node("both", "MakeTuple", "cos sin positions", layer=None),
        node("part", "TupleGetItem", "both one", layer=None),
        node("reader", "Mul", "mask part"),
    ]
    assert constant_operator_bytes(replace(step, forward=(*step.forward, *more))) == (4 * KIB + KIB, 2 * KIB)


def test_what_is_random_or_sent_is_not_made_once():
    step = constant_step()
    more = [node(op, op, "positions", layer=None) for op in ("DropoutGenMask", "AllGather")]
    assert constant_operators(replace(step, forward=(*step.forward, *more))) == constant_operators(step)
