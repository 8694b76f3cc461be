"""Communication of the captured steps of several configurations, as JSON.

python -m tests.adapters.step_collectives CONFIG...
MindFormers builds the legacy and the newer models only in different processes.
"""

import json
import sys

from mindswap.adapters.quiet import quiet
from mindswap.config.source import load_document
from mindswap.config.weight_sharding import place_rank
from mindswap.graph.storage import classify_saved
from mindswap.rules.checker import check_document


def main():
    json.dump([communication(config) for config in sys.argv[1:]], sys.stdout)


def communication(config):
    """Rows in order of execution, bytes that each layer keeps for backward, by cell, and the notes.

    A row is [layer, "forward", "again" or "backward", kind, bytes, ranks, from one rank to the next].
    """
    document = load_document(config)
    num_layers = check_document(document).num_layers
    with quiet():
        from mindswap.adapters.graph.mindformers import capture_step

        step = capture_step(config, num_layers, place_rank(document, 0, num_layers))
    rows = []
    for node in (*step.graph.forward, *step.graph.backward):
        which = (
            "forward" if node.name in step.graph.index.forward_nodes else "again" if node.is_duplicate else "backward"
        )
        name = node.origin if node.is_duplicate else node.name
        rows += [
            [node.layer_index, which, one.kind, one.size_bytes, one.num_ranks, one.stride, node.cell_path]
            for one in step.collectives.get(name, ())
        ]
    kept = [
        [each.storage.layer_index, each.storage.producer.cell_path, each.kept_bytes]
        for each in classify_saved(step.graph)
        if each.storage.producer is not None
    ]
    return {"rows": rows, "kept": kept, "notes": list(step.notes)}


if __name__ == "__main__":
    main()
