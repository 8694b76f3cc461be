"""Cells that call functions, which have no names: a Qwen3-MoE whose experts are on two ranks, really captured."""

import pytest

from mindswap.planner.catalog import build_catalog
from mindswap.planner.effect import EffectPredictor
from mindswap.planner.lower_bound.tensor_graph import build_tensor_graphs
from mindswap.policy.model import Policy
from tests.planner.loading import capture_experts

pytestmark = pytest.mark.mindspore


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    return capture_experts(tmp_path_factory.mktemp("experts"))


def test_a_function_beside_a_named_operator_is_no_fault_of_its_swap(experts):
    """`ops.reshape` keeps indices in the cell in which `reshape` is an attribute, which keeps weights."""
    names = [name for group in build_catalog(experts).groups[0] for name in group.swap_names]
    ineffective_names = EffectPredictor(experts).ineffective_names(0, Policy(True), names)
    assert "mlp.experts.reshape" in names
    assert ineffective_names.swap == {"mlp.experts.cast_op"}  # one with `reshape`


def test_a_cast_to_a_wider_type_runs_again_alone(experts):
    catalog = build_catalog(experts)
    [(position, group)] = [
        (position, group)
        for position, group in enumerate(catalog.groups[0])
        if group.swap_names == ("pre_mlp_layernorm.cast",)
    ]
    way = 1 + group.recompute_paths.index(("pre_mlp_layernorm.cast",))
    assert catalog.freed_bytes[0, position, way] == group.sizes_bytes[0] // 2  # what it reads is kept instead


def test_functions_run_again_with_their_cell(experts):
    for tensor_graph in build_tensor_graphs(experts):
        cells = [cell for cell in tensor_graph.recomputed_cells if len(cell.functions) > 10]
        assert cells
        for cell in cells:
            made = {tensor_graph.producers[tensor] for tensor in cell.tensors & tensor_graph.saved}
            assert made and made <= cell.ops
            assert cell.functions & made  # backward reads what they make, and it goes
