"""`graph.gather` against what the frontend of the installed MindSpore makes of the parallel optimizer."""

import json
from pathlib import Path

import pytest

from tests import forked

pytestmark = pytest.mark.mindspore

NUM_RANKS = 2048


@pytest.fixture(scope="module")
def compiled():
    """For each case the functions, each a list of (operator, name, inputs, rows, is recomputed)."""
    script = Path(__file__).with_name("parallel_optimizer_graph.py")
    done = forked.run([str(script)], timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout[done.stdout.index("{") :])


def by_name(function):
    return {name: (op, inputs, rows, again) for op, name, inputs, rows, again in function}


def products(function):
    """For each product that reads a weight, the operators behind the weight: from the product to the parameter."""
    nodes = by_name(function)
    for op, _, inputs, _, _ in function:
        chain, name = [], inputs[1] if op == "MatMul" else ""
        while name in nodes:
            behind, inputs, rows, _ = nodes[name]
            chain.append((behind, rows))
            name = inputs[0]
        if chain and any(behind == "AllGather" for behind, _ in chain):
            yield chain


def test_the_part_is_cast_and_gathered_and_backward_reads_what_was_gathered(compiled):
    (function,) = compiled["flat"]
    # Of 2048 rows a rank has one. Two products of forward, and of backward the gradient of what the second one reads.
    assert list(products(function)) == [[("Load", NUM_RANKS), ("AllGather", NUM_RANKS), ("Cast", 1)]] * 3
    assert sum(op == "AllGather" for op, *_ in function) == 2
    assert not any(again for *_, again in function)


def test_the_whole_gradient_is_cast_and_a_reduce_scatter_takes_it(compiled):
    (function,) = compiled["flat"]
    nodes = by_name(function)
    # Float16 as the product makes it, float32 as the weight is stored: all rows, of which a rank gets one.
    sent = [(nodes[inputs[0]], rows) for op, _, inputs, rows, _ in function if op == "ReduceScatter"]
    assert [(op, whole, rows) for (op, _, whole, _), rows in sent] == [("Cast", NUM_RANKS, 1)] * 2


def test_level3_gathers_again_in_backward(compiled):
    (function,) = compiled["level3"]
    assert sum(op == "AllGather" for op, *_ in function) == 3
    assert {again for op, _, _, _, again in function if op == "AllGather"} == {True}


def test_with_lazy_inline_all_calls_share_an_allgather_outside_the_function(compiled):
    root, forward, backward = compiled["lazy_inline"]
    assert sum(op == "AllGather" for op, *_ in root) == 2
    assert not any(op == "AllGather" for op, *_ in (*forward, *backward))
    # One stage and one micro-batch: the cast stays in the function. `graph.gather` has it before the AllGather, as it
    # is with several micro-batches; what backward holds has the same size.
    casts = [rows for op, _, inputs, rows, _ in forward if op == "Cast" and by_name(forward)[inputs[0]][0] == "Load"]
    assert casts == [NUM_RANKS, NUM_RANKS]


def test_sums_of_gradients_are_cut_with_level2_and_level3(compiled):
    # Of 2048 rows. States are cut in any case. That level3 has `grad_accumulation_shard` off makes no difference.
    rows = [
        {name.partition(".")[0]: rows for name, rows in parameters.items()} for parameters in compiled["parameters"]
    ]
    whole, cut = {"network": 1, "adam_m": 1, "accu_grads": NUM_RANKS}, {"network": 1, "adam_m": 1, "accu_grads": 1}
    # level1, level2, level3, shard, no shard, level2 without shard
    assert rows == [whole, cut, cut, cut, whole, cut]
