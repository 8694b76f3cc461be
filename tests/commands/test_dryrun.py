"""`mindswap dryrun` as it is called, without MindSpore: what is refused, and what is printed."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mindswap import cli
from mindswap.api import dry_run
from mindswap.api.dry_run import DryRunOptions, StepDryRun, choose_depths, choose_micro_batches
from mindswap.config.parse import parse_document
from mindswap.config.render import document_from_data
from mindswap.config.source import load_document
from mindswap.config.step import read_step_settings
from mindswap.errors import GraphError, LaunchError, SimulationError
from mindswap.policy.model import Layers, OpSwap, Policy
from mindswap.report.dryrun import dry_run_to_json, format_dry_run
from mindswap.report.problems import answer_text
from mindswap.simulator.summary_model import Moment
from mindswap.training.measure.config import SyntheticData
from mindswap.training.measure.stages import DryRunReport, stage_run
from tests.schema import answer_of
from tests.training.measure.test_stages import model

ROOT = Path(__file__).parents[2]
CASE4 = "configs/llama2_7b/case4_swap_and_recompute.yaml"


def report_of(num_layers: int = 2, budget_bytes: int | None = 200) -> DryRunReport:
    stage = stage_run(0, num_layers, {2: model(2)})
    return DryRunReport("case", (stage,), None, num_layers, (2,), budget_bytes, False, ("a note",))


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
    doubles = {"run_rank": run_rank, "_samples": lambda _: samples, "require_mindformers": bool, "stand_ins": bool}
    for name, double in doubles.items():
        monkeypatch.setattr(dry_run, name, double)


def settings(text: str):
    return read_step_settings(parse_document(text.encode(), "x.yaml"))


def depths(text: str, num_layers: int, policy: Policy | None = None, **options) -> list[tuple[int, ...]]:
    found, _, bends = choose_depths(DryRunOptions(**options), settings(text), num_layers, policy or Policy())
    assert bends == ()  # nothing is simulated
    return [depth.kept for depth in found]


def test_a_short_model_is_run_whole():
    assert depths("a: 1", 4) == [(0, 1, 2, 3)]


def test_a_long_one_at_two_short_depths():
    assert depths("a: 1", 32) == [(0, 31), (0, 16, 31)]


def test_the_depths_have_as_many_layers_of_each_kind_as_the_line_takes():
    policy = Policy(op_swap=(OpSwap("attention", Layers(range(8)), 1),))
    kept = depths("a: 1", 32, policy)
    low, high = map(len, kept)
    first, second = (sum(layer < 8 for layer in each) for each in kept)
    # 8 of 32 layers are swapped, and so many layers that are must the line have at 32
    assert second + (second - first) * (32 - high) / (high - low) == pytest.approx(8, abs=2)


def test_of_unlike_layers_the_depths_are_those_whose_simulated_line_is_nearest():
    policy = Policy(op_swap=(OpSwap("attention", Layers((1, 4, 9, 20)), 1),))

    def simulated(kept):  # straight from 3 layers on, but for 5, where the peak is in backward
        count = 32 if kept is None else len(kept)
        moment = Moment(0, "backward" if count == 5 else "forward", -1, 0, "loss")
        return SimpleNamespace(stages=[SimpleNamespace(peak_bytes=1000 * max(count, 3), moment=moment)])

    options = DryRunOptions()
    found, doubt, bends = choose_depths(options, settings("a: 1"), 32, policy, simulated)
    assert [len(depth.kept) for depth in found] == [3, 4]
    assert doubt == "in the simulation the line is 0.0% off the whole model, and corrected by that" and bends == (0,)
    asked, doubt, bends = choose_depths(replace(options, layers=(2, 4)), settings("a: 1"), 32, policy, simulated)
    # 3000 and 4000 on 2 and 4 layers: 4000 + 28 * 500 on 32
    assert [len(depth.kept) for depth in asked] == [2, 4] and "43.8% off" in doubt and bends == (14000,)


def test_full_is_all_layers():
    assert depths("a: 1", 32, is_full=True) == [tuple(range(32))]


PIPELINE = "use_parallel: True\nparallel_config: {data_parallel: 2, pipeline_stage: 2, micro_batch_num: 4}\n"


def test_every_stage_keeps_layers_of_its_own():
    assert depths(PIPELINE, 32) == [(0, 16), (0, 15, 16, 31)]


@pytest.mark.parametrize(
    ("num_micro_batches", "peaks", "expected"),
    [
        (32, {}, None),  # not asked: there are few
        (128, {None: (5000, 4000), 4: (5000, 3996)}, 4),  # the same but for a thousandth
        (128, {None: (5000, 4000), 4: (4990, 4000), 32: (5000, 4000)}, 32),  # the pipeline is full later
        # each takes memory, such as casts of weights
        (128, {None: (5000, 4000), 4: (4970, 4000), 32: (4990, 4000)}, None),
        (128, {None: None}, None),  # nothing is simulated
    ],
)
def test_of_many_micro_batches_so_many_are_run_as_the_peak_takes(num_micro_batches, peaks, expected):
    def simulate(count):
        found = peaks[count]
        return found and SimpleNamespace(stages=[SimpleNamespace(peak_bytes=size) for size in found])

    text = PIPELINE.replace("micro_batch_num: 4", f"micro_batch_num: {num_micro_batches}")
    assert choose_micro_batches(settings(text), 32, simulate) == expected


def test_with_few_micro_batches_more_layers_are_run():
    policy = Policy(op_swap=(OpSwap("attention", Layers((1, 4, 9, 20)), 1),))
    found = [
        choose_depths(DryRunOptions(), settings(PIPELINE), 32, policy, has_few_micro_batches=is_short)[0]
        for is_short in (False, True)
    ]
    few, many = (max(len(depth.kept) for depth in depths) for depths in found)
    assert few <= 2 * 3 and many == 2 * 6


def test_one_stage_runs_all_its_micro_batches():
    text = "runner_config: {gradient_accumulation_steps: 128}\n"
    assert choose_micro_batches(settings(text), 32, lambda count: pytest.fail("asked")) is None


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
        short=lambda kept, count: step, simulate=lambda: step, report=lambda: step, stages=[stage] * 4
    )
    for options in (DryRunOptions(), DryRunOptions(is_full=True)):
        with pytest.raises(LaunchError, match="enough"):
            dry_run.run_stages(document_from_data(data, "x.yaml"), options, load=lambda: step)
    assert list(dict.fromkeys(written)) == [8, 64]


def test_layers_that_stages_cannot_share():
    with pytest.raises(LaunchError, match="--layers 3: every stage and chunk needs as many layers\n.*multiple of 2"):
        depths(PIPELINE, 32, layers=(3,))


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
    monkeypatch.setattr("mindswap.commands.dryrun.dry_run_file", lambda *_: pytest.fail("it runs"))
    path = tmp_path / "wrong.yaml"
    path.write_text("swap_config: {swap: True, op_swap: 3}\nmodel: {model_config: {num_layers: 2}}\n")
    assert cli.main(["dryrun", CASE4, option, str(tmp_path if option == "--html" else path)]) == 1
    assert message in capsys.readouterr().err


def test_without_mindspore_it_says_what_is_missing(capsys):
    try:
        import mindspore  # noqa: F401 TID253
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
    assert "rank 0, peak: forward, behind the layers: Default/network" in shown
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
    report = dry_run.run_stages(load_document(CASE4), options, load=lambda: pytest.fail(), budget_bytes=1)
    assert (report.simulated, report.budget_bytes, report.fits) == (None, None, True)
    assert report.notes == ("2 of 4 layers were run: all figures are of those alone, and nothing is compared",)


def test_two_short_models_are_a_line(monkeypatch):
    stub(monkeypatch, lambda file, *_: model(int(file.parent.name.removeprefix("layers_"))))
    report = dry_run.run_stages(load_document(CASE4), DryRunOptions(layers=(1, 2)), budget_bytes=100)
    # backward of 4 layers: 40 + 30 * 4, fragments: 140 + 7 of the loss
    assert (report.used_peak_bytes, report.depths, report.fits) == (160, (1, 2), False)


def test_an_error_of_the_simulation_is_not_hidden_by_that_of_the_run_that_it_ends():
    def run(task, tell, stop):
        tell("compiling")
        while not stop():
            time.sleep(0.01)
        raise LaunchError(f"rank {task}: log: No such file or directory")

    def simulate():
        raise SimulationError("the real error")

    with pytest.raises(SimulationError, match="^the real error$"):
        dry_run._run_beside([0, 1], run, 2, lambda line: None, simulate)


def test_an_error_of_the_run_comes_with_why_there_is_no_simulation(monkeypatch):
    def run_rank(*_):
        raise LaunchError("dry run of rank 0: exit code 1")

    def load():
        raise GraphError("MindFormers could not build the network: the real error\nmore")

    monkeypatch.setattr(dry_run, "run_rank", run_rank)
    monkeypatch.setattr(dry_run, "require_mindformers", lambda: None)
    monkeypatch.setattr(dry_run, "has_cann", lambda: True)
    monkeypatch.setattr(dry_run, "_samples", lambda document: SyntheticData("x.mindrecord", ("input_ids",)))
    document = load_document("configs/llama2_7b/case1_default_swap.yaml")
    with pytest.raises(LaunchError) as error:
        dry_run.run_stages(document, load=load)
    expected = "not simulated: MindFormers could not build the network: the real error"
    assert str(error.value).splitlines() == ["dry run of rank 0: exit code 1", f"    {expected}"]
