from dataclasses import replace

import pytest

from mindswap.config.problem import Level, Location, Problem
from mindswap.features.inspect.report import LayerMemoryReport, format_memory, unread_copy_notes
from mindswap.features.verify.log_comparison import LogFinding, LogReport
from mindswap.features.verify.log_report import format_logs
from mindswap.features.verify.report import format_effect, format_recompute_effect, recompute_effect_to_json
from mindswap.graph.analysis.liveness import Peak
from mindswap.graph.analysis.saved_tensors import LayerMemory, OperatorMemory
from mindswap.report.problems import escape, format_counts, format_problems, problems_to_data
from mindswap.report.tables import format_table, group_equal
from mindswap.runtime.logs.oom import MemoryStatistics
from tests.graph.analysis import test_recompute_effect as recompute
from tests.graph.analysis import test_swap_effect as swap
from tests.graph.analysis.test_saved_tensors import names_of
from tests.graph.builders import copy_out, graph, node

# The effect of a policy as text: equal layers once, sizes in one unit, the verdict.


def test_swap_with_equal_layers_once():
    """Backward keeps the outputs of `matmul` and `gelu`, 1 KiB each; layers 0 and 2 swap `gelu`."""
    swapped = swap.compare(swap.gelu_swapped(), swap.policy(r"mlp\.gelu"))
    missed = swap.compare(swap.BASELINE, swap.policy(r"mlp\.gelu"))
    effects = [replace(effect, layer_index=index) for index, effect in enumerate((swapped, missed, swapped))]
    assert format_effect(effects, False, ["one micro-batch"]).splitlines() == [
        "layers       MoveTo pairs  swapped  kept without swap    kept  recomputed ops  as asked",
        "-----------  ------------  -------  -----------------  ------  --------------  --------",
        "layers 0, 2             1   1024 B             2048 B  1024 B               0       yes",
        "layer 1                 0      0 B             2048 B  2048 B               0        NO",
        "",
        "layers 0, 2:",
        "    swapped mlp Gelu: 1.0 KiB float32[256], prefetch 5",
        "layer 1:",
        "    NOT swapped, but in the policy: mlp Gelu",
        "    without effect: 'mlp\\.gelu': backward needs none of these outputs",
        "",
        "note: one micro-batch",
        "the compiled graph does NOT follow the policy: 2 MoveTo pairs, 2.0 KiB swapped per micro-batch",
    ]


def test_what_is_copied_for_nothing_has_its_bytes():
    step = swap.graph([*swap.forward(), swap.copy_out("out", "gelu", prefetch=5)], saved="matmul gelu")
    text = format_effect([swap.compare(step, swap.policy(r"mlp\.gelu"))], False).splitlines()
    assert "    offloaded and never prefetched: 1.0 KiB float32[256] of mlp, for nothing" in text
    assert text[-1].endswith("0 MoveTo pairs, 0 B swapped per micro-batch, 1.0 KiB more offloaded and never prefetched")


def test_layers_of_which_there_is_nothing_to_say_have_no_heading():
    kept = replace(swap.compare(swap.BASELINE, swap.policy()), layer_index=1)
    swapped = replace(swap.compare(swap.gelu_swapped(), swap.policy(r"mlp\.gelu")), layer_index=0)
    assert format_effect([swapped, kept], True).splitlines()[4:7] == [
        "",
        "layer 0:",
        "    swapped mlp Gelu: 1.0 KiB float32[256], prefetch 5",
    ]
    assert "layer 1:" not in format_effect([swapped, kept], True)


def test_recompute():
    """The cell runs again and keeps nothing; without recompute it keeps 2 KiB."""
    marked = recompute.step(recompute.MLP, recompute.MLP, saved="")
    effects = [recompute.compare(marked, select_recompute=recompute.select("mlp"))]
    assert format_recompute_effect(effects, True).splitlines() == [
        "layers     asked  recomputed ops  kept without recompute  kept  as asked",
        "-------  -------  --------------  ----------------------  ----  --------",
        "layer 0  in part               2                  2048 B   0 B       yes",
        "",
        "layer 0:",
        "    recomputed mlp Matmul",
        "    recomputed mlp Gelu",
        "",
        "swap is off; the compiled graph follows recompute_config: 2.0 KiB less kept per micro-batch",
    ]
    data = recompute_effect_to_json(effects, True)
    assert (data["ok"], data["layers"][0]["operators"]) == (True, ("mlp Matmul", "mlp Gelu"))


# Of ten thousand workers a table helps nobody: who differs, by stage and node, and the first difference.


NODES = {worker: f"node_{worker // 8}" for worker in range(64)}


def said(workers, message, fix=""):
    return LogFinding(tuple(workers), Level.ERROR, message, fix)


def report(findings=(), memory=None, **options):
    return LogReport(64, tuple(findings), memory or {}, **{"nodes": NODES, "num_stages": 4, **options})


def test_workers_of_one_stage_and_node():
    text = format_logs(report([said(range(16, 24), "no line for layer 3", "wait")]))
    assert text.splitlines()[:2] == ["workers 16-23 in stage 1, node_2: error: no line for layer 3", "    fix: wait"]


def test_every_stage_and_node_goes_without_saying():
    assert format_logs(report([said(range(64), "its log is empty")])).startswith(
        "workers 0-63: error: its log is empty\n"
    )


def test_workers_scattered_over_the_run_are_counted():
    text = format_logs(report([said(range(0, 64, 4), "its log is empty")]))
    assert text.startswith("16 workers (0, 4, 8, 12, 16, 20, 24, 28 and 8 more): error: its log is empty\n")


def test_findings_that_differ_in_a_number_only_are_one():
    findings = [said([worker], f"failed at step {worker}/40: no space") for worker in range(2, 9)]
    first, verdict = format_logs(report(findings)).splitlines()
    assert first == (
        "workers 2-8 in stage 0, node_0, node_1: error: failed at step 2/40: no space "
        "(worker 2; the others with other numbers)"
    )
    assert verdict.startswith("logs of 64 workers do NOT")


def test_three_findings_are_shown_one_by_one():
    findings = [said([worker], f"failed at step {worker}/40") for worker in (2, 3, 4)]
    assert len(format_logs(report(findings)).splitlines()) == 4


def test_memory_of_many_workers_is_the_highest_of_each_stage():
    memory = {worker: MemoryStatistics(used_peak_bytes=(1000 - worker) << 30) for worker in range(64)}
    rows = [line.split() for line in format_logs(report(memory=memory)).splitlines()[2:6]]
    assert [row[:5] for row in rows] == [
        ["workers", "0-15", "in", "stage", "0,"], ["workers", "16-31", "in", "stage", "1,"],
        ["workers", "32-47", "in", "stage", "2,"], ["workers", "48-63", "in", "stage", "3,"],
    ]  # fmt: skip
    assert [float(row[row.index("GiB") - 1]) for row in rows] == [1000, 984, 968, 952]


def test_without_nodes_and_stages_nothing_is_added():
    text = format_logs(report([said([3], "its log is empty")], nodes={}, num_stages=1))
    assert text.startswith("worker 3: error: its log is empty\n")


# What `mindswap inspect` prints.


MIB = 2**20


@pytest.mark.parametrize(
    ("layer", "cell_path", "place"),
    [(None, "network.network.loss._nllloss", "loss._nllloss.Neg"), (None, "", "Neg"), (3, "mlp", "layer 3, mlp.Neg")],
)
def test_the_peak_is_at_an_operator_as_simulate_names_it(layer, cell_path, place):
    """The compiled cell is around the model, so its path begins with its own two names."""
    layers = (LayerMemory(0, (OperatorMemory("mlp.mul", "Mul", kept_bytes=MIB),)),)
    peak = Peak(3 * MIB, node("n", "Neg", layer=layer, cell_path=cell_path), True)
    lines = format_memory(LayerMemoryReport(layers, peak, ()), "operator").splitlines()
    assert lines[-1] == f"peak of activations by lifetime: 3.0 MiB, in forward at {place}"


def test_what_is_copied_for_nothing_has_its_operator_its_bytes_and_its_layers():
    step = graph([node("gelu", "Gelu", "x"), copy_out("out", "gelu")])
    # Layers 4, 5 and 7 of the model are as the compiled layer 0, and 6 is as another.
    notes = list(unread_copy_notes(step, names_of(step), {4: 0, 5: 0, 6: 1, 7: 0}))
    assert notes == ["offloaded but never prefetched: 1.0 KiB of mlp.Gelu, in each of layers 4-5, 7"]
    assert [note[-12:] for note in unread_copy_notes(step, names_of(step), {2: 0})] == [", in layer 2"]
    assert list(unread_copy_notes(graph(list(step.forward[:1])), names_of(step), {0: 0})) == []


# Problems.


ERROR = Problem(Location("x.yaml", 41, 16), "unmatched-pattern", Level.ERROR, "a.b: 'c' is wrong", "this", "that")
WARNING = Problem(Location("x.yaml", 3, 1), "overlap", Level.WARNING, "a: twice")


def test_the_format_of_the_style_guide_in_file_order():
    assert format_problems([ERROR, WARNING]) == (
        "x.yaml:3:1: warning: a: twice [overlap]\n"
        "x.yaml:41:16: error: a.b: 'c' is wrong [unmatched-pattern]\n"
        "    allowed: this\n"
        "    fix:     that"
    )


def test_a_place_without_text_has_no_line():
    problem = Problem(Location("command line"), "context-mode", Level.ERROR, "m")
    assert format_problems([problem]) == "command line: error: m [context-mode]"


def test_colour_is_for_terminals():
    assert "\033" not in format_problems([ERROR])
    assert "\033[1;31merror\033[0m" in format_problems([ERROR], colour=True)


def test_control_characters_of_the_file_are_shown_not_sent():
    problem = Problem(Location("x\x1b.yaml", 1, 1), "r", Level.ERROR, "a\nb\x1b[31m \udcff é")
    assert format_problems([problem]) == "x\\x1b.yaml:1:1: error: a\\nb\\x1b[31m \\udcff é [r]"
    assert escape(r"a\.b") == r"a\.b"


def test_counts():
    assert format_counts([]) == "no problems"
    assert format_counts([ERROR, WARNING, WARNING]) == "1 error, 2 warnings"
    assert format_counts([], [WARNING, WARNING]) == "no problems, 2 warnings ignored (overlap)"


def many(num_warnings, num_errors):
    """Warnings in the first lines, errors behind them."""
    places = [Location("x", line) for line in range(1, num_warnings + num_errors + 1)]
    levels = [Level.WARNING] * num_warnings + [Level.ERROR] * num_errors
    return [Problem(place, "r", level, "m") for place, level in zip(places, levels, strict=True)]


def test_the_first_hundred_are_shown_errors_before_warnings():
    lines = format_problems(many(1000, 3)).splitlines()
    assert len(lines) == 101 and lines[-1] == "... 100 of 1003 problems are shown"
    assert [lines[0], lines[96], lines[97]] == [
        "x:1:0: warning: m [r]",
        "x:97:0: warning: m [r]",
        "x:1001:0: error: m [r]",
    ]
    data = problems_to_data(many(1000, 3))
    assert (len(data["problems"]), data["num_problems"]) == (100, 1003)
    assert len(format_problems(many(100, 0)).splitlines()) == 100


# Tables.


def test_columns_are_as_wide_as_their_widest_cell():
    assert format_table(["name", "n"], [["a", "10"], ["longer", "7"]]) == (
        "name     n\n"
        "------  --\n"
        "a       10\n"
        "longer   7"
    )  # fmt: skip


def test_equal_layers_are_one_in_order_of_the_first():
    assert group_equal("abab", str, range(4)) == [([0, 2], "a"), ([1, 3], "b")]
    assert group_equal("aA", str.lower, [4, 5]) == [([4, 5], "a")]
