"""Plans of few entries on a small model of four equal layers, whose every choice is few enough to see."""

from dataclasses import replace
from itertools import product

import pytest

from mindswap.features.plan import StepPlanner
from mindswap.planner.build_plan import Bounds, plan_of
from mindswap.planner.evaluate import Candidate, evaluate
from mindswap.planner.planning import Planner
from mindswap.planner.problem import DEFAULT_ALLOW, FULL, Allow, PlanProblem
from mindswap.planner.simple import (
    DISTANCES,
    MAX_ENTRIES,
    WEIGHT_CASTS,
    WHOLE_LAYER,
    SimplePolicy,
    _SimpleSearch,
    common_parts,
    num_entries,
    parts,
    recomputed_cells,
)
from mindswap.planner.solver.search import Interruptible
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from tests.planner.models import small_model
from tests.planner.test_checked_plans import recorded_step

ON = Policy(is_swap_enabled=True)


def planned(permille: int, allow: Allow = DEFAULT_ALLOW, num_stages: int = 1, num_micro_batches: int = 1):
    """The simple plan for so much of the memory of keeping everything, beside full recompute as the full plan."""
    model = small_model(8, num_stages, num_micro_batches)
    planner = Planner(model, allow)
    keep = evaluate(PlanProblem(model, 2**40, 2**40, 8, allow), Policy())
    problem = PlanProblem(model, keep.peak_bytes * permille // 1000, 2**40, 8, allow)
    recomputed_part = Policy(
        True, layer_recompute=ALL_LAYERS, select_recompute=[OpRecompute("mlp", ALL_LAYERS)] * MAX_ENTRIES
    )
    unrestricted = replace(problem, allow=DEFAULT_ALLOW)  # the bound of what the full plan does
    full = plan_of(
        unrestricted,
        Bounds.of(planner.bound_inputs, unrestricted),
        keep.step_time_ns,
        recomputed_part,
        evaluate(problem, recomputed_part),
        compared=(),
        num_evaluations=0,
    )
    return problem, full, planner.plan_simple(problem, full)


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("permille", [850, 700, 550])
def test_no_count_of_whole_layers_that_fits_is_faster(permille):
    """What a user would try by hand: the first layers recomputed, so many that it fits."""
    problem, _, plan = planned(permille)
    by_hand = [evaluate(problem, Policy(True, layer_recompute=Layers(range(number)))) for number in range(9)]
    assert plan.step_time_ns <= min(one.step_time_ns for one in by_hand if one.fits)


def test_a_full_plan_that_has_few_entries_is_taken_where_it_is_faster():
    problem, full, plan = planned(700)
    recomputed_part = Planner(problem.model).plan_simple(problem, plan)
    assert recomputed_part.step_time_ns <= plan.step_time_ns < full.step_time_ns


@pytest.mark.parametrize(("allow", "is_there"), [(Allow(recompute=False), "swap"), (Allow(swap=False), "recompute")])
def test_only_what_is_allowed_is_done(allow, is_there):
    _, _, plan = planned(800, allow)
    swaps = bool(plan.policy.op_swap or plan.policy.layer_swap)
    recomputed_part = bool(plan.policy.select_recompute or plan.policy.layer_recompute)
    assert plan.fits and (swaps, recomputed_part) == (is_there == "swap", is_there == "recompute")


def test_all_cells_are_recomputed_while_their_inputs_are_swapped():
    """Full recompute with its inputs on the host: one entry for the cells, one for the sums between them."""
    model = recorded_step("qwen2_0_5b").model
    tree, num_layers = model.captured.trees[0], model.captured.num_layers
    pattern = recomputed_cells(model.captured.trees, DEFAULT_ALLOW)
    assert sorted(pattern[1:-1].split("|")) == ["attention", "attention_norm", "feed_forward", "ffn_norm"]
    assert recomputed_cells((tree,), Allow(swap=False)) == recomputed_cells((tree,), Allow(recompute=False)) == ""
    assert recomputed_cells((tree,), DEFAULT_ALLOW, has_interleaved_halves=True) == ""
    without_sum = replace(tree, children=tuple(child for child in tree.children if child.name != "add"))
    assert recomputed_cells((tree, without_sum), DEFAULT_ALLOW) == ""
    search = _SimpleSearch(PlanProblem(model, 2**40, 2**40, 8), model, Interruptible(lambda: None))
    assert search._recomputed_cells() == SimplePolicy("add", pattern, (num_layers,), (0,), 30)
    layers = Layers(range(num_layers))
    everything = SimplePolicy("add", pattern, (num_layers,), (num_layers,), 30).policy(search.stages, ON)
    assert everything == Policy(
        True, op_swap=[OpSwap("add", layers, 30)], select_recompute=[OpRecompute(pattern, layers)]
    )


def test_layers_of_a_stage_are_spread_and_its_last_is_not_swapped():
    """Two of layers 0 to 3 leave, of those that stay one runs again; the other stage swaps all."""
    stages = [[0, 1, 2, 3], [4, 5]]
    assert SimplePolicy("mlp", "attn", (2, 2), (1, 0), 7).policy(stages, ON) == Policy(
        True, op_swap=[OpSwap("mlp", Layers(0, 1, 4, 5), 7)], select_recompute=[OpRecompute("attn", Layers(2))]
    )
    assert SimplePolicy("", "", (1, 0), (2, 2), 7).policy(stages, ON) == Policy(
        True, layer_swap=[LayerSwap(Layers(0), 7)], layer_recompute=Layers(1, 2, 4, 5)
    )


def test_a_part_of_all_layers_runs_again_where_the_layer_does_not_as_a_whole():
    stages = [[0, 1, 2, 3]]
    found = SimplePolicy("", "", (0,), (2,), 7, everywhere=("mlp", "attn")).policy(stages, ON)
    assert found == Policy(
        True,
        layer_recompute=Layers(0, 2),
        select_recompute=[OpRecompute("mlp", Layers(1, 3)), OpRecompute("attn", Layers(1, 3))],
    )
    found = SimplePolicy("", "", (0,), (4,), 7, everywhere=("mlp",)).policy(stages, ON)
    assert found == Policy(True, layer_recompute=Layers(0, 1, 2, 3))
    found = SimplePolicy("mlp", "attn", (1,), (1,), 7, everywhere=("attn", "x")).policy(stages, ON)
    assert found.select_recompute == (OpRecompute("x", Layers(0, 1, 2, 3)), OpRecompute("attn", Layers(1)))


def test_parts_of_all_layers_are_casts_activations_and_cells():
    weight = CellNode("w1", "Linear", children=(CellNode("cast", "Cast", True),))
    attention = CellNode("attention", "Attention", children=(replace(weight, name="wq"),))
    product = CellNode("feed_forward", "FeedForward", children=(weight, CellNode("mul", "Mul", True)))
    layer, mul = CellNode("", "Layer", children=(attention, product)), r"feed_forward\.mul"
    cells = (("attention",), ("feed_forward",))
    found = common_parts((layer,), DEFAULT_ALLOW)
    assert found == ((WEIGHT_CASTS,), (mul,), *cells, *((WEIGHT_CASTS, *part) for part in ((mul,), *cells)))
    assert common_parts((layer,), DEFAULT_ALLOW, has_interleaved_halves=True) == (
        (WEIGHT_CASTS,), (mul,), (WEIGHT_CASTS, mul),
    )  # fmt: skip
    assert common_parts((layer, CellNode("", "Layer", children=(attention,))), DEFAULT_ALLOW) == (
        (WEIGHT_CASTS,), ("attention",), (WEIGHT_CASTS, "attention"),
    )  # fmt: skip
    assert common_parts((layer,), Allow(recompute=False)) == ()


@pytest.mark.long
def test_near_the_least_memory_a_cell_of_all_layers_runs_again_too():
    """Qwen2-0.5B, 15 % of the way: 3.1 % over the full plan; 8.4 % with one part alone, recomputed as a whole."""
    planner = StepPlanner(recorded_step("qwen2_0_5b"))
    full, simple = (planner.plan(34_500_000_000, simple=is_simple) for is_simple in (False, True))
    assert full.fits and simple.fits and num_entries(simple.policy) <= MAX_ENTRIES
    assert simple.step_time_ns < 1.05 * full.step_time_ns


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
    assert parts((legacy,), DEFAULT_ALLOW, has_interleaved_halves=True) == (cells, (WHOLE_LAYER, WEIGHT_CASTS))


@pytest.mark.parametrize("number", [MAX_ENTRIES, MAX_ENTRIES + 1])
def test_a_full_plan_has_few_entries_up_to_a_number_of_them(number, monkeypatch):
    """`mlp` of some layers runs again, each with an entry; what is found by itself runs all of each layer again."""
    model = small_model(8)
    planner, problem = Planner(model), PlanProblem(model, 2**40, 2**40, 8)
    everything, some = (
        replace(ON, layer_recompute=ALL_LAYERS),
        replace(ON, select_recompute=tuple(OpRecompute("mlp", Layers([layer])) for layer in range(number))),
    )
    found, full = ((policy, evaluate(problem, policy), 1) for policy in (everything, some))
    monkeypatch.setattr("mindswap.planner.planning.find_simple", lambda *_: found)
    keep_ns = evaluate(problem, Policy()).step_time_ns
    plan = planner.plan_simple(
        problem,
        plan_of(problem, Bounds.of(planner.bound_inputs, problem), keep_ns, *full[:2], compared=(), num_evaluations=0),
    )
    assert plan.policy == (some if number == MAX_ENTRIES else everything)


class Toy(_SimpleSearch):
    """Two stages of 16 layers of 10 bytes each; recomputed or swapped ones take none. `tried` is what was simulated."""

    def __init__(self, budget_bytes: int = 0):
        self.stages = [list(range(16)), list(range(16, 32))]
        self.problem, self.tried, self.none = PlanProblem(None, budget_bytes, 0, 1), [], (0, 0)

    def _evaluate(self, simple):
        self.tried.append(simple)
        peaks = [
            160 - 10 * (n + recomputed_part)
            for n, recomputed_part in zip(simple.num_swapped, simple.num_recomputed, strict=True)
        ]
        return Candidate(ON, 0, tuple(peaks), True)


def whole_layers(
    num_swapped: tuple[int, int], swap: str = WHOLE_LAYER, recomputed_part: str = WHOLE_LAYER
) -> SimplePolicy:
    return SimplePolicy(swap, recomputed_part, num_swapped, (0, 0), 30)


def test_each_stage_recomputes_as_few_layers_as_fit():
    """11 layers may stay; of 16 in all that are swapped or recomputed no stage has more."""
    assert Toy(110)._fit(whole_layers((0, 4))).num_recomputed == (5, 1)
    assert Toy(159)._fit(whole_layers((0, 0))).num_recomputed == (1, 1)
    assert Toy(160)._fit(whole_layers((0, 0))).num_recomputed == (0, 0)
    assert Toy(110)._fit(whole_layers((0, 15))).num_recomputed == (5, 0)
    # Nothing fits: all layers, but of two cells one may be swapped and the other one recomputed in the same layer.
    assert Toy(-1000)._fit(whole_layers((0, 4))).num_recomputed == (16, 12)
    assert Toy(-1000)._fit(whole_layers((0, 9), "attention", "mlp")).num_recomputed == (16, 16)
    assert Toy(-1000)._fit(whole_layers((0, 9), "mlp", "mlp")).num_recomputed == (16, 7)
    assert Toy(-1000)._fit(whole_layers((0, 9), WHOLE_LAYER, "mlp")).num_recomputed == (16, 7)
    toy = Toy(110)
    assert toy._fit(whole_layers((0, 0))) == toy.tried[-1]
    toy.problem = replace(toy.problem, allow=Allow(recompute=False))
    assert toy._fit(whole_layers((0, 4))).num_recomputed == (0, 0)


class Hill(Toy):
    """Step time by distance and swapped layers alone: the least with 40 operators and 9 layers of the second stage."""

    def _fit(self, simple):
        self.tried.append(simple)
        return simple

    def _rank_of(self, simple):
        return abs(simple.prefetch - 40), abs(simple.num_swapped[1] - 9), 0


def test_the_best_is_tried_with_other_distances_then_with_layers_more_or_fewer():
    """From 4 on by an eighth of the layers, 2: 6, 8, where 10 is no better; then by 1. No stage has fewer than none."""
    hill = Hill()
    hill._refine(whole_layers((0, 4)))
    assert [simple.prefetch for simple in hill.tried[: len(DISTANCES)]] == list(DISTANCES)
    moved = [(simple.prefetch, simple.num_swapped) for simple in hill.tried[len(DISTANCES) :]]
    assert moved == [
        (40, (2, 6)), (40, (0, 2)), (40, (4, 8)), (40, (0, 4)), (40, (6, 10)), (40, (2, 6)),
        (40, (5, 9)), (40, (3, 7)), (40, (6, 10)), (40, (4, 8)),
    ]  # fmt: skip


def test_a_stage_of_few_layers_is_tried_with_one_more_or_fewer():
    hill = Hill()
    hill.stages = [[0, 1, 2, 3]] * 2
    hill._refine(whole_layers((0, 2)))
    assert [simple.num_swapped for simple in hill.tried[len(DISTANCES) :]] == [
        (1, 3), (0, 1), (2, 4), (0, 2), (3, 4), (1, 3),
    ]  # fmt: skip


def test_where_nothing_is_swapped_there_is_no_distance_to_try():
    hill = Hill()
    hill._refine(whole_layers((0, 0)))
    assert hill.tried == []
