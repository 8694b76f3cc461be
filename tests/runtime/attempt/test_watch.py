import os
import time

import pytest

from mindswap.runtime.attempt.watch import LogFollower, RunWatch, read_worker_exits
from tests.runtime.logs.samples import OVER, STEP, info

OOM = "RuntimeError: Device(id:0) memory isn't enough and alloc failed, kernel name: MatMul, alloc size: 4096B.\n"
PEAK = "mindswap: peak memory {0} bytes used, {0} bytes reserved"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "worker_0.log"


@pytest.fixture
def follower(log):
    follower = LogFollower(log)
    yield follower
    follower.close()


def new(follower):
    blocks = []
    follower.poll(blocks.append)
    return b"".join(blocks)


def test_only_new_bytes_are_given(log, follower):
    assert new(follower) == b""
    log.write_bytes(b"one\n")
    assert new(follower) == b"one\n"
    assert new(follower) == b""
    with log.open("ab") as file:
        file.write(b"two")
    assert new(follower) == b"two"


def test_a_deleted_log_is_read_on(log, follower):
    with log.open("wb", buffering=0) as file:
        file.write(b"one\n")
        assert new(follower) == b"one\n"
        log.unlink()
        file.write(b"two\n")
        assert new(follower) == b"two\n"


def test_a_rotated_log_and_the_one_in_its_place(log, follower):
    with log.open("wb", buffering=0) as file:
        file.write(b"one\n")
        assert new(follower) == b"one\n"
        log.rename(log.with_suffix(".1"))
        file.write(b"two\n")
        log.write_bytes(b"three\n")
        assert new(follower) == b"two\nthree\n"


def test_a_truncated_log_begins_anew(log, follower):
    log.write_bytes(b"a long line\n")
    new(follower)
    os.truncate(log, 0)
    assert new(follower) == b""
    log.write_bytes(b"new\n")
    assert new(follower) == b"new\n"


def steps(*numbers, time_ms=309):
    return "".join(info(STEP.format(step=number)).replace("309ms", f"{time_ms}ms") for number in numbers)


def test_what_all_workers_say(tmp_path):
    """The slower worker counts for the step and its time; the larger for memory."""
    logs = {rank: tmp_path / f"worker_{rank}.log" for rank in (0, 1)}
    watch = RunWatch(logs)
    assert watch.poll().step == 0
    logs[0].write_text(steps(1, 2, 3) + info(PEAK.format(500)))
    logs[1].write_text(steps(1, 2, time_ms=400) + info(PEAK.format(700)) + info(OVER) + OOM)
    seen = watch.poll()
    assert (seen.step, seen.num_steps, seen.num_timed_steps) == (2, 40, 1)
    assert (seen.step_time_ns, seen.peak_bytes, seen.num_finished) == (400_000_000, 700, 1)
    worker, event = seen.out_of_memory
    assert (worker, event.missing_bytes) == (1, 4096)
    watch.close()


def test_what_msrun_says_of_a_worker_that_died():
    text = "[ERROR] ME(1:2,MainProcess):... [x.py:1] Worker process 20300 exit with exception. Error code: -9.\n"
    assert read_worker_exits(text) == [(20300, -9)]
    assert read_worker_exits("All workers successfully exit!") == []


def test_watching_reads_each_line_once(tmp_path):
    """Eight workers with ten steps a second each, looked at every second: the last minute costs what the first did."""
    logs = {rank: tmp_path / f"worker_{rank}.log" for rank in range(8)}
    watch = RunWatch(logs)
    rounds = iter(range(1000))

    def minute():
        for number in (next(rounds) for _ in range(60)):
            for path in logs.values():
                with path.open("a") as file:
                    file.write(steps(*range(10 * number, 10 * number + 10)))
            watch.poll()

    def cpu_s():
        before = time.process_time()
        minute()
        return time.process_time() - before

    spent = [cpu_s() for _ in range(10)]
    watch.close()
    assert min(spent[7:]) < 4 * min(spent[:3])  # 8 times as much where all is read again each time


def test_a_read_that_fails_is_tried_again(follower, log, monkeypatch):
    """As of a file server that is away for a moment."""
    log.write_bytes(b"one\n")
    assert new(follower) == b"one\n"
    with log.open("ab") as file:
        file.write(b"two\n")
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda descriptor: (_ for _ in ()).throw(OSError(116, "Stale file handle")))
    assert new(follower) == b""
    monkeypatch.setattr(os, "fstat", real)
    assert new(follower) == b"two\n"


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(follower, log):
    os.mkfifo(log)
    assert new(follower) == b""
