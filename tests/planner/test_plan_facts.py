"""What holds for every plan, simple plan, search and bound, on made-up models of several shapes."""

import random

import numpy as np
import pytest

from mindswap.planner import session
from mindswap.planner.evaluate import evaluate
from mindswap.planner.lower_bound import min_step_ns
from mindswap.planner.planning import Planner
from mindswap.planner.problem import Allow, Objective, PlanProblem
from mindswap.planner.simple import MAX_ENTRIES, num_entries
from mindswap.planner.solver.fast import solve
from mindswap.planner.sweep import bound_curve
from mindswap.policy.model import Policy
from tests.planner.builders import Tensor, ToySpace, random_space
from tests.planner.models import MB, small_model
from tests.planner.test_budget_search import with_links

pytestmark = pytest.mark.long
UNLIMITED_BYTES = 2**50
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
    unlimited = ToySpace(layers, ns_per_byte=ns_per_byte, **options)
    keep_bytes = unlimited.evaluate(np.zeros((8, 5), np.int64)).peak_bytes
    return ToySpace(layers, keep_bytes * budget_percent // 100, ns_per_byte, **options)


# Budgets that can be met, and one that cannot.
FEASIBLE = {
    "little memory": lambda: stage_problem(0, 35),
    "half": lambda: stage_problem(2, 50, contended_permille=500),
    "nearly all": lambda: stage_problem(5, 90),
    "three micro-batches": lambda: stage_problem(1, 60, num_micro_batches=3),
    "small": lambda: random_space(2),
}


def single_changes(assignment: np.ndarray) -> list[np.ndarray]:
    """Return the assignments with one decision replaced: kept, recomputed, or swapped at a distance of 2."""
    changed = []
    for layer, group in np.ndindex(assignment.shape):
        for decision in (0, -1, 2):
            if group and decision != assignment[layer, group]:
                changed.append(assignment.copy())
                changed[-1][layer, group] = decision
    return changed


@pytest.mark.parametrize("name", FEASIBLE)
def test_a_search_fits_and_no_other_decision_of_one_layer_is_much_better(name):
    """Two percent at most: a policy with fewer entries is preferred to one that is hardly faster."""
    problem = FEASIBLE[name]()
    search = solve(problem)
    best = search.best_score
    assert best.fits and best.peak_bytes <= problem.budget_bytes
    scores = [problem.evaluate(a) for a in single_changes(search.best) if is_possible(problem, a)]
    assert len(scores) >= 5
    assert best.step_time_ns <= 1.02 * min((s.step_time_ns for s in scores if s.fits), default=best.step_time_ns)


def is_possible(problem: ToySpace, assignment: np.ndarray) -> bool:
    """Return whether every tensor can do what is decided for it."""
    return all(
        (tensor.can_swap or assignment[layer, i + 1] <= 0) and (tensor.can_recompute or assignment[layer, i + 1] >= 0)
        for layer, tensors in enumerate(problem.tensors)
        for i, tensor in enumerate(tensors)
    )


def test_a_search_that_cannot_fit_is_as_near_as_single_changes_get():
    problem = stage_problem(4, 3)
    search = solve(problem)
    assert not search.best_score.fits
    scores = [problem.evaluate(a) for a in single_changes(search.best) if is_possible(problem, a)]
    assert min(score.excess_bytes for score in scores) >= search.best_score.excess_bytes


@pytest.mark.parametrize(("budget_percent", "host_budget_bytes"), [(40, 150), (50, 100), (60, 60)])
@pytest.mark.parametrize("seed", [1, 3, 5])
def test_a_search_fits_where_the_host_has_little_memory(seed, budget_percent, host_budget_bytes):
    """Starts free the device by swaps that the host has no memory for; the device then has memory to keep some."""
    problem = stage_problem(seed, budget_percent, host_budget_bytes=host_budget_bytes)
    best = solve(problem).best_score
    assert best.fits and best.host_excess_bytes == 0 and best.peak_bytes <= problem.budget_bytes


def test_host_memory_over_its_budget_is_part_of_the_excess():
    """Eight swaps of the first tensor: 74 bytes in five layers, 34 in three."""
    problem = stage_problem(3, 40, host_budget_bytes=150)
    assignment = np.zeros((8, 5), np.int64)
    assignment[:, 1] = 4
    score = problem.evaluate(assignment)
    assert score.host_excess_bytes == 5 * 74 + 3 * 34 - 150
    assert score.excess_bytes == score.host_excess_bytes + max(0, score.peak_bytes - problem.budget_bytes)


# The model, the fraction of the memory of keeping everything that may be used, in thousandths, and other requests.
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
}


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    """A planner, its problem and its plan."""
    make_model, permille, options = MODELS[request.param]
    model = make_model()
    planner = Planner(model, options.get("allow", Allow()))
    keep_bytes = max(model.simulate(Policy()).activation_bytes) + model.static[0].total_bytes
    problem = PlanProblem(model, keep_bytes * permille // 1000, UNLIMITED_BYTES, 8, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "NUM_HALVINGS", 3)  # few budgets where the least memory is asked for
        return planner, problem, planner.plan(problem)


def test_a_plan_is_within_its_budget_and_not_below_its_bound_when_it_is_replayed(case):
    planner, problem, plan = case
    replayed = evaluate(problem, plan.policy)
    assert (replayed.step_time_ns, replayed.stage_peak_bytes) == (plan.step_time_ns, plan.stage_peak_bytes)
    assert plan.fits and plan.peak_bytes <= problem.budget_bytes
    assert plan.least_budget_bytes <= plan.smallest_budget_bytes <= problem.budget_bytes
    assert plan.unconstrained_ns <= plan.lower_bound_ns <= plan.step_time_ns
    assert plan.lower_bound_ns == min_step_ns(
        planner.bound_inputs, problem.budget_bytes, UNLIMITED_BYTES // 8, problem.allow
    )


def test_no_common_setting_that_fits_is_faster(case):
    _, problem, plan = case
    assert len(plan.compared) >= 3
    for baseline in plan.compared:
        assert baseline.fits == (baseline.peak_bytes <= problem.budget_bytes)
        if baseline.fits and problem.objective is not Objective.MEMORY:
            assert plan.step_time_ns <= baseline.step_time_ns


def test_a_plan_does_only_what_is_allowed(case):
    _, problem, plan = case
    if not problem.allow.recompute:
        assert not (plan.policy.select_recompute or plan.policy.layer_recompute)
        assert plan.policy.op_swap or plan.policy.layer_swap


def test_a_simple_plan_fits_with_few_entries_and_is_not_below_the_bound(case):
    planner, problem, plan = case
    simple = planner.plan_simple(problem, plan)
    assert simple.fits and simple.peak_bytes <= problem.budget_bytes
    assert num_entries(simple.policy) <= MAX_ENTRIES
    assert simple.step_time_ns >= plan.lower_bound_ns


def test_more_memory_never_raises_the_bound(case):
    planner, problem, plan = case
    curve = bound_curve(planner, problem, [plan])
    times = [step_ns for _, step_ns in sorted(curve)]
    assert len(times) > 20 and times == sorted(times, reverse=True)
    assert times[-1] == plan.unconstrained_ns  # with the memory of keeping everything


def test_the_memory_that_a_plan_names_is_enough(monkeypatch):
    """A fifth of keeping everything is too little for any policy."""
    monkeypatch.setattr(session, "NUM_HALVINGS", 3)
    model = small_model(3, device=with_links(10**11))
    keep_bytes = max(model.simulate(Policy()).activation_bytes) + model.static[0].total_bytes
    plan = Planner(model).plan(PlanProblem(model, keep_bytes // 5, UNLIMITED_BYTES, 8))
    assert not plan.fits and plan.lower_bound_ns is None
    assert keep_bytes // 5 < plan.least_budget_bytes <= plan.smallest_budget_bytes < keep_bytes
    assert evaluate(PlanProblem(model, plan.smallest_budget_bytes, UNLIMITED_BYTES, 8), plan.policy).fits


def test_a_copy_that_hides_is_what_one_tensor_too_many_costs():
    """Of 27 tensors of 1 MB one must go; its copy of 10 us at 100 GB/s hides behind the 9 us layers between."""
    model = small_model(9, device=with_links(10**11))
    keep = model.simulate(Policy())
    plan = Planner(model).plan(PlanProblem(model, keep.peak_bytes - MB, UNLIMITED_BYTES, 8))
    assert plan.fits and keep.peak_bytes - plan.peak_bytes >= MB
    assert plan.step_time_ns == plan.unconstrained_ns == keep.step_time_ns
