"""With pins and bans: the bound is below every policy that has them, and a plan is not below its bound."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from mindswap.errors import PlanError
from mindswap.features.plan import StepPlanner
from mindswap.planner.build_plan import BoundError, Bounds, plan_of
from mindswap.planner.catalog import Catalog
from mindswap.planner.evaluate import evaluate
from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.lower_bound import least_budget_bytes
from mindswap.planner.lower_bound.liveness_points import LivenessPoint
from mindswap.planner.pins import Pin, PinTreatment, pinned_policy, read_pin
from mindswap.planner.planning import Planner
from mindswap.planner.problem import DEFAULT_ALLOW, Allow, PlanProblem
from mindswap.planner.stage_problem import KEEP
from mindswap.policy.cell_tree import exact_pattern
from mindswap.policy.coverage import BASELINES, baseline_policy
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel
from tests.planner.lower_bound.test_no_policy_beats_it import random_choice
from tests.planner.models import MB, small_model
from tests.planner.test_budget_search import with_links
from tests.planner.test_checked_plans import recorded_step
from tests.strength import examples, is_nightly

UNLIMITED_BYTES = 2**50
DISTANCES = (1, 2, 4)
NAMES = ("attn", "mlp", "attn.exp", "attn.mul", "mlp.relu", "mlp.tanh")
MAX_POLICIES = examples(500, 5000)  # of a problem; those with more are left out


def pinned_planner(chance: random.Random) -> Planner | None:
    """Return a planner of a small model with one or two random pins or bans; None if they contradict each other."""
    shape = chance.choice(((2, 1, 1), (2, 1, 3), (2, 2, 2), (3, 1, 1)))
    model = small_model(*shape, with_links(chance.choice((10**10, 10**11, 2 * 10**11))))
    pins = [
        Pin(exact_pattern(name), chance.choice(list(PinTreatment)), chance.choice(DISTANCES))
        for name in chance.sample(NAMES, chance.choice((1, 2)))
    ]
    try:
        fixed = pinned_policy(pins, model, DEFAULT_ALLOW)
    except PlanError:
        return None
    return Planner(model.with_fixed_policy(fixed), Allow(pinned=tuple(pin.pattern for pin in pins)))


def problem_of(planner: Planner, budget_bytes: int = UNLIMITED_BYTES) -> PlanProblem:
    return PlanProblem(planner.model, budget_bytes, UNLIMITED_BYTES, 8, planner.allow)


def policies_of(planner: Planner) -> list[Policy]:
    """Return every policy that has the pins, with a few distances; nothing if there are too many."""
    catalog = planner.catalog
    freed = catalog.freed_bytes[list(catalog.layer_classes)]
    options = [
        (KEEP, *(-path for path in range(1, freed.shape[2]) if cell[path] > 0), *(DISTANCES if cell[0] > 0 else ()))
        for cell in freed.reshape(-1, freed.shape[2])
    ]
    if np.prod([float(len(values)) for values in options]) > MAX_POLICIES:
        return []
    rows = LayerAssignments(planner.model, catalog)
    assignments = (np.array(values, np.int64).reshape(freed.shape[:2]) for values in itertools.product(*options))
    return [rows.policy(a) for a in assignments if not (a[:, 1:][a[:, 0] != KEEP] != KEEP).any()]


@pytest.mark.long
def test_no_policy_with_the_pins_beats_the_bound_and_no_plan_is_below_it():
    chance, num_problems, num_binding, num_exact = random.Random(1), 0, 0, 0
    while num_problems < examples(8, 60):
        planner = pinned_planner(chance)
        policies = policies_of(planner) if planner is not None else []
        if planner is None or len(policies) < 2:
            continue
        num_problems += 1
        evaluated = [evaluate(problem_of(planner), policy) for policy in policies]
        peaks = sorted({evaluation.peak_bytes for evaluation in evaluated})
        for budget_bytes in chance.sample(peaks, min(len(peaks), 2)):
            best_ns = min(e.step_time_ns for e in evaluated if e.peak_bytes <= budget_bytes)
            plan = planner.plan(problem_of(planner, budget_bytes))
            assert plan.lower_bound_ns is not None and plan.lower_bound_ns <= best_ns
            assert plan.least_budget_bytes <= peaks[0]
            assert plan.fits and plan.lower_bound_ns <= plan.step_time_ns
            assert plan.step_time_ns <= 1.05 * best_ns
            distances = {entry.prefetch for entry in plan.policy.op_swap}
            if distances <= set(DISTANCES) and not plan.policy.layer_swap:
                assert best_ns <= plan.step_time_ns
                num_exact += 1
            num_binding += plan.lower_bound_ns > plan.unconstrained_ns
    assert num_binding >= 1 and num_exact >= 2, (num_binding, num_exact)


def random_pins(step, chance: random.Random) -> list[Pin]:
    """Return pins or bans of a cell below the first layer, and often of another cell or operator in it."""
    tree = step.model.captured.trees[0]
    paths = [".".join(path) for path, _ in tree.walk() if path]
    cells = [cell.name for cell in tree.children if cell.children]
    names = [chance.choice(cells), *chance.sample(paths, chance.choice((0, 1, 1)))]
    return [Pin(exact_pattern(name), chance.choice(list(PinTreatment)), chance.choice((1, 20))) for name in names]


@pytest.mark.long
@pytest.mark.parametrize("name", ["qwen3_small", "qwen3_moe_small", *["deepseek_v3_small"] * is_nightly()])
def test_no_policy_of_a_real_model_with_the_pins_beats_the_bound(name):
    """Random policies that have random pins, each at the budget of its own peak."""
    step, chance, num_tighter, num_pinned = recorded_step(name), random.Random(0), 0, 0
    free = Planner(step.as_compiled_with_swap().model)
    while num_pinned < examples(6, 150):
        try:
            planner = StepPlanner(step, pins=random_pins(step, chance)).planner
        except PlanError:
            continue
        num_pinned += 1
        rows = LayerAssignments(planner.model, planner.catalog)
        for number in range(examples(3, 10)):
            assignment = possible_choice(planner.catalog, chance) * bool(number)
            evaluation = evaluate(problem_of(planner), rows.policy(assignment))
            of_peak = problem_of(planner, evaluation.peak_bytes)
            bound_ns, free_ns = planner.bound_ns(of_peak), free.bound_ns(replace(of_peak, allow=DEFAULT_ALLOW))
            assert bound_ns is not None and bound_ns <= evaluation.step_time_ns, (planner.allow, assignment)
            assert free_ns is not None and bound_ns >= free_ns - 1
            least_bytes = least_budget_bytes(planner.bound_inputs, UNLIMITED_BYTES, planner.allow)
            assert least_bytes <= evaluation.peak_bytes
            num_tighter += bound_ns > free_ns + 1
    assert num_tighter >= 3


def possible_choice(catalog: Catalog, chance: random.Random) -> np.ndarray:
    """Return a random assignment without full recompute, and without what a layer of another class has alone."""
    assignment = random_choice(catalog, chance)
    assignment[:, 0] = KEEP
    freed = catalog.freed_bytes[list(catalog.layer_classes)]
    is_possible = np.take_along_axis(freed, np.maximum(-assignment, 0)[:, :, None], axis=2)[:, :, 0] > 0
    return np.where(is_possible, assignment, KEEP)


@pytest.mark.parametrize(
    ("texts", "slowest"),
    [(["mlp=recompute"], True), (["attn=recompute", "mlp=keep"], True), (["mlp=keep"], False), ([], False)],
)
def test_what_is_pinned_to_recompute_is_in_the_bound(texts, slowest):
    """With memory for everything, the bound is the step with the pins alone; it was the step without any policy."""
    model = small_model(3)
    pins = [read_pin(text) for text in texts]
    pinned = model.with_fixed_policy(pinned_policy(pins, model, DEFAULT_ALLOW))
    planner = Planner(pinned, Allow(pinned=tuple(pin.pattern for pin in pins)))
    keep_ns = model.simulate(Policy()).step_time_ns
    assert planner.bound_ns(problem_of(planner)) == pinned.simulate(Policy()).step_time_ns
    assert (planner.bound_ns(problem_of(planner)) > keep_ns) == slowest


def test_what_is_kept_needs_its_memory():
    """The least memory with a ban is what its cell saves in each layer more than the least without it."""
    model = small_model(3)
    free = Planner(model)
    pinned = model.with_fixed_policy(pinned_policy([read_pin("mlp=keep")], model, DEFAULT_ALLOW))
    planner = Planner(pinned, Allow(pinned=("mlp",)))
    least = [least_budget_bytes(each.bound_inputs, UNLIMITED_BYTES, each.allow) for each in (free, planner)]
    assert least[1] > least[0] + 2 * MB
    best = planner.plan(problem_of(planner, least[0]))
    assert best.least_budget_bytes == least[1] <= best.peak_bytes and not best.fits


def test_the_link_carries_what_is_pinned_to_swap():
    """Three layers with one tensor each that needs 100 us in both directions, and work of a few us."""
    model = small_model(3)
    pinned = model.with_fixed_policy(pinned_policy([read_pin(r"attn\.exp=swap")], model, DEFAULT_ALLOW))
    planner = Planner(pinned, Allow(pinned=(r"attn\.exp",)))
    assert planner.bound_ns(problem_of(planner)) >= 3 * 100_000 > model.simulate(Policy()).step_time_ns


@pytest.mark.parametrize("treatment", PinTreatment)
def test_baselines_are_those_without_pins(treatment):
    """They are what `compare` shows, and the slowdown is that over keeping everything, the pins not."""
    model = small_model(3)
    free = Planner(model).plan(PlanProblem(model, UNLIMITED_BYTES, UNLIMITED_BYTES, 8))
    pin = Pin("mlp", treatment)
    pinned = model.with_fixed_policy(pinned_policy([pin], model, DEFAULT_ALLOW))
    planner = Planner(pinned, Allow(pinned=(pin.pattern,)))
    plan = planner.plan(problem_of(planner))
    assert plan.compared == free.compared and plan.unconstrained_ns == free.unconstrained_ns
    assert (plan.step_time_ns > free.step_time_ns) == (treatment is not PinTreatment.KEEP)
    for compared in plan.compared:
        simulated = simulate_baseline(model, compared.baseline)
        assert (compared.step_time_ns, compared.peak_bytes) == simulated


def simulate_baseline(model: StepModel, name: str) -> tuple[int, int]:
    policy = replace(baseline_policy(name, model.captured.trees), is_swap_enabled=True)
    assert name in BASELINES
    simulated = model.simulate(policy)
    return simulated.step_time_ns, simulated.peak_bytes


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"work_ns": 10**9}, "no policy is faster than"),
        ({"liveness_points": (LivenessPoint(10**16, {}),)}, "no policy fits, but one fits in"),
        ({"liveness_points": (LivenessPoint(10**15, {}),)}, "every policy needs 1000000000000000 bytes, but one needs"),
    ],
)
def test_a_plan_below_its_bound_is_an_error_that_names_itself(changed, message):
    planner = Planner(small_model(2))
    stage = replace(planner.bound_inputs.stages[0], **changed)
    wrong, problem = replace(planner.bound_inputs, stages=(stage,)), problem_of(planner)
    with pytest.raises(BoundError, match=message):
        plan_of(
            problem, Bounds.of(wrong, problem), 1, Policy(), evaluate(problem, Policy()), compared=(), num_evaluations=0
        )
