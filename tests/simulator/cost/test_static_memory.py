"""Static memory, counted by hand."""

import pytest

from mindswap.config.pipeline_layout import Pipeline
from mindswap.errors import CostError
from mindswap.simulator.cost.static_memory import (
    OPTIMIZERS,
    Parameter,
    StaticMemory,
    communication_bytes,
    estimate_static_memory,
    find_states,
    num_parameter_shards,
    workspace_bytes,
)
from tests.simulator.cost.builders import device, operator, step_settings, tensor

# A float32 matrix of 1 MiB and a norm weight of 1 KiB, which the parallel optimizer leaves whole.
MATRIX = Parameter("w", 2**20, 2**18)
NORM = Parameter("norm", 2**10, 2**8, is_sharded=False)
HALF = Parameter("h", 2**20, 2**19)
ADAMW = step_settings()
MIB, KIB = 2**20, 2**10


def test_the_total_has_every_part():
    assert StaticMemory(1, 2, 4, 8, 16).total_bytes == 31


@pytest.mark.parametrize(
    ("num_shards", "of_most", "of_its_own", "of_whole"), [(1, 1, 1, 1), (2, 2, 4, 1), (8, 8, 4, 1)]
)
def test_ranks_over_which_a_weight_is_cut(num_shards, of_most, of_its_own, of_whole):
    own = Parameter("w", 2**20, 2**18, num_shards=4)
    found = [num_parameter_shards(weight, num_shards) for weight in (MATRIX, own, NORM)]
    assert found == [of_most, of_its_own, of_whole]


def test_float32_weights_with_adamw():
    memory = estimate_static_memory([MATRIX, NORM], ADAMW)
    assert memory == StaticMemory(MIB + KIB, 0, 2 * (MIB + KIB), 0)
    assert memory.total_bytes == 3 * (MIB + KIB)


def test_states_of_half_precision_weights_are_float32():
    # 2^19 numbers, two states of 4 bytes each.
    assert estimate_static_memory([HALF], ADAMW) == StaticMemory(MIB, 0, 4 * MIB, 0)
    # mindspore.nn.AdamWeightDecay clones the weight, type and all.
    assert estimate_static_memory([HALF], step_settings(optimizer="AdamWeightDecay")).optimizer_bytes == 2 * MIB


def test_pma_keeps_a_third_state():
    assert estimate_static_memory([MATRIX], step_settings(optimizer="PmaAdamW")).optimizer_bytes == 3 * MIB


def test_the_parallel_optimizer_cuts_weights():
    memory = estimate_static_memory([MATRIX, NORM], step_settings(8))
    assert memory == StaticMemory(MIB // 8 + KIB, 0, 2 * (MIB // 8 + KIB), 0)


def test_micro_batches_need_a_sum_of_gradients():
    assert estimate_static_memory([MATRIX], step_settings(8, 2)).gradient_bytes == MIB
    sharded = estimate_static_memory([MATRIX], step_settings(8, 2, is_accumulator_sharded=True))
    assert sharded.gradient_bytes == MIB // 8


def test_state_in_host_memory_and_workspace():
    memory = estimate_static_memory([MATRIX], step_settings(is_state_offloaded=True), 5)
    assert (memory.optimizer_bytes, memory.workspace_bytes) == (0, 5)
    # Two states in float32, which are not in the memory of the card.
    assert (memory.host_bytes, memory.total_bytes) == (2 * MIB, MIB + 5)
    assert estimate_static_memory([MATRIX], step_settings(), 5).host_bytes == 0


def test_llama2_7b_on_eight_cards():
    # 6,738,415,616 numbers in float32, weights and two states, all cut by 8: 9.41 GiB.
    memory = estimate_static_memory([Parameter("all", 4 * 6_738_415_616, 6_738_415_616)], step_settings(8))
    assert memory.total_bytes == 3 * 4 * 6_738_415_616 // 8


def test_an_unknown_optimizer_lists_the_known_ones():
    assert find_states("PmaAdamW") == OPTIMIZERS["PmaAdamW"]
    with pytest.raises(CostError, match="closest: Adam; known: AdamW, FusedAdamW"):
        find_states("AdamX")


# Memory beside tensors, by hand.


OUTSIDE_MEMORY_MIB = 2**20
CARD = device(kernel_workspace_bytes=16 * OUTSIDE_MEMORY_MIB, hccl_buffer_bytes=200 * OUTSIDE_MEMORY_MIB)


def test_a_matrix_product_takes_the_workspace_of_its_library():
    assert (
        workspace_bytes([operator("MatMul", tensor(4096, 4096)), operator("Mul", tensor(8192, 4096))], CARD)
        == 16 * OUTSIDE_MEMORY_MIB
    )
    assert workspace_bytes([operator("Mul", tensor(8192, 4096))], CARD) == 0


def test_attention_backward_sums_its_gradients_in_float32():
    # Three of 4096 x 4096 numbers, 64 MiB each; the fourth output is no sum.
    heads = tensor(1, 4096, 4096)
    gradient = operator("FlashAttentionScoreGrad", heads, heads, heads, heads)
    assert workspace_bytes([gradient], CARD) == 208 * OUTSIDE_MEMORY_MIB
    # They do not run at once.
    assert workspace_bytes([operator("MatMul", heads), gradient], CARD) == 208 * OUTSIDE_MEMORY_MIB
    assert workspace_bytes([operator("FlashAttentionScore", heads)], CARD) == 16 * OUTSIDE_MEMORY_MIB


def test_a_device_without_the_figure_has_no_workspace():
    heads = tensor(1, 4096, 4096)
    assert workspace_bytes([operator("FlashAttentionScoreGrad", heads, heads, heads)], device()) == 0


def test_communicators_of_a_rank():
    assert step_settings().communicators == ()
    assert step_settings(8, data_parallel=8).communicators == ("world", "data parallel")
    pipeline = ("pipeline forward", "pipeline backward", "pipeline loss", "weights")
    stages = step_settings(2, data_parallel=2, model_parallel=4, pipeline=Pipeline(num_stages=4))
    assert stages.communicators == ("world", "tensor parallel", "data parallel", *pipeline)
    whole = step_settings(1, data_parallel=2, pipeline=Pipeline(num_stages=2))  # without the parallel optimizer
    assert whole.communicators == ("world", "data parallel", *pipeline[:3])
    assert step_settings(context_parallel=2).communicators == ("world", "context parallel")
    stages = step_settings(2, context_parallel=2, pipeline=Pipeline(num_stages=2))
    assert stages.communicators == ("world", "context parallel", *pipeline)
    alone = step_settings(2, pipeline=Pipeline(num_stages=2))
    assert alone.communicators == ("world", *pipeline[:3])


def test_each_communicator_has_two_buffers():
    assert communication_bytes(("world", "data parallel"), CARD) == 800 * OUTSIDE_MEMORY_MIB
