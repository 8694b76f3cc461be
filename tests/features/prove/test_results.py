"""What runs left behind: logs and profiles written by hand, in the forms of MindSpore 2.9 on Ascend."""

import tarfile

import pytest

from mindswap.features.prove.proof import Simulated
from mindswap.features.prove.support_bundle import describe_machine, pack
from mindswap.features.prove.worker_runs import read_measured, read_simulated
from mindswap.runtime.logs.step_report import ReportedStep, format_step
from tests.simulator.cost.profiles import copy, kernel, write_profile

HEAD = "2026-01-01 10:00:00,000 - mindformers[x.py:1] - INFO - "
STATISTICS = """\
[WARNING] DEVICE(7,7f,python):2026-01-01-10:00:00.000.000 [ascend_mem_adapter.cc:1] DeInitialize] Ascend Memory Adapter
Device MOC memory size: 62420M
MindSpore Used memory size: 59392M
Used peak memory usage (without fragments): 15360M
Actual peak memory usage (with fragments): 15872M
"""
STEPS = (ReportedStep(1, 10.5, 60_000_000_000), ReportedStep(2, 10.25, 100_000_000))
ANALYSIS = {"ph": "M", "name": "process_name", "pid": 5, "tid": 0, "args": {"name": "Overlap Analysis"}}
HARDWARE = {"ph": "M", "name": "process_name", "pid": 10328512, "tid": 0, "args": {"name": "Ascend Hardware"}}


def write_logs(folder, text):
    (folder / "logs").mkdir(parents=True)
    for rank in range(2):
        (folder / "logs" / f"worker_{rank}.log").write_text(text)


def finished_log():
    lines = [f"{HEAD}{format_step(step)}" for step in STEPS]
    return "\n".join([*lines, f"{HEAD}.........Training Over!.............", STATISTICS])


def test_steps_and_memory_of_every_worker(tmp_path):
    write_logs(tmp_path, finished_log())
    measured = read_measured(tmp_path, 0, 1.0)
    assert [worker.number for worker in measured.workers] == [0, 1]
    assert measured.workers[1].steps == STEPS
    assert measured.workers[1].used_peak_bytes == 15360 << 20
    assert (measured.is_out_of_memory, measured.last_error, measured.profile) == (False, "", None)


def test_a_worker_that_ran_out_of_memory(tmp_path):
    write_logs(
        tmp_path, "RuntimeError: Allocate continuous memory failed. Out of Memory!!! Request memory size: 1024 B\n"
    )
    measured = read_measured(tmp_path, 1, 1.0)
    assert measured.is_out_of_memory
    assert measured.last_error.startswith("RuntimeError: Allocate")


def test_a_run_without_a_log(tmp_path):
    assert read_measured(tmp_path, 1, 1.0).workers == ()


def write_run_with_profile(folder):
    write_logs(folder, finished_log())
    computing = {"ph": "X", "name": "Computing", "pid": 5, "tid": 0, "ts": "1717575960000000.000", "dur": 30}
    # Copy 20-60 us, compute 0-30 us: 10 of 40 us are hidden.
    events = [ANALYSIS, HARDWARE, computing, copy(20, 40, 4096)]
    # 2 x 4096^3 FLOPs in 600 us: 229 TFLOPS of 313.
    matmul = kernel("MatMulV2", "600", "FLOAT16 4096,4096; FLOAT16 4096,4096", "FLOAT16 4096,4096")
    kernels = [matmul] * 20
    return write_profile(folder / "profile" / "rank_0", kernels, events)


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\xff\xfe\x00", b'[{"ph": "X"', b"3"])
def test_a_broken_trace_costs_the_overlap_and_nothing_else(tmp_path, content):
    """The runs took minutes on cards: their logs, and the kernels of the profile, are still worth something."""
    (write_run_with_profile(tmp_path) / "trace_view.json").write_bytes(content)
    measured = read_measured(tmp_path, 0, 1.0)
    assert measured.overlap is None and measured.profile is not None and measured.workers[0].steps


def test_the_profile_of_a_run(tmp_path):
    write_run_with_profile(tmp_path)
    measured = read_measured(tmp_path, 0, 1.0)
    assert measured.profile is not None and measured.profile.endswith("ASCEND_PROFILER_OUTPUT")
    overlap = measured.overlap
    assert overlap is not None
    assert (overlap.copy_ns, overlap.hidden_ns, overlap.compute_ns, overlap.size_bytes) == (
        40_000,
        10_000,
        30_000,
        4096,
    )


def test_a_simulated_step_without_its_terms():
    first = {
        "link_out_use": 0.2, "link_in_use": 0.3, "exposed_copy_out_ns": 7, "exposed_copy_in_ns": 8,
        "copied_out_bytes": 5, "copied_in_bytes": 5,
    }  # fmt: skip
    data = {"step_time_ns": 1200, "peak_bytes": 9, "stages": [first], "terms": [{"duration_ns": 200}]}
    # The links are busy 20 % and 30 % of 1000 ns.
    assert read_simulated(data) == Simulated(1200, 9, 500, 15, 10)


def test_what_is_sent_back_has_no_data_and_only_telling_lines(tmp_path):
    proof = tmp_path / "proof"
    write_run_with_profile(proof / "yaml")
    (proof / "yaml" / "output").mkdir()
    (proof / "yaml" / "output" / "weights.safetensors").write_text("w")
    for name in ("report.json", "yaml.yaml", "synthetic.mindrecord"):
        (proof / name).write_text("x")
    log = proof / "yaml" / "logs" / "worker_0.log"
    log.write_text("the whole configuration\n" + log.read_text())
    with tarfile.open(pack(proof)) as archive:
        names = [name.removeprefix("proof/") for name in archive.getnames()]
        member = archive.extractfile("proof/yaml/logs/worker_0.log")
        assert member is not None
        sent = member.read().decode()
    assert [name for name in names if "profile" not in name] == [
        "report.json", "yaml.yaml", "yaml/logs/worker_0.log", "yaml/logs/worker_1.log",
    ]  # fmt: skip
    assert {name.rpartition("/")[2] for name in names if "profile" in name} == {"kernel_details.csv", "trace_view.json"}
    assert "mindswap: step 2: loss 10.25" in sent and "Used peak memory" in sent and "configuration" not in sent


def test_a_machine_without_cards_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe_machine()["npu-smi"].startswith("no Ascend cards")
