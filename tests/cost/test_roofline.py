"""Durations by the roofline, counted by hand on the generic device."""

from dataclasses import replace

import pytest

from mindswap.cost.device_file import load_device
from mindswap.cost.measured import measured_key
from mindswap.cost.roofline import OpClass, classify, is_kernel, operator_ns
from mindswap.cost.table import CostTable, Coverage
from mindswap.graph.work import Work
from tests.cost.builders import GENERIC, device, operator, tensor


def matmul(m: int, k: int, n: int, dtype: str = "float16"):
    """A matrix product and its work."""
    inputs = (tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype))
    output = tensor(m, n, dtype=dtype)
    work = Work(2 * m * k * n, sum(t.size_bytes for t in inputs), output.size_bytes, inputs)
    return operator("MatMul", output), work


def test_a_large_product_is_bound_by_compute():
    # 2 * 1000^3 at 100 TFLOPS: 20 us; 6 MB at 1 TB/s: 6 us.
    assert operator_ns(*matmul(1000, 1000, 1000), GENERIC) == 20_000
    # float32: 50 TFLOPS, 40 us.
    assert operator_ns(*matmul(1000, 1000, 1000, "float32"), GENERIC) == 40_000


def test_a_thin_product_is_bound_by_memory():
    # 2 * 1000 * 1000 FLOPs: 0.02 us; 2 MB + 4 KB at 1 TB/s: 2.004 us.
    assert operator_ns(*matmul(1, 1000, 1000), GENERIC) == 2004


def test_fractions_and_latencies():
    slow = device(
        compute_permille=500, memory_permille=250, op_latency_ns={"matrix": 5000, "vector": 2000, "communication": 0}
    )
    assert operator_ns(*matmul(1000, 1000, 1000), slow) == 40_000 + 5000
    # Mul of 1 M numbers: 6 MB at 0.25 TB/s.
    numbers = tensor(1000, 1000)
    work = Work(10**6, 2 * numbers.size_bytes, numbers.size_bytes, (numbers, numbers))
    assert operator_ns(operator("Mul", numbers), work, slow) == 24_000 + 2000


def test_masks_and_indices_are_worked_on_as_float32():
    # 10 M numbers of one byte at 5 TFLOPS: 2 us; with more memory bandwidth nothing else counts.
    fast = device(memory_bandwidth_bytes_per_s=10**15)
    mask = tensor(10**7, dtype="uint8")
    assert operator_ns(operator("LogicalNot", mask), Work(10**7, 10**7, 10**7, (mask,)), fast) == 2000


def test_views_are_no_kernels():
    assert operator_ns(operator("Reshape", tensor(8)), Work(0, 0, 0), load_device()) == 0
    assert [op for op in ("Reshape", "TupleGetItem", "Load", "Depend", "MoveTo", "MakeTuple") if is_kernel(op)] == []
    assert all(is_kernel(op) for op in ("MatMul", "Cast", "AllGather", "TensorMove", "SomethingNew"))


def test_communication_is_not_timed_as_an_operator():
    with pytest.raises(ValueError, match="communication"):
        operator_ns(operator("AllGather", tensor(8)), Work(0, 16, 16), GENERIC)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("BatchMatMul", OpClass.MATMUL),
        ("FlashAttentionScoreGrad", OpClass.ATTENTION),
        ("RmsNormGrad", OpClass.NORM),
        ("Softmax", OpClass.SOFTMAX),
        ("UnsortedSegmentSum", OpClass.EMBEDDING),
        ("Transpose", OpClass.MOVE),
        ("Cast", OpClass.CAST),
        ("SiLU", OpClass.ELEMENTWISE),
        ("Squeeze", OpClass.NONE),
    ],
)
def test_classes(op, expected):
    assert classify(op) is expected


def test_measured_durations_go_before_the_roofline():
    node, work = matmul(1000, 1000, 1000)
    other, other_work = matmul(1000, 1000, 500)
    table = CostTable(GENERIC, {measured_key("MatMulV2", work.inputs, node.outputs): 33_000})
    assert table.operator_ns(node, work) == 33_000
    assert table.operator_ns(other, other_work) == 10_000
    view = (operator("Reshape", tensor(8)), Work(0, 0, 0))
    assert table.coverage([(node, work), (other, other_work), view]) == Coverage(2, 1, 43_000, 33_000)


def test_a_measurement_of_another_dtype_does_not_count():
    node, work = matmul(1000, 1000, 1000)
    halves, half_work = matmul(1000, 1000, 1000, "bfloat16")
    table = CostTable(GENERIC, {measured_key("MatMul", half_work.inputs, halves.outputs): 33_000})
    assert table.operator_ns(node, work) == 20_000


def test_arguments_and_single_numbers_do_not_hide_a_measurement():
    moved = replace(operator("Transpose"), outputs=(tensor(4, 2),))
    from_profile = measured_key("Transpose", [tensor(2, 4), tensor(2, dtype="int64"), tensor(1)], [tensor(4, 2)])
    assert CostTable(GENERIC, {from_profile: 7}).operator_ns(moved, Work(8, 16, 16, (tensor(2, 4),))) == 7


def test_the_table_knows_copies_and_collectives():
    table = CostTable(GENERIC)
    assert table.copy_out_ns(10**7) == table.copy_in_ns(10**7) == 10**6
    assert table.collective_ns("AllGather", 10**8, 4) == 750_000
    assert table.send_ns(10**7, True) == 100_000
