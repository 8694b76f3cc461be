"""Coupling rule 2: swaps of what recomputed operators use, and plans without them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mindswap.api.plan import planned_text
from mindswap.api.step import load_step
from mindswap.check.check import check_document
from mindswap.config.parse import parse_document
from mindswap.planner.effect import ALL_OPERATORS, idle_swaps, without_idle_swaps
from mindswap.planner.planner import Planner
from mindswap.planner.problem import Allow, PlanProblem
from mindswap.planner.solvers.fill import fill, recompute_order
from mindswap.planner.space import KEEP, Figures
from mindswap.planner.write import compact_policy
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "llama2_7b" / "pretrain_llama2_7b.yaml"
USES = {"mlp.w1": frozenset({"mlp.silu"}), "mlp.silu": frozenset({"mlp.mul"}), "mlp.mul": frozenset({"mlp.w2"})}
STRICT = Allow(coupled=False)


@pytest.mark.parametrize(
    ("recomputed", "idle"),
    [
        ((), set()),
        (("mlp.silu",), {"mlp.w1"}),
        (("mlp.si",), set()),  # a part of a name is another name
        (("mlp",), {"mlp.w1", "mlp.silu", "mlp.mul"}),
        ((ALL_OPERATORS,), {"mlp.w1", "mlp.silu", "mlp.mul"}),
    ],
)
def test_a_swap_is_idle_if_a_user_is_recomputed_by_name_or_with_its_cell(recomputed, idle):
    assert idle_swaps(USES, ["mlp.w1", "mlp.silu", "mlp.mul", "mlp.w2"], recomputed) == idle


# Two layers of two items. Recompute of item 2 makes swap of item 1 idle.
FREED = np.array([[[0, 0], [10, 0], [15, 20]]] * 2)
AGAIN_NS = np.array([[[0, 0], [0, 0], [0, 5]]] * 2)
CONFLICTS = np.zeros((1, 3, 2, 3), bool)
CONFLICTS[0, 2, 1, 1] = True
FIGURES = Figures(FREED, AGAIN_NS, np.array([[0, 10, 15]] * 2), conflicts=CONFLICTS)


def test_an_idle_swap_frees_nothing():
    both = np.array([[KEEP, 5, -1], [KEEP, 5, KEEP]])
    assert FIGURES.idle(both).tolist() == [[False, True, False], [False, False, False]]
    assert FIGURES.freed_by(both).tolist() == [[0, 0, 20], [0, 10, 0]]


def test_a_swap_stays_where_recompute_would_leave_it_without_effect():
    """Swap of item 1 in the first layer; item 2 is recomputed in the second alone."""
    choice = fill(FIGURES, [1], recompute_order(FIGURES), swap_bytes=10, recompute_bytes=40)
    assert choice.tolist() == [[KEEP, 1, KEEP], [KEEP, KEEP, -1]]


@pytest.fixture(scope="module")
def loaded():
    return load_step(str(CONFIG))


def problem(loaded, gib: float, allow: Allow) -> PlanProblem:
    device = loaded.device
    return PlanProblem(loaded.model, int(gib * 2**30), device.host_memory_bytes, device.num_cards_per_node, allow)


@pytest.mark.mindspore
def test_what_is_left_of_a_policy(loaded):
    """`feed_forward.mul` uses what both products make; one is swapped, also where it is not recomputed."""
    uses = Planner(loaded.model).catalog.uses
    policy = Policy(
        True,
        op_swap=(OpSwap(r"feed_forward\.w3\.reshape", Layers((0, 1, 2)), 5), OpSwap("add", ALL_LAYERS, 7)),
        select_recompute=(OpRecompute(r"feed_forward\.mul", Layers((1, 2))),),
    )
    left = without_idle_swaps(loaded.model, uses, policy)
    assert left is not None
    assert OpSwap(r"feed_forward\.w3\.reshape", Layers((0,)), 5) in left.op_swap
    assert OpSwap("add", Layers(tuple(range(32))), 7) in left.op_swap
    assert len(left.op_swap) == 2
    assert without_idle_swaps(loaded.model, uses, replace(policy, select_recompute=())) is None


@pytest.mark.mindspore
def test_check_of_a_plan_by_the_specification_is_clean(loaded):
    """With 1 GiB of host memory for each card swap alone does not do; with more it is free at 40 GiB."""
    asked = replace(problem(loaded, 40, STRICT), host_bytes=8 * 2**30)
    plan = Planner(loaded.model, STRICT).plan(asked)
    assert plan.fits and plan.uncoupled_peak_bytes is None
    assert plan.policy.op_swap and plan.policy.select_recompute
    plan = replace(plan, policy=compact_policy(plan.policy, loaded.model.captured.trees))
    text = planned_text(loaded, plan, "plan.yaml")
    assert check_document(parse_document(text.encode(), "plan.yaml")).problems == ()


@pytest.mark.mindspore
def test_coupling_is_not_used_where_next_to_nothing_is_lost_without_it(loaded):
    """Gradients at the end of backward need 39.7 GiB in any case: from there on activations have room."""
    plan = Planner(loaded.model).plan(problem(loaded, 42, Allow()))
    assert plan.fits and plan.uncoupled_peak_bytes is None
    assert plan.gap <= 0.01
