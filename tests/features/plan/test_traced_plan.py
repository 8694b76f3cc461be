"""Plans of files of MindFormers 2.x from a recorded step, without MindFormers: they are not dry run here."""

import gzip
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.config.parse import parse_document
from mindswap.config.source import load_document
from mindswap.features.plan import make_plan
from mindswap.features.plan.pynative import added_chunks, with_chunks
from mindswap.features.simulate import LoadedStep
from mindswap.features.step import load_step
from mindswap.planner.problem import Allow
from mindswap.planner.solver.search import Stop
from mindswap.policy.model import Policy
from mindswap.rules.checker import check_pynative
from tests.schema import answer_of

DATA = Path(__file__).parents[2] / "data"
MIB = 2**20
KEPT = 190071808  # bytes that keeping everything needs


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """The recorded step as a file."""
    file = tmp_path_factory.mktemp("trace") / "step.json"
    file.write_bytes(gzip.decompress((DATA / "qwen3_2x_step.json.gz").read_bytes()))
    return str(file)


@pytest.fixture
def run(trace, capsys):
    def run(command, *options):
        config = [str(DATA / "qwen3_2x.yaml"), "--trace", trace] if command == "plan" else []
        code = cli.main([command, *config, *map(str, options)])
        out, err = capsys.readouterr()
        assert "a bug" not in err and "Traceback" not in err, err
        return code, out, err

    return run


@pytest.mark.parametrize("saved_mib", [16, 44])
def test_a_plan_fits_and_is_written_as_it_was_simulated(run, tmp_path, trace, saved_mib):
    target = tmp_path / "planned.yaml"
    budget = KEPT - saved_mib * MIB
    code, out, err = run("plan", "--memory", f"{budget}B", "-o", target, "--no-verify", "--json")
    assert code == 0, err
    planned = answer_of(out)
    assert planned["peak_bytes"] <= budget and planned["step_time_ns"] >= planned["unconstrained_ns"]
    assert not check_pynative(load_document(target)).errors
    simulated = load_step(target, trace=trace).simulate()
    assert (simulated.peak_bytes, simulated.step_time_ns) == (planned["peak_bytes"], planned["step_time_ns"])


def test_a_search_that_is_stopped_at_once_has_a_plan(trace):
    def stop():
        raise Stop

    planned = make_plan(load_step(DATA / "qwen3_2x.yaml", trace=trace), f"{KEPT - 16 * MIB}B", progress=stop)
    assert planned.plan.is_interrupted and planned.fits
    assert planned.plan.num_evaluations == len(planned.plan.compared) - 1  # beside that of the file, the baselines


def test_the_swap_of_mindswap_is_planned_with_the_last_layers(trace, tmp_path):
    """MindFormers leaves the last layer: its plan needs more than mindswap's, which swaps all four."""
    file = tmp_path / "own.yaml"
    file.write_text((DATA / "qwen3_2x.yaml").read_text() + "mindswap: {swap_engine: mindswap}\n")
    step, upstream = load_step(file, trace=trace), load_step(DATA / "qwen3_2x.yaml", trace=trace)
    swap = Allow(recompute=False)
    lowest = min(compared.peak_bytes for compared in make_plan(step, KEPT, swap).plan.compared)
    planned = make_plan(step, lowest, swap)
    assert planned.fits and not make_plan(upstream, lowest, swap).fits
    planned.save(tmp_path / "planned.yaml")
    written = load_document(tmp_path / "planned.yaml")
    assert not check_pynative(written).errors
    assert written.data()["swap"]["layer_swap"] == [{"layers": ["0-3"]}]
    assert load_step(written, trace=trace).simulate().peak_bytes == planned.peak_bytes


def test_recompute_alone_does_not_swap(run, tmp_path):
    target = tmp_path / "planned.yaml"
    code, _, err = run("plan", "--memory", f"{KEPT - 16 * MIB}B", "--allow", "recompute", "-o", target, "--no-verify")
    assert code == 0, err
    assert not check_pynative(load_document(target)).effect.swaps_anything


def test_less_memory_never_makes_a_plan_faster(run):
    times = []
    for saved_mib in (0, 8, 24):
        code, out, err = run("plan", "--memory", f"{KEPT - saved_mib * MIB}B", "--no-verify", "--json")
        assert code == 0, err
        times.append(answer_of(out)["step_time_ns"])
    assert times == sorted(times)


def test_what_no_policy_reaches_is_said(run, tmp_path):
    code, out, _ = run("plan", "--memory", "60MiB", "-o", tmp_path / "planned.yaml", "--no-verify")
    assert code == 1 and "nothing fits" in out and not (tmp_path / "planned.yaml").exists()


def test_a_recorded_step_is_simulated_and_inspected(run, trace):
    code, out, err = run("simulate", trace, "--json")
    assert code == 0, err
    assert answer_of(out)["peak_bytes"] == pytest.approx(KEPT, rel=0.001)
    code, out, err = run("inspect", trace, "--by", "layer")
    assert code == 0, err
    assert "layers 0-2" in out and "outside the layers" in out
    code, out, err = run("compare", trace, "none", "full-recompute", "swap-everything", "--json")
    assert code == 0, err
    peaks = [row["peak_bytes"] for row in answer_of(out)["configurations"]]
    assert peaks[0] == peaks[1] > peaks[3] > peaks[2]


def test_a_plan_of_a_recorded_step_belongs_into_its_file(trace, tmp_path, capsys):
    words = ["plan", trace, "--memory", f"{KEPT}B", "-o", str(tmp_path / "planned.yaml")]
    assert cli.main(words) == 1
    assert f"mindswap plan CONFIG --trace {trace}" in capsys.readouterr().err


def test_a_baseline_of_graph_mode_is_refused(run, trace):
    code, _, err = run("compare", trace, "default-swap")
    assert code == 1 and "'default-swap' is a baseline of MindFormers 1.9" in err


def test_pieces_of_the_loss_are_written_with_a_plan():
    path = DATA / "qwen3_2x.yaml"
    document = load_document(path)
    chunked = with_chunks(document, path.read_text("utf-8"), 4)
    assert chunked.value("model", "chunk_loss_num") == 4
    assert chunked.data()["model"] == document.data()["model"] | {"chunk_loss_num": 4}
    model = None  # not read
    assert added_chunks(LoadedStep(chunked, Policy(), model, None, path)) == 4
    assert added_chunks(LoadedStep(document, Policy(), model, None, path)) is None
    assert parse_document("x: 1", "x").value("model", "chunk_loss_num") is None
