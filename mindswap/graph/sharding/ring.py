"""Ring attention: what one attention of `use_ring_attention` is on a rank of n that share a sequence.

MindSpore runs it as n attentions of the rank's own queries (frontend/parallel/pass/flash_sp.cc,
`CreateReplaceRingAttentionGraphBySendRecv`): first with its own keys and values, then with those that come round the
ring from the rank before, while the next ones travel. Their results are joined by the largest scores and the sums of
exponents. Backward goes round once more, from the last keys and values that came (overlap_grad_ring_attention.cc,
`StaticOverlapGradRingAttention`): it reads the joined result only, so a rank keeps what one attention over its own part
would. Beside keys and values their gradients travel then.

A rank counts as the last one, as it sees all that comes; the others wait for it. For the first of its rounds the mask
leaves the lower half of the pairs. What a rank must not see is skipped (`SetFAInputs`: a band of no width).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.sharding.splits import read_strategy

# Kind of a collective: a rank sends to the next one and receives from the one before, one after the other.
RING = "SendReceive"
MARK = "enable_ring_attention"
# Where batch, heads and sequence are in the strategy of queries, by layout number: BSH and BNSD, the two that it takes.
HEADS_AND_SEQUENCE = {3: (2, 1), 4: (1, 2)}


@dataclass(frozen=True)
class RingKernel:
    """A kernel beside attention, with the bytes that it reads and writes."""

    op: str
    moved_bytes: int


@dataclass(frozen=True)
class Round:
    """One of the attentions."""

    before: tuple[RingKernel, ...]  # kernels before the exchange: what came is taken apart, what goes is put together
    num_exchanges: int  # exchanges that go on meanwhile
    flops: int  # of attention
    after: tuple[RingKernel, ...]  # kernels that join the result with that of the rounds before


def ring_axes(graph: Graph, node: Node) -> tuple[int, int]:
    """Ranks of the ring of an attention or its gradient, and the ranks from one to the next; 1 and 1 for no ring."""
    forward = node if node.op == "FlashAttentionScore" else graph.forward_nodes.get(node.origin, node)
    strategy = read_strategy(forward.attributes)
    if forward.attributes.get(MARK) is not True or not strategy:
        return 1, 1
    heads, sequence = HEADS_AND_SEQUENCE[len(strategy[0])]
    return strategy[0][sequence], strategy[0][heads]


def ring_flops(flops: int, num_queries: int, num_ranks: int) -> int:
    """Of the last of n ranks, each with s queries: s s pairs in n - 1 rounds, s (s + 1) / 2 in the first one.

    `flops` are those of all pairs of its own queries and keys.
    """
    return flops * (num_ranks - 1) + flops * (num_queries + 1) // (2 * num_queries)


def list_rounds(
    is_forward: bool, num_ranks: int, flops: int, operands: Sequence[TensorType], statistic_bytes: int, is_fused: bool
) -> tuple[Round, ...]:
    """All rounds of attention, or of its gradient, in the order in which a rank runs them.

    Args:
        flops: of all of it on the last rank.
        operands: queries, keys, values on this rank.
        statistic_bytes: the largest scores, or the sums, as attention gives them.
        is_fused: jit_level O1 makes one kernel of element-wise operators that follow each other.
    """
    query, pair = operands[0].size_bytes, operands[1].size_bytes + operands[2].size_bytes
    take, give = RingKernel("Split", 2 * pair), RingKernel("Concat", 2 * pair)
    causal = flops // (2 * num_ranks - 1)  # half of the pairs of the others
    whole = (flops - causal) // max(num_ranks - 1, 1)
    joined = tuple(_join(query, statistic_bytes, is_fused))
    rounds = []
    for number in range(num_ranks):
        is_first, is_last = number == 0, number == num_ranks - 1
        if is_forward:
            before = (take,) * (not is_first) + (give,) * (not is_last)
            rounds.append(Round(before, int(not is_last), causal if is_first else whole, joined * (not is_first)))
        else:
            # Gradients of the round before are put together and leave; keys and values for the next one come.
            before = (give,) if is_first else (give, take)
            after = (RingKernel("Add", 3 * query), take, RingKernel("Add", 3 * pair)) if not is_first else ()
            rounds.append(Round(before, (not is_last) + (not is_first), causal if is_last else whole, after))
    return tuple(rounds)


def _join(query: int, statistic: int, is_fused: bool) -> Iterator[RingKernel]:
    """`UpdateAttentionOutput`: new largest scores and sums, the share of both results, their weighted sum.

    The statistics have eight equal columns; one of them is spread over the size of a head.
    """
    if is_fused:
        yield RingKernel("Mul", 8 * statistic)  # four read, four written
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
