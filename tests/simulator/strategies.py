"""Random programs for hypothesis. Small durations, so that many things happen at the same moment."""

from hypothesis import strategies as st

from mindswap.simulator.program import NO_OP, MemoryKind, OpKind, Program
from tests.simulator.builders import Copy, Op, Span, program_of

DURATIONS = st.integers(0, 9)
KINDS = st.sampled_from([*OpKind, OpKind.FORWARD, OpKind.BACKWARD, OpKind.RECOMPUTE])


@st.composite
def programs(draw, copies_on_compute: bool = False) -> Program:
    """A program that runs to its end, with copies whose positions are as free as the rules allow.

    Operators of another stage are only waited for where they were drawn earlier: so no stages wait in a ring.
    The memory of each copy is there, and so is other memory.

    Args:
        copies_on_compute: copies depend on operators of the compute stream only.
    """
    sizes = draw(st.lists(st.integers(2, 10), min_size=1, max_size=3))
    starts = [sum(sizes[:stage]) for stage in range(len(sizes))]
    stages: list[list[Op]] = [[] for _ in sizes]
    drawn: list[int] = []
    for stage in draw(st.permutations([stage for stage, size in enumerate(sizes) for _ in range(size)])):
        wait = draw(st.sampled_from([NO_OP, NO_OP, *drawn]))
        drawn.append(starts[stage] + len(stages[stage]))
        stages[stage].append(Op(draw(DURATIONS), draw(KINDS), wait))
    copies, spans = [], []
    for stage, ops in enumerate(stages):
        compute = [starts[stage] + place for place, op in enumerate(ops) if not op.kind.is_communication]
        places = compute if copies_on_compute else range(starts[stage], starts[stage] + len(ops))
        if len(places) > 1:
            copies += draw(st.lists(copies_at(places), max_size=5))
        if compute:
            pairs = st.tuples(*[st.sampled_from(compute)] * 2).map(sorted)
            for begin, end in draw(st.lists(pairs, max_size=4)):
                spans.append(Span(draw(st.integers(0, 99)), begin, end, draw(st.sampled_from(MemoryKind)), stage))
    copies = draw(st.permutations(copies))
    for number, copy in enumerate(copies):
        spans += spans_of(number, copy, sum(start <= copy.producer for start in starts) - 1)
    return program_of(*stages, copies=copies, spans=spans, contended_permille=draw(st.integers(300, 1000)))


@st.composite
def copies_at(draw, places) -> Copy:
    """A copy with any positions, out of these, that `check_program` allows."""
    producer = draw(st.integers(0, len(places) - 2))
    user = draw(st.integers(producer + 1, len(places) - 1))
    release = draw(st.integers(producer, len(places) - 1))
    return Copy(
        producer=places[producer],
        release=places[release],
        prefetch=draw(st.sampled_from([NO_OP, *places[:user]])),
        user=places[user],
        out_ns=draw(DURATIONS),
        in_ns=draw(DURATIONS),
        size_bytes=draw(st.integers(0, 99)),
    )


@st.composite
def swap_steps(draw) -> Program:
    """Forward, then backward on one stage as in real steps: released in forward, used in backward, copies take time."""
    num_forward, num_backward = draw(st.tuples(*[st.integers(1, 8)] * 2))
    ops = [Op(draw(DURATIONS), OpKind.FORWARD) for _ in range(num_forward)]
    ops += [Op(draw(DURATIONS), OpKind.BACKWARD) for _ in range(num_backward)]
    copies, spans = [], []
    for number in range(draw(st.integers(1, 6))):
        producer = draw(st.integers(0, num_forward - 1))
        user = draw(st.integers(num_forward, len(ops) - 1))
        copy = Copy(
            producer=producer,
            release=draw(st.integers(producer, num_forward - 1)),
            prefetch=draw(st.integers(producer, user - 1)),
            user=user,
            out_ns=draw(st.integers(1, 9)),
            in_ns=draw(st.integers(1, 9)),
            size_bytes=draw(st.integers(1, 99)),
        )
        copies.append(copy)
        spans += spans_of(number, copy, 0)
    for _ in range(draw(st.integers(0, 6))):
        begin, end = sorted(draw(st.tuples(*[st.integers(0, len(ops) - 1)] * 2)))
        spans.append(Span(draw(st.integers(0, 99)), begin, end))
    return program_of(ops, copies=copies, spans=spans, contended_permille=draw(st.integers(300, 1000)))


def spans_of(number: int, copy: Copy, stage: int) -> list[Span]:
    """Memory of a copied tensor: until it is released, and from when it comes in."""
    return [
        Span(copy.size_bytes, copy.producer, ~number, MemoryKind.OFFLOADING, stage),
        Span(copy.size_bytes, ~number, copy.user, MemoryKind.PREFETCHED, stage),
    ]
