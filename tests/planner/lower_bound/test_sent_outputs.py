"""Bounds of pipelines whose layers hold their inputs: a stage does not hold the output that it sends."""

import random

import pytest

from mindswap.config.pipeline_layout import Pipeline
from mindswap.planner.evaluate import evaluate
from mindswap.planner.lower_bound import collect_bound_inputs, least_budget_bytes, min_step_ns
from mindswap.planner.problem import Allow
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy
from tests.planner.lower_bound.builders import PLENTY, problem
from tests.simulator.steps import model
from tests.strength import examples

RECOMPUTE = Allow(swap=False)
NAMES = ("mlp.matmul", "mlp.gelu", "mul")


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "num_micro_batches", "num_chunks"),
    [(4, 1, 4, 1), (4, 2, 2, 1), (16, 2, 4, 1), (6, 3, 6, 1), (8, 2, 4, 2)],
)
def test_no_policy_beats_the_bound_where_layers_hold_their_inputs(
    num_layers, num_stages, num_micro_batches, num_chunks
):
    """Random policies at the budget of their own peak; full recompute needs no more than the least."""
    pipeline = Pipeline(num_stages=num_stages, num_chunks=num_chunks)
    step_model = model(num_layers, pipeline=pipeline, num_micro_batches=num_micro_batches)
    bound_inputs = collect_bound_inputs(step_model, step_model.simulate(Policy()))
    full = step_model.simulate(Policy(True, layer_recompute=ALL_LAYERS))
    least_bytes = least_budget_bytes(bound_inputs, PLENTY, RECOMPUTE)
    assert 0.8 * full.peak_bytes < least_bytes <= full.peak_bytes
    chance, num_binding = random.Random(0), 0
    for _ in range(examples(30, 300)):
        where = [Layers(tuple(i for i in range(num_layers) if chance.random() < 0.5)) for _ in (*NAMES, "")]
        recomputes = tuple(OpRecompute(name, layers) for name, layers in zip(NAMES, where, strict=False))
        swaps = tuple(OpSwap(name, where[0], 1) for name in ("mlp.gelu", "add") if chance.random() < 0.2)
        full_layers = where[-1] if chance.random() < 0.5 else None
        policy = Policy(True, layer_recompute=full_layers or Layers(()), select_recompute=recomputes, op_swap=swaps)
        evaluation = evaluate(problem(step_model, PLENTY), policy)
        allow = Allow() if swaps else RECOMPUTE
        bound_ns = min_step_ns(bound_inputs, evaluation.peak_bytes, PLENTY, allow)
        assert bound_ns is not None and bound_ns <= evaluation.step_time_ns, policy
        num_binding += bound_ns > step_model.simulate(Policy()).step_time_ns
    assert num_binding
