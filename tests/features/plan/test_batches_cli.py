"""`mindswap plan --batch-size` and `--micro-batches`."""

import json
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.config.parse import parse_document
from mindswap.config.pipeline_layout import read_pipeline
from mindswap.features.plan.batch_search import PRUNED, BatchPlan
from mindswap.features.plan.batches_report import FileSetup, format_batches
from mindswap.features.plan.strategies import with_batch
from mindswap.planner.strategies import Batch, Strategy

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "configs" / "llama2_7b" / "cpu" / "case3_op_swap.yaml"
TEXT = """\
runner_config:  # the run
  batch_size: 4  # samples
  epochs: 1
"""


def with_text(text, batch):
    return with_batch(text, parse_document(text.encode(), "x.yaml"), batch)


def test_only_what_differs_changes_and_comments_stay():
    assert with_text(TEXT, Batch(4, 1)) == TEXT
    found = with_text(TEXT, Batch(2, 2))
    assert found.startswith("runner_config:  # the run\n  batch_size: 2")
    assert "  epochs: 1\n  gradient_accumulation_steps: 2\n" in found
    stages = TEXT + "parallel_config: {pipeline_stage: 2, micro_batch_num: 4}\n"
    assert "micro_batch_num: 8}" in with_text(stages, Batch(2, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--any-global-batch"], "--any-global-batch: there is one batch"),
        (["--batch-size", "auto", "--sweep"], "--sweep: is for one batch"),
        (["--micro-batches", "2", "--html", "x.html"], "--html: is for one batch"),
        (["--batch-size", "0"], "write auto, or numbers from 1 on"),
        (["--batch-size", "two"], "write auto, or numbers from 1 on"),
        (["--cards", "4"], "--cards: the strategy stays"),
        (["--strategy", "auto", "--cards", "4,8"], "expected an integer between 1 and"),
        (["--strategy", "auto", "--any-global-batch"], "--any-global-batch: not with --strategy"),
        (["--strategy", "auto"], "parallel_mode takes no strategies"),
        (["--stages", "auto"], "--stages: there is one stage"),
        (["--stages", "auto", "--sweep"], "--sweep: is for one batch"),
        (["--stages", "2,2"], "invalid choice"),
        (["--stages", "auto", "--pin", "add=swap"], "--pin: is for one batch"),
        (["--simple", "--pin", "add=swap"], "--simple: not with --pin"),
        (["--pin", "add=maybe"], "is not a decision"),
        (["--sweep", "--pin", "add=swap"], "--sweep makes many plans"),
        (["--batch-size", "auto", "--pin", "optimizer=swap", "--pin", "add=keep"], "--pin: is for one batch"),
        (["--batch-size", "auto", "--pin", "optimizer=recompute"], "--pin optimizer=recompute: of its states"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_compiled(capsys, options, message):
    code = cli.main(["plan", str(CONFIG), *options])
    assert code == 1 and message in capsys.readouterr().err


def test_cards_without_a_strategy_are_an_error_with_the_nearest(capsys):
    # 8 samples, 4 layers, 32 heads: 7 divides none of them; 6 are 2 ranks of 3 stages.
    code = cli.main(["plan", str(ROOT / "configs/llama2_7b/case3_op_swap.yaml"), "--strategy", "auto", "--cards", "7"])
    error = capsys.readouterr().err
    assert code == 1 and "--cards 7: no strategy" in error and "nearest: 6, 8\n" in error


def test_what_has_no_plan_is_below_the_table_by_the_reason():
    own = FileSetup(Strategy(1, 1, 2), Batch(1, 2), None)
    others = [BatchPlan(Batch(1, 4), Strategy(ranks, 1, 1), reason="it is too large") for ranks in range(2, 8)]
    others.append(BatchPlan(Batch(1, 4), Strategy(8, 1, 1), reason=f"{PRUNED}: no policy is faster than 473 ns"))
    lines = format_batches([*others, BatchPlan(own.batch, own.strategy, reason="no policy fits")], own).splitlines()
    assert lines[2] == "no plan, it is too large:"
    assert lines[3].startswith("    data 2, tensor 1, stages 1: 4 x 1; data 3, ") and max(map(len, lines)) < 120
    names = " ".join(line.strip() for line in lines[3 : lines.index("no plan, no policy fits:")])
    assert names == "; ".join(f"data {ranks}, tensor 1, stages 1: 4 x 1" for ranks in range(2, 8))
    assert lines[-5:] == [
        "    data 1, tensor 1, stages 2: 2 x 1 (your file)",
        "1 candidate pruned by lower bound: none can be the fastest",
        "",
        "8 strategies and batches, 0 searched, 8 excluded before",
        "nothing fits",
    ]


@pytest.mark.mindspore
def test_each_strategy_has_its_row_and_the_fastest_is_dry_run_and_written(capsys, tmp_path):
    config, target = tmp_path / "small.yaml", tmp_path / "best.yaml"
    text = (ROOT / "configs/llama2_7b/case3_op_swap.yaml").read_text()
    for old, new in (("hidden_size: 4096", "hidden_size: 128"), ("seq_length: 4096", "seq_length: 128")):
        text = text.replace(old, new)
    config.write_text(text.replace("num_heads: 32", "num_heads: 1").replace("data_parallel: 8", "data_parallel: 2"))
    options = ["--strategy", "auto", "--cards", "2", "--dry-run", "--json", "--no-verify"]
    code = cli.main(["plan", str(config), *options, "-o", str(target)])
    out = capsys.readouterr().out
    answer = json.loads(out[out.index("{\n") :])
    assert code == 0 and answer["ok"]
    # One head is not cut, so there are two; one data parallel rank has both samples.
    # Each with the optimizer states on the card, as in the file, and on the host.
    keys = ("data_parallel", "model_parallel", "pipeline_stage", "num_micro_batches", "states_on_host", "is_own")
    found = {tuple(one[key] for key in keys) for one in answer["batches"]}
    moved = {(2, 1, 1, 1, True, False), (1, 1, 2, 2, True, False)}
    assert found == {(2, 1, 1, 1, False, True), (1, 1, 2, 2, False, False)} | moved
    best, written = answer["batches"][0], parse_document(target.read_bytes(), "best.yaml")
    assert best["fits"] and written.count("parallel_config", "pipeline_stage") == best["pipeline_stage"]
    assert written.count("parallel_config", "data_parallel") == best["data_parallel"]
    (attempt,) = answer["dry_runs"]
    assert attempt["fits"] and attempt["planned_peak_bytes"] == best["peak_bytes"]
    assert attempt["step_time_ns"] == best["step_time_ns"]
    assert attempt["dry_run"]["budget_bytes"] == attempt["asked_bytes"]


@pytest.mark.mindspore
def test_each_batch_has_its_plan_and_the_fastest_is_written(capsys, tmp_path):
    target = tmp_path / "best.yaml"
    options = ["--device", "cpu", "--batch-size", "1,2", "--micro-batches", "1,3", "--any-global-batch", "--json"]
    code = cli.main(["plan", str(CONFIG), *options, "--no-verify", "-o", str(target)])
    out = capsys.readouterr().out
    answer = json.loads(out[out.index("{\n") :])  # lines of MindFormers may come first
    assert code == 0 and answer["ok"]
    by_batch = {(one["batch_size"], one["num_micro_batches"]): one for one in answer["batches"]}
    assert set(by_batch) == {(1, 1), (1, 3), (2, 1), (2, 3)}
    best = answer["batches"][0]
    assert best["is_searched"] and best["is_on_front"]
    # Tokens of a step over its time and its cards, by hand: one card.
    written = parse_document(target.read_bytes(), "best.yaml")
    assert written.count("runner_config", "batch_size") == best["batch_size"]
    assert written.count("runner_config", "gradient_accumulation_steps") == best["num_micro_batches"]
    for one in by_batch.values():
        assert one["fits"] == ("tokens_per_s_per_card" in one) and bool(one["reason"]) == (not one["fits"])
        if one["fits"]:
            assert one["tokens_per_s_per_card"] <= best["tokens_per_s_per_card"]


@pytest.mark.mindspore
def test_where_fewer_samples_do_not_fit_more_are_not_captured(capsys, tmp_path):
    config = tmp_path / "base.yaml"
    text = (ROOT / "configs/llama2_7b/case3_op_swap.yaml").read_text()
    for old, new in (("hidden_size: 4096", "hidden_size: 128"), ("seq_length: 4096", "seq_length: 128")):
        text = text.replace(old, new)
    config.write_text(text + "# a file that others are based on\n")
    own = tmp_path / "own.yaml"
    own.write_text("base_config: base.yaml\nrunner_config: {batch_size: 1, gradient_accumulation_steps: 8}\n")
    code = cli.main(["plan", str(own), "--batch-size", "auto", "--memory", "12MiB", "--json"])
    captured = capsys.readouterr()
    rows = json.loads(captured.out[captured.out.index("{\n") :])["batches"]
    by_size = {one["batch_size"]: one["reason"] for one in rows}
    assert code == 1 and set(by_size) == {1, 2, 4, 8}
    assert by_size[2] == by_size[4] == "no policy fits micro-batches of 1: the lower bound of memory is larger"
    # A single micro-batch needs no sums of gradients, so it is looked at.
    assert captured.err.count("compile 1 of 1") == 2 and by_size[8].startswith("weights and optimizer alone need")


@pytest.mark.mindspore
def test_stages_get_other_numbers_of_layers_and_the_fastest_is_written(capsys, tmp_path):
    """The last of two stages has a large head: it gives a layer to the first.

    Where layers are so small that launches of the optimizer take longer than they do, it would not.
    """
    config, target = tmp_path / "small.yaml", tmp_path / "best.yaml"
    text = (ROOT / "configs/llama2_7b/case3_op_swap.yaml").read_text()
    for old, new in (
        ("hidden_size: 4096", "hidden_size: 1024"),
        ("seq_length: 4096", "seq_length: 1024"),
        ("data_parallel: 8", "data_parallel: 1"),
        ("pipeline_stage: 1", "pipeline_stage: 2"),
        ("micro_batch_num: 1", "micro_batch_num: 4"),
    ):
        assert old in text
        text = text.replace(old, new)
    config.write_text(text)
    words = ["plan", str(config), "--stages", "auto", "--no-verify", "-o", str(target)]
    assert cli.main([*words, "--json"]) == 0
    out = capsys.readouterr().out
    answer = json.loads(out[out.index("{\n") :])
    on_card = [one for one in answer["batches"] if not one["states_on_host"]]
    found = {tuple(map(tuple, one["layers"])): one for one in on_card}
    assert found[((2, 2),)]["is_own"] and not found[((3, 1),)]["is_own"]
    best = answer["batches"][0]
    assert best["layers"] == [[3, 1]] and best["step_time_ns"] < found[((2, 2),)]["step_time_ns"]
    assert best["bubble"]["imbalance"] < found[((2, 2),)]["bubble"]["imbalance"]
    written = parse_document(target.read_bytes(), "best.yaml")
    assert read_pipeline(written).offset == [1, -1]
    assert cli.main(["check", str(target)]) == 0
