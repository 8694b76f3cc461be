"""The table of operators: each stands in it once, and the sets that follow from it are what they are meant to be."""

import ast
from pathlib import Path

import pytest

from mindswap.graph.ops import (
    FIRST_INPUT_OPS,
    GRADIENT_PASSING_OPS,
    LAYER_PASSING_OPS,
    NO_MEMORY_OPS,
    SPLIT_PASSING_OPS,
    SUM_PASSING_OPS,
    TABLE,
    VALUE_PASSING_OPS,
    VIEW_OPS,
    ComputeUnit,
    OpClass,
    SplitRule,
    classify,
    is_kernel,
    operator_info,
)
from mindswap.graph.sharding.split_rules import RULES
from mindswap.simulator.cost.device_file import load_device

NAMES = [name for line in TABLE for name in line["ops"].split()]


def test_every_operator_stands_in_one_line():
    assert sorted(NAMES) == sorted(set(NAMES))


def test_an_operator_without_a_line_is_an_element_wise_kernel():
    assert (classify("SomethingNew"), classify("SomethingNew").unit) == (OpClass.ELEMENTWISE, ComputeUnit.VECTOR)
    assert is_kernel("SomethingNew")
    line = operator_info("SomethingNew")
    assert (line.split_rule, line.rate, line.gradient, line.products) == (None, "", "", None)


@pytest.mark.parametrize(
    ("op", "expected", "unit"),
    [
        ("BatchMatMul", OpClass.MATMUL, ComputeUnit.MATRIX),
        ("FlashAttentionScoreGrad", OpClass.ATTENTION, ComputeUnit.MATRIX),
        ("RmsNormGrad", OpClass.NORM, ComputeUnit.VECTOR),
        ("Softmax", OpClass.SOFTMAX, ComputeUnit.VECTOR),
        ("UnsortedSegmentSum", OpClass.EMBEDDING, ComputeUnit.VECTOR),
        ("Transpose", OpClass.MOVE, ComputeUnit.VECTOR),
        ("Cast", OpClass.CAST, ComputeUnit.VECTOR),
        ("SiLU", OpClass.ELEMENTWISE, ComputeUnit.VECTOR),
        ("ReduceScatter", OpClass.COMMUNICATION, ComputeUnit.NETWORK),
        ("Squeeze", OpClass.NONE, ComputeUnit.NONE),
    ],
)
def test_classes_and_units(op, expected, unit):
    assert (classify(op), classify(op).unit) == (expected, unit)


def test_views_tuples_and_reads_of_weights_are_no_kernels():
    assert [op for op in ("Reshape", "TupleGetItem", "Load", "Depend", "MoveTo", "MakeTuple") if is_kernel(op)] == []
    assert all(is_kernel(op) for op in ("MatMul", "Cast", "AllGather", "TensorMove"))


def test_views():
    assert {"Reshape", "Depend", "ExpandDims", "Squeeze", "Flatten"} == VIEW_OPS


def test_a_copy_of_a_weight_is_memory_and_a_read_of_it_is_not():
    assert VIEW_OPS | {"MakeTuple", "TupleGetItem", "Load"} == NO_MEMORY_OPS


def test_what_passes_what():
    # One line for each meaning; the differences are what the code that uses them depends on.
    assert VIEW_OPS | {"MakeTuple", "TupleGetItem"} == VALUE_PASSING_OPS
    assert VALUE_PASSING_OPS | {"Cast"} == LAYER_PASSING_OPS
    assert VIEW_OPS | {"Cast", "Add", "AddExt", "BiasAdd"} == SUM_PASSING_OPS
    assert {"AllReduce", "Cast", "Depend", "Load", "MoveTo", "TensorMove", "StopGradient"} == SPLIT_PASSING_OPS


def test_what_gradients_pass_and_what_gives_its_first_input():
    collectives = {
        "AllReduce",
        "AllGather",
        "ReduceScatter",
        "AllToAll",
        "AlltoAll",
        "AlltoAllV",
        "AlltoAllVC",
        "Send",
        "Receive",
    }
    assert VIEW_OPS | collectives | {"Cast", "TupleGetItem"} == GRADIENT_PASSING_OPS
    assert {"Depend", "Load", "TensorMove", "Cast"} == FIRST_INPUT_OPS


def test_no_other_module_lists_operators():
    """Sets of operators are named `..._OPS`; elsewhere they may be put together of those, and hold no name."""
    package = Path(__file__).parents[2] / "mindswap"
    found = [
        f"{path.relative_to(package)}: {target.id}"
        for path in sorted(package.rglob("*.py"))
        if path != package / "graph" / "ops.py"
        for statement in ast.parse(path.read_text("utf-8")).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id.endswith("_OPS")
        if any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(statement.value))
    ]
    assert found == []


def test_every_cut_has_a_rule():
    assert RULES.keys() == set(SplitRule)


def test_rates_are_those_of_devices():
    assert {rate for name in NAMES if (rate := operator_info(name).rate)} == set(load_device().vector_rates)


def test_a_collective_is_the_gradient_of_its_gradient():
    pairs = {name: gradient for name in NAMES if (gradient := operator_info(name).gradient)}
    assert pairs["AllGather"] == "ReduceScatter"
    assert all(pairs[gradient] == name for name, gradient in pairs.items())
