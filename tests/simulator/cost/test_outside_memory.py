"""Memory beside tensors, by hand."""

from mindswap.config.pipeline import Pipeline
from mindswap.simulator.cost.static_memory import communication_bytes, list_communicators, workspace_bytes
from tests.simulator.cost.builders import device, operator, step_settings, tensor

MIB = 2**20
CARD = device(kernel_workspace_bytes=16 * MIB, hccl_buffer_bytes=200 * MIB)


def test_a_matrix_product_takes_the_workspace_of_its_library():
    assert (
        workspace_bytes([operator("MatMul", tensor(4096, 4096)), operator("Mul", tensor(8192, 4096))], CARD) == 16 * MIB
    )
    assert workspace_bytes([operator("Mul", tensor(8192, 4096))], CARD) == 0


def test_attention_backward_sums_its_gradients_in_float32():
    # Three of 4096 x 4096 numbers, 64 MiB each; the fourth output is no sum.
    heads = tensor(1, 4096, 4096)
    assert workspace_bytes([operator("FlashAttentionScoreGrad", heads, heads, heads, heads)], CARD) == 208 * MIB
    assert workspace_bytes([operator("FlashAttentionScore", heads)], CARD) == 16 * MIB


def test_a_device_without_the_figure_has_no_workspace():
    heads = tensor(1, 4096, 4096)
    assert workspace_bytes([operator("FlashAttentionScoreGrad", heads, heads, heads)], device()) == 0


def test_communicators_of_a_rank():
    assert list_communicators(step_settings()) == ()
    assert list_communicators(step_settings(8, data_parallel=8)) == ("world", "data parallel")
    pipeline = ("pipeline forward", "pipeline backward", "pipeline loss", "weights")
    stages = step_settings(2, data_parallel=2, model_parallel=4, pipeline=Pipeline(num_stages=4))
    assert list_communicators(stages) == ("world", "tensor parallel", "data parallel", *pipeline)
    whole = step_settings(1, data_parallel=2, pipeline=Pipeline(num_stages=2))  # without the parallel optimizer
    assert list_communicators(whole) == ("world", "data parallel", *pipeline[:3])
    assert list_communicators(step_settings(context_parallel=2)) == ("world", "context parallel")


def test_each_communicator_has_two_buffers():
    assert communication_bytes(("world", "data parallel"), CARD) == 800 * MIB
