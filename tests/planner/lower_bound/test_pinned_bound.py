"""With pins and bans: the bound is below every policy that has them, and a plan is not below its bound."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from mindswap.errors import PlanError
from mindswap.planner.build_plan import BoundError, plan_of
from mindswap.planner.evaluate import evaluate
from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.pins import Pin, PinTreatment, pinned_policy
from mindswap.planner.planning import Planner
from mindswap.planner.problem import DEFAULT_ALLOW, Allow, PlanProblem
from mindswap.planner.stage_problem import KEEP
from mindswap.policy.cell_tree import exact_pattern
from mindswap.policy.coverage import BASELINES, baseline_policy
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel
from tests.planner.models import small_model
from tests.planner.test_budget_search import with_links
from tests.strength import examples

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
        ({"floor_bytes": 10**16}, "no policy fits, but one fits in"),
        ({"floor_bytes": 10**15}, "every policy needs 1000000000000000 bytes, but one needs"),
    ],
)
def test_a_plan_below_its_bound_is_an_error_that_names_itself(changed, message):
    planner = Planner(small_model(2))
    stage = replace(planner.bound_inputs.stages[0], **changed)
    wrong, problem = replace(planner.bound_inputs, stages=(stage,)), problem_of(planner)
    with pytest.raises(BoundError, match=message):
        plan_of(problem, wrong, 1, Policy(), evaluate(problem, Policy()), compared=(), num_evaluations=0)
