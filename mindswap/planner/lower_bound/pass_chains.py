"""Passes of a pipeline, and chains of dependent passes whose length bounds the step time under every policy.

Proof that no step is shorter than a chain: each stage runs its passes in the order of the schedule, and each of its
streams its operators in issue order. So without copies, end times are sums and maxima of durations: no operator ends
earlier because another one takes longer. Copies only delay operators, however they share the link. The longest chain is
the step that keeps everything. Under another policy

- a forward pass may be shorter, because it need not store tensors that nothing holds: granted to each pass;
- recomputed operators run between the operators of a backward pass, after the tensor that the pass receives. Chains
  that enter the pass on the compute stream or by the received tensor get longer by them, except for what communication
  hides (`TensorGraph.gaps`); those that wait for the network alone need not.

Two stages, of which the second keeps the first one waiting; the longest chain is F0, F0, B0, B0, B1:

    stage 0    | F0 | F1 |      | B0   | B1   |
    stage 1         | F0 | B0   | F1 | B1  |

All-gathers of weights take no time here, and operators that run once in a step are left out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mindswap.simulator.layout import StageLayout
from mindswap.simulator.program import OpKind
from mindswap.simulator.schedules.rounds import PassWork
from mindswap.simulator.stage_pass import ModelSegments, StagePass
from mindswap.simulator.step_model import StepModel

NEVER_NS = -(2**62)  # time before every other: no dependency
COMPUTE, NETWORK, RECEIVED = range(3)  # streams of a stage
PassKey = tuple[int, int, bool, int]  # stage, virtual chunk, is forward, piece of the sequence


class PassLatency(NamedTuple):
    """Longest dependency paths through a pass, in ns; `NEVER_NS` if there is none."""

    compute_ns: int  # to the end of the last operator on the compute stream
    network_ns: int  # to the end of the last operator on the communication stream, when a sent tensor arrives
    begin_ns: int  # to the begin of the first operator on the compute stream


@dataclass(frozen=True, eq=False)
class PassTimes:
    """Minimum times of a pass of a virtual chunk."""

    # by source: since the compute stream is free, since the communication stream is free, since a tensor is received
    latencies: tuple[PassLatency, ...]
    busy_ns: int  # busy time of the compute stream
    receive: int | None  # this field and the next one are those of `StagePass`
    send: int | None

    def shortened(self, saved_ns: int) -> "PassTimes":
        """Return the times if operators of the pass take less time by `saved_ns`."""
        return replace(
            self,
            latencies=tuple(PassLatency(*(each_ns - saved_ns for each_ns in latency)) for latency in self.latencies),
        )


def pass_times(model: StepModel) -> dict[PassKey, PassTimes]:
    """Return the times of all passes of a model without any policy, with all-gathers of weights in no time."""
    layout, times = model.layout, {}
    stages = {s: stage for stage, chunks in enumerate(layout.chunks) for segments in chunks for s in segments}

    def send_ns(segment: int, target: int, size_bytes: int) -> int:
        return 0 if stages[segment] == stages[target] else model.transfers.send_ns(size_bytes)

    model_segments = ModelSegments(model.blocks_with_free_gathers(), send_ns)
    for stage, chunks in enumerate(layout.chunks):
        for chunk, segments in enumerate(chunks):
            for is_forward in (True, False):
                stage_pass = model_segments.make_pass(segments, is_forward, {})
                for piece in range(layout.num_sequences):
                    times[stage, chunk, is_forward, piece] = _times(stage_pass, piece)
    return times


def _times(stage_pass: StagePass, piece: int) -> PassTimes:
    """Return the times of a pass for a sequence piece."""
    pieces_ns = stage_pass.ops.piece_ns
    durations_ns = pieces_ns[:, min(piece, pieces_ns.shape[1] - 1)]
    latencies = tuple(_latency(stage_pass, durations_ns.tolist(), source) for source in (COMPUTE, NETWORK, RECEIVED))
    busy_ns = int(durations_ns[stage_pass.ops.kind < OpKind.COLLECTIVE].sum())
    return PassTimes(latencies, busy_ns, stage_pass.receive, stage_pass.send)


def _latency(stage_pass: StagePass, durations_ns: Sequence[int], source: int) -> PassLatency:
    """Return the longest paths from the time at which a stream is free, or a tensor is received."""
    kinds, waits = stage_pass.ops.kind.tolist(), stage_pass.ops.wait_op.tolist()
    free_ns = [NEVER_NS] * 3
    free_ns[source] = 0
    ends_ns = [NEVER_NS] * (len(kinds) + 1)  # the last one stands for no operator
    begin_ns = NEVER_NS
    for op, (kind, wait, duration_ns) in enumerate(zip(kinds, waits, durations_ns, strict=True)):
        stream = COMPUTE if kind < OpKind.COLLECTIVE else RECEIVED if kind == OpKind.RECEIVE else NETWORK
        start_ns = max(free_ns[stream], ends_ns[wait])
        if not op and stage_pass.starts_with_collective and source == COMPUTE:
            start_ns = 0
        if stream == COMPUTE and begin_ns == NEVER_NS:
            begin_ns = start_ns
        free_ns[stream] = ends_ns[op] = start_ns + duration_ns
    return PassLatency(free_ns[COMPUTE], free_ns[NETWORK], begin_ns)


@dataclass(frozen=True)
class Chain:
    """Passes of which each waits for the previous one."""

    length_ns: int  # without recompute
    # for each stage, number of backward passes that recompute makes longer: the minimum over its virtual chunks,
    # because the recomputed layers may be in any of them
    num_backward: tuple[int, ...]


class _ChainEnd(NamedTuple):
    """The end of a chain."""

    end_ns: int
    grows: tuple[int, int] | None = None  # stage and virtual chunk of the last pass, if recompute makes it longer
    previous: "_ChainEnd | None" = None


@dataclass(frozen=True, eq=False)
class StepPasses:
    """All passes of a step."""

    layout: StageLayout
    times: Mapping[PassKey, PassTimes]
    longest: Chain = field(init=False, repr=False)  # derived: the longest chain without recompute

    def __post_init__(self) -> None:
        object.__setattr__(self, "longest", self._chain([0] * self.layout.num_stages))

    def longest_chain(self, recompute_ns: Sequence[float]) -> Chain:
        """Return the longest chain for a given recompute time per micro-batch of each stage, spread over its chunks."""
        grow_ns = [
            int(own_ns) // len(chunks_of_stage)
            for own_ns, chunks_of_stage in zip(recompute_ns, self.layout.chunks, strict=True)
        ]
        return self._chain(grow_ns) if any(grow_ns) else self.longest

    def _chain(self, grow_ns: Sequence[int]) -> Chain:
        """Return the longest chain if each backward pass of a stage takes longer by `grow_ns` of the stage."""
        chunks, chain_end = self.layout.chunks, self._longest(grow_ns)
        length_ns, grown = chain_end.end_ns, Counter[tuple[int, int]]()
        while chain_end.previous is not None:
            if chain_end.grows is not None:
                grown[chain_end.grows] += 1
                length_ns -= grow_ns[chain_end.grows[0]]
            chain_end = chain_end.previous
        return Chain(
            length_ns,
            tuple(min(grown[s, c] for c in range(len(chunks_of_stage))) for s, chunks_of_stage in enumerate(chunks)),
        )

    def _longest(self, grow_ns: Sequence[int]) -> _ChainEnd:
        """Schedule the passes of each stage in order, until one waits for a tensor not sent yet; repeat."""
        pending = [list(reversed(self.layout.passes(stage))) for stage in range(self.layout.num_stages)]
        ends = [[_ChainEnd(0), _ChainEnd(0)] for _ in pending]  # of the compute stream and the network of each stage
        sent: dict[tuple[int, int, int, bool], _ChainEnd] = {}
        while any(pending):
            for stage, passes in enumerate(pending):
                while passes:
                    entry = passes[-1]
                    is_forward = entry.work is PassWork.FORWARD
                    times = self.times[stage, entry.chunk, is_forward, entry.sequence]
                    transfer_key = entry.micro_batch, entry.sequence, is_forward
                    received = (
                        _ChainEnd(NEVER_NS) if times.receive is None else sent.get((times.receive, *transfer_key))
                    )
                    if received is None:
                        break
                    passes.pop()
                    grows, own_ns = (None, 0) if is_forward else ((stage, entry.chunk), grow_ns[stage])
                    ends[stage] = _extend_chains([*ends[stage], received], times, grows, own_ns)
                    if times.send is not None:
                        sent[(times.send, *transfer_key)] = ends[stage][NETWORK]
        return max((chain_end for both in ends for chain_end in both), key=lambda chain_end: chain_end.end_ns)


def _extend_chains(
    sources: Sequence[_ChainEnd], times: PassTimes, grows: tuple[int, int] | None, grow_ns: int
) -> list[_ChainEnd]:
    """Return the longest chains that end with a pass, on the compute stream and on the communication stream."""
    extended = []
    for target in (COMPUTE, NETWORK):
        longest = _ChainEnd(NEVER_NS)
        for source, (chain_end, latency) in enumerate(zip(sources, times.latencies, strict=True)):
            # Final communication that sends nothing may precede all recompute.
            has_all = source != NETWORK and (target == COMPUTE or times.send is not None)
            end_ns = chain_end.end_ns + latency[target] + has_all * grow_ns
            if end_ns > longest.end_ns:
                longest = _ChainEnd(end_ns, grows if has_all else None, chain_end)
        extended.append(longest)
    return extended
