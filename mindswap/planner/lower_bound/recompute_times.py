"""Minimum time of each recomputed operator: what fusion with its reader, and a store that forward avoids, may save."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mindswap.graph.analysis.work import Work, measure_work
from mindswap.graph.model import Graph, Node, first_source
from mindswap.graph.ops import COMMUNICATION_OPS, FUSED_OPS, VALUE_PASSING_OPS
from mindswap.graph.passes.fusion import fuse_forward, min_recompute_work, readers_of_saved
from mindswap.simulator.step_model import StepModel


def recompute_times_ns(model: StepModel) -> tuple[Mapping[str, int], ...]:
    """Return recompute times, additional times and avoided stores by name of forward operator."""
    graph = model.captured.graph
    works = measure_work(graph)

    def times_ns(of_forward: Iterable[Work]) -> np.ndarray:
        """Return the time on the compute stream of each forward operator."""
        pairs = zip(graph.forward, of_forward, strict=True)
        return np.array(
            [0 if node.op in COMMUNICATION_OPS else model.costs.operator_ns(node, work) for node, work in pairs]
        )

    # Operators that backward recomputes without any policy are not recomputed a second time.
    runs_anyway = np.array([node.name in graph.index.duplicates for node in graph.forward], bool)
    if model.settings.is_fused:
        users = readers_of_saved(graph)
        min_ns, unfused_ns = (times_ns(min_recompute_work(graph, works[0], users, twice)) for twice in (False, True))
        min_ns[runs_anyway] = unfused_ns[runs_anyway] = 0
        min_ns -= fusion_saving_ns(graph, works[1], users, model.costs.operator_ns)
        extra_ns = unfused_ns - min_ns
        # Forward need not store outputs that are recomputed.
        avoided_store_ns = times_ns(fuse_forward(graph, works[0]))
        avoided_store_ns -= times_ns(fuse_forward(graph, works[0], is_saved=False))
        min_ns -= avoided_store_ns
    else:
        min_ns, extra_ns, avoided_store_ns = times_ns(works[0]), *np.zeros((2, len(works[0])), np.int64)
        min_ns[runs_anyway] = 0
    names = [node.name for node in graph.forward]
    return tuple(dict(zip(names, by_op.tolist(), strict=True)) for by_op in (min_ns, extra_ns, avoided_store_ns))


def fusion_saving_ns(
    graph: Graph, works: Sequence[Work], users: Mapping[str, Sequence[Node]], operator_ns: Callable[[Node, Work], int]
) -> np.ndarray:
    """Return the maximum time that fusion of a recomputed operator with its reader saves in backward.

    Only an output with one reader stays in registers. The saving is not linear, because a reader whose remaining inputs
    fit into the cache is much faster; so it depends on which other inputs of the reader are fused.

    Args:
        graph: step without recompute.
        works: work of each backward operator, not fused.
        users: readers of saved tensors, from `readers_of_saved`.
        operator_ns: (node, work) -> duration in ns.

    Returns:
        int64 ns, shape (num_forward_ops,).
    """
    index = graph.index
    work_of = dict(zip((node.name for node in graph.backward), works, strict=True))

    def fusible_producer(name: str) -> Node | None:
        """Return the fusible producer of a value; None if there is none."""
        passed = first_source(name, VALUE_PASSING_OPS, index.nodes)
        maker = first_source(index.forward_names.get(passed, passed), VALUE_PASSING_OPS, index.nodes)
        return index.nodes[maker] if maker in index.nodes and index.nodes[maker].op in FUSED_OPS else None

    def saved_ns(node: Node) -> int:
        readers = users.get(node.name, ())
        if len(readers) != 1 or node.op not in FUSED_OPS or readers[0].op not in FUSED_OPS:
            return 0
        reader, work = readers[0], work_of[readers[0].name]
        may_read = {work.read_bytes}
        for fusible in filter(None, map(fusible_producer, reader.inputs)):
            if fusible.name != node.name:
                may_read |= {read - fusible.size_bytes for read in may_read}

        def time_ns(read_bytes: int, is_fused: bool) -> int:
            return operator_ns(reader, replace(work, read_bytes=max(read_bytes, 0), is_fused=is_fused))

        return max(time_ns(read, False) - time_ns(read - node.size_bytes, True) for read in may_read)

    return np.array([saved_ns(node) for node in graph.forward], np.int64)
