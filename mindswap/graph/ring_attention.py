"""Ring attention (`use_ring_attention`): attention on one of n ranks that share a sequence.

MindSpore replaces it with n attentions of the local queries (frontend/parallel/pass/flash_sp.cc,
`CreateReplaceRingAttentionGraphBySendRecv`): first with the local keys and values, then with those received from the
previous rank, while the next ones are in transit. The results are combined by maxima and sums of exponents. Backward
repeats the ring, starting with the keys and values received last (overlap_grad_ring_attention.cc,
`StaticOverlapGradRingAttention`), and also passes their gradients on. It reads only the combined result, so a rank
saves as much as for one attention over its own shard.

The model is the last rank, which attends to everything it receives; the others wait for it. In its first round the
mask leaves the lower half of the pairs. Rounds that the mask excludes are skipped (`SetFAInputs`: a band of width
zero).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.sharding.splits import read_strategy

# Kind of a collective: a rank sends to the next one, then receives from the previous one.
RING = "SendReceive"
RING_ATTRIBUTE = "enable_ring_attention"
# Axes of heads and sequence in the strategy of the queries, by number of dimensions: BSH and BNSD, the supported
# layouts.
HEADS_AND_SEQUENCE = {3: (2, 1), 4: (1, 2)}


@dataclass(frozen=True)
class RingKernel:
    """A kernel in addition to attention, with the bytes that it reads and writes."""

    op: str
    moved_bytes: int


@dataclass(frozen=True)
class Round:
    """One round of ring attention."""

    before: tuple[RingKernel, ...]  # kernels before the exchange: split what was received, concatenate what is sent
    num_ring_exchanges: int  # exchanges in parallel with attention
    flops: int  # of attention
    after: tuple[RingKernel, ...]  # kernels that combine the result with that of the previous rounds


def ring_axes(graph: Graph, node: Node) -> tuple[int, int]:
    """Return the number of ranks of the ring and their stride, for attention or its gradient; (1, 1) without a ring."""
    forward = node if node.op == "FlashAttentionScore" else graph.index.forward_nodes.get(node.origin, node)
    strategy = read_strategy(forward.attributes)
    if forward.attributes.get(RING_ATTRIBUTE) is not True or not strategy:
        return 1, 1
    heads, sequence = HEADS_AND_SEQUENCE[len(strategy[0])]
    return strategy[0][sequence], strategy[0][heads]


def ring_flops(flops: int, num_queries: int, num_ranks: int) -> int:
    """Return the operations of the last of n ranks: s^2 pairs in n - 1 rounds, s (s + 1) / 2 pairs in the first.

    Args:
        flops: of all pairs of local queries and local keys.
        num_queries: local queries s.
        num_ranks: ranks n of the ring.
    """
    return flops * (num_ranks - 1) + flops * (num_queries + 1) // (2 * num_queries)


def list_rounds(
    is_forward: bool, num_ranks: int, flops: int, operands: Sequence[TensorType], statistic_bytes: int, is_fused: bool
) -> tuple[Round, ...]:
    """Return the rounds of ring attention, or of its gradient, in execution order.

    Args:
        is_forward: attention or its gradient.
        num_ranks: ranks of the ring.
        flops: operations of all rounds on the last rank.
        operands: queries, keys, values of this rank.
        statistic_bytes: size of the maxima, or of the sums, that attention outputs.
        is_fused: jit_level O1 fuses consecutive element-wise operators into one kernel.
    """
    query, pair = operands[0].size_bytes, operands[1].size_bytes + operands[2].size_bytes
    take, give = RingKernel("Split", 2 * pair), RingKernel("Concat", 2 * pair)
    causal = flops // (2 * num_ranks - 1)  # half of the pairs of another round
    full = (flops - causal) // max(num_ranks - 1, 1)
    joined = tuple(_join(query, statistic_bytes, is_fused))
    rounds = []
    for number in range(num_ranks):
        is_first, is_last = number == 0, number == num_ranks - 1
        if is_forward:
            before = (take,) * (not is_first) + (give,) * (not is_last)
            rounds.append(Round(before, int(not is_last), causal if is_first else full, joined * (not is_first)))
        else:
            # The gradients of the previous round are concatenated and sent; keys and values for the next round arrive.
            before = (give,) if is_first else (give, take)
            after = (RingKernel("Add", 3 * query), take, RingKernel("Add", 3 * pair)) if not is_first else ()
            rounds.append(Round(before, (not is_last) + (not is_first), causal if is_last else full, after))
    return tuple(rounds)


def _join(query: int, statistic: int, is_fused: bool) -> Iterator[RingKernel]:
    """Yield the kernels of `UpdateAttentionOutput`: new maxima and sums, weights of both results, weighted sum.

    The statistics have eight equal columns, one of which is broadcast over the head size.
    """
    if is_fused:
        yield RingKernel("Mul", 8 * statistic)  # reads four, writes four
    else:
        for op, number, operands in (
            ("Maximum", 1, 2), ("Sub", 2, 2), ("Exp", 2, 1), ("Mul", 2, 2), ("Add", 1, 2), ("RealDiv", 2, 2),
        ):  # fmt: skip
            yield from (RingKernel(op, (operands + 1) * statistic) for _ in range(number))
    for _ in range(2):
        yield RingKernel("Split", 2 * statistic)
        yield RingKernel("Cast", 3 * statistic // 16)
        yield RingKernel("Transpose", statistic // 8)
        yield RingKernel("Tile", query)
    if is_fused:
        yield RingKernel("Add", 5 * query)
    else:
        yield from (RingKernel("Mul", 3 * query), RingKernel("Mul", 3 * query), RingKernel("Add", 3 * query))
