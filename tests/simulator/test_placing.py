"""Release, prefetch and memory of tensors, by hand, for a stage of ten operators: forward 0-4, backward 5-9.

In the execution order a copy out stands behind its maker: with tensors made by operators 0 and 1 that are swapped,
0, copy, 1, copy, 2, 3, ...
"""

from dataclasses import replace

import numpy as np
import pytest

from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.placing import StageSpan, TransferCosts, place_memory
from mindswap.simulator.program import NO_OP, ONE_WAY, MemoryKind, OpKind
from mindswap.simulator.tensor_lifetimes import StageTensors
from tests.simulator.builders import program_of

STAGE = "F1 F1 F1 F1 F1 B1 B1 B1 B1 B1"
COSTS = TransferCosts(lambda size: 2 * size, lambda size: 3 * size)


def tensor(begin=0, user=8, prefetch=1, **changes):
    """A swapped tensor of 7 bytes, made in forward; `user` is its only use in backward."""
    row = dict(size_bytes=7, is_forward=True, begin=begin, last_forward=begin + 1, first_backward=user,
               last_backward=user, kind=MemoryKind.TRANSIENT, part=MemoryPart.TEMPORARIES,
               label=0, layer=0, micro_batch=0, prefetch=prefetch,
               num_copies=1, is_resident=False, is_optimizer_input=False)  # fmt: skip
    return row | changes


def place(*tensors, stage=STAGE, first=0, num_before=0, ops=None):
    ops = ops or program_of(stage).ops
    columns = StageTensors(**{key: np.array([row[key] for row in tensors]) for key in tensors[0]})
    return place_memory(columns, ops, StageSpan(0, first, len(ops)), COSTS, num_before)


def spans(intervals):
    return [
        (MemoryKind(kind).name, begin, end)
        for kind, begin, end in zip(
            intervals.kind.tolist(), intervals.begin.tolist(), intervals.end.tolist(), strict=True
        )
    ]


@pytest.mark.parametrize(
    ("distances", "releases"),
    [
        ((1, 1), [2, 4]),  # three places behind each copy out; order: 0 out 1 out 2 3 4 5 6 in in 7 8 9
        ((2, 1), [5, 4]),
        ((3, 1), [7, 4]),  # 0 out 1 out 2 3 4 in 5 6 in 7: nine behind the first stands a copy in
        ((4, 2), [9, 6]),  # 0 out 1 out 2 3 in 4 5 in 6 7 8 9: six behind the second stands a copy in
        ((100, 1), [9, 4]),  # never behind the last operator
    ],
)
def test_release_counts_operators_and_copies(distances, releases):
    copies, _ = place(tensor(0, prefetch=distances[0]), tensor(1, prefetch=distances[1]))
    assert copies.release_op.tolist() == releases
    assert copies.producer_op.tolist() == [0, 1]


def test_release_counts_copies_in_that_stand_between():
    # The copy in waits for operator 8 - (3 + 1) = 4. Order: 0 out 1 2 3 4 in 5 6 7 8: nine places behind `out` is 8.
    copies, _ = place(tensor(0, prefetch=3, user=8))
    assert copies.prefetch_op.tolist() == [4]
    assert copies.release_op.tolist() == [8]


def test_release_slides_to_the_next_operator_of_the_compute_stream():
    copies, _ = place(tensor(0), stage="F1 F1 F1 C1 S1 F1 B1 B1 B1 B1")
    # Order: 0 copy 1 2 3 ...: three places behind the copy is 3.
    assert copies.release_op.tolist() == [5]
    copies, _ = place(tensor(0), stage="F1 F1 F1 R1 S1 F1 B1 B1 B1 B1")  # what runs again is on it, too
    assert copies.release_op.tolist() == [3]


@pytest.mark.parametrize(
    ("distance", "prefetch_op"),
    [
        (1, 6),  # two operators before the user
        (3, 4),  # copies are not counted
        (5, 4),  # operator 2 comes before the maker: not before the copy out
        (7, 4),
        (8, 4),  # further than the way from the first operator
    ],
)
def test_prefetch_counts_operators_only(distance, prefetch_op):
    copies, _ = place(tensor(4, user=8, prefetch=distance), tensor(5, user=9, is_forward=False, num_copies=0))
    assert copies.prefetch_op.tolist() == [prefetch_op]
    assert copies.first_user_op.tolist() == [8]


def test_positions_count_from_the_start_of_the_stage():
    ops = program_of(STAGE, STAGE).ops
    copies, _ = place(tensor(14, user=18, prefetch=8), tensor(12, user=17, prefetch=1), first=10, ops=ops)
    assert copies.prefetch_op.tolist() == [14, 15]
    # Order: 10 11 12 copy 13 14 copy 15 ... 19; three behind the first copy is the second, so the one behind it.
    assert copies.release_op.tolist() == [19, 15]


def test_both_distances_count_positions_of_the_execution_order():
    # Operator 2 is fused into 3; a Reshape precedes 4, two precede 7: ranks 0 1 1 2 4 5 6 9 10 11.
    positions = np.array([1, 1, 0, 1, 2, 1, 1, 3, 1, 1])
    ops = replace(program_of(STAGE).ops, positions=positions)
    # Two positions before operator 8 is a Reshape, so the copy in waits for operator 6. Three positions after the copy
    # out, which follows operator 0, is the Reshape before operator 4.
    copies, _ = place(tensor(0, prefetch=1), ops=ops)
    assert (copies.prefetch_op.tolist(), copies.release_op.tolist()) == ([6], [4])


def test_a_copy_of_one_micro_batch_starts_no_earlier_than_backward():
    assert place(tensor(0, user=6, prefetch=2)).copies.prefetch_op.tolist() == [4]
    assert place(tensor(0, user=6, prefetch=60)).copies.prefetch_op.tolist() == [4]
    # The other passes of several micro-batches are before it: position 6 - (2 + 1), and none.
    ops = replace(program_of(STAGE).ops, micro_batch=np.array([0, 0, 1, 1, 1, 0, 0, 0, 1, 1]))
    assert place(tensor(0, user=6, prefetch=2), ops=ops).copies.prefetch_op.tolist() == [3]
    assert place(tensor(0, user=6, prefetch=60), ops=ops).copies.prefetch_op.tolist() == [NO_OP]


def test_times_follow_sizes():
    copies, _ = place(tensor(0, size_bytes=5), tensor(1, size_bytes=4))
    assert (copies.out_ns.tolist(), copies.in_ns.tolist()) == ([10, 8], [15, 12])


def test_a_swapped_tensor_is_there_until_released_and_from_its_copy_in():
    _, intervals = place(tensor(0, last_backward=9))
    assert spans(intervals) == [("OFFLOADING", 0, ~0), ("PREFETCHED", ~0, 9)]


def test_a_tensor_that_forward_reads_after_its_release_stays_so_long():
    _, intervals = place(tensor(0, last_forward=4))
    assert spans(intervals) == [("OFFLOADING", 0, 4), ("PREFETCHED", ~0, 8)]


def test_several_copies_of_a_tensor_come_back_each_and_the_last_frees_it():
    copies, intervals = place(tensor(0, num_copies=2), num_before=10)
    assert len(copies) == 2
    # Order: 0 copy copy 1 2 3 ...
    assert copies.release_op.tolist() == [2, 3]
    assert spans(intervals) == [("OFFLOADING", 0, ~11), ("PREFETCHED", ~10, 8), ("PREFETCHED", ~11, 8)]


def test_a_held_tensor_stays_and_its_copy_takes_room_as_well():
    _, intervals = place(tensor(0, is_resident=True))
    assert spans(intervals) == [("KEPT", 0, 8), ("PREFETCHED", ~0, 8)]


def test_what_is_not_swapped():
    _, intervals = place(
        tensor(0, num_copies=0),
        tensor(1, num_copies=0, first_backward=NO_OP, last_backward=NO_OP),
        tensor(5, num_copies=0, is_forward=False, last_forward=NO_OP, kind=MemoryKind.RECOMPUTED),
        tensor(2, first_backward=NO_OP, last_backward=NO_OP),  # swapped, and backward does not need it
    )
    assert spans(intervals) == [("KEPT", 0, 8), ("TRANSIENT", 1, 2), ("RECOMPUTED", 5, 8), ("TRANSIENT", 2, 3)]


def test_what_never_comes_back_leaves_and_is_no_copy_in():
    one_way = tensor(0, num_copies=ONE_WAY, first_backward=NO_OP, last_backward=NO_OP)
    copies, intervals = place(one_way, tensor(1))
    # Order: 0 out 1 out 2 3 4 5 6 in 7 8 9; three places behind the first copy is 3, behind the second 4.
    assert copies.release_op.tolist() == [2, 4]
    assert (copies.out_ns.tolist(), copies.in_ns.tolist()) == ([14, 14], [0, 21])
    assert copies.first_user_op.tolist() == [9, 8]
    assert spans(intervals) == [("OFFLOADING", 0, ~0), ("OFFLOADING", 1, ~1), ("PREFETCHED", ~1, 8)]


def test_what_never_comes_back_frees_nothing_where_forward_reads_it_later_or_another_name_holds_it():
    one_way = dict(num_copies=ONE_WAY, first_backward=NO_OP, last_backward=NO_OP)
    _, intervals = place(tensor(0, last_forward=4, **one_way), tensor(1, is_resident=True, **one_way))
    assert spans(intervals) == [("TRANSIENT", 1, 2), ("OFFLOADING", 0, 4)]


def test_nothing_to_place():
    copies, intervals = place(tensor(0, num_copies=0))
    assert len(copies) == 0 and len(intervals) == 1
    assert OpKind.RECOMPUTE < OpKind.COLLECTIVE  # what release slides over


def test_a_tensor_that_forward_reads_last_at_its_release_leaves_with_its_copy():
    """Order: 0 copy 1 2 3: operator 3 is its release. It reads the tensor, too, but a slow copy holds it longer."""
    copies, intervals = place(tensor(0, last_forward=3))
    assert copies.release_op.tolist() == [3]
    assert spans(intervals)[0] == ("OFFLOADING", 0, ~0)


def test_what_never_comes_back_is_copied_out_on_a_later_stage_too():
    """A stage of three operators behind ten of another one: without a reader in backward there is no prefetch."""
    copies, _ = place(tensor(10, user=NO_OP, num_copies=ONE_WAY), first=10, ops=program_of(f"{STAGE} F1 F1 B1").ops)
    assert (copies.out_ns.tolist(), copies.in_ns.tolist(), copies.first_user_op.tolist()) == ([14], [0], [12])
