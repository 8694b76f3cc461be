"""`mindswap trace`: a step recorded on this CPU is simulated like a compiled one."""

import json
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.errors import GraphError
from mindswap.features.step import load_step
from mindswap.policy.model import Policy
from mindswap.steps.recorded import capture_of, read_trace
from tests import forked

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "configs" / "llama2_7b" / "cpu" / "case3_op_swap.yaml"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A trace, made in a process of its own: it leaves MindSpore in PyNative mode. CONFIG is a relative path."""
    path = tmp_path_factory.mktemp("trace") / "step.json"
    command = ["-m", "mindswap", "trace", CONFIG.relative_to(ROOT), "-o", path, "--json"]
    ran = forked.run(command, cwd=ROOT, check=True)
    return path, json.loads(ran.stdout[ran.stdout.index("{") :])


@pytest.mark.mindspore
def test_the_bytes_of_the_graph_are_those_that_autograd_saves(recorded):
    path, result = recorded
    assert (result["device"], result["num_layers"]) == ("CPU", 4)
    step, _ = read_trace(str(path))
    assert sum(storage.size_bytes for storage in step.trace.storages if not storage.protection) == result["saved_bytes"]
    from mindswap.graph.storage import classify_saved

    sizes = {1: 0, 2: 0, 3: 0}
    for entry in classify_saved(capture_of(step).graph):
        if entry.storage.layer_index in sizes:
            sizes[entry.storage.layer_index] += entry.kept_bytes
    saved = dict.fromkeys(sizes, 0)
    seen = set()
    for save in step.trace.saves:
        storage = step.trace.storages[save.storage]
        if save.storage not in seen and save.layer_index in saved and not storage.protection:
            saved[save.layer_index] += storage.size_bytes
        seen.add(save.storage)
    assert (
        sizes == saved
    )  # a layer saves its own input, which the one before it made, and leaves its output to the next


@pytest.mark.mindspore
def test_it_is_simulated_and_more_swap_needs_less_memory(recorded):
    step = load_step(str(recorded[0]))
    kept, asked = step.simulate(Policy(is_swap_enabled=True)), step.simulate()
    assert asked.peak_bytes < kept.peak_bytes
    assert asked.step_time_ns > kept.step_time_ns


@pytest.mark.mindspore
def test_a_2x_file_is_planned_with_it(recorded, tmp_path, capsys):
    """1 MiB below what keeping needs; a layer of this Llama saves 945 KiB."""
    text = "training: {}\nparallelism: {}\nmodel: {num_hidden_layers: 4}\n"
    path, target = tmp_path / "x.yaml", tmp_path / "planned.yaml"
    path.write_text(text)
    keep = load_step(str(recorded[0])).simulate(Policy(is_swap_enabled=True)).peak_bytes
    words = ["plan", str(path), "--trace", str(recorded[0]), "--memory", f"{keep - 2**20}B", "-o", str(target)]
    assert cli.main(words) == 0, capsys.readouterr().err
    written = target.read_text()
    assert written.startswith(text) and "recompute:\n  mode: " in written
    assert cli.main(["check", str(target)]) == 0


def test_a_configuration_in_pynative_mode_names_the_way(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("context: {mode: 1, device_target: CPU}\nswap_config: {swap: True}\n")
    with pytest.raises(GraphError, match="mindswap trace"):
        load_step(str(path))


def test_another_json_file_is_refused(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert cli.main(["simulate", str(path)]) == 1
    assert "no trace of a step" in capsys.readouterr().err


START = '{"schema":"mindswap-trace","version":2}'


@pytest.mark.parametrize("command", [["check"], ["verify"], ["explain"], ["convert", "--to", "2.x"], ["prove"]])
def test_a_trace_is_no_configuration(command, tmp_path, capsys):
    (tmp_path / "step.json").write_text(START)
    assert cli.main([*command, str(tmp_path / "step.json")]) == 1
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert "the file is a step that `mindswap trace` recorded" in text
    assert "mindswap inspect, simulate, compare or plan" in text


def test_the_chrome_trace_of_simulate_does_not_replace_a_recorded_step(tmp_path, capsys):
    path = tmp_path / "step.json"
    path.write_text(START)
    assert cli.main(["simulate", str(CONFIG), "--trace", str(path)]) == 1
    assert f"fix:     to simulate that step: mindswap simulate {path}" in capsys.readouterr().err
    assert path.read_text() == START


def test_a_trace_has_a_name_that_other_commands_know(tmp_path, capsys):
    assert cli.main(["trace", str(CONFIG), "-o", str(tmp_path / "step")]) == 1
    assert "a trace needs a name that ends in .json" in capsys.readouterr().err
