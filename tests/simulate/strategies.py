"""Random programs for hypothesis. Small durations, so that many things happen at the same moment."""

from hypothesis import strategies as st

from mindswap.simulate.program import NO_OP, MemoryKind, OpKind, Program
from tests.simulate.builders import Copy, Op, Span, program_of

DURATIONS = st.integers(0, 9)
COMPUTE_KINDS = st.sampled_from([OpKind.FORWARD, OpKind.BACKWARD, OpKind.RECOMPUTE])
COMMUNICATION_KINDS = st.sampled_from([OpKind.COLLECTIVE, OpKind.SEND, OpKind.RECEIVE])


@st.composite
def programs(draw, max_stages: int = 3, max_copies: int = 8, only_compute: bool = False) -> Program:
    """A program that runs to its end, with copies whose positions are as free as the rules allow.

    Operators of another stage are only waited for where they were drawn earlier: so no stages wait in a ring.
    The memory of each copy is there, and so is other memory of compute operators.
    """
    sizes = draw(st.lists(st.integers(2, 10), min_size=1, max_size=max_stages))
    starts = [sum(sizes[:stage]) for stage in range(len(sizes))]
    drawn: list[int] = []
    kinds = COMPUTE_KINDS if only_compute else st.one_of(COMPUTE_KINDS, COMMUNICATION_KINDS)
    stages: list[list[Op]] = [[] for _ in sizes]
    turns = draw(st.permutations([stage for stage, size in enumerate(sizes) for _ in range(size)]))
    for stage in turns:
        wait = draw(st.sampled_from([NO_OP, NO_OP, *drawn]))
        drawn.append(starts[stage] + len(stages[stage]))
        stages[stage].append(Op(draw(DURATIONS), draw(kinds), wait))
    copies = draw(st.lists(copies_of(starts, sizes), max_size=max_copies))
    spans = [span for number, copy in enumerate(copies) for span in spans_of(number, copy, starts)]
    for _ in range(draw(st.integers(0, 5))):
        stage = draw(st.integers(0, len(sizes) - 1))
        first, last = sorted(draw(st.tuples(*[st.integers(0, sizes[stage] - 1)] * 2)))
        if stages[stage][first].kind.is_communication == stages[stage][last].kind.is_communication:
            size = draw(st.integers(0, 100))
            spans.append(Span(size, starts[stage] + first, starts[stage] + last, MemoryKind.KEPT, stage))
    return program_of(*stages, copies=copies, spans=spans, contended_permille=draw(st.integers(300, 1000)))


@st.composite
def copies_of(draw, starts: list[int], sizes: list[int]) -> Copy:
    """A copy with any positions that `check_program` allows."""
    stage = draw(st.integers(0, len(sizes) - 1))
    first, last = starts[stage], starts[stage] + sizes[stage] - 1
    producer = draw(st.integers(first, last - 1))
    user = draw(st.integers(producer + 1, last))
    return Copy(
        producer=producer,
        release=draw(st.integers(producer, last)),
        prefetch=draw(st.sampled_from([NO_OP, *range(first, user)])),
        user=user,
        out_ns=draw(DURATIONS),
        in_ns=draw(DURATIONS),
        size_bytes=draw(st.integers(0, 100)),
    )


def spans_of(number: int, copy: Copy, starts: list[int]) -> list[Span]:
    """Memory of a copied tensor: until it is released, and from when it comes in."""
    stage = max(stage for stage, start in enumerate(starts) if start <= copy.producer)
    return [
        Span(copy.size_bytes, copy.producer, ~number, MemoryKind.OFFLOADING, stage),
        Span(copy.size_bytes, ~number, copy.user, MemoryKind.PREFETCHED, stage),
    ]
