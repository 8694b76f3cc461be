"""Plans for hand-made models, without MindSpore: they fit, are not below the bound, and more memory is not slower."""

import gc
import itertools
from dataclasses import replace

import pytest

from mindswap.features.plan.report import format_plan
from mindswap.planner import session, stages
from mindswap.planner.evaluate import Candidate, evaluate
from mindswap.planner.linear import UnsolvedError
from mindswap.planner.lower_bound import layer_relaxation
from mindswap.planner.planning import Planner
from mindswap.planner.problem import Allow, Objective, Plan, PlanProblem
from mindswap.planner.session import ENOUGH_PART
from mindswap.planner.solver import column_generation, fast
from mindswap.planner.solver.search import Stop
from mindswap.policy.model import ALL_LAYERS, NO_LAYERS, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.step_model import StepModel
from tests.planner.models import small_model
from tests.simulator.cost.builders import GENERIC
from tests.strength import examples, is_nightly

PLENTY = 2**50
NUM_BUDGETS = examples(3, 5)


def with_links(bandwidth_bytes_per_s: int, memory_permille: int = 1000) -> Device:
    """The generic device with other links and slower memory."""
    return replace(
        GENERIC,
        offload=replace(GENERIC.offload, bandwidth_bytes_per_s=bandwidth_bytes_per_s),
        prefetch=replace(GENERIC.prefetch, bandwidth_bytes_per_s=bandwidth_bytes_per_s),
        memory_permille=memory_permille,
    )


# A copy takes 100, 10 or 5 us beside operators of 2 and 3 us; with slow memory these take three times as long.
DEVICES = {
    "slow link": GENERIC,
    "link": with_links(10**11),
    "fast link": with_links(2 * 10**11),
    "slow memory": with_links(10**11, 333),
}
MODELS = {
    "4 layers": small_model(4),
    "9 layers": small_model(9),
    "pipeline": small_model(6, num_stages=2, num_micro_batches=4),
}


@pytest.fixture(autouse=True)
def little_effort(monkeypatch):
    """A quick search will do: what is asked here holds for any."""
    monkeypatch.setattr(fast, "MIN_EVALUATIONS", examples(15, 40))
    monkeypatch.setattr(fast, "MAX_OPERATORS", examples(1, 200_000))
    monkeypatch.setattr(stages, "MAX_OPERATORS", examples(500, 2000))


def problem(model: StepModel, budget_bytes: int, **options) -> PlanProblem:
    return PlanProblem(model, budget_bytes, PLENTY, 8, **options)


@pytest.mark.long
@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_collector_rests_while_a_plan_is_made(is_stopped):
    model, seen = MODELS["4 layers"], []

    def progress():
        seen.append(gc.isenabled())
        if is_stopped:
            raise Stop

    asked = problem(model, PLENTY)
    free = Planner(model).plan(asked)
    plan = Planner(model).plan(replace(asked, budget_bytes=free.peak_bytes * 9 // 10), progress)
    assert plan.is_interrupted is is_stopped
    assert set(seen) == {False}
    assert gc.isenabled()


def on_device(name: str, device: str) -> StepModel:
    evaluated = MODELS[name]
    layout = evaluated.layout
    return small_model(evaluated.captured.num_layers, layout.num_stages, layout.num_micro_batches, DEVICES[device])


def plan(model: StepModel, budget_bytes: int, **options) -> Plan:
    allow = options.get("allow", Allow())
    return Planner(model, allow).plan(problem(model, budget_bytes, **options))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "device"),
    [("pipeline", "fast link"), *([("4 layers", "link")] if is_nightly() else [])],
)
def test_more_memory_is_never_slower(name, device):
    """`benchmarks/plan_sweeps.py` asks the same of six real models."""
    model = on_device(name, device)
    planner = Planner(model)
    keep = evaluate(problem(model, PLENTY), Policy())
    budgets = [keep.peak_bytes * (100 - 4 * i) // 100 for i in reversed(range(NUM_BUDGETS))]
    plans = [planner.plan(problem(model, budget)) for budget in reversed(budgets)][::-1]
    fitting = [now for now in plans if now.fits]
    assert len(fitting) >= NUM_BUDGETS // 2
    assert plans[-len(fitting) :] == fitting  # what fits goes on fitting
    for less, more in itertools.pairwise(fitting):
        assert more.step_time_ns <= less.step_time_ns + less.step_time_ns / ENOUGH_PART
    for now in fitting:
        again = evaluate(problem(model, now.budget_bytes), now.policy)
        assert again.fits
        assert (again.step_time_ns, again.stage_peak_bytes) == (now.step_time_ns, now.stage_peak_bytes)
        assert now.lower_bound_ns is not None and now.step_time_ns >= now.lower_bound_ns


@pytest.mark.long
def test_a_plan_is_made_where_nothing_solves_the_bound(monkeypatch):
    """Then no sentence says what no policy can do."""
    solve = layer_relaxation.solve_linear

    def give_up(*args, num_integers=0, **options):
        if not num_integers:
            raise UnsolvedError
        return solve(*args, num_integers=num_integers, **options)

    monkeypatch.setattr(layer_relaxation, "solve_linear", give_up)
    monkeypatch.setattr(column_generation, "solve_linear", give_up)
    asked = problem(MODELS["4 layers"], PLENTY)
    peak_bytes = Planner(asked.model).plan(asked).peak_bytes
    plan = Planner(asked.model).plan(replace(asked, budget_bytes=peak_bytes * 3 // 4))
    assert plan.fits and plan.peak_bytes < peak_bytes
    assert plan.gap is None and plan.least_budget_bytes == 0
    assert "no policy" not in format_plan(plan, "card", 1)


def test_everything_is_kept_where_it_fits():
    model = MODELS["4 layers"]
    keep = evaluate(problem(model, PLENTY), Policy())
    found = plan(model, keep.peak_bytes)
    assert found.fits
    assert found.step_time_ns == keep.step_time_ns == found.lower_bound_ns
    assert not found.policy.op_swap and not found.policy.select_recompute


def test_the_least_that_is_found_is_found_again():
    model = MODELS["4 layers"]
    found = plan(model, 1)
    assert not found.fits
    assert plan(model, found.smallest_budget_bytes).fits


@pytest.mark.long
def test_stopped_at_once_and_not_remembered():
    model = MODELS["9 layers"]
    keep = evaluate(problem(model, PLENTY), Policy())
    budget = keep.peak_bytes * 3 // 4
    planner = Planner(model)

    def stop() -> None:
        raise Stop

    stopped = planner.plan(problem(model, budget), progress=stop)
    assert stopped.is_interrupted
    assert stopped.num_evaluations == 1
    assert planner.plan(problem(model, budget)).step_time_ns == plan(model, budget).step_time_ns


@pytest.mark.parametrize("allow", [Allow(swap=False), Allow(recompute=False)])
def test_what_is_not_allowed_is_not_done(allow):
    model = on_device("4 layers", "fast link")
    keep = evaluate(problem(model, PLENTY), Policy())
    found = plan(model, keep.peak_bytes * 9 // 10, allow=allow)
    assert found.fits
    assert bool(found.policy.op_swap or found.policy.layer_swap) == allow.swap
    assert bool(found.policy.select_recompute or found.policy.layer_recompute != NO_LAYERS) == allow.recompute


def test_least_memory_costs_next_to_no_time(monkeypatch):
    monkeypatch.setattr(session, "NUM_HALVINGS", examples(1, 6))
    model = on_device("4 layers", "fast link")
    keep = evaluate(problem(model, PLENTY), Policy())
    found = plan(model, PLENTY, objective=Objective.MEMORY)
    assert found.fits and found.peak_bytes <= keep.peak_bytes
    assert found.step_time_ns * 1000 <= keep.step_time_ns * 1010
    assert found.budget_bytes == PLENTY


def test_a_plan_for_less_memory_of_the_same_question_is_never_beaten():
    """Not by a part of a percent: it is a candidate for the budgets after it."""
    model = on_device("9 layers", "slow memory")
    keep = evaluate(problem(model, PLENTY), Policy())
    together, before_ns = session.PlanSession(Planner(model), problem(model, PLENTY)), None
    for permille in (800, 810, 820, 830):
        found = together.plan(keep.peak_bytes * permille // 1000)
        assert found.fits
        assert before_ns is None or found.step_time_ns <= before_ns
        before_ns = found.step_time_ns


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        (Policy(True), "swap recompute neither"),
        (Policy(True, op_swap=(OpSwap("mlp", ALL_LAYERS, 1),)), "swap"),
        (Policy(True, layer_swap=(LayerSwap(ALL_LAYERS, 1),)), "swap"),
        (Policy(True, layer_recompute=ALL_LAYERS), "recompute"),
        (Policy(True, select_recompute=(OpRecompute("mlp", ALL_LAYERS),)), "recompute"),
    ],
)
def test_a_common_setting_is_a_plan_where_what_it_does_is_allowed(policy, allowed):
    allows = {
        "swap": Allow(recompute=False), "recompute": Allow(swap=False), "neither": Allow(swap=False, recompute=False),
    }  # fmt: skip
    planner = Planner(small_model(2))
    assert " ".join(name for name, allow in allows.items() if planner.is_eligible(allow, policy)) == allowed
    assert planner.is_eligible(Allow(), policy)


def test_where_nothing_fits_what_is_on_the_host_and_then_needs_less_comes_nearest():
    rows = [(False, 5, 9), (False, 6, 1), (True, 1, 1), (True, 2, 0)]  # beyond the host, peak, time
    found = [Candidate(Policy(), time_ns, (1, peak), not is_beyond) for is_beyond, peak, time_ns in rows[::-1]]
    nearest = sorted(found, key=lambda each: each.rank(budget_bytes=0))
    assert [(not each.is_on_host, each.peak_bytes, each.step_time_ns) for each in nearest] == rows
