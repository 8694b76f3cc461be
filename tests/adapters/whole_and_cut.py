"""A model compiled whole, and as the few layers that stand for all: each layer, and the simulated step, as JSON.

python -m tests.adapters.whole_and_cut CONFIG NUM_LAYERS
"""

import json
import sys
from collections import Counter

from mindswap.adapters.graph.mindformers import capture, capture_step
from mindswap.adapters.quiet import quiet
from mindswap.config.source import load_document
from mindswap.config.step_settings import read_step_settings
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.storage import classify_saved
from mindswap.policy.model import Layers, OpRecompute, OpSwap, Policy
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.device_file import load_device
from mindswap.simulator.step_model import StepModel

PLAIN = Policy(is_swap_enabled=True)


def main(config: str, num_layers: int) -> None:
    """Print both, whole first."""
    with quiet():
        every_layer = tuple(range(num_layers))
        found = capture(config, PLAIN, LayerSample(every_layer, every_layer), with_all_tags=True)
        whole = CapturedStep(found.sample, found.layers, found.graph, found.collectives, found.notes, has_all_tags=True)
        cut = capture_step(config, num_layers)
    print(json.dumps([describe(config, step, num_layers) for step in (whole, cut)]))


def describe(config: str, step: CapturedStep, num_layers: int) -> dict:
    """Operators and saved bytes of every layer of the model, and its step under three policies."""
    swap = Policy(True, op_swap=(OpSwap("self_attention", Layers((1, 3)), 10), OpSwap("mlp", Layers((3,)), 5)))
    again = Policy(True, select_recompute=(OpRecompute("mlp", Layers((0, 2, 3))),))
    model = StepModel(step, CostTable(load_device("atlas_800t_a2", {})), read_step_settings(load_document(config)))
    runs = [model.simulate(policy) for policy in (PLAIN, swap, again)]
    saved = classify_saved(step.graph)
    return {
        "num_compiled": len(step.sample.indices),
        "operators": [
            [sorted(Counter(n.op for n in nodes if n.layer_index == at).items()) for at in step.sample.layer_map]
            for nodes in (step.graph.forward, step.graph.backward)
        ],
        "saved": [
            sum(each.kept_bytes for each in saved if each.storage.layer_index == at) for at in step.sample.layer_map
        ],
        "steps": [(run.step_time_ns, run.peak_bytes) for run in runs],
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
