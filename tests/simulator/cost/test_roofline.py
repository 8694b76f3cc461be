"""Durations by the roofline, counted by hand on the generic device."""

from dataclasses import replace

import pytest

from mindswap.graph.analysis.work import Work
from mindswap.simulator.cost.cost_table import CostTable, measured_key, moving_ns, operator_ns
from mindswap.simulator.cost.device_file import load_device
from tests.simulator.cost.builders import GENERIC, device, operator, tensor


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
    # What goes on in the kernel before it begins at once.
    assert operator_ns(operator("Mul", numbers), replace(work, is_fused=True), slow) == 24_000
    node, product = matmul(1000, 1000, 1000)
    assert operator_ns(node, replace(product, is_fused=True), slow) == 40_000


def test_products_with_a_transposed_operand_reach_less():
    node, work = matmul(1000, 1000, 1000)
    slow = device(compute_permille=800, weight_gradient_permille=500)
    assert operator_ns(node, work, slow) == 25_000
    assert operator_ns(node, replace(work, is_weight_gradient=True), slow) == 40_000


def test_tiles_go_over_the_cores_in_whole_rounds():
    # 384 x 512 are 3 x 2 tiles of 128 x 256: two rounds of 4 cores. 393,216,000 FLOPs, 3,932.16 ns, times 8 / 6.
    assert operator_ns(*matmul(384, 1000, 512), device(num_matrix_cores=4)) == 5243
    # 512 x 512: 4 x 2 tiles, two full rounds. 524,288,000 FLOPs.
    assert operator_ns(*matmul(512, 1000, 512), device(num_matrix_cores=4)) == 5243
    assert operator_ns(*matmul(384, 1000, 512), GENERIC) == 3933


def test_a_product_of_nothing_takes_no_time():
    node, work = matmul(0, 1000, 512)
    assert operator_ns(node, replace(work, read_bytes=0), device(num_matrix_cores=4)) == 0


def test_a_batch_has_the_tiles_of_all_its_products():
    # 3 products of one tile each on 2 cores: two rounds, 4 / 3 of 3 * 2 * 128 * 256 * 1000 FLOPs, 1,966.08 ns.
    inputs = (tensor(3, 128, 1000), tensor(3, 1000, 256))
    work = Work(196_608_000, 0, 0, inputs)
    assert operator_ns(operator("BatchMatMul", tensor(3, 128, 256)), work, device(num_matrix_cores=2)) == 2622


def test_attention_has_shares_of_its_own():
    # 1 GFLOP at 25 and at 50 TFLOPS.
    slow = device(attention_permille=250, attention_grad_permille=500)
    query = tensor(1, 8, 128, 64)
    work = Work(10**9, 0, 0, (query,))
    assert operator_ns(operator("FlashAttentionScore", query), work, slow) == 40_000
    assert operator_ns(operator("FlashAttentionScoreGrad", query), work, slow) == 20_000


def test_what_fits_the_cache_runs_at_its_rate():
    # Mul of 1 M numbers moves 6 MB: at 2 TB/s 3 us, from memory 6 us.
    numbers = tensor(1000, 1000)
    work = Work(10**6, 2 * numbers.size_bytes, numbers.size_bytes, (numbers, numbers))
    node = operator("Mul", numbers)
    assert operator_ns(node, work, device(cache_bytes=6_000_000, cache_bandwidth_bytes_per_s=2 * 10**12)) == 3000
    assert operator_ns(node, work, device(cache_bytes=5_999_999, cache_bandwidth_bytes_per_s=2 * 10**12)) == 6000


def test_vector_kernels_with_a_rate():
    # 1 M numbers at 100 Gelements/s: 10 us; 4 MB take 4 us.
    numbers = tensor(1000, 1000)
    work = Work(10**6, numbers.size_bytes, numbers.size_bytes, (numbers,))
    slow = device(vector_rates={**GENERIC.vector_rates, "norm": 10**11})
    assert operator_ns(operator("RmsNorm", numbers), work, slow) == 10_000
    assert operator_ns(operator("SiLU", numbers), work, slow) == 4000


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "is_weight_gradient", "measured_us"),
    [
        # Profiles A (24 cores) and B (20 cores) of docs/device_figures.md: rows, summed, columns.
        ("atlas_800t_a2_376t", (4096, 12288, 6144), "float16", False, 2048),
        ("atlas_800t_a2_376t", (4096, 6144, 12288), "float16", False, 1981),
        ("atlas_800t_a2_376t", (4096, 12288, 4608), "float16", False, 1475),
        ("atlas_800t_a2_376t", (4096, 1536, 12288), "float16", False, 496),
        ("atlas_800t_a2", (1536, 8192, 4096), "bfloat16", True, 511),
        ("atlas_800t_a2", (512, 8192, 4096), "bfloat16", True, 187),
    ],
)
def test_products_of_real_profiles(name, shape, dtype, is_weight_gradient, measured_us):
    node, work = matmul(*shape, dtype)
    duration = operator_ns(node, replace(work, is_weight_gradient=is_weight_gradient), load_device(name))
    assert duration == pytest.approx(measured_us * 1000, rel=0.15)


def test_attention_of_a_real_profile():
    # Profile B: 2 sequences of 4096, 4 heads of 128, causal: 4096 * 4097 / 2 pairs, 4 * 128 FLOPs for each, 10 back.
    pairs = 2 * 4 * 4096 * 4097 // 2
    query = tensor(2, 4, 4096, 128, dtype="bfloat16")
    card = load_device("atlas_800t_a2")
    forward = operator_ns(operator("FlashAttentionScore", query), Work(pairs * 4 * 128, 0, 0, (query,)), card)
    backward = operator_ns(operator("FlashAttentionScoreGrad", query), Work(pairs * 10 * 128, 0, 0, (query,)), card)
    assert forward == pytest.approx(406_000, rel=0.02)
    assert backward == pytest.approx(762_000, rel=0.02)


def test_masks_and_indices_are_worked_on_as_float32():
    # 10 M numbers of one byte at 5 TFLOPS: 2 us; with more memory bandwidth nothing else counts.
    fast = device(memory_bandwidth_bytes_per_s=10**15)
    mask = tensor(10**7, dtype="uint8")
    assert operator_ns(operator("LogicalNot", mask), Work(10**7, 10**7, 10**7, (mask,)), fast) == 2000


def test_what_reads_nothing_is_worked_on_as_what_it_makes():
    half, rates = tensor(1000, 1000), device(vector_flops={"float16": 4 * 10**12, "float32": 10**12})
    work = Work(4 * 10**6, 0, 0, (half,))
    assert operator_ns(operator("Mul", half), work, rates) == 1000
    assert operator_ns(operator("Mul", half), replace(work, inputs=()), rates) == 1000
    assert operator_ns(operator("Mul"), replace(work, inputs=()), rates) == 4000


def test_nothing_is_moved_in_no_time():
    assert moving_ns(0, device(cache_bytes=0, cache_bandwidth_bytes_per_s=0)) == 0


def test_views_are_no_kernels():
    assert operator_ns(operator("Reshape", tensor(8)), Work(0, 0, 0), load_device()) == 0


def test_measured_durations_go_before_the_roofline():
    node, work = matmul(1000, 1000, 1000)
    other, other_work = matmul(1000, 1000, 500)
    table = CostTable(GENERIC, {measured_key("MatMulV2", work.inputs, node.outputs): 33_000})
    assert table.operator_ns(node, work) == 33_000
    assert table.operator_ns(other, other_work) == 10_000
    assert table.operator_ns(operator("Reshape", tensor(8)), Work(0, 0, 0)) == 0


def test_a_view_takes_no_time_whatever_was_measured():
    square = tensor(8, 8)
    table = CostTable(GENERIC, {measured_key("Reshape", [square], [square]): 5})
    assert table.operator_ns(operator("Reshape", square), Work(0, 0, 0, (square,))) == 0


def test_a_measurement_of_another_dtype_does_not_count():
    node, work = matmul(1000, 1000, 1000)
    halves, half_work = matmul(1000, 1000, 1000, "bfloat16")
    table = CostTable(GENERIC, {measured_key("MatMul", half_work.inputs, halves.outputs): 33_000})
    assert table.operator_ns(node, work) == 20_000


def test_arguments_and_single_numbers_do_not_hide_a_measurement():
    moved = replace(operator("Transpose"), outputs=(tensor(4, 2),))
    from_profile = measured_key("Transpose", [tensor(2, 4), tensor(2, dtype="int64"), tensor(1)], [tensor(4, 2)])
    assert CostTable(GENERIC, {from_profile: 7}).operator_ns(moved, Work(8, 16, 16, (tensor(2, 4),))) == 7
