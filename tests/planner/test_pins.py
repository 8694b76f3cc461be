"""What a user decides stands in every plan, and nothing else is decided about it."""

from dataclasses import replace

import pytest

from mindswap.errors import PlanError
from mindswap.planner.effect import EffectPredictor, IneffectiveNames
from mindswap.planner.pins import DEFAULT_DISTANCE, Pin, PinTreatment, pinned_policy, read_pin
from mindswap.planner.planning import Planner
from mindswap.planner.problem import DEFAULT_ALLOW, Allow, PlanProblem
from mindswap.planner.solver import fast
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import ALL_LAYERS, OpRecompute, OpSwap, Policy
from mindswap.simulator.step_model import StepModel
from tests.planner.models import MB, small_model
from tests.strength import is_nightly

HOST_BYTES = 10**12


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        (r"attn\.exp=swap", Pin(r"attn\.exp", PinTreatment.SWAP, DEFAULT_DISTANCE)),
        ("mlp=swap:12", Pin("mlp", PinTreatment.SWAP, 12)),
        ("a=b=keep", Pin("a=b", PinTreatment.KEEP)),
        ("mlp=recompute", Pin("mlp", PinTreatment.RECOMPUTE)),
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


def fixed(*texts, model=None, allow=DEFAULT_ALLOW):
    return pinned_policy(tuple(map(read_pin, texts)), model or small_model(), allow)


def test_pins_are_entries_of_single_operators():
    found = fixed(r"mlp\..*=recompute", r"attn\.exp=swap:7", r"attn\.mul=keep")
    assert found.op_swap == (OpSwap(r"attn\.exp", ALL_LAYERS, 7),)
    assert found.select_recompute == tuple(OpRecompute(rf"mlp\.{name}", ALL_LAYERS) for name in ("relu", "tanh"))


@pytest.mark.parametrize("cell", ["attn", "mlp"])
def test_a_swapped_cell_is_one_entry(cell):
    """Also where backward does not read all of it, as the output of attn.mul."""
    assert fixed(f"{cell}=swap").op_swap == (OpSwap(cell, ALL_LAYERS, DEFAULT_DISTANCE),)


def test_only_what_the_known_layers_have_is_named():
    """A network of a CPU has operators of its own in place of a kernel: a file can name the cell, and not them."""
    model = small_model()
    attn, mlp = model.captured.trees[0].children
    known = (CellNode("", "Layer", children=(replace(attn, children=()), mlp)),) * 4
    found = pinned_policy((read_pin("attn=swap"),), model, DEFAULT_ALLOW, known)
    assert found.op_swap == (OpSwap("attn", ALL_LAYERS, DEFAULT_DISTANCE),)
    with pytest.raises(PlanError, match="names nothing in any layer"):
        pinned_policy((read_pin(r"attn\.exp=swap"),), model, DEFAULT_ALLOW, known)


def test_an_operator_of_a_recomputed_cell_needs_no_entry():
    assert fixed("mlp=recompute", r"mlp\.relu=recompute").select_recompute == (OpRecompute("mlp", ALL_LAYERS),)


def test_the_same_decision_twice_is_one_entry():
    found = fixed(r"attn\.exp=swap", r"attn\.e.p=swap", r"attn\.exp=swap")
    assert found.op_swap == (OpSwap(r"attn\.exp", ALL_LAYERS, DEFAULT_DISTANCE),)


SWAPPABLE = "allowed: attn.exp, mlp.relu, mlp.tanh"


@pytest.mark.parametrize(
    ("texts", "messages"),
    [
        (["nix=keep"], ["--pin nix=keep: names nothing in any layer", "near: "]),
        (["attn=keep", "a.*=swap"], ["--pin a.*=swap: attn.exp is pinned by --pin attn=keep as well"]),
        ([r"mlp\.relu=swap", r"mlp\.relu=swap:3"], [r"mlp.relu is pinned by --pin mlp\.relu=swap as well"]),
        (["mlp=recompute", r"mlp\.relu=keep"], ["mlp.relu is pinned by --pin mlp=recompute as well"]),
        (["mlp(=keep"], ["--pin 'mlp(': missing )"]),
        ([r"attn\.mul=swap"], ["has no effect in any layer: backward needs none of these outputs", SWAPPABLE]),
        (
            ["nix=keep", "nox=swap", "attn=keep", r"attn\.exp=swap"],
            ["--pin nix=keep: names nothing", "--pin nox=swap: names nothing", "attn.exp is pinned by"],
        ),
    ],
)
def test_wrong_pins_say_all_that_is_wrong(texts, messages):
    with pytest.raises(PlanError) as raised:
        fixed(*texts)
    assert all(message in str(raised.value) for message in messages), str(raised.value)


@pytest.mark.parametrize(("means", "allow"), [("swap", Allow(swap=False)), ("recompute", Allow(recompute=False))])
def test_a_pin_that_allow_excludes_is_refused(means, allow):
    with pytest.raises(PlanError, match=rf"--pin mlp\\.relu={means}: --allow \w+ excludes it"):
        fixed(rf"mlp\.relu={means}", allow=allow)
    assert fixed(r"mlp\.relu=keep", allow=allow) == Policy(True)


def planned(budget_bytes, *texts, model=None):
    pins = tuple(map(read_pin, texts))
    model = model or small_model()
    model = model.with_fixed_policy(pinned_policy(pins, model, DEFAULT_ALLOW))
    allow = Allow(pinned=tuple(pin.pattern for pin in pins))
    return Planner(model, allow).plan(PlanProblem(model, budget_bytes, HOST_BYTES, 8, allow))


def names(entries):
    return {entry.pattern for entry in entries}


@pytest.fixture(autouse=True)
def little_effort(monkeypatch):
    """A quick search will do: what is pinned stays in any."""
    if not is_nightly():
        monkeypatch.setattr(fast, "MAX_OPERATORS", 200_000)


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


def test_a_recompute_that_is_idle_only_without_another_has_a_reason(monkeypatch):
    """`Foresight.faults` goes on until nothing more is idle; the reasons are of its first round."""
    idle = IneffectiveNames(frozenset(), frozenset({"attn.exp"}))
    monkeypatch.setattr(EffectPredictor, "ineffective_names", lambda *_: idle)
    with pytest.raises(PlanError, match="its recompute frees nothing without that of another name"):
        pinned_policy([read_pin(r"attn\.exp=recompute")], small_model(), DEFAULT_ALLOW)


def test_a_cell_without_operators_has_a_reason():
    """It cannot be swapped operator by operator: an Identity in the place of an attention that the model lacks."""
    model = small_model()
    tree = model.captured.trees[0]
    with_identity = replace(tree, children=(*tree.children, CellNode("cross", "Identity")))
    trees = (with_identity,) * len(model.captured.trees)
    model = StepModel(replace(model.captured, trees=trees), model.costs, model.settings)
    with pytest.raises(PlanError, match=r"--pin cross=swap: has no effect in any layer: \S"):
        pinned_policy([read_pin("cross=swap")], model, DEFAULT_ALLOW)
