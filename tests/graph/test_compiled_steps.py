"""What holds for every policy on steps that MindSpore compiled: memory, recomputed work, gathered weights, effects."""

from collections import Counter

import pytest

from mindswap.config.weight_sharding import WeightSharding
from mindswap.graph.analysis.liveness import find_peak
from mindswap.graph.analysis.recompute_effect import compare_recompute
from mindswap.graph.analysis.saved_tensors import measure_layer_memory
from mindswap.graph.analysis.swap_effect import compare_effect
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import Graph
from mindswap.graph.passes.fusion import fuse_work, merge_equal
from mindswap.graph.passes.gather import gather_weights
from mindswap.graph.passes.swap_recompute import rewrite_graph, settings_of_policy
from mindswap.graph.storage import Placement, classify_saved
from mindswap.policy.model import ALL_LAYERS, OpRecompute, OpSwap, Policy
from mindswap.policy.resolve import LayerDecisions, resolve_layer
from mindswap.simulator.captured_step import CapturedStep
from tests.compiled_steps import NAMES, captured

KEEP = Policy(True)
SWAP = Policy(True, op_swap=(OpSwap(r".*\.(matmul|cast|reshape|mul|softmax|add)", ALL_LAYERS, 5),))
RECOMPUTE = Policy(True, select_recompute=(OpRecompute(".*(norm.*|activation.*|silu)", ALL_LAYERS),))
FULL = Policy(True, layer_recompute=ALL_LAYERS)
NUM_RANKS = 4


def decide(step: CapturedStep, policy: Policy) -> list[LayerDecisions]:
    return [resolve_layer(policy, index, tree) for index, tree in enumerate(step.trees)]


def rewrite(step: CapturedStep, policy: Policy) -> Graph:
    settings = settings_of_policy(step.graph, step.names(), decide(step, policy))
    return rewrite_graph(merge_equal(step.graph, settings.of), settings)


def count_flops(graph: Graph) -> list[int]:
    """Return the operations of forward and of backward."""
    return [sum(work.flops for work in works) for works in measure_work(graph)]


def count_saved_bytes(graph: Graph) -> Counter[int | None]:
    """Return what backward needs of each compiled layer."""
    saved: Counter[int | None] = Counter()
    for entry in classify_saved(graph):
        saved[entry.storage.layer_index] += entry.kept_bytes
    return saved


def count_ops(graph: Graph, op: str) -> tuple[int, int]:
    """Return how many operators of a type forward and backward have."""
    return Counter(n.op for n in graph.forward)[op], Counter(n.op for n in graph.backward)[op]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_kept_or_swapped_and_nothing_is_lost(name):
    kept = classify_saved(rewrite(captured(name), KEEP))
    swapped = classify_saved(rewrite(captured(name), SWAP))
    assert {entry.placement for entry in kept} == {Placement.KEPT}
    assert all(entry.kept_bytes == 0 for entry in swapped if entry.placement is Placement.SWAPPED)
    total_bytes = sum(entry.kept_bytes for entry in kept)
    assert sum(entry.kept_bytes + entry.copied_bytes for entry in swapped) == total_bytes
    assert sum(entry.copied_bytes for entry in swapped) > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_swap_computes_nothing_more(name):
    assert count_flops(rewrite(captured(name), SWAP)) == count_flops(merge_equal(captured(name).graph))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", [RECOMPUTE, FULL], ids=["operators", "layers"])
def test_recompute_adds_at_most_forward_to_backward(name, policy):
    forward, backward = count_flops(merge_equal(captured(name).graph))
    new_forward, new_backward = count_flops(rewrite(captured(name), policy))
    assert new_forward == forward
    assert backward < new_backward <= backward + forward


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", [KEEP, SWAP, RECOMPUTE, FULL], ids=["keep", "swap", "operators", "layers"])
def test_a_fused_step_computes_the_same_and_moves_less(name, policy):
    graph = rewrite(captured(name), policy)
    for plain, fused in zip(measure_work(graph), fuse_work(graph, measure_work(graph)), strict=True):
        assert [work.flops for work in fused] == [work.flops for work in plain]
        assert all(f.read_bytes <= p.read_bytes for p, f in zip(plain, fused, strict=True))
        assert all(f.written_bytes <= p.written_bytes for p, f in zip(plain, fused, strict=True))
        assert sum(work.written_bytes for work in fused) < sum(work.written_bytes for work in plain)


@pytest.mark.parametrize(("name", "kept_mib"), [("sequences", 8 + 16), ("experts", 4)])
def test_full_recompute_keeps_what_the_layer_reads(name, kept_mib):
    """Its input: (4, 1024, 1024) in float16, (2048, 1024) in bfloat16. Llama has an AllGather of its sequence, too:

    communication is not recomputed, and its output (8192, 1024) in float16 stays.
    """
    layers = {effect.layer_index: effect for effect in effects(captured(name), FULL, FULL)[0]}
    assert layers[1].kept_bytes == kept_mib << 20


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_has_as_much_as_its_operators(name):
    step = captured(name)
    plain = merge_equal(step.graph)
    saved = count_saved_bytes(plain)
    for row in measure_layer_memory(plain, plain, step.names(), step.sample):
        compiled = None if row.layer_index is None else step.sample.layer_map[row.layer_index]
        assert sum(op.kept_bytes for op in row.operators) == saved[compiled]


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_is_in_the_loss_and_has_all_that_is_saved(name):
    """Nothing has been released there; forward of the loss works on arrays of tokens by vocabulary in float32."""
    step = captured(name)
    plain = merge_equal(step.graph)
    peak = find_peak(plain, step.sample)
    saved = count_saved_bytes(plain)
    assert peak.is_forward and peak.node.layer_index is None
    assert peak.size_bytes > sum(saved[compiled] for compiled in step.sample.layer_map)


@pytest.mark.parametrize("name", NAMES)
def test_a_sharded_weight_is_gathered_in_forward_and_once_released_in_backward(name):
    graph = captured(name).graph
    forward, backward = count_ops(graph, "AllGather")
    for is_released in (False, True):
        gathered = gather_weights(graph, WeightSharding(NUM_RANKS, 0, is_released=is_released, stride=2))
        new_forward, new_backward = count_ops(gathered.graph, "AllGather")
        collectives = [each for several in gathered.collectives.values() for each in several]
        assert new_forward - forward == len(collectives) > 20
        assert {(str(each.kind), each.num_ranks) for each in collectives} == {("AllGather", NUM_RANKS)}
        # The embedding is read in forward only, if the head has a weight of its own.
        assert new_backward - backward in ((len(collectives) - 1, len(collectives)) if is_released else (0,))


@pytest.mark.parametrize("name", NAMES)
def test_small_weights_are_not_gathered_above_a_threshold(name):
    all_weights = gather_weights(captured(name).graph, WeightSharding(2, 0)).collectives
    large = gather_weights(captured(name).graph, WeightSharding(2, 2**22)).collectives
    assert 0 < len(large) < len(all_weights)
    sizes = [each.size_bytes for several in large.values() for each in several]
    assert sorted(sizes) == sorted(each.size_bytes for key in large for each in all_weights[key])


def effects(step: CapturedStep, policy: Policy, asked: Policy):
    """Effects on swap and on recompute of a policy, compared with what another one asks for."""
    plain, graph, decisions = merge_equal(step.graph), rewrite(step, policy), decide(step, asked)
    return compare_effect(decisions, plain, graph), compare_recompute(decisions, plain, graph)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", [SWAP, FULL], ids=["swap", "layers"])
def test_a_policy_does_what_it_asks(name, policy):
    swaps, recomputes = effects(captured(name), policy, policy)
    for swap, recompute in zip(swaps, recomputes, strict=True):
        assert (len(swap.missing), len(swap.unasked), len(swap.wrong_prefetch), swap.one_way_bytes) == (0, 0, 0, 0)
        assert not recompute.unasked


@pytest.mark.parametrize("name", NAMES)
def test_swapped_bytes_are_those_of_the_pairs_and_missing_in_the_layer(name):
    for swap in effects(captured(name), SWAP, SWAP)[0]:
        assert swap.pairs and swap.kept_bytes == swap.kept_before_bytes - swap.swapped_bytes


@pytest.mark.parametrize("name", NAMES)
def test_what_nobody_asked_for_is_said(name):
    done, asked = effects(captured(name), SWAP, SWAP)[0], effects(captured(name), SWAP, KEEP)[0]
    assert [len(swap.unasked) for swap in asked] == [len(swap.pairs) for swap in done]
    recomputed = effects(captured(name), FULL, KEEP)[1]
    assert all(effect.unasked for effect in recomputed)
