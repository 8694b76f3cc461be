"""A block says the same in its tensors and in its arrays, also with swaps that are added to it."""

from dataclasses import fields, replace

import numpy as np

from mindswap.graph.memory import Names
from mindswap.policy.model import Policy
from mindswap.simulator.block import make_arrays
from mindswap.simulator.program import ONE_WAY
from tests.simulator.steps import model


def same_as_its_parts(block) -> bool:
    made = make_arrays(block.forward, block.backward, block.once, block.tensors)
    parts = ("forward", "backward", "once", "own", "shared")
    return (made.handed, made.labels) == (block.arrays.handed, block.arrays.labels) and all(
        np.array_equal(getattr(getattr(made, part), column.name), getattr(getattr(block.arrays, part), column.name))
        for part in parts
        for column in fields(getattr(made, part))
    )


def test_copies_are_in_tensors_and_arrays():
    plain = model().layer_block(Policy(), 1)
    # `mlp.gelu` is the block's own; `add` is what it hands to the layer behind it.
    block = plain.with_copies({Names.of("mlp.gelu"): (3, 1, False), Names.of("add"): (5, 2, True)})
    copied = {str(t.label): (t.prefetch, t.num_copies, t.is_held) for t in block.tensors if t.num_copies}
    assert copied == {"mlp.gelu": (3, 1, False), "add": (5, 2, True)}
    assert same_as_its_parts(block)
    assert not any(tensor.num_copies for tensor in plain.tensors)
    assert not plain.arrays.own.num_copies.any()


def test_other_distances_for_the_copies_that_a_block_has():
    copies = {Names.of("mlp.gelu"): (1, 1, False), Names.of("add"): (1, ONE_WAY, False)}
    plain = model().layer_block(Policy(), 1).with_copies(copies)
    block = plain.with_distances({Names.of("add"): 7, Names.of("mlp.matmul"): 9})
    copied = {str(t.label): (t.prefetch, t.num_copies) for t in block.tensors if t.num_copies}
    assert copied == {"mlp.gelu": (1, 1), "add": (7, ONE_WAY)}
    assert same_as_its_parts(block)


def test_a_block_made_from_another_has_arrays_of_its_own():
    block = model().layer_block(Policy(), 1)
    longer = replace(block, backward=(replace(block.backward[0], duration_ns=7), *block.backward[1:]))
    assert longer.arrays.backward.duration_ns[0] == 7
    assert same_as_its_parts(longer)
