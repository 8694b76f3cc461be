"""Simulations of compiled steps are what they were (`tests.recorded_steps`): stages, layers, waits and terms."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from mindswap.config.pipeline_layout import Pipeline
from mindswap.config.step_settings import StepSettings
from mindswap.config.weight_sharding import WeightSharding
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.device_file import load_device
from mindswap.simulator.layer_swap_2x import LayerSwapModel2x
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.summary import find_causes, measure_layers, measure_stages
from tests.recorded_steps import NAMES, captured, recorded

PLAIN = StepSettings(
    batch_size=1, seq_length=4096, num_micro_batches=1, data_parallel=1, model_parallel=2, context_parallel=1,
    pipeline=Pipeline(1), optimizer="AdamW", sharding=WeightSharding(), is_accumulator_sharded=False,
    is_state_offloaded=False, compute_dtype="bfloat16", is_fused=False,
)  # fmt: skip
CUT = replace(PLAIN, data_parallel=4, sharding=WeightSharding(4, 0), is_clipping=True, is_decaying=True)
SETTINGS = {
    "plain": PLAIN,
    "fused": replace(PLAIN, is_fused=True, is_clipping=True),
    "cut": CUT,
    "cut, released": replace(CUT, sharding=WeightSharding(4, 0, is_released=True), is_state_offloaded=True),
    "cut, 3 micro-batches": replace(CUT, num_micro_batches=3, is_accumulating=True, is_accumulator_sharded=True),
    "2 stages": replace(CUT, pipeline=Pipeline(2), num_micro_batches=4, is_accumulating=True, shares_casts=True),
    "2 stages of 2 chunks": replace(
        PLAIN, pipeline=Pipeline(2, num_chunks=2), num_micro_batches=4, is_accumulating=True, data_parallel=2
    ),
}
SOME = r".*\.(matmul|cast|reshape|mul|softmax|add)"
POLICIES = {
    "keep": Policy(True),
    "swap": Policy(True, op_swap=(OpSwap(SOME, Layers((0, 2)), 5), OpSwap(".*add", ALL_LAYERS, 2))),
    "again": Policy(True, select_recompute=(OpRecompute(r".*(mul|silu|cast)", Layers((0, 1, 3))),)),
    "both": Policy(True, op_swap=(OpSwap(SOME, Layers((1,)), 9),), layer_recompute=Layers((2,))),
    "whole": Policy(True, layer_recompute=ALL_LAYERS),
}


def figures(model: StepModel, policy: Policy) -> dict[str, object]:
    step = model.simulate(policy)
    stages = measure_stages(step.timeline, step.static)
    return {
        "step": step.step_time_ns,
        "terms": [f"{term.name} {term.duration_ns}" for term in step.terms],
        "stages": [
            [
                s.peak_bytes,
                s.compute_ns,
                s.recompute_ns,
                s.bubble_ns,
                s.copy_out_ns,
                s.copy_in_ns,
                s.communication_ns,
                s.swapped_bytes,
                s.offload_busy_ns,
                s.prefetch_busy_ns,
                s.host_bytes,
                len(s.holders),
            ]
            for s in stages
        ],
        "at the peak": [f"{one.label} {one.kind.name} {one.size_bytes}" for s in stages for one in s.holders[:4]],
        "layers": [" ".join(map(str, vars(row).values())) for row in measure_layers(step.timeline)],
        "causes": [f"{one.label} {one.cause.name} {one.exposed_ns}" for one in find_causes(step.timeline)[:4]],
    }


def simulations(settings: StepSettings) -> Callable[[CapturedStep], object]:
    def simulate(step: CapturedStep) -> object:
        model = StepModel(step, CostTable(load_device("atlas_800t_a2")), settings)
        found = {name: figures(model, policy) for name, policy in POLICIES.items()}
        static = [list(vars(one).values()) for one in model.static]
        return found | {"static": static, "notes": list(model.captured.notes)}

    return simulate


def layer_swaps(step: CapturedStep) -> object:
    """Whole layers as MindFormers 2.x swaps them."""
    model = LayerSwapModel2x.of(StepModel(step, CostTable(load_device("atlas_800t_a2")), PLAIN))
    return figures(model, Policy(True, layer_swap=(LayerSwap(Layers((0, 1)), 1),), layer_recompute=Layers((3,))))


FACTS = {name: simulations(settings) for name, settings in SETTINGS.items()} | {"layer swaps": layer_swaps}


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fact", FACTS)
def test_a_simulation_is_what_it_was(fact, name):
    found = json.loads(json.dumps(FACTS[fact](captured(name))))
    assert found == recorded()[__name__][fact][name]
