"""Copies of weights that a policy avoids: memory and time of the lower bound."""

import random
from dataclasses import replace

import pytest

from mindswap.graph.model import Node, Saved
from mindswap.planner.evaluate import evaluate
from mindswap.planner.lower_bound import collect_bound_inputs, least_budget_bytes, min_step_ns
from mindswap.planner.problem import DEFAULT_ALLOW, Allow
from mindswap.policy.cell_tree import exact_pattern
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy
from mindswap.simulator.step_model import StepModel
from tests.planner.lower_bound.builders import PLENTY, bound_inputs, problem
from tests.planner.models import TYPE, small_model
from tests.strength import examples

COPY_NS = 2000  # reads and writes 1 MB at 1 TB/s
NAMES = ("attn.exp", "attn.mul", "mlp.relu", "mlp.tanh")


def copying_model(num_layers: int, num_stages: int, num_micro_batches: int) -> StepModel:
    """The small model in which `exp`, whose output backward reads, and `mul`, whose output it does not, read a weight
    of 1 MB each, and `relu` the cast of one; so does backward."""
    model = small_model(num_layers, num_stages, num_micro_batches)
    graph = model.captured.graph
    forward: list[Node] = []
    for node in graph.forward:
        if node.name.startswith(("exp", "mul")):
            load, move = f"load_{node.name}", f"move_{node.name}"
            forward += [
                replace(node, name=load, op="Load", inputs=(f"▸CR_{node.name}",)),
                replace(node, name=move, op="TensorMove", inputs=(load,), scope=""),
            ]
            node = replace(node, inputs=(*node.inputs, move))
        if node.name.startswith("relu"):
            load, cast = f"load_{node.name}", f"move_{node.name}"
            forward += [
                replace(node, name=load, op="Load", inputs=(f"▸CR_{node.name}",)),
                replace(node, name=cast, op="Cast", inputs=(load,), scope=node.scope.replace(node.name, "cast")),
            ]
            node = replace(node, inputs=(*node.inputs, cast))
        forward.append(node)
    backward = [
        replace(node, inputs=(*node.inputs, f"move_{node.name[1:]}_b"))
        if node.name[1:5].startswith(("exp", "mul", "relu"))
        else node
        for node in graph.backward
    ]
    moved = (node.name for node in forward if node.name.startswith("move"))
    saved = (*graph.saved, *(Saved(name, f"{name}_b") for name in moved))
    step = replace(graph, forward=tuple(forward), backward=tuple(backward), saved=saved)
    return StepModel(replace(model.captured, graph=step), model.costs, model.settings)


def recompute(*names: str, layers: Layers = ALL_LAYERS) -> Policy:
    return Policy(True, select_recompute=tuple(OpRecompute(exact_pattern(name), layers) for name in names))


@pytest.mark.parametrize(
    ("policy", "num_copies"),
    [
        (Policy(), 2), (recompute("mlp.relu"), 2), (recompute("attn.exp"), 1), (recompute("attn.mul"), 1),
        (Policy(True, layer_recompute=ALL_LAYERS), 0), (Policy(True, layer_recompute=Layers((1,))), 2),
    ],
)  # fmt: skip
def test_a_copy_is_made_unless_all_its_readers_are_recomputed(policy, num_copies):
    block = copying_model(2, 1, 2).layer_block(policy, 0)
    copies = [tensor for tensor in block.tensors if "TensorMove" in str(tensor.label)]
    assert len(copies) == sum(op.op == "TensorMove" for op in block.forward) == num_copies
    assert all(tensor.size_bytes == TYPE.size_bytes for tensor in copies)


def test_a_single_micro_batch_has_no_copies():
    model = copying_model(2, 1, 1)
    assert not any("TensorMove" in str(tensor.label) for tensor in model.layer_block(Policy(), 0).tensors)
    graphs = collect_bound_inputs(model, model.simulate(Policy())).tensor_graphs
    assert [tensor_graph.weight_copies for tensor_graph in graphs] == [{}, {}]


def test_the_bound_knows_copies_and_which_of_their_readers_backward_certainly_recomputes():
    model = copying_model(2, 1, 2)
    tensor_graph = collect_bound_inputs(model, model.simulate(Policy())).tensor_graphs[0]
    ops = ["move_exp", "exp", "move_mul", "mul", "cast", "relu", "tanh"]
    assert tensor_graph.weight_copies == {0: COPY_NS, 2: COPY_NS}
    assert {tensor_graph.producers[tensor] for tensor in tensor_graph.saved} >= {0, 2}
    # Nothing in backward reads the output of `mul`.
    assert (ops.index("move_exp"), ops.index("exp")) in tensor_graph.implied_recomputes
    assert not any(op == ops.index("move_mul") for op, _ in tensor_graph.implied_recomputes)
    assert tensor_graph.avoided_forward_ns == 2 * COPY_NS
    assert tensor_graph.recompute_ns[0] == tensor_graph.recompute_ns[2] == 0
    assert {0, 2} & {tensor_graph.producers[t] for t in set(range(7)) - tensor_graph.unswappable_tensors} == set()


def test_a_copy_that_is_avoided_takes_no_time():
    """Of 100 bytes that are recomputed in 10 ns, and a copy of 50 bytes with 20 ns that is avoided with them."""
    plain = bound_inputs(num_layers=1)
    tensor_graph = replace(
        plain.tensor_graphs[0], reads=(), recompute_ns=(10, 0), weight_copies={1: 20}, implied_recomputes=((1, 0),),
        unswappable_tensors=frozenset({0, 1}),
    )  # fmt: skip
    known = replace(plain, tensor_graphs=(tensor_graph,), num_micro_batches=3)
    work_ns = 3 * 1000
    assert min_step_ns(known, 150, PLENTY, Allow(swap=True, recompute=False)) == work_ns
    assert min_step_ns(known, 0, PLENTY, DEFAULT_ALLOW) == work_ns - 3 * (20 - 10)
    assert min_step_ns(known, 0, PLENTY, Allow(recompute=False)) is None


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_no_policy_that_avoids_copies_beats_the_bound(num_stages, num_micro_batches):
    """Names swapped and recomputed at random; each policy at the budget of its own peak."""
    model, num_faster = copying_model(4, num_stages, num_micro_batches), 0
    keep = model.simulate(Policy())
    known, chance = collect_bound_inputs(model, keep), random.Random(0)
    least_bytes = least_budget_bytes(known, PLENTY, DEFAULT_ALLOW)
    for _ in range(examples(60, 600)):
        where = {
            name: Layers(tuple(layer for layer in range(4) if chance.random() < 0.7))
            for name in ("attn", "mlp", *NAMES)
        }
        # A recomputed tanh would run for the next layer: nothing simulates that.
        recomputes = tuple(
            OpRecompute(exact_pattern(name), where[name])
            for name in ("attn", "mlp", *NAMES[:3])
            if chance.random() < 0.4
        )
        swaps = tuple(
            OpSwap(exact_pattern(name), where[name], chance.choice((1, 4))) for name in NAMES if chance.random() < 0.2
        )
        full = Layers(tuple(layer for layer in range(4) if chance.random() < 0.2))
        policy = Policy(True, op_swap=swaps, select_recompute=recomputes, layer_recompute=full)
        evaluation = evaluate(problem(model, PLENTY), policy)
        for allow in (DEFAULT_ALLOW, Allow(swap=bool(swaps))):
            least_ns = min_step_ns(known, evaluation.peak_bytes, PLENTY, allow)
            assert least_ns is not None and least_ns <= evaluation.step_time_ns, policy
        assert least_bytes <= evaluation.peak_bytes, policy
        num_faster += evaluation.step_time_ns < keep.step_time_ns
    # Avoided copies may take more time than what is recomputed.
    assert bool(num_faster) == (num_micro_batches > 1)
