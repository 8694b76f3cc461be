"""Plans against the compiler: what the planner hands out does what it says, on networks that are really compiled."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from mindswap.config.parse import parse_document
from mindswap.errors import LaunchError
from mindswap.features.plan import StepPlan
from mindswap.features.plan import dry_runs as plan_dry_run
from mindswap.features.plan.dry_runs import PlanVerdict, verify_plan
from mindswap.features.simulate import LoadedStep
from mindswap.planner.evaluate import evaluate
from mindswap.planner.planning import Planner
from mindswap.planner.problem import PlanProblem
from mindswap.policy.model import ALL_LAYERS, Layers, OpSwap, Policy
from mindswap.system import children
from mindswap.system.children import Answer, ask
from tests import forked
from tests.adapters.edits import edited
from tests.adapters.graphs import DEEPSEEK, QWEN3, QWEN3_MOE, ROOT
from tests.planner.models import small_model
from tests.strength import is_nightly

CASTS = {"model.model_config.compute_dtype": "bfloat16", "model.model_config.fp32_residual_connection": True}
CUT = {"parallel_config.data_parallel": 4, "parallel.enable_parallel_optimizer": True}
OFF = {"swap_config": {"swap": False}, "recompute_config": {"recompute": False}}
MODELS = {
    "qwen3, float32 residual": (QWEN3, {**CASTS, "model.model_config.num_hidden_layers": 4}),
    "qwen3": (QWEN3, {"model.model_config.num_hidden_layers": 4}),
    "qwen3, weights cut": (QWEN3, {**CASTS, **CUT, "model.model_config.num_hidden_layers": 4}),
    "qwen3 moe": (QWEN3_MOE, {"model.model_config.num_hidden_layers": 4}),
    "deepseek": (DEEPSEEK, {}),
    "qwen2": (ROOT / "benchmarks/models/qwen2_0_5b.yaml", {"model.model_config.num_layers": 4}),
    "llama2 7b": (ROOT / "configs/llama2_7b/pretrain_llama2_7b.yaml", {}),
}
# MindSpore 2.9.0 does not compile recompute of this norm of the first layer, neither for CPU nor for its Ascend backend
# ("Cannot have multiple U Monad").
PINS = {"deepseek": r"self_attention\.q_layernorm=keep"}
PERCENT = (90, 60, 30)  # of what lies between the least that any policy needs and what everything takes


def no_plan(path: str | None = "x.yaml") -> SimpleNamespace:
    """Stands for a plan of a file: only where it is, and that it can be written."""
    document = parse_document(b"swap_config:\n  swap: True\n", "x.yaml")
    step = SimpleNamespace(path=path and Path(path), document=document)
    return SimpleNamespace(step=step, save=lambda path: Path(path).write_text("x"))


def layer(**faults) -> dict:
    nothing = {key: [] for key in ("missing", "unasked", "wrong_prefetch", "one_way", "without_effect")}
    return {"layer": 0, **nothing, **faults}


def test_a_plan_that_the_compiler_does_not_follow_is_refused(monkeypatch):
    entry = {"entry": "linear_qkv.matmul", "reason": "recompute has no effect"}
    faulty = layer(one_way=["Default/linear_fc1/Cast"], without_effect=[entry])
    monkeypatch.setattr(plan_dry_run, "ask", lambda *_: Answer(1, {"ok": False, "layers": [faulty, faulty]}, ""))
    verdict = verify_plan(no_plan())
    assert verdict.is_refused
    assert verdict.text.endswith("follow the plan; one way: Default/linear_fc1/Cast; without effect: linear_qkv.matmul")


def test_a_swap_between_unlike_layers_is_left_out_where_it_has_no_effect(monkeypatch):
    entry = {"entry": "cast", "reason": "backward needs none of these outputs"}
    answers = [Answer(1, {"ok": False, "layers": [layer(), layer(layer=3, without_effect=[entry])]}, "")]
    answers.append(Answer(0, {"ok": True, "layers": []}, ""))
    monkeypatch.setattr(plan_dry_run, "ask", lambda *_: answers.pop(0))
    asked = []
    plan, mended = no_plan(), no_plan()
    mended.peak_bytes = 2**30
    plan.without_swaps = lambda idle: asked.append(idle) or mended
    verdict = verify_plan(plan)
    assert asked == [{3: {"cast"}}] and not answers
    assert verdict.matches_policy and verdict.plan is mended
    assert verdict.text.endswith("no effect: swap of cast in layer 3; peak memory then 1.0 GiB")


def test_what_is_left_out_is_left_out_of_its_layers_alone():
    model = small_model()
    problem = PlanProblem(model, 10**12, 10**12, 8)
    policy = Policy(True, op_swap=(OpSwap(r"mlp\.relu", ALL_LAYERS, 4), OpSwap(r"attn\.exp", Layers(1), 4)))
    made = Planner(model).plan(problem)
    plan = StepPlan(
        LoadedStep(parse_document("{}", "x.yaml"), Policy(True), model, None), problem, replace(made, policy=policy)
    )
    left = plan.without_swaps({0: {r"mlp\.relu"}, 1: {r"attn\.exp"}})
    assert left.policy.op_swap == (OpSwap(r"mlp\.relu", Layers(1, 2, 3), 4),)
    assert left.peak_bytes == evaluate(problem, left.policy).peak_bytes
    assert plan.without_swaps({0: {"mlp.relu"}}) is None  # recompute of an operator, by its name
    budget_bytes = left.peak_bytes - 1
    made = replace(plan.plan, budget_bytes=budget_bytes)
    tight = replace(plan, problem=replace(problem, budget_bytes=budget_bytes), plan=made)
    assert tight.without_swaps({0: {r"mlp\.relu"}, 1: {r"attn\.exp"}}) is None


@pytest.mark.parametrize("is_refused_again", [True, False])
def test_what_cannot_be_mended_is_refused(monkeypatch, is_refused_again):
    entry = {"entry": "cast", "reason": "backward needs none of these outputs"}
    refused = Answer(1, {"ok": False, "layers": [layer(without_effect=[entry])]}, "")
    monkeypatch.setattr(plan_dry_run, "ask", lambda *_: refused)
    plan = no_plan()
    plan.without_swaps = lambda idle: no_plan() if is_refused_again else None
    verdict = verify_plan(plan)
    assert verdict.is_refused and verdict.plan is None


def test_what_nobody_can_tell_is_said(monkeypatch):
    def late(words, limit_s):
        raise LaunchError(f"mindswap {words[0]} took longer than {limit_s:g} s")

    monkeypatch.setattr(plan_dry_run, "ask", late)
    verdict = verify_plan(no_plan(), limit_s=2)
    assert verdict.matches_policy is None and "verify took longer than 2 s" in verdict.text
    assert not verdict.is_refused
    monkeypatch.setattr(plan_dry_run, "ask", lambda *_: Answer(1, None, "MindFormers is not installed\nfix: x"))
    assert verify_plan(no_plan()) == PlanVerdict(None, "not verified: MindFormers is not installed")
    assert verify_plan(no_plan(None)).matches_policy is None


def test_a_plan_that_does_not_compile_is_refused_with_what_to_do(monkeypatch):
    error = "MindSpore could not compile the network: Cannot have multiple U Monad\n    full log: x"
    monkeypatch.setattr(plan_dry_run, "ask", lambda *_: Answer(1, None, error))
    verdict = verify_plan(no_plan())
    assert verdict.is_refused and verdict.plan is None
    assert verdict.text.startswith("MindSpore could not compile the network: Cannot have multiple U Monad; without")
    assert "fix: --pin 'PATTERN=keep'" in verdict.text


def test_a_question_that_takes_too_long_is_ended(monkeypatch):
    """By the clock: a process that sleeps stands for a compile."""
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(children, "module_command", lambda *_: sleep)
    with pytest.raises(LaunchError, match=r"took longer than 0\.2 s"):
        ask(["verify"], 0.2)


def test_the_error_is_what_is_behind_how_far_it_was(monkeypatch):
    said = "mindswap: compiling 2 of 2 layers, 5 s so far\\nmindswap: error: it failed\\n    fix: x"
    words = [sys.executable, "-c", f"import sys; sys.exit('{said}')"]
    monkeypatch.setattr(children, "module_command", lambda *_: words)
    assert ask(["verify"]) == Answer(1, None, "it failed\n    fix: x")


PLAN = """
import sys
from mindswap.features.plan import make_plan
from mindswap.features.step import load_step
from mindswap.features.verify import verify_policy
from mindswap.config.source import load_document
from mindswap.planner.pins import read_pin

step, pins = load_step(sys.argv[1]), [read_pin(pin) for pin in sys.argv[2].split()]
everything = make_plan(step, "60GiB").plan
least, most = everything.least_budget_bytes, everything.peak_bytes
for percent in map(int, sys.argv[3:]):
    found = make_plan(step, least + (most - least) * percent // 100, pins=pins)
    found.save(f"{percent}.yaml")  # which also turns swap on
    effects, _ = verify_policy(load_document(f"{percent}.yaml"), found.policy)
    print(percent, found.fits, *(f"{e.layer_index}: {e}" for e in effects if not e.matches_policy or e.wasted))
"""


@pytest.mark.mindspore
@pytest.mark.parametrize("model", MODELS if is_nightly() else list(MODELS)[:1])
def test_plans_do_what_they_say(tmp_path, model):
    """Compiled: no entry without effect, no copy for nothing. In a process of its own, as a family of models needs.

    In the nightly run 21 plans.
    """
    source, edits = MODELS[model]
    config = tmp_path / "model.yaml"
    config.write_text(yaml.safe_dump(edited(yaml.safe_load(source.read_text()), {**OFF, **edits})))
    asked = PERCENT if is_nightly() else PERCENT[1:2]
    done = forked.run(["-c", PLAN, str(config), PINS.get(model, ""), *map(str, asked)], timeout=1200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[: len(asked)] == [f"{percent} True" for percent in asked]
