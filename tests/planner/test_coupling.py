"""Coupling rule 2: swaps of what recomputed operators use, and plans with and without them."""

from dataclasses import replace
from pathlib import Path

import pytest

from mindswap.config.parse import parse_document
from mindswap.features.plan import planned_text
from mindswap.features.step import load_step
from mindswap.planner.effect import ALL_OPERATORS, coupled_swaps, find_consumers, is_coupled
from mindswap.planner.planning import Planner
from mindswap.planner.problem import PlanProblem
from mindswap.planner.write import compact_policy
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy
from mindswap.rules.checker import check_document

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "llama2_7b" / "pretrain_llama2_7b.yaml"
USES = {"mlp.w1": frozenset({"mlp.silu"}), "mlp.silu": frozenset({"mlp.mul"}), "mlp.mul": frozenset({"mlp.w2"})}


@pytest.mark.parametrize(
    ("recomputed", "is_ineffective"),
    [
        ((), set()),
        (("mlp.silu",), {"mlp.w1"}),
        (("mlp.si",), set()),  # a part of a name is another name
        (("mlp",), {"mlp.w1", "mlp.silu", "mlp.mul"}),
        ((ALL_OPERATORS,), {"mlp.w1", "mlp.silu", "mlp.mul"}),
    ],
)
def test_a_swap_is_idle_if_a_user_is_recomputed_by_name_or_with_its_cell(recomputed, is_ineffective):
    assert coupled_swaps(USES, ["mlp.w1", "mlp.silu", "mlp.mul", "mlp.w2"], recomputed) == is_ineffective


@pytest.fixture(scope="module")
def loaded():
    return load_step(str(CONFIG))


@pytest.mark.mindspore
def test_a_policy_is_coupled_where_what_runs_again_uses_what_is_swapped_in_the_same_layer(loaded):
    """`feed_forward.mul` uses what both products make."""
    uses = find_consumers(loaded.model)
    policy = Policy(
        True,
        op_swap=(OpSwap(r"feed_forward\.w3\.reshape", Layers((0, 1)), 5), OpSwap("add", ALL_LAYERS, 7)),
        select_recompute=(OpRecompute(r"feed_forward\.mul", Layers((1, 2))),),
    )
    assert is_coupled(loaded.model, uses, policy)
    apart = replace(policy, select_recompute=(OpRecompute(r"feed_forward\.mul", Layers((2,))),))
    assert not is_coupled(loaded.model, uses, apart)
    assert not is_coupled(loaded.model, uses, replace(policy, select_recompute=()))


@pytest.mark.mindspore
def test_a_plan_without_such_swaps_is_clean_for_check(loaded):
    """Gradients at the end of backward need 39.7 GiB in any case: from there on activations have room."""
    device = loaded.device
    asked = PlanProblem(loaded.model, 42 * 2**30, device.host_memory_bytes, device.num_cards_per_node)
    plan = Planner(loaded.model).plan(asked)
    assert plan.fits and plan.gap <= 0.01 and not plan.is_coupled
    plan = replace(plan, policy=compact_policy(plan.policy, loaded.model.captured.trees))
    text = planned_text(loaded, plan, "plan.yaml")
    assert check_document(parse_document(text.encode(), "plan.yaml")).problems == ()
