"""What a user decides stands in every plan, and nothing else is decided about it."""

import pytest

from mindswap.errors import PlanError
from mindswap.planner.planner import Planner
from mindswap.planner.problem import DEFAULT_DISTANCE, Allow, Means, Pin, PlanProblem, fixed_policy, read_pin
from mindswap.planner.solvers import fast
from mindswap.policy.model import ALL_LAYERS, OpRecompute, OpSwap
from tests.planner.models import MB, small_model
from tests.strength import is_nightly

HOST_BYTES = 10**12


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        (r"attn\.exp=swap", Pin(r"attn\.exp", Means.SWAP, DEFAULT_DISTANCE)),
        ("mlp=swap:12", Pin("mlp", Means.SWAP, 12)),
        ("a=b=keep", Pin("a=b", Means.KEEP)),
        ("mlp=recompute", Pin("mlp", Means.RECOMPUTE)),
    ],
)
def test_a_pin_is_a_pattern_and_what_becomes_of_it(text, pin):
    assert read_pin(text) == pin


@pytest.mark.parametrize(
    "text", ["mlp", "=keep", "mlp=maybe", "mlp=swap:0", "mlp=swap:x", "mlp=keep:3", "mlp=swap:", ""]
)
def test_what_is_no_pin_says_what_is_allowed(text):
    with pytest.raises(PlanError, match=r"allowed: PATTERN=swap, PATTERN=swap:12"):
        read_pin(text)


def fixed(*texts):
    captured = small_model().captured
    return fixed_policy(tuple(map(read_pin, texts)), captured.trees, captured.sample.layer_map)


def test_pins_are_entries_of_single_operators():
    found = fixed(r"mlp\..*=recompute", r"attn\.exp=swap:7", "attn=keep")
    assert found.op_swap == (OpSwap(r"attn\.exp", ALL_LAYERS, 7),)
    assert found.select_recompute == tuple(OpRecompute(rf"mlp\.{name}", ALL_LAYERS) for name in ("relu", "tanh"))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["nix=keep"], r"names nothing in any layer(.|\n)*near: "),
        (["attn=keep", "a.*=swap"], "attn is pinned to keep as well"),
        (["mlp(=keep"], "--pin 'mlp\\('"),
    ],
)
def test_wrong_pins_say_what_is_wrong(texts, message):
    with pytest.raises(PlanError, match=message):
        fixed(*texts)


def planned(budget_bytes, *texts):
    pins = tuple(map(read_pin, texts))
    model = small_model()
    policy = fixed_policy(pins, model.captured.trees, model.captured.sample.layer_map)
    model = model.remade(fixed=policy)
    allow = Allow(pinned=tuple(pin.pattern for pin in pins))
    return Planner(model, allow).plan(PlanProblem(model, budget_bytes, HOST_BYTES, 8, allow))


def names(entries):
    return {entry.pattern for entry in entries}


@pytest.fixture(autouse=True)
def little_effort(monkeypatch):
    """A quick search will do: what is pinned stays in any."""
    if not is_nightly():
        monkeypatch.setattr(fast, "MAX_EVALUATIONS", 60)


@pytest.fixture(scope="module")
def free_bytes():
    return planned(10**12).peak_bytes


@pytest.mark.long
@pytest.mark.parametrize(("cell", "other"), [("mlp", "attn"), ("attn", "mlp")])
def test_what_is_kept_is_neither_swapped_nor_recomputed(free_bytes, cell, other):
    plan = planned(free_bytes - 3 * MB, f"{cell}=keep")
    decided = names(plan.policy.op_swap) | names(plan.policy.select_recompute)
    assert plan.fits and decided and all(name.startswith(other) for name in decided)
    assert not plan.policy.layer_recompute
    assert not planned(free_bytes - 5 * MB, "mlp=keep").fits and planned(free_bytes - 5 * MB).fits


@pytest.mark.parametrize("means", ["swap", "recompute"])
def test_what_is_pinned_is_in_the_plan_though_memory_asks_for_nothing(means):
    plan = planned(10**12, rf"mlp\.relu={means}")
    entries = plan.policy.op_swap if means == "swap" else plan.policy.select_recompute
    assert plan.fits and names(entries) == {r"mlp\.relu"}


def test_beside_a_pin_the_rest_is_still_planned(free_bytes):
    pinned_bytes = planned(10**12, r"mlp\.relu=swap").peak_bytes
    plan = planned(pinned_bytes - 2 * MB, r"mlp\.relu=swap")
    assert plan.fits and r"mlp\.relu" in names(plan.policy.op_swap)
    assert len(names(plan.policy.op_swap) | names(plan.policy.select_recompute)) > 1


def test_what_nothing_fits_beside_says_so(free_bytes):
    plan = planned(free_bytes - 3 * MB, "mlp=keep", "attn=keep")
    assert not plan.fits and plan.policy.op_swap == plan.policy.select_recompute == ()
