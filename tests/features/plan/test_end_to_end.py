"""From a plan to a training of the small model on CPU: planned, checked, verified, simulated, trained."""

import json
import re
import subprocess

import pytest

from mindswap.features.step import load_step
from mindswap.graph.storage import Placement
from mindswap.planner.explain import saved_by_label
from tests import forked
from tests.adapters.conftest import data  # noqa: F401 a fixture
from tests.adapters.graphs import ROOT
from tests.adapters.training import SMALL, train, write_config

pytestmark = pytest.mark.mindspore

NUM_STEPS = 4
EDITS = {
    **SMALL,
    "model.model_config.num_layers": 3,  # the first, the last, and one between them
    "train_dataset.data_loader.num_samples": 2 * NUM_STEPS,
    "callbacks": [{"type": "MFLossMonitor", "per_print_times": 1}],
    "swap_config": {"swap": False},
    "recompute_config": {"recompute": False},
}
# Neither recompute nor the host takes what has to go: swap alone would put 2 MiB on the host, of which MindSpore pins
# 80 %: 1.15 MiB.
LIMITS = ("--device", "cpu", "--memory", "3.95MiB", "--host-memory", "1.4375MiB")


def mindswap(*words) -> subprocess.CompletedProcess:
    command = ["-m", "mindswap", *map(str, words)]
    return forked.run(command, timeout=1200)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The configuration without swap and recompute."""
    return write_config(tmp_path_factory.mktemp("plain"), EDITS)


@pytest.fixture(scope="module")
def planned(plain, tmp_path_factory):
    """What the plan says, and the file that it wrote."""
    target = tmp_path_factory.mktemp("planned") / "planned.yaml"
    run = mindswap("plan", plain, *LIMITS, "-o", target, "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout), target


def test_it_takes_swap_and_recompute_to_fit_and_be_fast(plain, planned):
    plan, _ = planned
    assert plan["peak_bytes"] <= 3.95 * 2**20 and plan["host_bytes_per_node"] <= 1.15 * 2**20
    swap, recompute = plan["swap_config"], plan["recompute_config"]
    assert swap.get("op_swap") or swap.get("layer_swap")
    assert recompute.get("recompute") or recompute.get("select_recompute")
    swap_only = mindswap("plan", plain, *LIMITS, "--allow", "swap", "--json")
    assert (swap_only.returncode, json.loads(swap_only.stdout)["status"]) == (1, "infeasible")
    recompute_only = mindswap("plan", plain, *LIMITS, "--allow", "recompute", "--json")
    assert json.loads(recompute_only.stdout)["step_time_ns"] > plan["step_time_ns"]


def test_check_finds_no_error(planned):
    """But that a CPU offloads nothing."""
    run = mindswap("check", "--json", planned[1])
    assert run.returncode == 0
    assert {problem["rule"] for problem in json.loads(run.stdout)["problems"]} == {"device-target"}


def test_the_compiled_graph_does_it_to_the_byte(planned):
    """Every layer keeps and copies what the simulator has in it; at the turn all copies are on the host."""
    plan, target = planned
    run = mindswap("verify", "--json", target)
    report = json.loads(run.stdout)
    assert (run.returncode, report["ok"]) == (0, True)
    loaded = load_step(str(target))
    copies = loaded.model.program(loaded.policy).copies
    compiled = [(layer["swapped_bytes"], layer["kept_bytes"], layer["wasted_bytes"] > 0) for layer in report["layers"]]
    predicted = []
    for layer, block in enumerate(loaded.model.blocks(loaded.policy)[1:-1]):
        kept, wasted = (sum(saved_by_label(block, fate).values()) for fate in (Placement.KEPT, Placement.WASTED))
        predicted.append((copies.size_bytes[copies.layer == layer].sum(), kept + wasted, wasted > 0))
    assert compiled == predicted
    assert sum(swapped for swapped, _, _ in compiled) == plan["host_bytes_per_node"]


def test_simulate_says_of_the_file_what_the_plan_said(planned):
    plan, target = planned
    run = json.loads(mindswap("simulate", "--json", target, *LIMITS).stdout)
    assert (run["step_time_ns"], run["peak_bytes"]) == (plan["step_time_ns"], plan["peak_bytes"])


def test_it_trains_to_the_same_losses(plain, planned, data, tmp_path):  # noqa: F811
    under_plan = train(tmp_path / "planned", planned[1], data, fork=True)
    without = train(tmp_path / "plain", plain, data, fork=True)
    assert (under_plan.exit_code, without.exit_code) == (0, 0), under_plan.log[-3000:]
    kinds = {line.partition(" at layer")[0] for line in under_plan.set_lines}
    assert any("swap" in kind for kind in kinds) and any("recompute" in kind for kind in kinds)
    assert without.set_lines == []
    assert len(without.losses) == NUM_STEPS
    assert under_plan.losses == without.losses


def test_the_commands_of_the_readme_one_after_another_give_no_warning(tmp_path):
    """Of the blocks of README.md those that plan, and check what was planned; the others take a card or minutes."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    commands = [line for line in lines if re.match(r"mindswap (plan|check) .*planned", line)]
    assert [line.split()[1] for line in commands] == ["plan", "check"]
    for line in commands:
        words = [str(tmp_path / word) if word == "planned.yaml" else word for word in line.split()[1:]]
        run = mindswap(*(str(ROOT / word) if (ROOT / word).is_file() else word for word in words))
        assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("no problems")
