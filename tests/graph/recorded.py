"""What tests of the folders of `graph` ask of compiled steps: policies, graphs under them, what they come to."""

from collections import Counter
from collections.abc import Iterable

from mindswap.config.weight_sharding import WeightSharding
from mindswap.graph.analysis.liveness import find_peak
from mindswap.graph.analysis.recompute_effect import compare_recompute
from mindswap.graph.analysis.saved_tensors import find_boundary_operators, measure_layer_memory, operator_uses
from mindswap.graph.analysis.swap_effect import compare_effect
from mindswap.graph.analysis.work import Work, measure_work
from mindswap.graph.model import Graph, Node
from mindswap.graph.passes.fusion import find_unwritten, fuse_work, merge_equal, min_recompute_work, readers_of_saved
from mindswap.graph.passes.gather import gather_weights
from mindswap.graph.passes.swap_recompute import rewrite_graph, settings_of_policy
from mindswap.graph.storage import classify_saved
from mindswap.policy.model import ALL_LAYERS, OpRecompute, OpSwap, Policy
from mindswap.policy.resolve import LayerDecisions, resolve_layer
from mindswap.simulator.captured_step import CapturedStep

POLICIES = {
    "swap": Policy(True, op_swap=(OpSwap(r".*\.(matmul|cast|reshape|mul|softmax|add)", ALL_LAYERS, 5),)),
    "again": Policy(True, select_recompute=(OpRecompute(r".*(mul|silu|cast|reshape)", ALL_LAYERS),)),
    "both": Policy(
        True, op_swap=(OpSwap(".*matmul", ALL_LAYERS, 7),),
        select_recompute=(OpRecompute(".*(norm.*|activation.*|silu)", ALL_LAYERS),),
    ),
    "whole": Policy(True, layer_recompute=ALL_LAYERS),
}  # fmt: skip
SHARDINGS = {
    "cut": WeightSharding(4, 0),
    "cut, released": WeightSharding(4, 0, is_released=True),
    "large ones cut, cast behind": WeightSharding(2, 2**22, is_cast_after_gather=True, num_expert_copies=2),
}


def counted(nodes: Iterable[Node]) -> dict[str, str]:
    """Operators by type: how many, how many of them run again, bytes that they make, sum of their places."""
    found: dict[str, Counter[str]] = {}
    for position, node in enumerate(nodes):
        found.setdefault(node.op, Counter()).update(
            number=1, again=node.is_duplicate + 2 * node.is_recomputed, size=node.size_bytes,
            place=position * (2 + (node.layer_index or 0)), inputs=len(node.inputs),
        )  # fmt: skip
    return {op: " ".join(str(count[key]) for key in sorted(count)) for op, count in sorted(found.items())}


def summed(works: Iterable[Work]) -> list[int]:
    """Operations, bytes read and written, fused operators, each also by its place."""
    rows = [(one.flops, one.read_bytes, one.written_bytes, one.is_fused + 2 * one.is_weight_gradient) for one in works]
    columns = list(zip(*rows, strict=True))
    return [sum(column) for column in columns] + [sum(i * each for i, each in enumerate(c)) for c in columns]


def decisions(step: CapturedStep, policy: Policy) -> list[LayerDecisions]:
    return [resolve_layer(policy, index, tree) for index, tree in enumerate(step.trees)]


def under(step: CapturedStep, policy: Policy) -> Graph:
    settings = settings_of_policy(step.graph, step.names(), decisions(step, policy))
    return rewrite_graph(merge_equal(step.graph, settings.of), settings)


def saved(graph: Graph) -> list[str]:
    return [
        f"{entry.storage.producer.op if entry.storage.producer else '-'} {entry.storage.layer_index} "
        f"{entry.placement.name} {entry.kept_bytes} {entry.copied_bytes} {len(entry.holders)} {entry.first_user}"
        for entry in classify_saved(graph)
    ]


def memory(step: CapturedStep) -> object:
    """What is saved, and the peak; which operators use what others make, what layers hand on."""
    plain = merge_equal(step.graph)
    names = step.names()
    rows = measure_layer_memory(under(step, POLICIES["both"]), plain, names, step.sample)
    peak = find_peak(plain, step.sample)
    uses = operator_uses(plain, names)
    return {
        "saved": saved(plain), "peak": [peak.size_bytes, peak.node.op, peak.is_forward],
        "layers": [f"{row.layer_index} " + " ".join(map(str, list(vars(op).values()))) for row in rows
                   for op in row.operators],
        "uses": [f"{layer} {path}: {len(users)}" for (layer, path), users in uses.items()],
        "handed on": sorted(plain.index.forward_nodes[name].op for name in find_boundary_operators(plain)),
        "work": [summed(works) for works in measure_work(plain)],
    }  # fmt: skip


def rewritten(step: CapturedStep) -> object:
    """The step under each policy; which operators are fused, with and without recompute."""
    found: dict[str, object] = {}
    for name, policy in POLICIES.items():
        graph = under(step, policy)
        works = fuse_work(graph, measure_work(graph))
        found[name] = {
            "forward": counted(graph.forward), "backward": counted(graph.backward), "saved": len(graph.saved),
            "fused": [summed(each) for each in works], "unwritten": len(find_unwritten(graph)),
        }  # fmt: skip
    plain = merge_equal(step.graph)
    work, users = measure_work(plain)[0], readers_of_saved(plain)
    found["least"] = [summed(min_recompute_work(plain, work, users, twice)) for twice in (False, True)]
    return found


def gathered(step: CapturedStep) -> object:
    """The step with the AllGathers of the parallel optimizer."""
    found = {}
    for name, sharding in SHARDINGS.items():
        step_of_rank = gather_weights(step.graph, sharding)
        graph = step_of_rank.graph
        found[name] = {
            "forward": counted(graph.forward), "backward": counted(graph.backward), "saved": saved(graph),
            "sent": [f"{c.kind} {c.size_bytes} {c.num_ranks} {c.stride}" for cs in step_of_rank.collectives.values()
                     for c in cs],
            "once": len(step_of_rank.computed_once),
        }  # fmt: skip
    return found


def effects(step: CapturedStep) -> object:
    """What each policy does, beside what was asked; and what another one would have asked."""
    plain = merge_equal(step.graph)
    found = {}
    for name, policy in POLICIES.items():
        graph = under(step, policy)
        for asked in ("swap", "again", "whole"):
            wanted = decisions(step, POLICIES[asked])
            swaps = compare_effect(wanted, plain, graph)
            again = compare_recompute(wanted, plain, graph)
            found[f"{name}, asked for {asked}"] = {
                "swap": [
                    [
                        len(e.pairs),
                        e.swapped_bytes,
                        len(e.missing),
                        len(e.unasked),
                        len(e.wrong_prefetch),
                        e.one_way_bytes,
                        len(e.wasted),
                        len(e.beyond_specification),
                        e.num_recomputed,
                        e.kept_before_bytes,
                        e.kept_bytes,
                        *(f"{i.entry} {i.reason.name}" for i in e.idle),
                    ]
                    for e in swaps
                ],
                "again": [[str(value) for value in vars(e).values()] for e in again],
            }
    return found
