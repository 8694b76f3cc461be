"""What layers of several configurations keep as one rank has them, compiled in one process, as JSON.

python rank_reports.py < JOBS > RESULTS, both a list; each job is {"config": PATH, "rank": RANK or null}. `mindswap
inspect` compiles without the policy, too, for what recompute saves and for names of operators. MindFormers builds the
legacy and the newer models only in different processes.
"""

import json
import sys
from collections import Counter

from mindswap.adapters.quiet import quiet
from mindswap.config.source import load_document
from mindswap.config.weight_sharding import place_rank
from mindswap.graph.storage import classify_saved
from mindswap.rules.checker import check_document


def main():
    json.dump([run_job(**job) for job in json.load(sys.stdin)], sys.stdout)


def run_job(config, rank):
    document = load_document(config)
    checked = check_document(document)
    placement = None if rank is None else place_rank(document, rank, checked.num_layers)
    with quiet():
        from mindswap.adapters.graph.mindformers import capture

        compiled = capture(config, checked.policy, placement=placement)
    saved = classify_saved(compiled.graph)
    layers = [
        describe(compiled.graph, [entry for entry in saved if entry.storage.layer_index == position])
        for position in (*compiled.sample.layer_map, None)
    ]
    return {"layers": layers, "notes": list(compiled.notes)}


def describe(graph, saved):
    """Bytes of a layer, or of what is outside; kept ones also by the cell through which backward holds them."""
    cells = Counter()
    for entry in saved:
        holder = graph.owner((*entry.holders, *(pair.producer for pair in entry.pairs))[0])
        cells[holder.cell_path] += entry.kept_bytes
    return {
        "kept_bytes": sum(entry.kept_bytes for entry in saved),
        "swapped_bytes": sum(entry.copied_bytes for entry in saved),
        "kept_in_cells": cells,
    }


if __name__ == "__main__":
    main()
