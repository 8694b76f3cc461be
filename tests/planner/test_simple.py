"""Plans of few entries on a small model of four equal layers, whose every choice is few enough to see."""

from itertools import product

import pytest

from mindswap.planner.evaluate import evaluate
from mindswap.planner.planner import Planner, plan_of
from mindswap.planner.problem import DEFAULT_ALLOW, FULL, Allow, PlanProblem
from mindswap.planner.simple import MAX_ENTRIES, WEIGHT_CASTS, WHOLE_LAYER, Simple, num_entries, parts
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from tests.planner.models import small_model

ON = Policy(is_swap_enabled=True)


def planned(permille: int, allow: Allow = DEFAULT_ALLOW, num_stages: int = 1, num_micro_batches: int = 1):
    """The simple plan for so much of the memory of keeping everything, beside full recompute as the full plan."""
    model = small_model(8, num_stages, num_micro_batches)
    planner = Planner(model, allow)
    keep = evaluate(PlanProblem(model, 2**40, 2**40, 8, allow), Policy())
    problem = PlanProblem(model, keep.peak_bytes * permille // 1000, 2**40, 8, allow)
    again = Policy(True, layer_recompute=ALL_LAYERS, select_recompute=[OpRecompute("mlp", ALL_LAYERS)] * MAX_ENTRIES)
    full = plan_of(
        problem, planner.facts, keep.step_time_ns, again, evaluate(problem, again), compared=(), num_evaluations=0
    )
    return problem, full, planner.plan_simple(problem, full)


@pytest.mark.parametrize(("permille", "stages"), list(product((1000, 850, 700, 550), ((1, 1), (2, 4)))))
def test_a_simple_plan_fits_has_few_entries_and_one_distance(permille, stages):
    problem, full, plan = planned(permille, DEFAULT_ALLOW, *stages)
    assert plan.fits and plan.peak_bytes <= problem.budget_bytes
    assert num_entries(plan.policy) <= MAX_ENTRIES
    assert len({entry.prefetch for entry in (*plan.policy.op_swap, *plan.policy.layer_swap)}) <= 1
    assert evaluate(problem, plan.policy).step_time_ns == plan.step_time_ns
    (beside,) = plan.compared
    assert (beside.name, beside.step_time_ns, beside.peak_bytes) == (FULL, full.step_time_ns, full.peak_bytes)


def test_where_everything_fits_nothing_is_done():
    _, full, plan = planned(1000)
    assert num_entries(plan.policy) == 0
    assert plan.step_time_ns == full.unconstrained_ns


@pytest.mark.parametrize("permille", [850, 700, 550])
def test_no_count_of_whole_layers_that_fits_is_faster(permille):
    """What a user would try by hand: the first layers recomputed, so many that it fits."""
    problem, _, plan = planned(permille)
    by_hand = [evaluate(problem, Policy(True, layer_recompute=Layers(range(number)))) for number in range(9)]
    assert plan.step_time_ns <= min(one.step_time_ns for one in by_hand if one.fits)


def test_a_full_plan_that_has_few_entries_is_taken_where_it_is_faster():
    problem, full, plan = planned(700)
    again = Planner(problem.model).plan_simple(problem, plan)
    assert again.step_time_ns <= plan.step_time_ns < full.step_time_ns


@pytest.mark.parametrize(("allow", "is_there"), [(Allow(recompute=False), "swap"), (Allow(swap=False), "recompute")])
def test_only_what_is_allowed_is_done(allow, is_there):
    _, _, plan = planned(800, allow)
    swaps = bool(plan.policy.op_swap or plan.policy.layer_swap)
    again = bool(plan.policy.select_recompute or plan.policy.layer_recompute)
    assert plan.fits and (swaps, again) == (is_there == "swap", is_there == "recompute")


def test_layers_of_a_stage_are_spread_and_its_last_is_not_swapped():
    """Two of layers 0 to 3 leave, of those that stay one runs again; the other stage swaps all."""
    stages = [[0, 1, 2, 3], [4, 5]]
    assert Simple("mlp", "attn", (2, 2), (1, 0), 7).policy(stages, ON) == Policy(
        True, op_swap=[OpSwap("mlp", Layers(0, 1, 4, 5), 7)], select_recompute=[OpRecompute("attn", Layers(2))]
    )
    assert Simple("", "", (1, 0), (2, 2), 7).policy(stages, ON) == Policy(
        True, layer_swap=[LayerSwap(Layers(0), 7)], layer_recompute=Layers(1, 2, 4, 5)
    )


def test_entries_are_counted():
    policy = Policy(
        True, op_swap=[OpSwap("a", ALL_LAYERS, 1)], layer_swap=[LayerSwap(Layers(0), 1)],
        select_recompute=[OpRecompute("b", Layers(1)), OpRecompute("c", Layers(1))], layer_recompute=Layers(2),
    )  # fmt: skip
    assert num_entries(policy) == 5


def test_casts_of_weights_may_run_again_where_every_layer_has_them():
    weight = CellNode("wq", "Linear", children=(CellNode("cast", "Cast", True),))
    rotary = CellNode("apply_rotary_emb", "RotaryEmbedding", children=(CellNode("cast", "Cast", True),))
    legacy = CellNode("", "Layer", children=(CellNode("attention", "Attention", children=(weight, rotary)),))
    bare = CellNode("", "Layer", children=(CellNode("attention", "Attention", children=(rotary,)),))
    cells = (WHOLE_LAYER, "attention")
    assert parts((legacy, legacy), DEFAULT_ALLOW) == (cells, (*cells, WEIGHT_CASTS))
    assert parts((legacy, bare), DEFAULT_ALLOW) == (cells, cells)
    assert parts((legacy,), Allow(recompute=False)) == (cells, ())
