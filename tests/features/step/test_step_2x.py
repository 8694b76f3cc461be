"""Steps of files of MindFormers 2.x from the cache of recorded steps, without MindFormers."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mindswap import cli
from mindswap.config.parse import parse_document
from mindswap.config.render import document_from_data
from mindswap.config.source import load_document
from mindswap.errors import LaunchError
from mindswap.features.dryrun import graph_mode_text
from mindswap.features.dryrun.trainer_config import trainer_request
from mindswap.features.plan.pynative import cards_note, with_swappable_stages
from mindswap.features.plan.step_planner import StepPlanner
from mindswap.features.plan.trainer_plans import changed_documents
from mindswap.features.plan.written import planned_text
from mindswap.features.recorded_2x import trace_key
from mindswap.features.step_2x import load_step_2x, with_cards
from mindswap.graph.capture_cache import cached, open_data_cache
from mindswap.planner.problem import Allow, Objective
from mindswap.pynative.trace import dump_trace, load_trace
from mindswap.rules.checker import check_pynative

DATA = Path(__file__).parents[2] / "data"


def document(**sections):
    data = yaml.safe_load((DATA / "qwen3_2x.yaml").read_text("utf-8"))
    for name, section in sections.items():
        data[name] = {**data.get(name, {}), **section}
    return document_from_data(data, "small.yaml")


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Put the recorded step of a document into a cache, as a first command does."""
    monkeypatch.setenv("MINDSWAP_CACHE", str(tmp_path))
    step = load_trace(gzip.decompress((DATA / "qwen3_2x_step.json.gz").read_bytes()).decode(), "step.json")

    def store(recorded, num_stages=1):
        for stage in range(num_stages):
            layers = tuple(range(stage * 4, stage * 4 + 4)) if num_stages > 1 else ()
            text = dump_trace(replace(step, config=graph_mode_text(recorded), layer_indices=layers))
            cached(open_data_cache(), trace_key(recorded, stage), {}, lambda text=text: text)

    return store


def test_a_step_from_the_cache_has_the_micro_batches_and_the_device_of_its_own_file(record):
    """Both files have one trace, as two micro-batches are recorded of any number."""
    first = document(training={"global_batch_size": 4}, mindswap={"device": "generic"})
    second = document(training={"global_batch_size": 64}, mindswap={"device": "atlas_800t_a2"})
    assert trace_key(first) == trace_key(second)
    record(first)
    for recorded, count, device in ((first, 4, "generic"), (second, 64, "atlas_800t_a2")):
        step = load_step_2x(recorded, None, None, {})
        assert (step.model.settings.num_micro_batches, step.device.name) == (count, device)


def test_cards_of_the_training_determine_the_micro_batches(record):
    """64 samples are 64 micro-batches of one card, and 16 of each of four."""
    many = document(training={"global_batch_size": 64})
    record(many)
    times = []
    for cards, count in ((None, 64), (4, 16)):
        step = load_step_2x(with_cards(many, cards), None, None, {})
        assert step.model.settings.num_micro_batches == count
        times.append(step.simulate().step_time_ns)
    assert times[1] < times[0] / 3
    with pytest.raises(LaunchError, match="global_batch_size 64 is no multiple of 3"):
        with_cards(many, 3)


def test_sizes_that_do_not_fit_the_cards_are_refused_before_a_step_is_recorded(tmp_path, capsys):
    """Nothing is in the cache, and a recording would need MindFormers 2.x."""
    batch = {"local_batch_size": 1, "global_batch_size": 8}
    config = {**document(training=batch).data(), "parallelism": {"data_parallel_shard": 3, "expert_parallel": 8}}
    path = tmp_path / "odd.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert cli.main(["plan", str(path), "--cards", "8", "--memory", "1GiB"]) == 1
    assert "with 8 cards FSDP has 4 of 8 data parallel ranks" in capsys.readouterr().err
    with pytest.raises(LaunchError, match="FSDP has 4 of 8"):
        with_cards(document_from_data(config, "odd.yaml"), 8)


@pytest.mark.parametrize("key", ["tensor_parallel", "context_parallel", "pipeline_parallel"])
def test_fewer_cards_than_the_parallel_sizes_are_refused(key):
    with pytest.raises(LaunchError, match="--cards 4: no multiple of 8"):
        with_cards(document(parallelism={key: 8}), 4)
    with pytest.raises(LaunchError, match="--cards 4: no multiple of 8"):
        cards_note(document(parallelism={key: 8}), 4)


def test_a_plan_for_cards_says_what_its_figures_do_not_have():
    many = document(training={"global_batch_size": 8}, parallelism={"data_parallel_shard": -1})
    assert "with FSDP over 8 a rank of 8 cards holds less of weights" in cards_note(many, 8)
    assert cards_note(many, None) == cards_note(many, 1) == ""
    assert cards_note(document_from_data({"parallel_config": {}}, "graph.yaml"), 8) == ""


def test_a_section_training_without_a_key_is_as_none():
    """`training:` alone is null in YAML."""
    data = {**document().data(), "training": None}
    empty = with_cards(document_from_data(data, "small.yaml"), 1)
    assert empty.value("training", "global_batch_size") == 1
    assert "global_batch_size" in str(trainer_request(empty))


@pytest.mark.parametrize(("means", "is_written"), [("swap", True), ("recompute", False)])
def test_with_pipeline_stages_a_plan_swaps_with_mindswap(record, tmp_path, capsys, means, is_written):
    """MindFormers refuses swap there. The budget is 16 MiB less than keeping everything needs in stage 0.

    That has two micro-batches in flight, and only there something is swapped or recomputed.
    """
    staged = document(
        parallelism={"pipeline_parallel": 2},
        training={"global_batch_size": 8},
        model={"model_type": "deepseek_v3", "num_hidden_layers": 8},
    )
    file, target = tmp_path / "staged.yaml", tmp_path / "planned.yaml"
    file.write_text(yaml.safe_dump(staged.data()))
    record(load_document(file), 2)
    kept = load_step_2x(load_document(file), None, None, {}).simulate()
    first_bytes, last_bytes = kept.simulated.peaks_bytes
    kept_bytes = kept.peak_bytes
    assert kept_bytes == first_bytes > last_bytes + (16 << 20)
    words = ["--memory", f"{kept_bytes - (16 << 20)}B", "--allow", means, "--no-verify"]
    code = cli.main(["plan", str(file), *words, "-o", str(target)])
    assert code == 0, capsys.readouterr().err
    written = load_document(target)
    assert not check_pynative(written).errors
    assert (written.value("mindswap", "swap_engine") == "mindswap") is is_written
    assert check_pynative(written).effect.settings.is_swap_enabled is is_written
    planned = load_step_2x(written, None, None, {}).simulate()
    assert max(planned.simulated.peaks_bytes) <= kept_bytes - (16 << 20)
    assert planned.simulated.peaks_bytes[1] == last_bytes
    for command in ("inspect", "compare"):
        assert cli.main([command, str(target)]) == 0, capsys.readouterr().err


STAGED = {
    "training": {"global_batch_size": 8},
    "model": {"model_type": "deepseek_v3", "num_hidden_layers": 8},
}


@pytest.mark.parametrize("may_swap", [True, False])
def test_a_plan_with_the_loss_in_pieces_swaps_stages_with_mindswap_too(record, tmp_path, may_swap):
    """A file with another number of pieces keeps the engine that its stages need, and the plan can be written."""
    file = tmp_path / "staged.yaml"
    file.write_text(yaml.safe_dump(document(parallelism={"pipeline_parallel": 2}, **STAGED).data()))
    allow = Allow(swap=may_swap, recompute=not may_swap)
    record(load_document(file), 2)
    step = load_step_2x(with_swappable_stages(load_document(file), allow), None, None, {})
    changed = [each for _, each in changed_documents(step, may_swap)]
    assert [each.value("model", "chunk_loss_num") for each in changed] == [4, 16]
    for each in changed:
        assert (each.value("mindswap", "swap_engine") == "mindswap") is may_swap
        record(each, 2)
        planned = load_step_2x(each, None, None, {})
        plan = StepPlanner(planned, allow).plan(planned.simulate().peak_bytes - (16 << 20), Objective.TIME)
        written = parse_document(planned_text(plan.step, plan.plan, str(file)), str(file))
        assert plan.fits and not check_pynative(written).errors
        assert (written.value("mindswap", "swap_engine") == "mindswap") is may_swap
        assert written.value("model", "chunk_loss_num") == each.value("model", "chunk_loss_num")


def test_stages_of_several_chunks_are_planned_without_swap(record, tmp_path, capsys):
    parallelism = {"pipeline_parallel": 2, "pipeline_parallel_interleave_num": 2}
    file = tmp_path / "chunks.yaml"
    file.write_text(yaml.safe_dump(document(parallelism=parallelism, **STAGED).data()))
    record(load_document(file), 1)
    kept_bytes = load_step_2x(load_document(file), None, None, {}).simulate().peak_bytes
    words = ["plan", str(file), "--memory", f"{kept_bytes - (16 << 20)}B", "--no-verify"]
    assert cli.main(words) == 0
    output = capsys.readouterr().out
    assert "nor mindswap swaps pipeline stages of several chunks" in output and "prefetch" not in output
    assert cli.main([*words, "--allow", "swap"]) == 1
    assert f"{file}:" in capsys.readouterr().err


def test_a_baseline_that_swaps_stages_needs_the_engine_for_it(record, tmp_path, capsys):
    file, own = tmp_path / "staged.yaml", tmp_path / "own.yaml"
    for path, more in ((file, {}), (own, {"mindswap": {"swap_engine": "mindswap"}})):
        path.write_text(yaml.safe_dump(document(parallelism={"pipeline_parallel": 2}, **STAGED, **more).data()))
        record(load_document(path), 2)
    assert cli.main(["compare", str(file), "swap-everything"]) == 1
    assert "does not swap pipeline stages" in capsys.readouterr().err
    assert cli.main(["compare", str(own), "swap-everything"]) == 0


@pytest.mark.parametrize("option", ["--sweep", "--explain", "--simple", "--pin mlp=swap", "--objective memory"])
def test_options_for_graph_mode_are_refused_for_a_recorded_step_too(tmp_path, capsys, option):
    path = tmp_path / "step.json"
    path.write_bytes(gzip.decompress((DATA / "qwen3_2x_step.json.gz").read_bytes()))
    assert cli.main(["plan", str(path), *option.split()]) == 1
    assert "not for steps of MindFormers 2.x" in capsys.readouterr().err


def test_each_engine_is_simulated_as_it_swaps(record, tmp_path, capsys):
    """All layers with two distances: MindFormers takes the first entry, and not the last layer."""
    peaks = {}
    for engine in ("mindswap", "upstream"):
        swap = {"enable": True, "layer_swap": [{"layers": ["0-2"]}]}
        if engine == "mindswap":
            swap["layer_swap"].append({"layers": ["3"], "prefetch": 2})
        file = tmp_path / f"{engine}.yaml"
        file.write_text(yaml.safe_dump(document(swap=swap, mindswap={"swap_engine": engine}).data()))
        record(load_document(file))
        for command in ("simulate", "inspect", "compare"):
            code = cli.main([command, str(file), *(["--json"] if command == "simulate" else [])])
            out, err = capsys.readouterr()
            assert code == 0, err
            if command == "simulate":
                peaks[engine] = json.loads(out)["peak_bytes"]
    assert peaks["mindswap"] < peaks["upstream"]


def test_what_another_version_recorded_is_not_taken(tmp_path, monkeypatch):
    """The versions that count are those of the packages on `sys.path`, where another 2.x is tried."""
    usual = trace_key(document())
    for name, version in (("mindformers", "2.2.0"), ("mindspore", "2.11.0")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert trace_key(document()) == usual  # no step is recorded with these
    monkeypatch.setenv("MINDSWAP_ANY_VERSION", "1")
    assert trace_key(document()) != usual


def test_a_trace_is_of_one_stage(tmp_path, capsys):
    staged = document(parallelism={"pipeline_parallel": 2}, model={"model_type": "deepseek_v3"})
    file = tmp_path / "staged.yaml"
    file.write_text(yaml.safe_dump(staged.data()))
    assert cli.main(["trace", str(file), "-o", str(tmp_path / "step.json")]) == 1
    assert "parallelism.pipeline_parallel: a trace is of one rank with all layers" in capsys.readouterr().err
