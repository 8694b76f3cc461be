"""Casts of weights that micro-batches share: graphs by hand."""

from dataclasses import replace

from mindswap.graph.sharding.gather import GatheredStep, is_gathering
from mindswap.graph.sharding.stage import share_casts
from tests.graph.builders import graph, node


def typed(made, dtype):
    return replace(made, outputs=tuple(replace(known, dtype=dtype) for known in made.outputs))


def step(reader: str = "Cast", dtype: str = "float32") -> GatheredStep:
    """`w -> Load -> TensorMove -> Cast -> MatMul`, and a cast of an activation."""
    forward = [
        node("x", "Gelu", "input"),
        typed(node("x_cast", "Cast", "x"), "float16"),
        typed(node("load", "Load", "f:▸CR_w u"), dtype),
        typed(node("move", "TensorMove", "load"), dtype),
        typed(node("cast", "Cast", "move"), "float16"),
        node("y", "MatMul", "x_cast cast"),
        node("z", reader, "move"),
        node("state", "UpdateState", "u load", 0),
    ]
    forward[-2] = typed(forward[-2], "float16")
    return GatheredStep(graph(forward))


def test_a_cast_of_a_weight_is_made_once_and_out_of_reach():
    shared = share_casts(step())
    assert shared.once == {"cast", "z"}
    assert {made.name for made in shared.graph.forward if is_gathering(made)} == {"cast", "z"}


def test_a_weight_that_something_else_reads_is_cast_by_each_micro_batch():
    assert not share_casts(step("Mul")).once


def test_a_weight_of_half_precision_needs_none():
    assert not share_casts(step(dtype="bfloat16")).once


def test_gathered_weights_keep_their_casts():
    known = share_casts(step())
    assert share_casts(replace(known, once=frozenset({"gather"}))).once == {"gather"}


def test_without_lazy_inline_equal_casts_are_one_whatever_their_types():
    assert share_casts(step(dtype="float16"), is_inlined=True).once == {"cast", "z"}
    assert share_casts(step("Mul"), is_inlined=True).once == {"cast"}
