"""Folders for MindStudio Insight: their files, columns and values against steps worked out by hand."""

import csv
import io
import json
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from mindswap.errors import DataError
from mindswap.features.dryrun.insight import dry_run_files, write_dry_run
from mindswap.features.dryrun.memory_pool import PoolBlock
from mindswap.features.dryrun.snapshot import snapshot, write_snapshot
from mindswap.features.dryrun.stage_runs import DryRunReport, stage_run
from mindswap.features.simulate.insight import simulated_files, write_simulated
from tests.features.dryrun.test_stage_runs import model, run_of
from tests.report.simulated import GIB, MIB, large_program, pipeline_report, report_of, small_report

STATIC_MIB = 4 * 1024
START_US = 1_000_000


def table(files: dict[str, str], name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(files[name])))


def small_files() -> dict[str, str]:
    report = small_report()
    return simulated_files(report, report.stages[0], 0)


def test_a_simulated_step_has_all_files_that_insight_shows():
    assert set(small_files()) == {
        "trace_view.json", "memory_record.csv", "operator_memory.csv", "static_op_mem.csv", "kernel_details.csv",
        "step_trace_time.csv", "communication.json",
    }  # fmt: skip


# Columns that the readers of Insight require: MemoryDef.h and KernelParse.h of Ascend/msinsight 4e16fca1f.
WANTED = {
    "kernel_details.csv": "Accelerator Core,Block Dim,Duration(us),Name,Start Time(us),Type,Wait Time(us)",
    "memory_record.csv": "Component,Timestamp(us),Device Type,Total Allocated(MB),Total Reserved(MB)",
    "operator_memory.csv": "Name,Allocation Time(us),Size(KB),Duration(us)",
    "static_op_mem.csv": "Device_id,Op Name,Model Name,Graph ID,Node Index Start,Node Index End,Size(KB)",
}


def test_files_have_the_columns_that_insight_wants():
    dry = dry_run_files(RUN, "case")
    for name, columns in WANTED.items():
        for files in (small_files(), dry):
            assert name not in files or set(columns.split(",")) <= set(files[name].partition("\n")[0].split(","))


def test_kernels_of_the_small_step():
    rows = table(small_files(), "kernel_details.csv")
    found = [(row["Type"], float(row["Start Time(us)"]) - START_US, float(row["Duration(us)"])) for row in rows]
    assert found == [("Mul", 0, 2000), ("MatMul", 5000, 2000), ("MatMulGrad", 7000, 4000), ("MulGrad", 16000, 4000),
                     ("optimizer", 20000, 5000)]  # fmt: skip
    # waits for the copy out, 2 to 5 ms, and for the copy back, 11 to 16 ms
    assert [float(row["Wait Time(us)"]) for row in rows] == [0, 3000, 0, 5000, 0]
    assert [row["Accelerator Core"] for row in rows] == [
        "AI_VECTOR_CORE",
        "AI_CORE",
        "AI_CORE",
        *["AI_VECTOR_CORE"] * 2,
    ]


def test_memory_of_the_small_step():
    files = small_files()
    rows = [
        (float(r["Timestamp(us)"]) - START_US, float(r["Total Allocated(MB)"]))
        for r in table(files, "memory_record.csv")
    ]
    assert rows == [(0, STATIC_MIB + 64), (5000, STATIC_MIB + 32), (11000, STATIC_MIB + 64), (20000, STATIC_MIB),
                    (25000, STATIC_MIB)]  # fmt: skip
    moved = [row for row in table(files, "operator_memory.csv") if row["Release Time(us)"]]
    assert [(row["Name"], float(row["Size(KB)"]), float(row["Duration(us)"])) for row in moved] == [
        ("ffn Mul", 64 * 1024, 5000), ("head MatMul", 32 * 1024, 6000), ("ffn Mul", 64 * 1024, 9000)
    ]  # fmt: skip
    # operators 0 to 3: the first copy is there for the first only, layer 1 from 1 to 2, what comes back from 2 on
    nodes = [row for row in table(files, "static_op_mem.csv") if float(row["Size(KB)"]) < GIB // 1024]
    assert [(row["Node Index Start"], row["Node Index End"]) for row in nodes] == [("0", "0"), ("1", "2"), ("2", "3")]


def test_a_step_is_computing_communication_alone_and_free():
    row = table(small_files(), "step_trace_time.csv")[0]
    assert (float(row["Computing"]), float(row["Free"]), float(row["Communication"])) == (17000, 8000, 0)
    report = pipeline_report()
    # stage 0: 30 ms of operators; it sends 10-11, and the receive that ends at 44 has begun at 11
    row = table(simulated_files(report, report.stages[0], 0), "step_trace_time.csv")[0]
    assert (float(row["Computing"]), float(row["Communication(Not Overlapped)"])) == (30000, 34000)


def test_trace_and_table_name_communication_alike():
    report = pipeline_report()
    files = simulated_files(report, report.stages[0], 0)
    events = [e for e in json.loads(files["trace_view.json"]) if e["ph"] == "X" and e["pid"] == 2]
    told = json.loads(files["communication.json"])["step1"]["p2p"]
    assert {f"{event['name']}@0" for event in events} == set(told)
    assert all(event["name"].startswith("hcom_") for event in events)
    # backward begins at 44, so compute waits 10-44; meanwhile the stage sends 10-11 and receives 43-44, in other rows
    assert [each["Communication Time Info"]["Elapse Time(ms)"] for each in told.values()] == [34, 1, 1]
    assert len({event["tid"] for event in events}) == 3


@pytest.mark.parametrize("report", [small_report(), pipeline_report(), report_of(large_program(2, 3, 3, 5))])
def test_the_parts_of_a_step_add_up(report):
    for stage in report.stages:
        files = simulated_files(report, stage, 0)
        row = {key: float(value) for key, value in table(files, "step_trace_time.csv")[0].items()}
        parts = row["Computing"] + row["Communication(Not Overlapped)"] + row["Free"]
        assert parts == pytest.approx(report.step_time_ns / 1000)
        assert row["Overlapped"] + row["Communication(Not Overlapped)"] == pytest.approx(row["Communication"])
        most = max(float(each["Total Allocated(MB)"]) for each in table(files, "memory_record.csv"))
        assert most == stage.peak_bytes / MIB
        names = {e["args"]["name"] for e in json.loads(files["trace_view.json"]) if e["name"] == "process_name"}
        assert names == {"Ascend Hardware", "Communication", "Overlap Analysis"}
        assert "Total Op Info" in json.loads(files["communication.json"])["step1"]["collective"]


def test_a_folder_for_the_first_card_of_each_stage(tmp_path):
    write_simulated(pipeline_report(), tmp_path / "step")
    assert sorted(path.name for path in (tmp_path / "step").iterdir()) == ["rank_0_ascend_ms", "rank_1_ascend_ms"]
    about = json.loads((tmp_path / "step/rank_1_ascend_ms/profiler_info_1.json").read_text())
    assert about["rank_id"] == 1 and about["what"].startswith("simulated step on Atlas")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file: is not a folder"):
        write_simulated(pipeline_report(), tmp_path / "file")


@pytest.mark.skipif(not shutil.which("msprof-analyze"), reason="pip install msprof-analyze==26.2.0")
def test_msprof_analyze_reads_a_simulated_step(tmp_path):
    write_simulated(small_report(), tmp_path)
    folder = str(tmp_path / "rank_0_ascend_ms")
    command = ["msprof-analyze", "compare", "-d", folder, "-bp", folder, "-o", str(tmp_path / "compared")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # computing 17 ms, free 8, 4096 + 64 MiB at most, the step 25: as in the test of the parts above
    rows = [re.findall(r"\d+\.\d+[sG]", line) for line in shown.splitlines() if line.startswith("| NPU")]
    assert [row[1:3] + row[-2:] for row in rows] == [["0.017s", "4.06G", "0.008s", "0.025s"]] * 2


RUN = run_of([("Default/a/Mul-op0", 10 * MIB), ("Default/a/Add-op1", 30 * MIB), ("Default/a/Sub-op2", 20 * MIB)])


def dry_report() -> DryRunReport:
    return DryRunReport("case", (stage_run(0, 2, {2: model(2)}),), None, 2, (2,), None, False)


def test_a_dry_run_has_memory_and_order_but_no_times(tmp_path):
    files = dry_run_files(RUN, "case")
    assert set(files) == {"trace_view.json", "memory_record.csv", "operator_memory.csv", "static_op_mem.csv"}
    live = [float(row["Total Allocated(MB)"]) for row in table(files, "memory_record.csv")]
    assert live == [10, 30, 20, 0]
    order = [event["name"] for event in json.loads(files["trace_view.json"]) if event["ph"] == "X"]
    assert order == ["Default/a/Mul-op0", "Default/a/Add-op1", "Default/a/Sub-op2"]
    nodes = [(row["Node Index Start"], row["Node Index End"]) for row in table(files, "static_op_mem.csv")]
    assert [first for first, _ in nodes] == ["0", "1", "2"]
    write_dry_run(dry_report(), tmp_path / "dry")
    about = json.loads((tmp_path / "dry/rank_0_ascend_ms/profiler_info_0.json").read_text())
    assert "no times" in about["what"]


def replayed(found: dict) -> list[int]:
    """Live bytes after each event of the first device, as memory_viz adds them up."""
    live: dict[int, int] = {}
    sums = []
    for event in found["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"]) == event["size"]
        sums.append(sum(live.values()))
    return sums


def test_a_snapshot_has_the_peak_of_the_dry_run(tmp_path):
    write_snapshot(dry_report(), tmp_path / "memory.pickle")
    found = pickle.loads((tmp_path / "memory.pickle").read_bytes())
    assert found == snapshot([model(2)])
    assert max(replayed(found)) == model(2).used_peak_bytes
    keys = {"action", "addr", "size", "stream", "frames", "time_us"}
    assert all(set(event) == keys for event in found["device_traces"][0])
    assert found["segments"][0]["total_size"] == sum(block["size"] for block in found["segments"][0]["blocks"])


def test_blocks_of_a_snapshot_never_overlap_and_lie_in_the_segment():
    stays = [PoolBlock(0, sys.maxsize, 4, "Weight", "w", 0, -1), PoolBlock(3, sys.maxsize, 2, "Weight", "v", 0, -1)]
    passing = [PoolBlock(1, 3, 6, "Kernel", "a", 0, 2), PoolBlock(2, 5, 3, "Kernel", "b", 0, 4)]
    found = snapshot([replace(RUN, blocks=(*stays, *passing))])
    segment = found["segments"][0]
    # w 0-4, a 4-10, b 10-13; v takes the first 2 of what a left
    assert [(b["address"] - segment["address"], b["size"], b["state"]) for b in segment["blocks"]] == [
        (0, 4, "active_allocated"), (4, 2, "active_allocated"), (6, 7, "inactive")
    ]  # fmt: skip
    assert segment["total_size"] == 13
    assert replayed(found) == [4, 10, 13, 13, 7, 9, 9, 6]


@pytest.mark.skipif(find_spec("torch") is None, reason="pip install torch")
def test_torchs_own_tool_reads_a_snapshot(tmp_path):
    write_snapshot(dry_report(), tmp_path / "memory.pickle")
    tool = Path(find_spec("torch").origin).parent / "cuda" / "_memory_viz.py"  # needs no card, and not torch itself

    def told(what: str) -> str:
        command = [sys.executable, str(tool), what, str(tmp_path / "memory.pickle")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    made = dict(re.findall(r"^(\w) = MEM\[\d+:([\d.]+)B\]", told("trace"), re.MULTILINE))
    blocks = sorted(model(2).blocks, key=lambda block: block.start)
    assert [float(size) for size in made.values()] == [block.size_bytes for block in blocks]
    assert re.findall(r"^# free completed for (\w) ", told("trace"), re.MULTILINE) == list(made)
    assert f"total_reserved: {snapshot([model(2)])['segments'][0]['total_size']}.0B" in told("stats")
