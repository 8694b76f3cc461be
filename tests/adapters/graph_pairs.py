"""Build and compile networks, and print what is set on them and what their graphs move, as JSON.

python graph_pairs.py < JOBS > RESULTS, both a list; each job is {"config": PATH, "how": HOW} with HOW, and
{"compiles": false} where it is enough to see what is set:

- "capture": compile as `mindswap verify` does, every layer;
- "in training": set as the hook in MindFormers does, {"device_target": ...}, then compile;
- "without plugin": compile what MindFormers alone makes of the file;
- "set": set the policy, compile nothing.

MindFormers builds the legacy and the newer models, and mindswap its stand-ins, only in different processes.
"""

import json
import logging
import sys

from mindswap.adapters.quiet import quiet


def main():
    jobs = json.load(sys.stdin)
    with quiet():
        results = [run_job(**job) for job in jobs]
    json.dump(results, sys.stdout)


def run_job(config, how, device_target="Ascend", compiles=True):
    from mindswap.adapters.graph import mindformers as adapter
    from mindswap.adapters.graph.build import build_network
    from mindswap.adapters.graph.mindspore import find_layers, find_lazy_inline_cell, has_lazy_inline
    from mindswap.graph.analysis.liveness import LayerSample
    from mindswap.policy.model import Policy
    from mindswap.rules.checker import load_policy

    if how == "capture":
        only_ours = Policy(is_swap_enabled=True)
        num_layers = len(find_layers(build_network(config, only_ours)[0]))
        every_layer = tuple(range(num_layers))
        return describe(adapter.capture(config, load_policy(config), LayerSample(every_layer, every_layer)).graph)
    policy = load_policy(config) if how != "without plugin" else Policy()
    network, completed = build_network(config, policy)
    lines = Lines()
    if how == "in training":
        set_as_in_training(network, config, policy, device_target, lines.logger)
    elif how == "set":
        adapter.set_policy(network, policy, lines.logger)
    result = {
        "lines": lines.lines,
        "offload": read_offload(network),
        "has_lazy_inline": has_lazy_inline(find_lazy_inline_cell(network)),
        "pipeline_stages": [layer.pipeline_stage for layer in find_layers(network)],
    }
    if how == "set" or not compiles:
        return result
    return {**result, **describe(adapter.compile_network(network, completed))}


def set_as_in_training(network, config, policy, device_target, logger):
    from mindswap.adapters import plugin
    from mindswap.config.source import load_document

    session = plugin.Session(load_document(config))
    session.policy, session.device_target = policy, device_target
    plugin.logger = logger
    session.apply(network)


class Lines(logging.Handler):
    """A logger that keeps its lines."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self.logger = logging.Logger("lines")
        self.logger.addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


def read_offload(network):
    """Name -> prefetch of every primitive that is set to be offloaded."""
    return {
        f"{cell_name}.{name}": primitive.attrs["backward_prefetch"]
        for cell_name, cell in network.cells_and_names()
        for name, primitive in cell._primitives.items()
        if primitive is not None and primitive.attrs.get("offload")
    }


def describe(graph):
    """What moves, and what backward runs again; an operator is its layer, its cell and its primitive."""
    return {
        "pairs": [[*operator(graph, pair.producer), pair.num_prefetch_ops] for pair in graph.swap_pairs],
        "num_copies_out": sum(node.op == "MoveTo" for node in graph.forward),
        "num_copies_in": sum(node.op == "MoveTo" for node in graph.backward),
        "recomputed": [[n.layer_index, n.cell_path, n.op] for n in graph.backward if n.is_duplicate],
        "is_split": graph.has_lazy_inline,
        "kept": kept_bytes(graph),
        "sliced": sorted({n.layer_index for n in graph.forward if n.attributes.get("slice_activation") is True}),
    }


def kept_bytes(graph):
    """Layer -> bytes that stay on the device from forward to backward, without the layers that keep nothing."""
    from mindswap.graph.storage import classify_saved

    kept = {}
    for saved in classify_saved(graph):
        if saved.kept_bytes and saved.storage.layer_index is not None:
            layer = str(saved.storage.layer_index)  # a key of JSON
            kept[layer] = kept.get(layer, 0) + saved.kept_bytes
    return kept


def operator(graph, node):
    """Looks through the compiler's own `TupleGetItem`."""
    while node.op == "TupleGetItem":
        node = graph.index.forward_nodes[node.inputs[0]]
    return node.layer_index, node.cell_path, node.op


if __name__ == "__main__":
    main()
