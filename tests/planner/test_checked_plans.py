"""What `mindswap check` says of plans: nothing that it did not say of the configuration before.

Captures of the models of benchmarks/plan_sweeps.py, and of small newer ones, are in tests/data/steps/planned: no plan
takes a compile. `python -m tests.planner.test_checked_plans` records them anew, each in a process of its own.
"""

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from plan_sweeps import MODELS

from mindswap.config.parse import parse_document
from mindswap.config.source import load_document, use_folder
from mindswap.features.plan import StepPlanner, make_plan, planned_text
from mindswap.features.plan.budget import usable_budget
from mindswap.features.plan.tidy import num_new_warnings
from mindswap.features.step import Step, load_step, settings_of
from mindswap.graph.capture_cache import from_plain, to_plain
from mindswap.planner.effect import is_fully_effective
from mindswap.planner.evaluate import short_model
from mindswap.planner.lower_bound import collect_bound_inputs, least_budget_bytes
from mindswap.planner.pins import read_pin
from mindswap.planner.planning import Planner
from mindswap.planner.problem import Allow
from mindswap.policy.coverage import baseline_policy
from mindswap.policy.formats.mindformers1.read import find_num_layers
from mindswap.policy.model import Layers, Policy
from mindswap.rules.checker import check_document, require_num_layers
from mindswap.steps.compiled import STEP_CLASSES, capture_config
from tests.strength import is_nightly

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "data" / "steps" / "planned"
CONFIGS = {path.stem: path for path in (*ROOT.glob("benchmarks/models/*.yaml"), *ROOT.glob("tests/data/*_small.yaml"))}
NIGHTLY = ("llama2_70b", "llama2_70b_pp16")  # ten seconds each
NAMES = sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.json.gz"))
# Share of the memory between the least that any policy needs and that of keeping everything; how it is planned.
FULL = (0.4, False, Allow())
SIMPLE = (0.4, True, Allow())
KEPT = (1.0, False, Allow())
OTHERS = (KEPT, SIMPLE, (0.1, False, Allow(swap=False)), (0.4, False, Allow(recompute=False)))
PLANS = {
    "llama2_7b": (FULL, SIMPLE),
    "qwen2_0_5b": (FULL, SIMPLE, (0.1, False, Allow(swap=False)), (0.4, True, Allow(swap=False))),
    "qwen3_small": (FULL, *OTHERS),
    "qwen3_moe_small": (FULL, *OTHERS),
}


def recorded_step(name: str, config: Path | None = None, **options: Any) -> Step:
    """The step of a model, as another file configures it if one is given; options as of `load_step`."""
    data = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    captured = from_plain(data, {cls.__name__: cls for cls in STEP_CLASSES})
    return load_step(str(config or CONFIGS[name]), captured=captured, **options)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if is_nightly() or name not in NIGHTLY])
def test_check_says_nothing_of_a_plan(name):
    step = recorded_step(name)
    before = {problem.rule for problem in check_document(step.document).problems}
    most, limit = step.simulate(Policy(is_swap_enabled=True)).peak_bytes, step.device.usable_memory_bytes
    model = step.as_compiled_with_swap().model
    bound_inputs = collect_bound_inputs(model, short_model(model)[-1].simulate(Policy(is_swap_enabled=True)))
    least = least_budget_bytes(bound_inputs, step.device.host_memory_bytes, Allow())
    for share, simple, allow in PLANS.get(name, (FULL,)) if not is_nightly() else (FULL, *OTHERS):
        plan = make_plan(step, min(limit, least + int((most - least) * share)), allow, simple=simple)
        text = planned_text(plan.step, plan.plan, "planned.yaml")
        problems = check_document(parse_document(text, "planned.yaml")).problems
        assert [problem for problem in problems if problem.rule not in before] == [], (share, simple, allow)


PINS = {
    "qwen2_0_5b": (["attention=swap:20"], [r"feed_forward\.w[123]\.cast=recompute"]),
    "qwen3_small": (["self_attention=swap:20"], ["mlp=recompute"], ["mlp=keep"]),
    "llama2_7b": (["attention=recompute"], [r"feed_forward\.w1\.matmul=swap"]),
}


@pytest.mark.long
@pytest.mark.parametrize("name", PINS)
def test_check_warns_of_the_pins_of_a_plan_alone(name):
    """What the user has decided stays, whatever `check` thinks of it; the planner's own entries cause no warning."""
    step = recorded_step(name)
    for texts in PINS[name]:
        pins = [read_pin(text) for text in texts]
        planner = StepPlanner(step, pins=pins)
        fixed = planner.step.model.layers.fixed
        most = planner.step.simulate(Policy(is_swap_enabled=True)).peak_bytes
        least = least_budget_bytes(planner.planner.bound_inputs, step.device.host_memory_bytes, Allow())
        plan = planner.plan(min(step.device.usable_memory_bytes, least + (most - least) * 6 // 10))
        assert plan.fits, texts
        warned = num_new_warnings(planner.step, plan.policy, set())
        assert warned <= num_new_warnings(planner.step, fixed, set()), texts


@pytest.mark.parametrize("name", ["recompute-swap", "recompute-swap-norms"])
def test_a_baseline_is_a_plan_without_the_copy_that_never_comes_back(name):
    """With sequence parallelism the last norm reads the last sum gathered: layer 79 would copy it out for nothing."""
    model = recorded_step("llama2_70b_tp8").model
    baseline = baseline_policy(name, model.captured.trees)
    assert not is_fully_effective(model, baseline)
    form = Planner(model).eligible_form(Allow(), baseline)
    assert form == replace(
        baseline,
        op_swap=tuple(
            replace(entry, layers=Layers(range(79))) if entry.pattern == "add" else entry for entry in baseline.op_swap
        ),
    )
    assert Planner(model).eligible_form(Allow(swap=False), baseline) is None


def test_all_models_of_the_sweeps_are_recorded():
    assert NAMES and {*MODELS, "qwen3_small", "qwen3_moe_small"} <= set(NAMES)


def test_a_plan_that_keeps_everything_needs_no_swap():
    step = recorded_step("qwen3_small")
    plan = make_plan(step, step.device.usable_memory_bytes)
    assert plan.sections == {"swap_config": {"swap": False}, "recompute_config": {"recompute": False}}
    text = planned_text(step, plan.plan, "planned.yaml")
    checked = check_document(parse_document(text, "planned.yaml"))
    assert not checked.is_swap_enabled and not checked.errors


@pytest.mark.parametrize("memory", [None, "9GiB"])
@pytest.mark.parametrize(("device", "margin"), [("atlas_800t_a2", 0), ("atlas_800t_a2", 0.1), ("atlas_800_9000", 0)])
def test_a_planned_file_has_the_budget_and_the_margin_of_its_plan(tmp_path, memory, device, margin):
    """With the budget less the margin in the file, `dryrun` would refuse a peak in the margin that `simulate` takes."""
    config = tmp_path / "qwen3_small.yaml"
    config.write_text(CONFIGS["qwen3_small"].read_text("utf-8") + f"\nmindswap: {{margin: {margin}}}\n" * (margin > 0))
    overrides = {**({"memory": memory} if memory else {}), **({"margin": "0"} if margin else {})}
    step = recorded_step("qwen3_small", config, device=device, overrides=overrides)
    planned = tmp_path / "planned.yaml"
    planned.write_text(planned_text(step, make_plan(step).plan, "planned.yaml"))
    assert usable_budget(recorded_step("qwen3_small", planned, device=device)) == usable_budget(step)


def test_a_plan_is_written_for_a_model_that_is_in_a_folder(tmp_path):
    """The file alone has no experts, and may not divide them."""
    data = yaml.safe_load(CONFIGS["qwen3_moe_small"].read_text("utf-8"))
    model = data["model"]["model_config"]
    (tmp_path / "config.json").write_text(json.dumps(model))
    data["model"]["model_config"] = {"seq_length": model["seq_length"]}
    data["parallel_config"]["expert_parallel"] = 2
    data["pretrained_model_dir"] = str(tmp_path / "missing")
    (tmp_path / "moe.yaml").write_text(yaml.safe_dump(data))
    with use_folder(str(tmp_path)):
        step = recorded_step("qwen3_moe_small", tmp_path / "moe.yaml")
        plan = make_plan(step, step.device.usable_memory_bytes)
        assert yaml.safe_load(planned_text(step, plan.plan, "planned.yaml"))["swap_config"] == {"swap": False}


def record(name: str) -> None:
    """Write the capture of a model, which takes MindFormers."""
    FOLDER.mkdir(exist_ok=True)
    config = str(CONFIGS[name])
    document = load_document(config)
    num_layers = require_num_layers(document, find_num_layers(document))
    captured = capture_config(config, document, settings_of(document), num_layers, 1000, True)
    text = json.dumps(to_plain(captured))
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))


if __name__ == "__main__":
    for model in sys.argv[1:]:
        record(model)
    for model in () if sys.argv[1:] else (*MODELS, "qwen3_small", "qwen3_moe_small", "deepseek_v3_small"):
        subprocess.run([sys.executable, "-m", __spec__.name, model], check=True)
