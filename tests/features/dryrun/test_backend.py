"""A rank of a dry run as a process: how its end is told."""

import json
import re
import resource
import sys
import threading
import time
from pathlib import Path

import pytest

from mindswap.config.render import document_from_data
from mindswap.config.source import load_document
from mindswap.errors import LaunchError
from mindswap.features.dryrun import backend as on_backend
from mindswap.runtime.short_run import write_backend_config

TASK = "4,17_Default/network-Llama/1-Layer/MatMul-op3,Default/network-Llama/MatMul-op3,kernel_graph0,,,,"


@pytest.fixture
def python(tmp_path, monkeypatch):
    """What stands in for the training is a shell script."""

    def script(text: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    monkeypatch.setattr(on_backend, "ascend_backend", lambda stack: ([], {"PATH": "/usr/bin:/bin"}))
    return script


def start(tmp_path, report_status=lambda line: None, **options):
    return on_backend.run_rank(tmp_path / "x.yaml", tmp_path / "rank_3", 3, 8, report_status, **options)


def test_a_crash_names_the_signal_the_last_operator_and_the_log(tmp_path, python):
    python(f"mkdir -p tracker/rank_3; echo '{TASK}' > tracker/rank_3/task.csv; kill -SEGV $$")
    with pytest.raises(LaunchError) as error:
        start(tmp_path)
    first, operator, log = str(error.value).splitlines()
    assert first == "dry run of rank 3: the backend crashed (SIGSEGV)"
    assert operator == "    last operator: Default/network-Llama/MatMul-op3"
    assert log == f"    log:     {tmp_path / 'rank_3' / 'log'}"


def test_a_failure_gives_the_last_error_of_the_log(tmp_path, python):
    python("echo 'RuntimeError: The pointer[ker_ptr] is null.'; exit 1")
    with pytest.raises(LaunchError, match=re.escape("rank 3: RuntimeError: The pointer[ker_ptr] is null.\n    log: ")):
        start(tmp_path)


def test_a_folder_that_vanishes_is_a_message(tmp_path, python):
    """systemd-tmpfiles, or a user who makes room, removes it while the backend runs, or before its tables are read."""
    for end in ("sleep 60", "exit 1", "exit 0"):
        python(f'rm -rf "$PWD"; {end}')
        with pytest.raises(LaunchError) as error:
            start(tmp_path, max_s=20)
        first, fix = str(error.value).splitlines()
        assert first.startswith(f"dry run of rank 3: {tmp_path}/rank_3") and first.endswith("No such file or directory")
        assert fix.startswith("    fix:     --keep FOLDER")


def test_one_that_hangs_is_given_up(tmp_path, python):
    python("sleep 60")
    with pytest.raises(LaunchError, match="rank 3: given up after 1 s"):
        start(tmp_path, max_s=0.6)


def test_the_compiler_may_go_deep(tmp_path, python):
    """8 MiB, which is usual, was too little for a long pipeline; a stack of any size is left as it is."""
    python("ulimit -s > stack")
    limits = resource.getrlimit(resource.RLIMIT_STACK)
    with pytest.raises(LaunchError):
        start(tmp_path)
    (found,) = (path.read_text().split() for path in tmp_path.rglob("stack"))
    is_unlimited = limits[0] == resource.RLIM_INFINITY
    assert found == ["unlimited" if is_unlimited else str(max(limits[0], on_backend.STACK_BYTES) // 1024)]


def test_progress_has_each_phase_and_repeats_a_long_one(tmp_path, python, monkeypatch):
    """A log, which nobody sees change, needs a line now and then."""
    monkeypatch.setattr(on_backend, "REPEAT_S", 0.5)
    at = "2026-11-29-13:22:23.372.793"
    lines = [f"{at}: {text}" for text in ("Start performing graph optimization.", "Start generating kernels.")]
    lines += [f"{at}: End compiling 'MFTrainOneStepCell.construct'.", "{ Epoch:[  1/  1], step:[    1/    2], loss: 0"]
    python("sleep 0.5; " + "".join(f'echo "{line}"; sleep 0.5; ' for line in lines) + "sleep 1; exit 1")
    said: list[str] = []
    with pytest.raises(LaunchError):
        start(tmp_path, report_status=said.append)
    phases = ["building the network", "performing graph optimization", "generating kernels", "launching the step"]
    assert list(dict.fromkeys(line.partition(",")[0] for line in said)) == [*phases, "step 1/2"]
    assert any(re.fullmatch(r"step 1/2, \d s", line) for line in said)


def test_the_cpu_time_of_a_run_is_measured(tmp_path, python, monkeypatch):
    monkeypatch.setattr(on_backend, "read_rank", lambda folder, rank, wall_s, is_inlined, cpu_s: cpu_s)
    python("i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done; sleep 0.5")
    assert 0.05 < start(tmp_path) < 20


def test_it_ends_when_it_is_told_to(tmp_path, python):
    python("sleep 60")
    stop = threading.Event()
    stop.set()
    begin_s = time.monotonic()
    with pytest.raises(LaunchError):
        start(tmp_path, stop=stop.is_set)
    assert time.monotonic() - begin_s < 50


def test_what_does_not_build_inlined_is_run_again_without(tmp_path, python):
    fault = "echo 'RuntimeError: The pointer[ker_ptr] is null.'; exit 1"
    python(f'[ "$MS_DEV_RUNTIME_CONF" = switch_inline:False ] || {{ {fault}; }}; echo built')
    said = []
    with pytest.raises(LaunchError, match="printed no peak of memory") as error:
        start(tmp_path, report_status=said.append)
    assert f"log:     {tmp_path / 'rank_3_not_inlined' / 'log'}" in str(error.value)
    assert any("switch_inline:False" in line for line in said)


def test_a_file_of_speed_up_settings_is_found_and_needs_no_sink_mode(tmp_path, monkeypatch):
    """MindSpore refuses `dataset_broadcast_opt_level` without sink mode, and paths are from where the command is."""
    (tmp_path / "speed.json").write_text('{"dataset_broadcast_opt_level": 3, "matmul_grad_comm_overlap": true}')
    document = load_document("configs/llama2_7b/case2_layer_swap.yaml")
    data = document.data()
    data["context"]["ascend_config"] = {"parallel_speed_up_json_path": "speed.json", "precision_mode": "x"}
    monkeypatch.chdir(tmp_path)
    made = write_backend_config(document_from_data(data, "x.yaml"), 32, 8, None, lambda _: None, Path("run"))
    found = load_document(str(made)).data()["context"]["ascend_config"]
    path = tmp_path / "run" / "parallel_speed_up.json"
    assert found == {"parallel_speed_up_json_path": str(path), "precision_mode": "x"}
    assert json.loads(path.read_text()) == {"matmul_grad_comm_overlap": True}


def test_a_file_of_speed_up_settings_that_is_missing_is_named_where_the_user_expects_it(tmp_path, monkeypatch):
    data = load_document("configs/llama2_7b/case2_layer_swap.yaml").data()
    data["context"]["ascend_config"] = {"parallel_speed_up_json_path": "./configs/speed.json"}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LaunchError) as error:
        write_backend_config(document_from_data(data, "x.yaml"), 32, 8, None, lambda _: None, Path("run"))
    assert f"parallel_speed_up_json_path: {tmp_path}/configs/speed.json does not exist" in str(error.value)
    assert str(error.value).startswith("x.yaml:") and "rank_" not in str(error.value)
    assert not Path("run").exists()
