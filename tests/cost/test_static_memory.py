"""Static memory and the work at the end of a step, counted by hand."""

import pytest

from mindswap.cost.static_memory import (
    OPTIMIZERS,
    Parameter,
    StaticMemory,
    estimate_gradient_ns,
    estimate_optimizer_ns,
    estimate_static_memory,
    find_optimizer,
)
from mindswap.errors import CostError
from tests.cost.builders import GENERIC, device

# A float32 matrix of 1 MiB and a norm weight of 1 KiB, which the parallel optimizer leaves whole.
MATRIX = Parameter("w", 2**20, 2**18)
NORM = Parameter("norm", 2**10, 2**8, is_cut=False)
HALF = Parameter("h", 2**20, 2**19)
ADAMW = OPTIMIZERS["AdamW"]
MIB, KIB = 2**20, 2**10


def test_float32_weights_with_adamw():
    memory = estimate_static_memory([MATRIX, NORM], ADAMW)
    assert memory == StaticMemory(MIB + KIB, 0, 2 * (MIB + KIB), 0)
    assert memory.total_bytes == 3 * (MIB + KIB)


def test_states_of_half_precision_weights_are_float32():
    # 2^19 numbers, two states of 4 bytes each.
    assert estimate_static_memory([HALF], ADAMW) == StaticMemory(MIB, 0, 4 * MIB, 0)
    # mindspore.nn.AdamWeightDecay clones the weight, type and all.
    assert estimate_static_memory([HALF], OPTIMIZERS["AdamWeightDecay"]).optimizer_bytes == 2 * MIB


def test_pma_keeps_a_third_state():
    assert estimate_static_memory([MATRIX], OPTIMIZERS["PmaAdamW"]).optimizer_bytes == 3 * MIB


def test_the_parallel_optimizer_cuts_weights():
    memory = estimate_static_memory([MATRIX, NORM], ADAMW, num_shards=8)
    assert memory == StaticMemory(MIB // 8 + KIB, 0, 2 * (MIB // 8 + KIB), 0)


def test_micro_batches_need_a_sum_of_gradients():
    assert estimate_static_memory([MATRIX], ADAMW, 8, is_accumulating=True).gradient_bytes == MIB
    sharded = estimate_static_memory([MATRIX], ADAMW, 8, is_accumulating=True, is_accumulator_sharded=True)
    assert sharded.gradient_bytes == MIB // 8


def test_state_in_host_memory_and_workspace():
    memory = estimate_static_memory([MATRIX], ADAMW, is_state_offloaded=True, workspace_bytes=5)
    assert (memory.optimizer_bytes, memory.workspace_bytes) == (0, 5)


def test_llama2_7b_on_eight_cards():
    # 6,738,415,616 numbers in float32, weights and two states, all cut by 8: 9.41 GiB.
    memory = estimate_static_memory([Parameter("all", 4 * 6_738_415_616, 6_738_415_616)], ADAMW, 8)
    assert memory.total_bytes == 3 * 4 * 6_738_415_616 // 8


def test_the_optimizer_step_is_bound_by_memory():
    # Read weight, gradient and two states, write weight and states: 7 MiB at 1 TB/s: 7,340,032 ps = 7,340.03 ns.
    assert estimate_optimizer_ns([MATRIX], ADAMW, GENERIC) == 7341
    # Cut by 8 and 2 us for each kernel; the norm weight: 7 KiB, 7.168 ns.
    slow = device(op_latency_ns={"vector": 2000})
    assert estimate_optimizer_ns([MATRIX, NORM], ADAMW, slow, 8) == 925 + 2 * 2000


def test_gradients_are_sent_together_up_to_64_mib():
    # Three of 40 MiB: two make a message of 80, one of 40 is left. AllReduce of 2 ranks sends 2 * 1/2 of it, 100 GB/s.
    weights = [Parameter(name, 40 * MIB, 10 * MIB) for name in "abc"]
    latency = device(op_latency_ns={"communication": 1000})
    assert estimate_gradient_ns(weights, 2, GENERIC) == 838_861 + 419_431
    assert estimate_gradient_ns(weights, 2, latency) == 838_861 + 419_431 + 2000
    assert estimate_gradient_ns(weights, 2, GENERIC, is_sharded=True) == 419_431 + 209_716
    assert estimate_gradient_ns(weights, 1, GENERIC) == 0


def test_an_unknown_optimizer_lists_the_known_ones():
    assert find_optimizer("PmaAdamW") == OPTIMIZERS["PmaAdamW"]
    with pytest.raises(CostError, match="closest: AdamW; known: AdamW, FusedAdamW"):
        find_optimizer("AdamX")


def test_shards_are_positive():
    with pytest.raises(ValueError):
        estimate_static_memory([MATRIX], ADAMW, 0)
    with pytest.raises(ValueError):
        estimate_optimizer_ns([MATRIX], ADAMW, GENERIC, 0)
