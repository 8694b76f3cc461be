"""Compare steps that are worked out with steps that are compiled; prints JSON. One family of models to a process.

python -m tests.adapters.rewrites CONFIG FAMILY: for each policy what is kept, copied and run again
python -m tests.adapters.rewrites CONFIG FAMILY assemble: besides, a model put together from a sample, and whole
"""

import json
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

from mindswap.adapters.quiet import quiet
from mindswap.config.source import load_document
from mindswap.config.step_settings import read_step_settings
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.layer_paths import assign_layer_indices
from mindswap.graph.ops import is_kernel
from mindswap.graph.passes.fusion import merge_equal
from mindswap.graph.passes.swap_recompute import rewrite_graph, settings_of_policy
from mindswap.graph.storage import classify_saved
from mindswap.policy.resolve import resolve_layer
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.device_file import load_device
from mindswap.simulator.engine import run_program
from mindswap.simulator.memory import peak_memory
from mindswap.simulator.program import MemoryKind
from mindswap.simulator.program_builder import build_program
from mindswap.simulator.step_model import StepModel
from tests.adapters import rewrite_policies
from tests.simulator.builders import cut_blocks


def main():
    config, family, *more = sys.argv[1:]
    config = str(Path(config).resolve())  # quiet() changes the working directory
    with quiet():
        plain = capture_whole(config)
        results = compare_rewrites(config, plain, family)
        if more:
            results["assembled"] = compare_assembled(config, plain, family)
    json.dump(results, sys.stdout)


@cache
def compiled_under(config, policy, sample):
    from mindswap.adapters.graph.mindformers import capture

    return assign_layer_indices(capture(config, policy, sample).graph)


def compare_rewrites(config, plain, family):
    names, graph = plain.names(), assign_layer_indices(plain.graph)
    results = {}
    for name, policy in rewrite_policies.policies(family).items():
        actions = [resolve_layer(policy, index, tree) for index, tree in enumerate(plain.trees)]
        settings = settings_of_policy(graph, names, actions)
        predicted = rewrite_graph(merge_equal(graph, settings.of), settings)
        compiled = compiled_under(config, policy, plain.sample)
        results[name] = {"compiled": describe(compiled), "predicted": describe(predicted)}
    return results


def capture_whole(config):
    """A step of which every layer is compiled."""
    from mindswap.adapters.graph.build import build_network
    from mindswap.adapters.graph.mindformers import capture
    from mindswap.adapters.graph.mindspore import find_layers
    from mindswap.policy.model import Policy

    plain = Policy(True)
    every_layer = tuple(range(len(find_layers(build_network(config, plain)[0]))))
    whole = capture(config, plain, LayerSample(every_layer, every_layer), with_all_tags=True)
    return CapturedStep(whole.sample, whole.layers, whole.graph, has_all_tags=True)


def describe(graph):
    """Bytes of each layer, and kernels that backward runs again, as things that JSON can write.

    Without what all layers share: it is made outside of them. The cell of a kernel is not compared, because the
    compiler drops the scopes of some, and the mark of a copy from some.
    """
    kept, copied = Counter(), Counter()
    for entry in classify_saved(graph):
        if entry.storage.layer_index is not None:
            kept[entry.storage.layer_index] += entry.kept_bytes
            copied[entry.storage.layer_index] += entry.copied_bytes
    again = Counter(
        f"{node.layer_index} {node.op}"
        for node in graph.backward
        if is_again(node) and is_kernel(node.op) and node.layer_index is not None
    )
    one_way = Counter(f"{copy.layer_index} {copy.size_bytes}" for copy in graph.index.one_way_copies)
    return {"kept": +kept, "copied": +copied, "again": again, "one way": one_way}


def is_again(node):
    return node.is_duplicate or (node.is_recomputed and "Gradients/" not in node.scope)


def compare_assembled(config, whole, family):
    from mindswap.adapters.graph.mindformers import capture_step

    document = load_document(config)
    settings = replace(read_step_settings(document), num_micro_batches=1)
    # Bytes as the compiler has them, without the rounding of the pool.
    costs = CostTable(replace(load_device(), pool_alignment_bytes=1))
    assembled = StepModel(capture_step(config, whole.num_layers), costs, settings)
    complete = StepModel(whole, costs, settings)
    results = {"compiled layers": len(assembled.captured.sample.indices)}
    for name, policy in rewrite_policies.assembled(family).items():
        blocks = cut_blocks(compiled_under(config, policy, whole.sample), costs.operator_ns, whole.names())
        true = build_program([blocks.prologue, *blocks.layers, blocks.epilogue], assembled.transfers)
        results[name] = {
            "assembled": total(assembled.program(policy)),
            "complete": total(complete.program(policy)),
            "compiled": total(true),
        }
    return results


def total(program):
    timeline = run_program(program)
    is_kept = program.intervals.kind == MemoryKind.KEPT
    return {
        "operators": len(program.ops),
        "durations": int(program.ops.duration_ns.sum()),
        "kept": int(program.intervals.size_bytes[is_kept].sum()),
        "copied": int(program.copies.size_bytes.sum()),
        "step": timeline.step_time_ns,
        "peak": int(peak_memory(timeline)[0]),
    }


if __name__ == "__main__":
    main()
