"""Searches, bounds and plans of made-up models, as recorded in `tests/data/planner/recorded.json`.

Whether they are right is asked elsewhere, by hand and against everything there is (`test_solvers`, `test_bound`,
`test_curve`). This shows a change that nobody meant: one in the order, the number or the limits of what is tried.
After one that was meant, look at what gets better or worse: `python -m tests.planner.test_recorded` writes the file.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mindswap.planner import planning as planner
from mindswap.planner.explain import explain_plan
from mindswap.planner.layer_plan import plan_layers
from mindswap.planner.lower_bound import min_step_ns
from mindswap.planner.planning import Planner
from mindswap.planner.problem import Allow, Objective, Plan, PlanProblem
from mindswap.planner.solver.fast import solve
from mindswap.planner.solver.search import Search
from mindswap.planner.sweep import bound_curve
from mindswap.policy.model import Policy
from mindswap.policy.wording import format_layers
from mindswap.simulator.layer_swap_2x import LayerSwapModel2x
from tests.planner.builders import Tensor, ToySpace, random_space
from tests.planner.models import MB, small_model
from tests.planner.test_plan_cache import with_links

RECORDED = Path(__file__).resolve().parents[1] / "data" / "planner" / "recorded.json"
PLENTY = 2**50
US = 1000


def stage_problem(seed: int, budget_percent: int, **options) -> ToySpace:
    """Eight layers of two kinds, with four tensors each; times are so long that entries of a policy count."""
    chance = random.Random(seed)

    def tensor() -> Tensor:
        forward_ns, backward_ns = US * chance.randint(2, 120), US * chance.randint(2, 200)
        return Tensor(chance.randint(5, 100), forward_ns, backward_ns, chance.random() < 0.8, chance.random() < 0.8)

    first, second = ([tensor() for _ in range(4)] for _ in range(2))
    layers = [first] * 5 + [second] * 3
    ns_per_byte = US * (1 + seed % 3)
    free = ToySpace(layers, ns_per_byte=ns_per_byte, **options)
    most = free.evaluate(np.zeros((8, 5), np.int64)).peak_bytes
    return ToySpace(layers, most * budget_percent // 100, ns_per_byte, **options)


SPACES = {
    "little memory": lambda: stage_problem(0, 35),
    "half": lambda: stage_problem(2, 50, contended_permille=500),
    "nearly all": lambda: stage_problem(5, 90),
    "three micro-batches": lambda: stage_problem(1, 60, num_micro_batches=3),
    "little on the host": lambda: stage_problem(3, 40, host_budget_bytes=150),
    "nothing fits": lambda: stage_problem(4, 3),
    "small": lambda: random_space(2),
    "small, nothing fits": lambda: random_space(5),
}


def searched(found: Search) -> dict[str, object]:
    score = found.best_score
    rows = [" ".join(map(str, row)) for row in found.best.tolist()]
    return {"score": [score.excess_bytes, score.cost_ns, score.step_time_ns, score.peak_bytes], "rows": rows,
            "simulations": found.num_evaluations}  # fmt: skip


# Name -> the model, part of the memory of keeping everything that may be used, and what else is asked.
MODELS = {
    "4 layers": (lambda: small_model(4, device=with_links(10**11)), 930, {}),
    "9 layers, slow link": (lambda: small_model(9), 800, {}),
    "9 layers, no recompute": (
        lambda: small_model(9, device=with_links(10**11)),
        800,
        {"allow": Allow(recompute=False)},
    ),
    "2 stages": (lambda: small_model(8, 2, 4, with_links(2 * 10**11)), 650, {}),
    "6 micro-batches": (lambda: small_model(5, 1, 6, with_links(10**11)), 850, {}),
    "least memory": (lambda: small_model(7, device=with_links(10**11)), 990, {"objective": Objective.MEMORY}),
    "nothing fits": (lambda: small_model(3, device=with_links(10**11)), 200, {}),
}


def little_effort(put: Callable[[object, str, object], None]) -> None:
    """Few budgets where the least memory is asked for."""
    put(planner, "NUM_HALVINGS", 3)


def planned(plan: Plan) -> dict[str, object]:
    policy = plan.policy
    entries = [f"swap {one.pattern} {format_layers(one.layers)} {one.prefetch}" for one in policy.op_swap]
    entries += [f"swap whole {format_layers(one.layers)} {one.prefetch}" for one in policy.layer_swap]
    entries += [f"again {one.pattern} {format_layers(one.layers)}" for one in policy.select_recompute]
    return {
        "fits": plan.fits, "step ns": plan.step_time_ns, "peaks": list(plan.stage_peak_bytes), "host": plan.host_bytes,
        "bound ns": plan.lower_bound_ns, "budgets": [plan.smallest_budget_bytes, plan.least_budget_bytes],
        "entries": [*entries, f"whole {format_layers(policy.layer_recompute)}"], "simulations": plan.num_evaluations,
        "holders": [f"{name} {size_bytes}" for name, size_bytes in plan.holders],
        "compared": [f"{one.name}: {one.step_time_ns} {one.peak_bytes} {one.fits}" for one in plan.compared],
        "is coupled": plan.is_coupled,
    }  # fmt: skip


def plans_of(name: str) -> dict[str, object]:
    """The plan, a simple one beside it, why, and bounds from the least memory to that of keeping everything."""
    make, permille, options = MODELS[name]
    model = make()
    found = Planner(model, options.get("allow", Allow()))
    keep_bytes = max(model.simulate(Policy()).activation_bytes) + model.static[0].total_bytes
    problem = PlanProblem(model, keep_bytes * permille // 1000, PLENTY, 8, **options)
    plan = found.plan(problem)
    bounds = [ns for _, ns in bound_curve(found, problem, [plan])][::6]
    assert plan.lower_bound_ns == min_step_ns(found.bound_inputs, problem.budget_bytes, PLENTY // 8, problem.allow)
    simple = planned(found.plan_simple(problem, plan))
    bound_inputs = [
        {**vars(stage), "layers": sorted(map(str, stage.layers.items()))} for stage in found.bound_inputs.stages
    ]
    for stage in bound_inputs:
        stage["later_windows_ns"] = list(stage["later_windows_ns"])
        stage["liveness_points"] = [
            [point.fixed_bytes, sorted(point.waiting.values()), point.is_past_forward]
            for point in stage["liveness_points"]
        ]
    terms = [
        found.bound_inputs.num_micro_batches,
        found.bound_inputs.step_overhead_ns,
        found.bound_inputs.gradients_ns,
        found.bound_inputs.num_gradient_reductions,
    ]
    shown = {key: simple[key] for key in ("fits", "step ns", "peaks", "entries", "simulations")}
    return {"plan": planned(plan), "simple": shown, "why": explain_plan(model, plan), "bounds": bounds,
            "stages": bound_inputs, "terms": terms}  # fmt: skip


# Bytes below the memory of keeping everything, and what else is asked, for plans of whole layers.
WHOLE_LAYERS = {"1 MB less": (1, {}), "4 MB less": (4, {}), "3 MB less, swap": (3, {"allow": Allow(recompute=False)})}


def whole_layers_of(name: str) -> dict[str, object]:
    less, options = WHOLE_LAYERS[name]
    model = LayerSwapModel2x.of(small_model(7, 1, 3, with_links(2 * 10**11)))
    keep_bytes = model.simulate(Policy()).peak_bytes
    return planned(plan_layers(PlanProblem(model, keep_bytes - less * MB, PLENTY, 8, **options)))


@pytest.fixture(scope="module")
def recorded():
    return json.loads(RECORDED.read_text("utf-8"))


@pytest.mark.long
@pytest.mark.parametrize("name", SPACES)
def test_a_search_finds_what_it_found(name, recorded):
    assert searched(solve(SPACES[name]())) == recorded["searches"][name]


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_what_it_was(name, recorded, monkeypatch):
    little_effort(monkeypatch.setattr)
    assert plans_of(name) == recorded["plans"][name]


@pytest.mark.parametrize("name", WHOLE_LAYERS)
def test_a_plan_of_whole_layers_is_what_it_was(name, recorded):
    assert whole_layers_of(name) == recorded["whole layers"][name]


if __name__ == "__main__":
    little_effort(setattr)
    found = {
        "searches": {name: searched(solve(make())) for name, make in SPACES.items()},
        "plans": {name: plans_of(name) for name in MODELS},
        "whole layers": {name: whole_layers_of(name) for name in WHOLE_LAYERS},
    }
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
