"""Optimizer states on the card or on the host, as a choice of `plan`; a step made by hand, and files of a user."""

from dataclasses import replace
from itertools import pairwise

import pytest

from mindswap.config.parse import parse_document
from mindswap.errors import PlanError
from mindswap.features.plan import StepPlanner, make_plan, planned_text
from mindswap.features.plan.states import find_obstacle, states_on_host, with_states
from mindswap.features.plan.states_planner import StatesPlanner
from mindswap.features.step import Step
from mindswap.planner.lower_bound import least_budget_bytes
from mindswap.planner.pins import read_pin
from mindswap.planner.problem import Allow, Objective
from mindswap.policy.model import Policy
from tests.planner.test_checked_plans import recorded_step

CONFIG = """\
# A file of a user.
optimizer:
  type: AdamW  # as before
  eps: 1.e-8
"""
OTHERS = {
    "optimizer: {type: Came}": "MindFormers has no swap of optimizer states for Came",
    "optimizer: {type: Muon}": "MindFormers has no swap of optimizer states for Muon",
    "seed: 0": "the file names no optimizer",
    "optimizer: {type: AdamW}\ncontext: {device_target: CPU}": "on CPU they are in host memory",
    "a: &a {type: AdamW}\noptimizer: *a\nb: *a": "",
    "optimizer: &a {type: AdamW}\nb: *a": "optimizer.swap cannot be written: ",
}


@pytest.fixture(scope="module")
def step() -> Step:
    """Qwen2-0.5B with 64 micro-batches, so that one update is a small part of the step."""
    recorded = recorded_step("qwen2_0_5b")
    settings = replace(recorded.model.settings, num_micro_batches=64, is_accumulating=True)
    return replace(recorded, model=recorded.model.with_settings(settings))


@pytest.fixture(scope="module")
def budget_bytes(step: Step) -> int:
    """A budget between the least memory with the states on the host and all that is kept."""
    keep_bytes = step.as_compiled_with_swap().simulate(Policy(is_swap_enabled=True)).peak_bytes
    inputs = StepPlanner(with_states(step, True)).planner.bound_inputs
    least_bytes = least_budget_bytes(inputs, step.device.host_memory_bytes, Allow())
    return int(least_bytes + 0.3 * (keep_bytes - least_bytes))


@pytest.mark.long
def test_states_are_on_the_host_where_that_is_faster(step, budget_bytes):
    chosen = make_plan(step, budget_bytes)
    kept = make_plan(step, budget_bytes, pins=[read_pin("optimizer=keep")])
    assert chosen.fits and (not kept.fits or chosen.step_time_ns < kept.step_time_ns)
    assert chosen.states is not None and chosen.states.is_on_host and chosen.states.is_changed
    assert kept.states is not None and not kept.states.is_on_host and "optimizer" not in kept.sections
    # What a node has on the host: the states, and the activations that the plan swaps.
    size_bytes, copy_ns = states_on_host(step.model)
    num_cards = min(step.model.settings.num_cards, step.device.num_cards_per_node)
    assert chosen.plan.host_bytes >= num_cards * size_bytes > 0
    assert (chosen.states.size_bytes, chosen.states.copy_ns) == (size_bytes, copy_ns)
    terms = {term.name: term.duration_ns for term in chosen.run().simulated.terms}
    assert terms["optimizer states, copied"] == copy_ns
    # The report compares both placements, and the bound holds for both.
    assert f"optimizer    {chosen.states}" in str(chosen)
    assert {"your file", "plan, states on the card"} <= {compared.name for compared in chosen.plan.compared}
    bounds = [StepPlanner(with_states(step, is_on_host)).bound_ns(budget_bytes) for is_on_host in (False, True)]
    assert chosen.plan.lower_bound_ns == min(bound for bound in bounds if bound is not None)
    assert chosen.plan.unconstrained_ns == kept.plan.unconstrained_ns
    # The file has it where MindFormers reads it.
    after = parse_document(planned_text(chosen.step, chosen.plan, "planned.yaml"), "planned.yaml").data()
    assert after["optimizer"] == {**step.document.data()["optimizer"], "swap": True} == chosen.sections["optimizer"]


@pytest.mark.long
def test_a_sweep_has_both_places(step, monkeypatch):
    monkeypatch.setattr("mindswap.planner.sweep.NUM_BUDGETS", 3)
    swept = StatesPlanner(step).sweep()
    assert set(swept.places) == {False, True} == set(swept.sweeps) and not swept.reason
    for less, more in pairwise(swept.plans):
        assert less.peak_bytes < more.peak_bytes and less.step_time_ns > more.step_time_ns
    # Where all that is kept is faster than any step with the states on the host, they are on the card.
    assert swept.places[-1] is False and swept.plans[-1].slowdown == 0
    for plan in swept.plans:
        bounds = [sweep.bound_ns(plan.budget_bytes) for sweep in swept.sweeps.values()]
        assert plan.lower_bound_ns == min(bound for bound in bounds if bound is not None) <= plan.step_time_ns
    points = swept.bound()
    assert points[0][0] == min(sweep.plans[0].least_budget_bytes for sweep in swept.sweeps.values())
    assert all(before[1] >= after[1] for before, after in pairwise(points))
    for budget_bytes, bound_ns in points[:: max(1, len(points) // 4)]:  # each takes seconds
        bounds = [sweep.bound_ns(budget_bytes) for sweep in swept.sweeps.values()]
        assert bound_ns <= min((bound for bound in bounds if bound is not None), default=bound_ns)
    pinned = StatesPlanner(step, pins=[read_pin("optimizer=swap")]).sweep()
    assert set(pinned.places) == {True} and pinned.reason == "--pin optimizer=swap"


@pytest.mark.long
def test_states_stay_where_all_that_is_kept_fits(step):
    plan = make_plan(step, step.device.usable_memory_bytes)
    assert plan.states is not None and not plan.states.is_on_host and plan.states.reason.endswith("or more")
    assert plan.step_time_ns == StepPlanner(step).plan(step.device.usable_memory_bytes).step_time_ns


@pytest.mark.long
def test_a_file_with_states_on_the_host_may_get_them_back(step):
    moved = with_states(step, True)
    assert "swap: true" in moved.config_text().lower()
    plan = make_plan(moved, step.device.usable_memory_bytes)
    assert plan.states is not None and not plan.states.is_on_host and plan.states.is_changed
    assert plan.step.document.value("optimizer", "swap") is False


@pytest.mark.long
def test_states_stay_as_in_the_file_without_swap(step):
    plan = StatesPlanner(step, Allow(swap=False)).plan()
    assert plan.states is not None
    assert (plan.states.is_changed, plan.states.reason) == (False, "--allow excludes swap")


@pytest.mark.parametrize("text", OTHERS)
def test_a_reason_is_given_where_states_cannot_move(step, tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    other = replace(step, document=parse_document(text, str(path)), path=path)
    assert find_obstacle(other).startswith(OTHERS[text]) and bool(OTHERS[text]) == bool(find_obstacle(other))
    if OTHERS[text]:
        with pytest.raises(PlanError, match="--pin optimizer=swap: ") as caught:
            StatesPlanner(other, pins=[read_pin("optimizer=swap")])
        assert OTHERS[text] in str(caught.value)


def test_a_network_without_a_file_keeps_its_states(step):
    assert find_obstacle(replace(step, path=None)) == "there is no file to write optimizer.swap to"


@pytest.mark.parametrize("pins", [("optimizer=recompute",), ("optimizer=keep", "optimizer=swap")])
def test_a_pin_is_about_the_place(step, pins):
    with pytest.raises(PlanError, match="allowed: keep, swap"):
        StatesPlanner(step, pins=[read_pin(pin) for pin in pins])


def test_comments_survive(step, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    mine = replace(step, document=parse_document(CONFIG, str(path)), path=path)
    moved = with_states(mine, True)
    assert moved.config_text() == CONFIG + "  swap: True\n"
    assert moved.document.value("optimizer", "swap") is True and moved.model.settings.is_state_offloaded
    assert with_states(moved, False).config_text() == CONFIG + "  swap: False\n"


def test_figures_are_those_of_the_states(step):
    size_bytes, copy_ns = states_on_host(step.model)
    moved = with_states(step, True).model
    assert size_bytes == max(static.optimizer_bytes for static in step.model.static)
    assert size_bytes == max(static.host_bytes for static in moved.static) > 0
    assert max(static.optimizer_bytes for static in moved.static) == 0
    assert copy_ns > 0


def test_states_that_cannot_leave_the_host_stay_there(step, tmp_path):
    text = "optimizer: &a {type: AdamW, swap: True}\nb: *a"
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    settings = replace(step.model.settings, is_state_offloaded=True)
    moved = replace(step, document=parse_document(text, str(path)), path=path, model=step.model.with_settings(settings))
    planner = StatesPlanner(moved)
    assert planner.obstacle.startswith("optimizer.swap cannot be written: ")
    with pytest.raises(PlanError, match=r"--pin optimizer=keep: .*\n    allowed: optimizer=swap"):
        StatesPlanner(moved, pins=[read_pin("optimizer=keep")])


@pytest.mark.long
def test_bounds_hold_for_both_places_where_one_is_planned(step, budget_bytes):
    stopped = StatesPlanner(step).plan(budget_bytes, Objective.MEMORY)
    alone = StepPlanner(step).plan(budget_bytes, Objective.MEMORY).plan
    assert stopped.plan.lower_bound_ns is not None and stopped.plan.lower_bound_ns <= (
        StepPlanner(with_states(step, True)).bound_ns(budget_bytes) or 0
    )
    size_bytes, _ = states_on_host(step.model)
    assert stopped.plan.least_budget_bytes == alone.least_budget_bytes - size_bytes
