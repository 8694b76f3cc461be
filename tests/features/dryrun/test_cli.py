"""`mindswap dryrun` as it is called, without MindSpore: what is refused, and what is printed."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mindswap import cli
from mindswap.config.render import document_from_data
from mindswap.config.source import load_document
from mindswap.errors import GraphError, LaunchError, PolicyError, SimulationError
from mindswap.features import dryrun as dry_run
from mindswap.features.dryrun import DryRunOptions, StepDryRun, rank_runs
from mindswap.features.dryrun import cli as dry_run_cli
from mindswap.features.dryrun.report import dry_run_to_json, format_dry_run
from mindswap.features.dryrun.stage_runs import DryRunReport, stage_run
from mindswap.features.simulate import LoadedStep
from mindswap.policy.model import Policy
from mindswap.report.problems import answer_text
from mindswap.runtime.short_run import SyntheticData, switched_off
from tests.features.dryrun.test_stage_runs import model
from tests.planner.models import small_model
from tests.schema import answer_of

ROOT = Path(__file__).parents[3]
CASE4 = "configs/llama2_7b/case4_swap_and_recompute.yaml"


def report_of(num_layers: int = 2, budget_bytes: int | None = 200) -> DryRunReport:
    stage = stage_run(0, num_layers, {2: model(2)})
    return DryRunReport("case", (stage,), None, num_layers, (2,), budget_bytes, False, ("a note",))


@pytest.mark.parametrize("section", ["{jit_config: {jit_level: O2}}", "{jit_level: O2}"])
def test_the_graph_engine_of_cann_is_refused_with_its_place(section, tmp_path):
    path = tmp_path / "o2.yaml"
    path.write_text(f"runner_config: {{batch_size: 1}}\ncontext: {section}\n")
    with pytest.raises(PolicyError) as caught:
        dry_run.run_stages(load_document(path))
    (problem,) = caught.value.problems
    assert (problem.location.line, problem.rule, problem.allowed) == (2, "jit-level", "'O0' or 'O1'")
    assert "'O2'" in problem.message


def test_a_report_is_one_line_in_python():
    report = report_of(budget_bytes=None)
    assert repr(report) == f"<DryRunReport case: {report.used_peak_bytes} B without fragments, fits>"
    assert report.peak_gib * 2**30 == report.peak_bytes


def test_a_report_in_a_notebook_is_its_text_and_its_curve():
    report = StepDryRun(**vars(report_of()))
    page = report._repr_html_()
    assert str(report) == format_dry_run(report) and "<pre>dry run of case on MindSpore" in page
    points = [tuple(map(float, point.split(","))) for point in re.search(r'points="([^"]+)"', page).group(1).split()]
    assert (points[0][0], points[-1][0]) == (0, 600) and min(y for _, y in points) == 5  # as wide as its box


def test_a_kept_folder_stays_where_it_was_asked_for(tmp_path, monkeypatch):
    """The compiler changes the working directory while dry runs are under way."""
    places = []

    def fail(file, place, *rest):
        places.append(place)
        raise LaunchError("enough")

    monkeypatch.chdir(tmp_path)
    stub(monkeypatch, fail)
    document = load_document(str(ROOT / CASE4))
    with pytest.raises(LaunchError, match="enough"):
        dry_run.run_stages(document, DryRunOptions(folder=Path("kept")))
    assert places == [tmp_path / "kept" / "layers_4" / "rank_0"]


def stub(monkeypatch, run_rank):
    """Nothing is run: `run_rank` says what comes out."""
    samples = SyntheticData("x.mindrecord", ("input_ids",))
    doubles = {
        "run_rank": run_rank,
        "_cached_samples": lambda _: samples,
        "require_mindformers": bool,
        "prepare_stand_ins": bool,
    }
    for name, double in doubles.items():
        monkeypatch.setattr(rank_runs if hasattr(rank_runs, name) else dry_run, name, double)


def test_a_short_step_is_written_with_fewer_micro_batches(monkeypatch):
    """And it says so; `--full` runs all of them."""
    written, stage = [], SimpleNamespace(peak_bytes=5000)

    def run(file, *rest):
        written.append(load_document(str(file)).data()["parallel_config"]["micro_batch_num"])
        raise LaunchError("enough")

    stub(monkeypatch, run)
    document = load_document(str(ROOT / CASE4))
    data = document.data()
    data["parallel_config"] |= {"data_parallel": 2, "pipeline_stage": 4, "micro_batch_num": 64}
    data["parallel"].pop("dataset_strategy", None)
    step = SimpleNamespace(
        truncated=lambda kept, count: step, simulate=lambda: step, report=lambda: step, stages=[stage] * 4
    )
    for options in (DryRunOptions(), DryRunOptions(is_full=True)):
        with pytest.raises(LaunchError, match="enough"):
            dry_run.run_stages(document_from_data(data, "x.yaml"), options, load=lambda: step)
    assert list(dict.fromkeys(written)) == [8, 64]


def test_a_configuration_with_mistakes_ends_as_in_check(tmp_path, capsys):
    path = tmp_path / "wrong.yaml"
    path.write_text("swap_config: {swap: True, op_swap: 3}\nmodel: {model_config: {num_layers: 2}}\n")
    assert cli.main(["dryrun", str(path)]) == 1
    shown = capsys.readouterr().err
    assert cli.main(["check", str(path)]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "2,3,4"], "--layers 2,3,4: one depth, or two"),
        (["--layers", "0"], "expected an integer between 1"),
        (["--layers", "2", "--full"], "not allowed with"),
        (["--jobs", "0"], "expected an integer between 1 and 64"),
    ],
)
def test_options_that_do_not_fit(words, message, capsys):
    assert cli.main(["dryrun", CASE4, *words]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--against", "wrong.yaml:1:36: error: swap_config.op_swap"),
        ("--insight", "wrong.yaml: is not a folder"),
        ("--html", "it is a folder"),
    ],
)
def test_what_it_is_asked_with_is_looked_at_before_the_run(option, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mindswap.features.dryrun.cli.dry_run_file", lambda *_: pytest.fail("it runs"))
    path = tmp_path / "wrong.yaml"
    path.write_text("swap_config: {swap: True, op_swap: 3}\nmodel: {model_config: {num_layers: 2}}\n")
    assert cli.main(["dryrun", CASE4, option, str(tmp_path if option == "--html" else path)]) == 1
    assert message in capsys.readouterr().err


def test_without_mindspore_it_says_what_is_missing(capsys):
    try:
        import mindspore  # noqa: F401
    except ImportError:
        assert cli.main(["dryrun", CASE4]) == 1
        shown = capsys.readouterr().err
        assert "Traceback" not in shown and "fix:" in shown


def test_what_is_printed():
    shown = format_dry_run(report_of())
    assert "0 (0)" in shown
    assert "needs 120 B with workspace: fits in 200 B with 80 B to spare" in shown
    fragmented = replace(report_of(), counts_fragments=True)
    assert "needs 127 B with fragments and workspace: fits in 200 B with 73 B to spare" in format_dry_run(fragmented)
    assert "rank 0, peak: forward, after the layers: Default/network" in shown
    assert "copies: none" in shown
    assert "note: a note" in shown
    assert "launches no kernel: no times, no values" in shown


def test_what_does_not_fit():
    report = report_of(budget_bytes=100)
    assert not report.fits
    assert ": does NOT fit, 20 B more than 100 B" in format_dry_run(report)


def test_json_is_as_the_schema_says():
    report = report_of()
    data = dry_run_to_json(report) | {"against": dry_run_to_json(report)}
    answer = answer_of(answer_text("dryrun", data, report.fits))
    assert answer["stages"][0]["used_peak_bytes"] == 120
    assert answer["against"]["peak_bytes"] == 120


def test_errors_are_one_object_with_json(capsys):
    assert cli.main(["dryrun", "--json", "no_such.yaml"]) == 1
    assert json.loads(capsys.readouterr().out)["schema"] == "mindswap.dryrun"


def test_one_short_model_is_not_compared_with_the_whole(monkeypatch):
    stub(monkeypatch, lambda *arguments: model(2))
    options = DryRunOptions(layers=(2,))
    report = dry_run.run_stages(load_document(CASE4), options, load=lambda: pytest.fail("loaded"), budget_bytes=1)
    assert (report.simulated, report.budget_bytes, report.fits) == (None, None, True)
    assert report.notes == ("2 of 4 layers were run: all figures are of those alone, and nothing is compared",)


def test_two_short_models_are_a_line(monkeypatch):
    stub(monkeypatch, lambda file, *_: model(int(file.parent.name.removeprefix("layers_"))))
    report = dry_run.run_stages(load_document(CASE4), DryRunOptions(layers=(1, 2)), budget_bytes=100)
    # backward of 4 layers: 40 + 30 * 4, fragments: 140 + 7 of the loss
    assert (report.used_peak_bytes, report.depths, report.fits) == (160, (1, 2), False)


def long_step(num_layers: int = 32) -> LoadedStep:
    """Case 4 with more layers and without a policy; layers are simulated that save as much each."""
    data = switched_off(load_document(CASE4).data())
    data["model"]["model_config"]["num_layers"] = num_layers
    simulated = small_model(3).truncated((0, *[1] * (num_layers - 2), 2))
    return LoadedStep(document_from_data(data, "long.yaml"), Policy(), simulated, None, Path("long.yaml"))


def run_long(
    monkeypatch, step: LoadedStep, layer_s: float, options=None, **arguments
) -> tuple[list[int], StepDryRun, list[str]]:
    """Dry run a long step in which each layer takes `layer_s` s; returns depths, report and progress."""
    depths = []

    def run(file, folder, rank, *rest):
        depths.append(int(file.parent.name.removeprefix("layers_")))
        return replace(model(depths[-1]), cpu_s=20 + layer_s * depths[-1])

    stub(monkeypatch, run)
    statuses: list[str] = []
    report = dry_run.run_stages(step.document, options, statuses.append, load=lambda: step, **arguments)
    return depths, report, statuses


def test_all_layers_of_a_stage_with_few_of_them_run(monkeypatch):
    depths, report, _ = run_long(monkeypatch, long_step(16), layer_s=100)
    assert depths == [16] and "    exact: all 16 layers" in format_dry_run(report)


def test_each_stage_has_its_own_depth(monkeypatch):
    """Twenty layers on the first stage, and twelve on the second, which run all."""
    step, offset = long_step(), [4, -4]
    data = step.document.data()
    data["model"]["model_config"]["offset"] = offset
    data["parallel_config"] |= {"data_parallel": 4, "pipeline_stage": 2, "micro_batch_num": 4}
    data["parallel"].pop("dataset_strategy", None)
    pipeline = replace(step.model.settings.pipeline, num_stages=2, offset=offset)
    staged = step.model.with_settings(replace(step.model.settings, pipeline=pipeline, num_micro_batches=4))
    step = replace(step, document=document_from_data(data, "long.yaml"), model=staged)
    depths, report, _ = run_long(monkeypatch, step, layer_s=100)
    assert [stage.is_exact for stage in report.stages] == [False, True]
    assert depths.count(32) == 1 and len(depths) == 3
    assert [stage.num_layers for stage in report.stages] == [20, 12]


def test_all_layers_run_if_that_takes_few_minutes(monkeypatch):
    depths, report, statuses = run_long(monkeypatch, long_step(), layer_s=5)
    assert len(depths) == 3 and depths[-1] == 32
    assert "all 32 layers, rank 0: about 180 s, so run" in statuses
    # The loss has 100 + 10 n, backward 40 + 30 n.
    assert (report.used_peak_bytes, report.stages[0].is_exact, report.stages[0].error) == (1000, True, None)


def test_what_takes_longer_is_extrapolated_as_the_simulation_is(monkeypatch):
    depths, report, statuses = run_long(monkeypatch, long_step(), layer_s=6)
    high, low = depths
    assert low < high <= 6 and "all 32 layers, rank 0: about 212 s, so extrapolated" in statuses
    assert (report.used_peak_bytes, report.actual_peak_bytes) == (1000, None)
    basis = (
        f"extrapolated to 32 layers from depths {low} and {high}; "
        "the simulator's extrapolation of the same depths is 0.0% off"
    )
    assert f"    {basis}" in format_dry_run(report)
    (stage,) = dry_run_to_json(report)["stages"]
    assert (stage["basis"], stage["is_exact"], stage["actual_peak_bytes"]) == (basis, False, None)


def test_without_a_known_error_all_layers_run(monkeypatch):
    def fail():
        raise GraphError("MindFormers could not build the network")

    step = long_step()
    depths, report, _ = run_long(monkeypatch, step, layer_s=100, counts_fragments=True)
    assert depths == [32] and report.notes == ("fragmentation cannot be extrapolated: all layers were run",)
    stub(monkeypatch, lambda file, *_: model(int(file.parent.name.removeprefix("layers_"))))
    report = dry_run.run_stages(step.document, load=fail)
    assert report.depths == (32,) and report.notes[0].startswith("without a simulation no extrapolation can be checked")
    monkeypatch.setattr("mindswap.features.dryrun.depths.MAX_ERROR", 0.0)
    depths, report, _ = run_long(monkeypatch, step, layer_s=100)
    assert depths == [32] and "best extrapolation, from" in report.notes[0]


def test_an_error_of_the_simulation_is_not_hidden_by_that_of_the_run_that_it_ends():
    def run(task, tell, stop):
        tell("compiling")
        while not stop():
            time.sleep(0.01)
        raise LaunchError(f"rank {task}: log: No such file or directory")

    def simulate():
        raise SimulationError("the real error")

    with pytest.raises(SimulationError, match=r"^the real error$"):
        rank_runs.run_concurrently([0, 1], run, 2, lambda line: None, simulate)


def test_an_error_of_the_run_comes_with_why_there_is_no_simulation(monkeypatch):
    def run_rank(*_):
        raise LaunchError("dry run of rank 0: exit code 1")

    def load():
        raise GraphError("MindFormers could not build the network: the real error\nmore")

    stub(monkeypatch, run_rank)
    document = load_document("configs/llama2_7b/case1_default_swap.yaml")
    with pytest.raises(LaunchError) as error:
        dry_run.run_stages(document, load=load)
    expected = "not simulated: MindFormers could not build the network: the real error"
    assert str(error.value).splitlines() == ["dry run of rank 0: exit code 1", f"    {expected}"]


def test_full_recompute_is_compared_with_by_its_name():
    document, title = dry_run_cli._load_comparison("recompute", CASE4, load_document(CASE4))
    assert title == "full recompute"
    assert document.value("recompute_config", "recompute") is True
    assert document.value("swap_config", "swap") is False
