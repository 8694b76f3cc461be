"""The end of real processes, which stand for the workers and for msrun; their logs are written by them."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from mindswap.errors import PlanError
from mindswap.graph.capture_cache import to_plain
from mindswap.runtime.attempt import watch as watch_module
from mindswap.runtime.attempt import workers as workers_module
from mindswap.runtime.attempt.model import Corrections, Ended, NothingFits, Outcome, TrainingPlan
from mindswap.runtime.attempt.workers import Workers, count_oom_kills, planner_in_child
from mindswap.runtime.crashes import END
from tests.runtime.attempt.stub_training import OOM, STEP
from tests.runtime.logs.samples import OVER, info

EXIT = "[ERROR] ME(1:2,MainProcess):... [x.py:1] Worker process {} exit with exception. Error code: {}.\n"


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Starts a program and waits for its end, or for what it prints; the program may write logs in its folder."""
    monkeypatch.setattr(workers_module, "DRAIN_S", 0.1)
    started = []

    def begin(code, has_msrun=False, ranks=(0,), until=None):
        workers = Workers()
        workers.turn_to(tmp_path, ranks, has_msrun=has_msrun)
        workers.start_words([sys.executable, "-c", f"import os, time\n{code}"], os.environ, tmp_path)
        started.append(workers)
        while until is None and workers._process.poll() is None:
            time.sleep(0.01)
        while until is not None and until not in (tmp_path / "msrun.log").read_text():
            time.sleep(0.01)
        return workers

    yield begin
    for workers in started:
        workers._process.kill()
        workers._process.wait()
        workers.close()


def step(number, of=12):
    return STEP % (number, of, 20)


def test_a_training_that_ends_well(begin):
    workers = begin(f"print({step(12)!r}); print({info(OVER)!r})")
    assert workers.ended() is True
    assert workers.explain() == Ended(Outcome.FINISHED, 12)


def test_an_end_without_an_error_before_the_last_step_is_a_kill(begin):
    workers = begin(f"print({step(11)!r})")
    assert workers.explain() == Ended(Outcome.KILLED, 11, "msrun ended before the training did")


@pytest.mark.parametrize("text", [step(12), "", step(3) + "\n" + info(OVER)])
def test_the_last_step_or_the_last_line_is_the_end_of_a_training(begin, text):
    assert begin(f"print({text!r})").explain().outcome is Outcome.FINISHED


def test_all_run(begin, tmp_path):
    workers = begin("print('up', flush=True); time.sleep(60)", has_msrun=True, until="up")
    assert workers.ended() is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_with_which_somebody_ends_a_process(begin, number):
    workers = begin(f"import signal; signal.signal({int(number)}, 0) if {int(number)} != 9 else 0\n"
                    f"os.kill(os.getpid(), {int(number)})")  # fmt: skip
    assert workers.ended() is False
    assert workers.explain() == Ended(Outcome.KILLED, 0, f"worker 0 was killed by {number.name}")


def test_a_crash_is_a_failure_with_its_signal(begin):
    event = begin("os.kill(os.getpid(), 11)").explain()
    assert (event.outcome, event.exit_code) == (Outcome.FAILED, 1)
    assert event.text.splitlines()[0] == "    worker 0 crashed with SIGSEGV"


def test_a_crash_after_the_training_is_over_is_told_and_no_failure(begin):
    """Seen once in hundreds of trainings: MindSpore 2.9.0 crashed while it released what it held."""
    event = begin(f"print({step(12)!r}); print({END!r}, flush=True); os.kill(os.getpid(), 11)").explain()
    assert event == Ended(Outcome.FINISHED, 12, "worker 0 crashed with SIGSEGV after the training was over")


def test_a_late_crash_of_the_scheduler_of_msrun_is_told_and_no_failure(begin, tmp_path):
    """msrun names no worker then."""
    write = f"open('worker_0.log', 'w').write({step(12) + chr(10) + END + chr(10)!r})"
    event = begin(f"{write}; os._exit(1)", has_msrun=True).explain()
    assert event == Ended(Outcome.FINISHED, 12, "the scheduler of msrun failed after the training was over")


def test_msrun_that_fails_before_the_end_is_a_failure(begin, tmp_path):
    event = begin(f"open('worker_0.log', 'w').write({step(11)!r}); os._exit(1)", has_msrun=True).explain()
    assert (event.outcome, event.exit_code) == (Outcome.FAILED, 1)


def test_a_crash_while_a_script_goes_on_after_its_training_is_a_failure(begin):
    """MindFormers has logged the end of the training, and the script exports the weights."""
    event = begin(f"print({info(OVER)!r}, flush=True); os.kill(os.getpid(), 11)").explain()
    assert (event.outcome, event.text.splitlines()[0]) == (Outcome.FAILED, "    worker 0 crashed with SIGSEGV")


def test_an_error_after_the_training_is_over_is_a_failure(begin):
    """Python says what it was: a checkpoint that could not be written, for one."""
    event = begin(f"print({step(12)!r}); print({END!r}, flush=True); os._exit(7)").explain()
    assert (event.outcome, event.exit_code) == (Outcome.FAILED, 7)


def test_the_exit_code_of_a_training_is_kept(begin):
    event = begin("print('ValueError: x'); os._exit(7)").explain()
    assert (event.outcome, event.exit_code) == (Outcome.FAILED, 7)
    assert "crashed" not in event.text and "worker_0.log: " in event.text


def test_a_log_that_speaks_of_memory_goes_before_the_exit_code(begin):
    event = begin(f"print({step(5)!r}); print({OOM.format(4096)!r}); os._exit(1)").explain()
    assert (event.outcome, event.step, event.worker, event.missing_bytes) == (Outcome.OUT_OF_MEMORY, 5, 0, 4096)


def test_a_worker_of_msrun_that_died_is_named_by_its_rank_while_msrun_still_runs(begin):
    workers = begin(f"print({EXIT.format(77, -9)!r}, flush=True); time.sleep(60)", True, (0, 1), until="-9")
    workers._ranks[77] = 1  # as found in the environment of the process
    assert workers.ended() is False
    assert workers.explain() == Ended(Outcome.KILLED, 0, "worker 1 was killed by SIGKILL")


def test_the_last_lines_of_a_worker_are_waited_for(begin, monkeypatch):
    """msrun tells of its end before its log says why."""
    late = f"time.sleep(0.5); open('worker_1.log', 'w').write({OOM.format(4096)!r} + '\\n'); time.sleep(60)"
    workers = begin(f"print({EXIT.format(77, 1)!r}, flush=True)\n{late}", True, (0, 1), until="code: 1")
    monkeypatch.setattr(workers_module, "DRAIN_S", 60)
    event = workers.explain()
    assert (event.outcome, event.worker, event.missing_bytes) == (Outcome.OUT_OF_MEMORY, 1, 4096)


def test_msrun_that_ends_well_without_its_workers(begin):
    workers = begin(f"print({EXIT.format(77, 3)!r})", has_msrun=True)
    assert workers.ended() is False
    assert (workers.explain().outcome, workers.explain().exit_code) == (Outcome.FAILED, 3)


def test_msrun_itself_is_killed(begin):
    workers = begin("os.kill(os.getpid(), 9)", has_msrun=True)
    assert workers.explain().text == "msrun was killed by SIGKILL"


@pytest.mark.parametrize(
    ("number", "is_counted", "outcome"),
    [(9, True, Outcome.OUT_OF_MEMORY), (9, False, Outcome.KILLED), (15, True, Outcome.KILLED)],
)
def test_the_kernel_that_kills_for_want_of_memory_counts_it(begin, monkeypatch, number, is_counted, outcome):
    count = count_oom_kills()
    workers = begin(f"os.kill(os.getpid(), {number})")
    monkeypatch.setattr(workers_module, "count_oom_kills", lambda: count + is_counted)
    assert workers.explain().outcome is outcome


def test_the_newest_output_of_msrun_is_kept(begin, tmp_path, monkeypatch):
    """A worker that died long ago is not looked for without end: so many bytes are."""
    monkeypatch.setattr(watch_module, "MAX_KEPT_BYTES", 200)
    workers = begin(f"print({EXIT.format(7, 1)!r} + 'x' * 50)", has_msrun=True)
    assert workers.ended() is False
    with (tmp_path / "msrun.log").open("a") as file:
        file.write("y" * 200)
    assert workers.ended() is True


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Call a planner in a child process whose program is this code instead of the real one."""

    def asked(code):
        module = tmp_path / "mindswap/features/adaptive/planner_process.py"
        module.parent.mkdir(parents=True)
        for folder in (module.parent, module.parent.parent, module.parent.parent.parent):
            (folder / "__init__.py").touch()
        module.write_text(f"import json, os, sys\n{code}\n")
        monkeypatch.syspath_prepend(str(tmp_path))  # a child imports from where this process would
        return planner_in_child({})(Path("c.yaml"), 7, Corrections(-5))

    return asked


@pytest.mark.parametrize("answer", [NothingFits(9), TrainingPlan("a", "x: 1", 7, 6, 5, corrections=Corrections(-5))])
def test_a_planner_is_asked_and_answers(asked, answer):
    given = ["c.yaml", 7, to_plain(Corrections(-5))]
    code = f"assert json.loads(sys.argv[1]) == {given!r}; print({json.dumps(to_plain(answer))!r})"
    assert asked(code) == answer


def test_a_planner_that_refuses_says_why(asked):
    with pytest.raises(PlanError, match=r"^no such file$"):
        asked("print(json.dumps({'refused': 'no such file'}))")


def test_a_planner_that_crashes_says_with_what(asked):
    with pytest.raises(PlanError, match=r"^the planner crashed, exit code 3\nlast words$"):
        asked("print('last words', file=sys.stderr, flush=True); os._exit(3)")
