"""Operators without a strategy that read unsplit tensors, worked out by hand."""

from dataclasses import replace

from mindswap.graph.sharding.rank_sizes import shard_graph
from tests.graph.cut_graphs import graph, op, shapes


def masked_step():
    """A look-up of 16 samples and a mask for each, both without strategies, then a product of 4 data ranks."""
    step = graph(
        op("x", "Gather", "table tokens zero", (16, 8, 2)),
        op("mask", "Less", "ones limit", (16, 8, 8)),
        op("out", "Mul", "x scale", (16, 8, 2), in_strategy=((4, 1, 1), (1,))),
        types={"table": (100, 2), "tokens": (16, 8), "ones": (16, 8, 8), "limit": (8, 8), "scale": (2,)},
        zero=0,
    )
    inside = tuple(replace(node, cell_path="network.model") for node in step.forward)
    return replace(step, forward=inside, inputs=("tokens",))


def test_an_operator_without_a_strategy_splits_its_samples_over_all_ranks():
    sharding = shard_graph(masked_step(), 4)
    assert shapes(sharding) == {"x": (4, 8, 2), "mask": (4, 8, 8), "out": (4, 8, 2)}
    assert (sharding.unresolved, sharding.redistributions) == ((), ())


def test_constants_have_the_size_in_which_they_are_read():
    types = shard_graph(masked_step(), 4).graph.types
    assert [types[name].shape for name in ("ones", "limit", "tokens")] == [(4, 8, 8), (8, 8), (16, 8)]


def test_samples_that_all_ranks_do_not_divide_stay_unsplit():
    assert shapes(shard_graph(masked_step(), 3))["mask"] == (16, 8, 8)


def test_a_cast_has_the_layout_of_its_operand():
    step = graph(op("logits", "Cast", "whole", (16, 8)), types={"whole": (16, 8)})
    inside = tuple(replace(node, cell_path="network.model") for node in step.forward)
    assert shapes(shard_graph(replace(step, forward=inside), 4)) == {"logits": (16, 8)}
