"""Events as msprof writes them, made by hand: names and keys are those of real traces."""

import pytest

from mindswap.simulator.profile.overlap import Overlap, measure_overlap, trace_overlap

PROCESSES = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "Ascend Hardware"}},
    {"ph": "M", "name": "process_name", "pid": 2, "tid": 0, "args": {"name": "Overlap Analysis"}},
    {"ph": "M", "name": "process_name", "pid": 3, "tid": 0, "args": {"name": "HCCL"}},
]
LEVEL1 = {"Task Type": "PCIE_DMA_SQE"}
LEVEL2 = {**LEVEL1, "data size(Byte)": 19267584, "memcpy direction": "host to device"}

# 0-10 ms: any copy below is hidden.
COMPUTING = {"ph": "X", "pid": 2, "tid": 0, "name": "Computing", "ts": "0.000", "dur": 10_000, "args": {}}


def event(pid, name, start_us, duration_us, **args):
    # Start as text with three decimals, duration as a number: as in the files.
    return {"ph": "X", "pid": pid, "tid": 0, "name": name, "ts": f"{start_us:.3f}", "dur": duration_us, "args": args}


def test_kernels_collectives_and_copies_are_told_apart():
    events = [
        *PROCESSES,
        event(2, "Computing", 10, 5),
        event(2, "Communication", 20, 1.5),
        event(2, "Communication(Not Overlapped)", 20, 1),
        event(2, "Free", 0, 10),
        event(1, "MatMulV2", 10, 5),
        event(1, "MEMCPY_ASYNC", 12, 10, **LEVEL2),
        event(3, "Memcpy", 12, 4),
    ]
    # Microseconds to ns: the copy is 12-22; compute 10-15 hides 3 of it, communication 20-21.5 is beside 1.5.
    assert trace_overlap(events) == Overlap(1, 19267584, 10_000, 3000, 1500, 5000)


@pytest.mark.parametrize(
    ("args", "is_copy"),
    [
        (LEVEL1, True),
        (LEVEL2, True),
        ({"memcpy direction": "host to device ex", "data size(Byte)": 8}, True),
        ({"operation": "Device to Host", "size(B)": 8}, True),
        ({"memcpy direction": "device to device", "data size(Byte)": 8}, False),
        ({"Task Type": "SDMA_SQE"}, False),
        ({}, False),
    ],
)
def test_only_copies_between_device_and_host_count(args, is_copy):
    assert trace_overlap([*PROCESSES, COMPUTING, event(1, "MEMCPY_ASYNC", 1, 1, **args)]).num_copies == is_copy


def test_one_copy_without_a_size_leaves_the_sum_open():
    copies = [event(1, "MEMCPY_ASYNC", 1, 1, **LEVEL1), event(1, "MEMCPY_ASYNC", 3, 1, **LEVEL2)]
    overlap = trace_overlap([*PROCESSES, COMPUTING, *copies])
    assert overlap.num_copies == 2 and overlap.size_bytes is None


def test_what_is_no_event_is_left_out():
    odd = ["x", {}, {"ph": "X", "pid": 2, "name": "Computing", "ts": "?", "dur": 1}]
    assert trace_overlap([*PROCESSES, *odd, COMPUTING]) == trace_overlap([*PROCESSES, COMPUTING])
    assert trace_overlap([*PROCESSES, *odd]) is None


@pytest.mark.parametrize(
    "broken",
    [
        {"args": [1]}, {"args": "x"}, {"pid": [1]}, {"pid": {}}, {"dur": -1}, {"dur": None}, {"ts": "1e400"},
        {"ts": "nan"}, {"name": 3},
    ],
)  # fmt: skip
def test_a_copy_that_is_none_is_left_out_and_the_others_count(broken):
    good = event(1, "MEMCPY_ASYNC", 1, 1, **LEVEL2)
    name = {"ph": "M", "name": "process_name", "pid": 4} | broken
    overlap = trace_overlap([*PROCESSES, name, COMPUTING, good | broken, good])
    assert (overlap.num_copies, overlap.copy_ns, overlap.hidden_ns) == (1, 1000, 1000)


def test_the_overlap_of_a_trace():
    events = [*PROCESSES, event(2, "Computing", 0, 3), event(1, "MEMCPY_ASYNC", 2, 4, **LEVEL2)]
    # Copy 2-6 us, compute 0-3 us: 1 of 4 us is hidden.
    assert trace_overlap(events) == Overlap(1, 19267584, 4000, 1000, 0, 3000)


def test_the_trace_of_a_cpu_has_no_overlap():
    host = {"ph": "M", "name": "process_name", "pid": 2, "tid": 0, "args": {"name": "CPU OP"}}
    assert trace_overlap([host, event(2, "Default/MatMul-op0", 0, 3, type="HostCpuOps")]) is None


# Copies laid over compute and communication, by hand.


def test_a_copy_is_hidden_exposed_and_beside_communication():
    # Copy 0-100. Compute 0-30 and 20-40: 40 of it. Communication 35-60: 20 of it without compute. 40 are left.
    overlap = measure_overlap([(0, 100)], [(0, 30), (20, 40)], [(35, 60)], 4096)
    assert overlap == Overlap(1, 4096, copy_ns=100, hidden_ns=40, communication_ns=20, compute_ns=40)
    assert overlap.exposed_ns == 40
    assert overlap.hidden_permille == 400


def test_two_copies_at_once_count_both():
    # 10 and 20 ns, of which compute 5-15 covers 5 and 10.
    overlap = measure_overlap([(0, 10), (0, 20)], [(5, 15)], [])
    assert (overlap.copy_ns, overlap.hidden_ns, overlap.exposed_ns) == (30, 15, 15)


@pytest.mark.parametrize("compute", [[(0, 10)], [(20, 30)], []])
def test_compute_before_or_after_a_copy_hides_nothing(compute):
    assert measure_overlap([(10, 20)], compute, []).hidden_ns == 0


def test_without_copies_there_is_no_share():
    overlap = measure_overlap([], [(0, 10)], [])
    assert overlap.hidden_permille is None and overlap.compute_ns == 10
