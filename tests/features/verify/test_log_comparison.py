"""Planted faults, each as a log in the real format, and what is found."""

import tracemalloc

import pytest

from mindswap.config.problem import Level
from mindswap.features.verify.log_comparison import MAX_NAMED, compare_logs
from mindswap.features.verify.log_report import format_logs, logs_to_json
from mindswap.policy.applied import format_log_lines
from mindswap.policy.model import Layers, LayerSwap, OpSwap, Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.runtime.logs.oom import WorkerLog
from tests.builders import trees
from tests.runtime.logs.samples import CPU_NOTE, EXPECTED, OFFLOAD_WARNING, SET, START, STATISTICS, info, log_text, scan

UPSTREAM = "mindformers/parallel_core/training_graph/transformer/utils.py:339"
OOM = "RuntimeError: Device(id:0) memory isn't enough and alloc failed, kernel name: x, alloc size: 1073741824B.\n"


def report(*texts, **options):
    logs = [text if isinstance(text, WorkerLog) else scan(text, worker) for worker, text in enumerate(texts)]
    return compare_logs(EXPECTED, logs, **options)


def errors(*texts, **options) -> list[tuple[tuple[int, ...], str]]:
    found = report(*texts, **options).findings
    return [(finding.workers, finding.message) for finding in found if finding.level is Level.ERROR]


def test_all_good():
    whole = report(log_text(), log_text())
    assert (whole.is_ok, whole.findings) == (True, ())
    assert format_logs(whole) == "logs of 2 workers agree with the policy"


def test_all_good_on_cpu():
    whole = report(log_text(mark=CPU_NOTE))
    assert whole.is_ok
    assert format_logs(whole).splitlines()[0] == "worker 0: ran on CPU, where nothing is offloaded"


def test_one_worker_with_another_policy():
    other = log_text([*SET[:3], info("Set op_swap at layer 3: .attention, value=20")])
    assert errors(log_text(), other, log_text(), other) == [
        (
            (1, 3),
            "another policy in layer 3: logged 'Set op_swap at layer 3: .attention, value=20', "
            "configured 'Set op_swap at layer 3: .attention, value=10'",
        )
    ]


def test_one_worker_with_fewer_and_one_with_more_lines():
    more = log_text([*SET, info("Set layer swap at layer 2 and value is: 3"), info("Set full recompute at layer 9")])
    assert errors(log_text(), log_text(SET[:2]), more) == [
        ((1,), f"no line for layers 2-3, as '{EXPECTED[2][0]}': the lines were lost or never written"),
        ((2,), "not in the policy, in layers 2, 9: 'Set layer swap at layer 2 and value is: 3'"),
    ]


def test_lines_of_two_runs_in_one_log():
    old = [info("Set op_swap at layer 0: .attention, value=1")]
    assert errors(log_text(old) + log_text()) == [
        ((0,), "not in the policy, in layer 0: 'Set op_swap at layer 0: .attention, value=1'")
    ]
    assert errors(log_text() + log_text()) == []


def test_without_the_plugin_and_without_swap():
    (finding,) = report(log_text([], mark="no mark"), log_text([], mark="no mark")).findings
    assert (finding.workers, finding.message) == (
        (0, 1),
        "trained, but nothing was set on any layer: mindswap was not active",
    )
    assert "mindswap run" in finding.fix


@pytest.mark.parametrize(
    "set_lines",
    [
        [
            info("Formative layer swap: []", UPSTREAM),
            info(r"Formative op swap: {'.*\\.flash_attention': [...]}", UPSTREAM),
            *(
                info(f"Set op_swap at layer {index}:  attention.flash_attention, value=10", UPSTREAM)
                for index in range(4)
            ),
        ],
        [info("Formative layer swap: []", UPSTREAM)],  # GPTModel: nothing is set
        [info("Set op_swap at layer 0:  attention.flash_attention, value=10")],
        [info(lines[0], UPSTREAM) for lines in EXPECTED],  # the texts are equal: one level
    ],
)
def test_handled_by_mindformers_itself(set_lines):
    (finding,) = (f for f in report(log_text(set_lines, mark="x")).findings if f.level is Level.ERROR)
    assert finding.message.startswith("MindFormers handled swap_config itself")
    assert "mindswap run" in finding.fix


def test_a_log_cut_off_before_the_lines():
    text = "".join(START)
    assert errors(log_text(), text[:-20]) == [
        ((1,), f"no line for layers 0-3, as '{EXPECTED[0][0]}': the log ends before them"),
        ((1,), "its log ends before the first step, in the middle of a line, while others finished: it is cut off"),
    ]


def test_a_log_cut_off_in_a_line():
    text = "".join([*START, *SET])[:-2]
    assert errors(log_text(), text) == [
        ((1,), f"no line for layer 3, as '{EXPECTED[3][0]}': the log ends before them"),
        ((1,), "broken by another line or cut off: 'Set op_swap at layer 3: .attention, value=1'"),
        ((1,), "its log ends before the first step, in the middle of a line, while others finished: it is cut off"),
    ]


def test_a_log_cut_off_in_training():
    def log(text):
        return WorkerLog(**{**vars(scan(text)), "last_step": "20/40"})

    cut = log(log_text(end=[]))
    (finding,) = report(cut).findings  # all the same: the run may still go on
    assert (finding.level, finding.message) == (
        Level.WARNING,
        "not finished: its log ends at step 20/40",
    )
    assert errors(log_text(), WorkerLog(**{**vars(cut), "worker": 1})) == [
        ((1,), "its log ends at step 20/40, while others finished: it is cut off")
    ]


def test_a_line_broken_beyond_repair():
    broken = SET[3].rstrip("\n")[:-3]
    assert errors(log_text([*SET[:3], broken + START[0]])) == [
        ((0,), f"no line for layer 3, as '{EXPECTED[3][0]}': the lines were lost or never written"),
        ((0,), "broken by another line or cut off: 'Set op_swap at layer 3: .attention, value'"),
    ]


def test_pieces_left_over_make_repaired_lines_unsure():
    """`value=1` and the end of `value=20` look like `value=10`; the piece `value=2` is left over."""
    one = info("Set op_swap at layer 3: .attention, value=1").rstrip("\n")
    other = SET[0].rstrip("\n")[:-1]
    assert report(log_text([*SET[:3], one + START[0], "0\n"])).is_ok
    assert not report(log_text([*SET[:3], one + START[0], "0\n", other + START[0], START[0]])).is_ok


def test_missing_logs():
    logs = [scan(log_text(), worker) for worker in (0, 3)]
    (finding,) = compare_logs(EXPECTED, logs).findings
    assert (finding.workers, finding.level, finding.message) == ((1, 2), Level.ERROR, "no log")


def test_the_number_of_a_log_costs_no_memory():
    """`worker_999999999.log` alone took 4.6 GB: so many logs are missing, of which the first are named."""
    tracemalloc.start()
    for numbers in ((0, 999_999_999), (999_999_999,)):
        findings = compare_logs([], [WorkerLog(number) for number in numbers]).findings
        (missing,) = (found.workers for found in findings if len(found.workers) == MAX_NAMED)
        assert missing[0] == (1 if 0 in numbers else 0)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_logs_of_the_second_machine_only():
    (finding,) = compare_logs(EXPECTED, [scan(log_text(), worker) for worker in (2, 3)]).findings
    assert (finding.workers, finding.level) == ((0, 1), Level.WARNING)


def test_no_log_at_all():
    assert errors() == [((), "no log of a worker in this folder")]
    assert errors("") == [((0,), "its log is empty")]
    assert errors(WorkerLog(0, problem="is a folder")) == [((0,), "its log is a folder")]


def test_offloads_that_the_compiler_dropped():
    text = log_text(train=[OFFLOAD_WARNING + "\n"])
    assert errors(text) == [((0,), "the compiler dropped offloads, because they are outside a lazy_inline cell")]
    assert report(log_text(mark=CPU_NOTE, train=[OFFLOAD_WARNING + "\n"])).is_ok


def test_lazy_inline_is_not_mentioned():
    (finding,) = report(log_text(mark="other")).findings
    assert (finding.level, finding.message[:33]) == (Level.WARNING, "does not report that lazy_inline ")


def test_out_of_memory():
    texts = [log_text(end=[OOM.replace("id:0", f"id:{device}")]) for device in (0, 1)]
    assert errors(*texts) == [
        (
            (0, 1),
            "out of device memory (operator, asked for 1073741824 bytes): memory isn't enough and alloc failed, "
            "kernel name: x, alloc size: 1073741824B.",
        )
    ]
    assert report(log_text(train=[OOM])).findings[0].level is Level.WARNING  # the run went on


def test_a_failure():
    log = WorkerLog(**{**vars(scan(log_text(end=[]))), "last_error": "ValueError: no", "last_step": "1/40"})
    assert errors(log) == [((0,), "failed at step 1/40: ValueError: no")]


def test_memory_against_the_prediction():
    texts = [log_text() + STATISTICS.format(used=used, actual=30720) for used in (24576, 24576, 26624)]
    result = report(*texts, predicted_peak_bytes=25 << 30)
    assert format_logs(result).splitlines()[:4] == [
        "memory         device  for MindSpore  used peak  with fragments  simulated peak  difference",
        "-----------  --------  -------------  ---------  --------------  --------------  ----------",
        "workers 0-1  61.0 GiB       56.8 GiB   24.0 GiB        30.0 GiB        25.0 GiB    -1.0 GiB",
        "worker 2     61.0 GiB       56.8 GiB   26.0 GiB        30.0 GiB        25.0 GiB    +1.0 GiB",
    ]
    assert logs_to_json(result)["memory"][2]["difference_bytes"] == 1 << 30
    assert "simulated" not in format_logs(report(texts[0]))


def test_the_report_groups_workers():
    bad = log_text([], mark="x")
    assert format_logs(report(bad, bad, log_text(), bad)) == (
        "workers 0-1, 3: error: trained, but nothing was set on any layer: mindswap was not active\n"
        "    fix: put `mindswap run` in front of the script: mindswap run run_mindformer.py --config ...\n"
        "logs of 4 workers do NOT show that the policy was in effect"
    )


def test_json():
    data = logs_to_json(report(log_text(), ""))
    assert (data["ok"], data["num_workers"], data["findings"][0]["workers"]) == (False, 2, [1])


def test_lines_of_a_policy():
    """The lines that the applier writes are the lines that are expected."""
    policy = Policy(
        is_swap_enabled=True,
        layer_swap=(LayerSwap(Layers((0, 3)), prefetch=20),),
        op_swap=(OpSwap(r"attention\.flash_attention", Layers((1, 3)), prefetch=1),),
    )
    expected = [format_log_lines(resolve_layer(policy, index, tree)) for index, tree in enumerate(trees().layers)]
    text = log_text([info(line) for lines in expected for line in lines])
    assert compare_logs(expected, [scan(text)]).is_ok
    assert not compare_logs(expected, [scan(log_text())]).is_ok
