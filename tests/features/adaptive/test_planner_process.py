"""The planner of an adaptive run: corrections, answers of the child, a training with it from end to end."""

import os
import pydoc_data.topics
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mindswap.config.problem import Level
from mindswap.config.source import load_document
from mindswap.config.weight_sharding import WeightSharding
from mindswap.errors import PlanError
from mindswap.features.adaptive import planner_process as adaptive_planner
from mindswap.features.adaptive.planner_process import corrected_device, corrected_step
from mindswap.features.plan import make_problem
from mindswap.features.step import Step
from mindswap.planner.planning import Planner
from mindswap.policy.model import Policy
from mindswap.rules.checker import check_document
from mindswap.runtime.attempt.model import Corrections, NothingFits, TrainingPlan
from mindswap.runtime.attempt.state import StateFile
from mindswap.runtime.attempt.workers import planner_in_child
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE, load_device
from mindswap.simulator.cost.hardware import with_fragments
from tests import forked
from tests.builders import document
from tests.runtime.attempt.conftest import finish
from tests.simulator.test_gathered_weights import model as gathered_model

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}
ask = planner_in_child(ENVIRONMENT)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The model of docs/adaptive.md with two layers instead of six."""
    path = tmp_path_factory.mktemp("planner") / "c.yaml"
    path.write_text((ROOT / "docs/adaptive.yaml").read_text().replace("num_layers: 6", "num_layers: 2"))
    return path


def test_all_but_the_links_at_half_the_speed():
    old = load_device("generic")
    new = corrected_device(old, Corrections(compute_permille=500, link_permille=250))
    assert (new.compute_permille, new.memory_permille) == (old.compute_permille // 2, old.memory_permille // 2)
    assert new.op_latency_ns == {kind: 2 * ns for kind, ns in old.op_latency_ns.items()}
    assert new.intranode.bandwidth_bytes_per_s == old.intranode.bandwidth_bytes_per_s // 2
    assert new.offload.bandwidth_bytes_per_s == old.offload.bandwidth_bytes_per_s // 4
    assert new.prefetch.latency_ns == 4 * old.prefetch.latency_ns
    assert new.usable_memory_bytes == old.usable_memory_bytes
    assert corrected_device(old, Corrections()) == old


def test_a_slower_step_has_the_memory_that_it_had():
    """The parallel optimizer cuts weights of the captured step once, whatever was measured."""
    sharding = WeightSharding(2, threshold_bytes=0)
    step = Step(document("{}"), Policy(True), gathered_model(sharding=sharding), None)
    slow = corrected_step(step, Corrections(compute_permille=500))
    assert slow.model.static == step.model.static
    assert slow.simulate().peak_bytes == step.simulate().peak_bytes
    assert slow.device.compute_permille == step.device.compute_permille // 2


@pytest.mark.long
def test_the_least_that_would_do_is_that_of_the_plan_command(monkeypatch, tmp_path):
    """Of the step as it is compiled with swap, where one turn gathers in float32; with what the pool loses."""
    made = gathered_model(sharding=WeightSharding(2, threshold_bytes=0))
    costs = CostTable(replace(made.costs.device, fragments_permille=90))
    step = Step(document("{}"), Policy(), made.with_costs(costs), None)
    monkeypatch.setattr(adaptive_planner, "load_step", lambda *names: step)
    config = tmp_path / "c.yaml"
    config.write_text("{}")
    answer = adaptive_planner.plan_training(config, 1 + 7, Corrections(static_offset_bytes=7))
    assert isinstance(answer, NothingFits)
    assert answer.smallest_budget_bytes == step.plan(memory=1).plan.smallest_budget_bytes + 7
    assert step.plan(memory=answer.smallest_budget_bytes - 7).fits  # to the byte
    flat = Planner(step.model).plan(make_problem(step, 1))
    assert with_fragments(step.device, flat.smallest_budget_bytes) != answer.smallest_budget_bytes - 7


@pytest.mark.long
def test_what_is_wrong_with_the_configuration_comes_back_from_the_child(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("swap_config: {swap: 3}\n")
    with pytest.raises(PlanError, match=re.escape(f"{path}:1:21: error: swap_config.swap")):
        ask(path, MIB, Corrections())


def test_a_child_that_crashes_is_a_message(tmp_path):
    """The interpreter finds no package there: exit code 1, and no answer."""
    crashing = planner_in_child({**ENVIRONMENT, "PYTHONHOME": str(tmp_path)})
    with pytest.raises(PlanError, match="the planner crashed, exit code 1"):
        crashing(tmp_path / "c.yaml", MIB, Corrections())


@pytest.mark.mindspore
def test_the_answer_holds_the_corrections(config):
    """100 MiB more on every peak: the same plan for 100 MiB more. Half the speed of everything: twice the time."""
    plain = ask(config, 60 * MIB, Corrections())
    moved = ask(config, 160 * MIB, Corrections(static_offset_bytes=100 * MIB))
    slow = ask(config, 300 * MIB, Corrections(compute_permille=500, link_permille=500))
    fast = ask(config, 300 * MIB, Corrections())
    assert plain.key == moved.key and plain.key != fast.key
    assert moved.peak_bytes == plain.peak_bytes + 100 * MIB <= 160 * MIB
    assert moved.raw_peak_bytes == plain.peak_bytes
    assert slow.step_time_ns == pytest.approx(2 * fast.step_time_ns, rel=0.02)


@pytest.mark.mindspore
def test_the_least_budget_that_is_named_is_enough(config):
    answer = ask(config, 20 * MIB, Corrections(static_offset_bytes=MIB))
    assert isinstance(answer, NothingFits)
    least = answer.smallest_budget_bytes
    plan = ask(config, least, Corrections(static_offset_bytes=MIB))
    assert isinstance(plan, TrainingPlan) and plan.peak_bytes <= least


def adaptive(folder, config, memory, *options):
    words = [
        sys.executable, "-m", "mindswap", "run", "--adaptive-memory-optimization", "--memory", memory,
        "--run-dir", "run", "--measured-steps", "3", "--", "--config", str(config), "--run_mode", "train",
        "--use_parallel", "False", "--output_dir", str(folder / "output"), *options,
    ]  # fmt: skip
    with subprocess.Popen(
        words, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        return finish(process, 300)


@pytest.mark.mindspore
def test_nothing_fits_is_the_end_with_the_least_budget(config, tmp_path):
    code, out = adaptive(tmp_path, config, "20MiB")
    assert code == 1
    assert re.search(r"no plan fits 20.0 MiB: at least [\d.]+ MiB are needed", out), out
    assert not (tmp_path / "run/attempt_1").exists()


@pytest.mark.mindspore
def test_it_plans_trains_and_finishes(config, tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(pydoc_data.topics.topics.values()))
    prepare = ["prepare-data", "text.txt", "--output", "text.mindrecord", "--seq-length", "256"]
    forked.run(["-m", "mindswap", *prepare], cwd=tmp_path, check=True)
    data = ["--train_dataset_dir", str(tmp_path / "text.mindrecord"), "--num_samples", "32"]
    code, out = adaptive(tmp_path, config, "60MiB", *data)
    assert code == 0, out
    assert "the training finished" in out
    (attempt,) = StateFile(tmp_path / "run").load().attempts
    assert 0 < attempt.plan.peak_bytes <= 60 * MIB
    assert (attempt.last_step, attempt.num_steps) == (4, 4)  # 32 samples, 8 a step
    assert attempt.measured_step_ns > 0
    # What was trained is the plan, `mindswap check` passes it, and its swaps were set.
    checked = check_document(load_document(str(tmp_path / "run/attempt_1/plan.yaml")))
    assert [problem.rule for problem in checked.problems if problem.level is Level.ERROR] == []
    entries = {"op_swap": checked.policy.op_swap, "layer swap": checked.policy.layer_swap}
    assert attempt.plan.key.startswith("swap-")
    log = (tmp_path / "run/attempt_1/worker_0.log").read_text()
    named = [(key, layer) for key, of in entries.items() for layer in range(2) for one in of if layer in one.layers]
    assert named and all(f"Set {key} at layer {layer}" in log for key, layer in named)


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("context: {device_target: CPU}\n", "cpu"),
        ("context: {device_target: Ascend}\n", DEFAULT_DEVICE),
        ("context: {device_target: CPU}\nmindswap: {device: atlas_800t_a2}\n", None),  # the file names it
    ],
)
def test_the_device_is_that_of_the_file_or_of_where_it_trains(text, device, tmp_path):
    (tmp_path / "c.yaml").write_text(text)
    assert adaptive_planner._device(tmp_path / "c.yaml") == device
