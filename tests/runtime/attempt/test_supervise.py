"""The loop with real processes, one worker without msrun; the training itself is a stub (stub_training.py)."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from mindswap.runtime.attempt.command import SAFE_PATH
from tests.runtime.attempt.conftest import GIB, ROOT, finish, wait_for

pytestmark = pytest.mark.long


def test_a_training_that_fits_is_started_once(place):
    code, out = place.run()
    assert code == 0, out
    assert "attempt 1: from the beginning" in out and "the training finished" in out
    assert "an earlier run" not in out
    assert place.steps() == (1, 12)
    assert place.outcomes() == ["finished"]


@pytest.mark.skipif(not SAFE_PATH, reason="Python 3.10 has no option for it")
def test_workers_import_nothing_of_the_working_folder(place):
    """Unless a script is there: planner and training would be of two versions of MindFormers."""
    for name in ("yaml", "runpy", "mindformers"):
        (place.folder / f"{name}.py").write_text("raise SystemExit(f'{__file__} was imported')")
    code, out = place.run()
    assert code == 0, out


def test_the_users_file_stays_as_it_is(place):
    before = (place.folder / "c.yaml").read_bytes()
    assert place.run()[0] == 0
    assert (place.folder / "c.yaml").read_bytes() == before
    assert "# A comment of the user." in (place.run_dir / "attempt_1/plan.yaml").read_text()


def test_out_of_memory_tightens_and_goes_on_from_the_checkpoint(place):
    """Recompute (3 GiB) fails at step 6 with 1 GiB missing: the next plan may need 2 GiB. Checkpoints at 2 and 4."""
    place.stub["oom"] = {"recompute": 6}
    code, out = place.run()
    assert code == 0, out
    assert "worker 0 ran out of memory at step 5, 1.0 GiB were missing: memory isn't enough and alloc failed" in out
    assert "attempt 2: from the checkpoint of step 4, 1 steps are repeated" in out
    assert place.steps(1) == (1, 5) and place.steps(2) == (5, 12)
    status = place.status()
    assert place.outcomes() == ["out of memory", "finished"]
    assert (status["restarts"], status["steps_lost"]) == (1, 1)
    assert [attempt["budget_bytes"] for attempt in status["attempts"]] == [4 * GIB, 2 * GIB]


def test_what_never_fits_ends_with_the_budget_that_would(place):
    place.stub["oom"] = {"recompute": 1, "keep": 1}
    code, out = place.run()
    assert code == 1
    assert "no plan fits 1.0 GiB: at least 2.0 GiB are needed" in out
    assert place.outcomes() == ["out of memory"] * 2


def test_room_is_used_at_the_next_checkpoint(place):
    """3 GiB would not fit 2.5; but keep-all takes 1.2 instead of 2 GiB: 0.8 less everywhere, and 2.2 fits."""
    place.stub |= {"num_steps": 150, "step_s": 0.05, "save_every": 5, "peaks": {"keep": 12 * GIB // 10}}
    policies = [["keep", 2 * GIB, 50_000_000], ["recompute", 3 * GIB, 10_000_000]]
    process = place.start(policies=policies, memory="2.5GiB")
    wait_for(lambda: "step:[" in place.log(2))
    process.send_signal(signal.SIGINT)
    code, out = finish(process)
    assert code == 130
    assert "it starts at the next checkpoint" in out and "is complete: stopping the workers for plan recompute" in out
    assert place.outcomes() == ["stopped for a faster plan", "interrupted"]
    (_, last), (first, _) = place.steps(1), place.steps(2)
    status = place.status()
    assert (status["attempts"][0]["first_step"], status["attempts"][0]["last_step"]) == (0, last)
    assert status["steps_lost"] == last - (first - 1)
    assert status["corrections"]["static_offset_bytes"] == 12 * GIB // 10 - 2 * GIB


def test_a_loosened_plan_that_fails_is_never_tried_again(place):
    place.stub |= {"num_steps": 150, "step_s": 0.03, "save_every": 5, "peaks": {"keep": GIB}}
    policies = [["keep", 2 * GIB, 30_000_000], ["recompute", 3 * GIB, 1_000_000]]
    place.stub["oom"] = {"recompute": 140}
    code, out = place.run(policies=policies, memory="2.5GiB")
    assert code == 0, out
    assert place.outcomes() == ["stopped for a faster plan", "out of memory", "finished"]
    assert [attempt["plan"].split("-")[0] for attempt in place.status()["attempts"]] == ["keep", "recompute", "keep"]


def test_a_killed_worker_is_started_again_with_the_same_plan(place):
    place.stub["step_s"] = 0.05
    process = place.start()
    wait_for(lambda: "step:[    5" in place.log())
    os.kill(place.workers()[0][0], signal.SIGKILL)
    code, out = finish(process)
    assert code == 0, out
    assert "worker 0 was killed by SIGKILL" in out and "retrying with the same plan" in out
    first, last = place.steps(2)
    assert first in (5, 7) and last == 12
    assert place.outcomes() == ["killed", "finished"]


def test_kills_without_end_are_given_up(place):
    place.stub["step_s"] = 60
    process = place.start("--max-restarts", "2")
    for attempt in (1, 2, 3):
        wait_for(
            lambda attempt=attempt: (place.run_dir / f"attempt_{attempt}/worker_0.log").exists() and place.workers()
        )
        os.kill(place.workers()[0][0], signal.SIGKILL)
    code, out = finish(process)
    assert code == 1 and "all 2 restarts are used (--max-restarts)" in out


def test_a_training_that_fails_by_itself_is_not_repeated(place):
    place.stub["fail_at"] = 3
    code, out = place.run()
    assert code == 1
    assert "the training failed (not out of memory):" in out
    assert "worker_0.log: ValueError: boom at step 3" in out
    assert place.outcomes() == ["failed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_trains_stops_all_and_the_next_call_goes_on(place, number):
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("ignored by all that nohup starts")
    place.stub["step_s"] = 0.1
    process = place.start()
    wait_for(lambda: "step:[    5" in place.log())
    process.send_signal(number)
    code, out = finish(process)
    assert code == 128 + number and "stopping all workers" in out
    assert place.outcomes() == ["interrupted"]
    place.stub["step_s"] = 0.02
    code, out = place.run()
    last = place.steps(1)[1]  # 5, or more where the signal took its time; checkpoints at every second step
    assert code == 0 and f"attempt 2: from the checkpoint of step {last // 2 * 2}" in out
    assert place.outcomes() == ["interrupted", "finished"]


def test_ctrl_c_while_it_plans(place):
    place.environment["SLOW_PLAN_S"] = "30"
    process = place.start()
    wait_for(lambda: place.run_dir.joinpath("adaptive/state.json").exists())
    process.send_signal(signal.SIGINT)
    code, out = finish(process)
    assert code == 130 and "attempt" not in out.split("interrupted")[0]


def test_ctrl_c_while_workers_start(place):
    place.stub["step_s"] = 30
    process = place.start()
    wait_for(place.workers)
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130


@pytest.mark.parametrize("moment", ["before", "after_in_parent"])
def test_ctrl_c_during_the_fork_of_a_worker(place, moment):
    """Python drops what a handler raises there: the run went on if a worker began before its parent came back."""
    place.environment["SIGNAL_IN_FORK"] = moment
    place.stub |= {"step_s": 10, "num_steps": 2}
    code, out = place.run()
    assert code == 130 and "stopping all workers" in out, out
    assert place.outcomes() == ["interrupted"]


def test_ctrl_c_at_any_moment_of_the_start(place):
    place.stub["step_s"] = 60
    for delay_s in (index * 0.04 for index in range(12)):
        place.run_dir = place.folder / f"run_{delay_s:.2f}"
        process = place.start()
        wait_for(place.run_dir.joinpath("adaptive/state.json").exists)
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        code, out = finish(process, 60)
        assert code == 130 and "stopping all workers" in out, (delay_s, out)
        assert not place.workers()


def test_ctrl_c_twice_while_a_stubborn_worker_is_stopped(place):
    """The worker ignores SIGTERM: it is killed after the grace time, whatever else comes."""
    place.stub |= {"step_s": 0.05, "num_steps": 1000, "ignore_term": True}
    process = place.start()
    wait_for(lambda: "step:[    2" in place.log())
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    code, out = finish(process)
    assert code == 130, out
    assert place.outcomes() == ["interrupted"]


def test_when_mindswap_is_killed_outright_no_worker_stays(place):
    """Workers that ignore SIGTERM and would train for ten minutes; the next start goes on from their checkpoint."""
    place.stub |= {"step_s": 0.05, "num_steps": 12000, "ignore_term": True}
    process = place.start()
    wait_for(lambda: "step:[    5" in place.log())
    process.kill()
    process.communicate(timeout=300)
    wait_for(lambda: not place.workers())
    assert not place.status()["at_work"]
    place.stub |= {"step_s": 0.01, "num_steps": 12}
    assert place.status()["attempts"][0]["last_step"] >= 5
    code, out = place.run()
    assert code == 0 and "attempt 2: from the checkpoint of step " in out
    assert place.outcomes() == ["interrupted", "finished"]


def test_two_runs_in_one_directory_are_refused(place):
    place.stub["step_s"] = 60
    process = place.start()
    wait_for(place.workers)
    code, out = place.run()
    assert code == 1 and "an adaptive run is already running here" in out
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143


def test_a_damaged_state_is_ignored_with_a_message(place):
    path = place.run_dir / "adaptive/state.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\0\xff\0")
    code, out = place.run()
    assert code == 0 and f"{path} is " in out and "it is ignored, kept as " in out
    assert (path.parent / "state.json.ignored").read_bytes() == b"\0\xff\0"


def test_a_state_of_another_configuration_is_ignored(place):
    assert place.run()[0] == 0
    text = (place.folder / "c.yaml").read_text()
    (place.folder / "c.yaml").write_text(text.replace("num_layers: 4", "num_layers: 5"))
    code, out = place.run()
    assert code == 0 and "is of another configuration, version or device: it is ignored" in out


def test_a_second_training_remembers_what_ran_out_of_memory_and_nothing_else(place):
    place.stub["oom"] = {"recompute": 6}
    assert place.run()[0] == 0
    code, out = place.run()
    assert code == 0 and "1 plans are known to run out of memory" in out
    assert "attempt 1: from the beginning" in out
    assert place.outcomes() == ["finished"]


def test_checkpoints_that_were_there_before_do_not_count(place):
    assert place.run()[0] == 0  # leaves checkpoints up to step 12
    place.run_dir = place.folder / "another"
    place.stub["oom"] = {"recompute": 1}
    code, out = place.run()
    assert code == 0 and out.count("from the beginning") == 2


@contextlib.contextmanager
def small_disk(path, size):
    """A file system of this size; gives a function that makes it larger. Skips where mounting is not allowed."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mount is not permitted")
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=64m", path], check=True)
    finally:
        subprocess.run(["umount", path], check=True)


def test_a_full_disk_under_the_checkpoints_then_room_again(place):
    """8 KiB hold the checkpoints of steps 2 and 4; that of step 6 is left behind empty."""
    with small_disk(place.folder / "output/checkpoint", "8k") as make_room:
        code, out = place.run()
        assert code == 1 and "worker_0.log: OSError: [Errno 28] No space left on device" in out
        folder = place.folder / "output/checkpoint"
        assert f"    {folder}: 0 B of 8.0 KiB are free on its file system; a checkpoint needs 160 B, 160 B more" in out
        make_room()
        code, out = place.run()
        assert code == 0 and "attempt 2: from the checkpoint of step 4" in out
        assert place.outcomes() == ["failed", "finished"]


def test_a_full_run_directory_stops_before_anything_is_planned(place):
    with small_disk(place.run_dir, "4k") as make_room:
        (place.run_dir / "filler").write_bytes(b"x" * 4096)
        code, out = place.run()
        assert code == 1 and "planning" not in out
        assert f"{place.run_dir}: 0 B of 4.0 KiB are free on its file system; a run needs 1.0 MiB, 1.0 MiB more" in out
        make_room()
        assert place.run()[0] == 0


def test_a_run_directory_that_fills_up_names_itself(place):
    """The log of the worker takes what is left; it cannot say what went wrong."""
    place.stub |= {"num_steps": 60, "chatter_bytes": 2 << 20}
    with small_disk(place.run_dir, "1100k") as make_room:
        code, out = place.run()
        assert code == 1 and f"    {place.run_dir}: " in out and "a run needs 1.0 MiB" in out
        make_room()
        place.stub["chatter_bytes"] = 0
        code, out = place.run()
        assert code == 0, out


def full_folder(path):
    """A file system of 4 KiB, all of it taken."""
    (path / "lock").touch()
    (path / "filler").write_bytes(b"x" * 4096)


def test_a_full_disk_under_the_state_does_not_stop_the_training(place):
    folder = place.run_dir / "adaptive"
    with small_disk(folder, "4k"):
        full_folder(folder)
        code, out = place.run()
        assert code == 0, out
        assert out.count("cannot be written: No space left on device; the training goes on") == 1
        assert "the training finished" in out and "1-12" not in out.split("attempt 1")[0]
        assert not list(folder.glob("*.tmp"))


@pytest.mark.parametrize("what", ["deleted", "rotated", "truncated"])
def test_a_log_that_goes_away_does_not_blind_the_watch(place, what):
    place.stub |= {"step_s": 0.05, "num_steps": 20, "oom": {"recompute": 15}}
    process = place.start()
    wait_for(lambda: "step:[    3" in place.log())
    log = place.run_dir / "attempt_1/worker_0.log"
    if what == "deleted":
        log.unlink()
    elif what == "rotated":
        log.rename(log.with_suffix(".log.1"))
    else:
        os.truncate(log, 0)
    code, out = finish(process)
    assert code == 0, out
    assert "ran out of memory at step 14" in out


def test_jumps_of_the_clock_change_nothing(place):
    """The time of day goes back a day and forward ten with every look."""
    (place.folder / "clock").mkdir()
    (place.folder / "clock/sitecustomize.py").write_text(
        "import itertools, pathlib, time\npathlib.Path('jumps').touch()\n"
        "_jumps = itertools.cycle([-86400.0, 864000.0])\n_real = time.time\n"
        "time.time = lambda: _real() + next(_jumps)\ntime.time_ns = lambda: int(time.time() * 1e9)\n"
    )
    place.environment["EXTRA_PATH"] = str(place.folder / "clock")
    place.stub["oom"] = {"recompute": 6}
    code, out = place.run()
    assert code == 0 and "attempt 2: from the checkpoint of step 4" in out
    assert (place.folder / "jumps").exists()


def test_status_from_another_terminal(place):
    place.stub |= {"step_s": 0.1, "num_steps": 300}
    process = place.start()
    wait_for(lambda: "step:[   10" in place.log())
    status = place.status()
    assert status["at_work"] and status["attempts"][0]["last_step"] >= 10
    assert status["attempts"][0]["measured_peak_bytes"] == GIB
    text = subprocess.run(
        [sys.executable, "-m", "mindswap", "status", str(place.run_dir)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd="/",
    ).stdout  # fmt: skip
    assert text.splitlines()[0].split()[:2] == ["attempt", "plan"] and text.splitlines()[-1] == "running"
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130


def test_swap_set_by_hand_is_refused_and_replaced_on_demand(place):
    text = (place.folder / "c.yaml").read_text()
    (place.folder / "c.yaml").write_text(text.replace("swap: False", "swap: True"))
    code, out = place.run()
    assert code == 1
    assert "c.yaml:9:21: error: swap_config.swap: True: set by hand" in out and "--replace" in out
    assert not place.run_dir.exists()
    code, out = place.run("--replace")
    assert code == 0 and "swap_config.swap is replaced by the plan (--replace)" in out


def test_the_flag_stands_in_a_training_command_too(place):
    """Every option that is not of mindswap belongs to the training."""
    words = ["--config", "c.yaml", "--adaptive-memory-optimization", "--memory", "4GiB", "--run_mode", "train"]
    code, out = finish(place.start_words(*words))
    assert code == 0, out
    place.run_dir = place.folder / "output/msrun_log"
    assert place.steps() == (1, 12)
