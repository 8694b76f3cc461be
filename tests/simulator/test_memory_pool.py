"""MindSpore's pool without virtual memory: allocations of a real dry run, and its rules by hand."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from mindswap.policy.model import ALL_LAYERS, OpSwap, Policy
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.device_file import load_device
from mindswap.simulator.memory_pool import PERSISTENT_UNIT_BYTES, UNIT_BYTES, MemoryPool
from mindswap.simulator.planned_memory import planned_activation_bytes
from tests.simulator.steps import model

DATA = Path(__file__).parents[1] / "data"
MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "block_bytes", "used_mib", "actual_mib"),
    [
        ("qwen2_5_0_5b", UNIT_BYTES, 17360, 23025),
        ("qwen3_32b", UNIT_BYTES, 14242, 15334),  # weights need more than their own block
        ("llama3_1_70b", 105 << 29, 10035, 10433),  # mempool_block_size: 52.5GB
    ],
)
def test_allocations_of_a_dry_run_give_its_peak_with_fragments(name, block_bytes, used_mib, actual_mib):
    with gzip.open(DATA / f"memory_pool/{name}.json.gz", "rt") as file:
        recorded = json.load(file)
    pool, buffers, live_bytes, used_bytes = MemoryPool(block_bytes), {}, 0, 0
    blocks = recorded["blocks"]
    events = [(begin, True, number) for number, (begin, *_) in enumerate(blocks)]
    events += [(end, False, number) for number, (_, end, *_) in enumerate(blocks) if end is not None]
    for _, is_allocated, number in sorted(events):
        _, _, size_bytes, is_persistent = blocks[number]
        if is_allocated:
            buffers[number] = pool.allocate(size_bytes, is_persistent=bool(is_persistent))
            live_bytes += size_bytes
            used_bytes = max(used_bytes, live_bytes)
        else:
            pool.release(buffers.pop(number))
            live_bytes -= size_bytes
    assert used_bytes // MIB == used_mib  # without fragments
    assert pool.actual_bytes // MIB == recorded["actual_peak_mib"] == actual_mib


def test_a_block_is_one_unit_or_a_power_of_two_of_it():
    pool = MemoryPool()
    pool.allocate(1)
    assert (pool.actual_bytes, pool.reserved_bytes) == (512, UNIT_BYTES)
    pool.allocate(5 << 30)
    assert pool.reserved_bytes == UNIT_BYTES + (8 << 30)
    pool.allocate(1, is_persistent=True)
    assert pool.reserved_bytes == UNIT_BYTES + (8 << 30) + PERSISTENT_UNIT_BYTES
    pool = MemoryPool(5 << 30)
    pool.allocate(1)
    assert pool.reserved_bytes == 5 << 30


def test_the_smallest_free_buffer_that_is_large_enough_is_used():
    pool = MemoryPool()
    small, _, large, _ = (pool.allocate(size * MIB) for size in (10, 1, 20, 1))
    pool.release(large)
    pool.release(small)
    assert pool.allocate(9 * MIB).address == small.address
    assert pool.allocate(9 * MIB).address == large.address
    assert pool.actual_bytes == 32 * MIB


def test_released_buffers_merge_with_free_neighbours():
    pool = MemoryPool()
    buffers = [pool.allocate(10 * MIB) for _ in range(4)]
    for number in (0, 2, 1):
        pool.release(buffers[number])
    assert pool.allocate(30 * MIB).address == buffers[0].address
    assert pool.actual_bytes == 40 * MIB


def test_weights_use_free_memory_of_the_common_pool_before_a_new_block():
    pool = MemoryPool()
    pool.allocate(MIB)
    pool.allocate(1000 * MIB, is_persistent=True)
    pool.allocate(100 * MIB, is_persistent=True)
    assert pool.reserved_bytes == UNIT_BYTES + PERSISTENT_UNIT_BYTES
    assert pool.actual_bytes == 1101 * MIB


def test_weights_have_one_block_of_their_own():
    pool = MemoryPool()
    pool.allocate(MIB)
    pool.allocate(1000 * MIB, is_persistent=True)
    # The block of tensors has 2047 MiB left, then 47; the next block is one for all, of two units.
    pool.allocate(2000 * MIB, is_persistent=True)
    shared = pool.allocate(100 * MIB, is_persistent=True)
    assert pool.reserved_bytes == PERSISTENT_UNIT_BYTES + 2 * UNIT_BYTES
    tensor = pool.allocate(100 * MIB)
    assert (tensor.block, tensor.address) == (shared.block, shared.address + 100 * MIB)


@pytest.mark.parametrize(("size_bytes", "taken_bytes"), [(0, 512), (1, 512), (512, 512), (513, 1024)])
def test_sizes_are_multiples_of_512_bytes(size_bytes, taken_bytes):
    pool = MemoryPool()
    assert pool.allocate(size_bytes).size_bytes == pool.actual_bytes == taken_bytes


def test_a_simulated_step_is_replayed_on_a_device_that_maps_no_pages():
    step = model()
    simulated = step.simulate(Policy())
    assert step.actual_peaks_bytes(simulated) == simulated.peaks_bytes
    step.costs = CostTable(load_device("atlas_800t_a2", {"fragments": "0.09"}))
    for actual_bytes, peak_bytes in zip(step.actual_peaks_bytes(simulated), simulated.peaks_bytes, strict=True):
        assert peak_bytes <= actual_bytes < 2 * peak_bytes
    replayed = step.actual_peaks_bytes(simulated)
    step.settings = replace(step.settings, plans_memory=True)
    planned = step.actual_peaks_bytes(simulated)
    assert planned != replayed
    for stage, static in enumerate(simulated.static):
        plan_bytes = planned_activation_bytes(simulated.timeline, stage)
        assert planned[stage] == max(plan_bytes, simulated.activation_bytes[stage]) + static.total_bytes
    swapped = step.simulate(Policy(True, op_swap=(OpSwap(".*", ALL_LAYERS, 1),)))
    assert len(swapped.timeline.program.copies)
    assert step.actual_peaks_bytes(swapped) != swapped.peaks_bytes
