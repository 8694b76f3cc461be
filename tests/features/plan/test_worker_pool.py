"""Tasks in this process, in several, and on nodes of a Ray cluster (on this machine): the same answers."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.errors import LaunchError, PlanError
from mindswap.features.plan.worker_pool import WorkerPool
from mindswap.planner.solver.search import Stop
from mindswap.system.scratch import scratch_folder

ROOT = Path(__file__).resolve().parents[3]


def square(task, tick):
    tick()
    return task * task


def slow_square(task, tick):
    """Says in a folder that it was begun, and takes a while."""
    number, folder = task
    Path(folder, f"{number}_{os.getpid()}_{time.time()}").touch()
    time.sleep(3)
    return number * number


def refused(task, tick):
    raise PlanError("no square")


def ended(task, tick):
    with scratch_folder("task"):
        os.kill(os.getpid(), task)
        time.sleep(60)


def sleeping(task, tick):
    with scratch_folder("task"):
        time.sleep(60)


def stop_when(is_there):
    if is_there:
        raise Stop


def killed(task, tick):
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(is_there):
    deadline = time.monotonic() + 60
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("num_jobs", [1, 2])
def test_answers_come_in_order_and_tasks_may_depend_on_those_before(num_jobs):
    found = []

    def tasks():
        for number in range(6):
            if sum(found) > 10:  # 0 + 1 + 4 + 9
                return
            yield number

    with WorkerPool(num_jobs) as pool:
        found.extend(pool.map(square, tasks()))
    # Two at a time: 5 was begun while 9 was waited for.
    assert found == [0, 1, 4, 9] + [16] * (num_jobs - 1)


@pytest.mark.long
def test_who_waits_is_asked_now_and_then_and_may_end_it(tmp_path):
    def tick():
        raise Stop

    with WorkerPool(2) as pool, pytest.raises(Stop):
        list(pool.map(slow_square, [(number, tmp_path) for number in range(9)], tick))
    assert len(list(tmp_path.iterdir())) <= 4  # what was begun; it ended with the rest


def test_a_process_that_is_killed_is_an_error_that_says_what_to_do():
    with (
        WorkerPool(2) as pool,
        pytest.raises(LaunchError, match=r"was killed, maybe for want of memory\n.*fewer --jobs"),
    ):
        list(pool.map(killed, [1]))


@pytest.fixture
def cluster(monkeypatch):
    """Three nodes, of which the last can be killed."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.others = [cluster.add_node(num_cpus=1) for _ in range(2)]
    yield cluster
    cluster.shutdown()


def test_tasks_of_a_node_that_is_killed_run_again_on_the_others(cluster, tmp_path):
    def kill():
        wait_for(lambda: len(list(tmp_path.iterdir())) == 3)  # one on each node
        cluster.remove_node(cluster.others[1], allow_graceful=False)

    with WorkerPool(ray=cluster.address) as pool:  # whose nodes have one version
        assert pool.width == 3
        killer = threading.Thread(target=kill)
        killer.start()
        answers = list(pool.map(slow_square, [(number, tmp_path) for number in range(7)]))
        killer.join()
    assert answers == [number * number for number in range(7)]
    begun = [path.name.split("_")[0] for path in tmp_path.iterdir()]
    assert set(begun) == set("0123456") and len(begun) == 8  # one of them twice
    with WorkerPool(ray=cluster.address) as pool, pytest.raises(PlanError, match="no square"):
        list(pool.map(refused, [1]))


def planned(capsys, *options):
    """What `plan --strategy auto` says of a small model."""
    code = cli.main([*options, "--json"])
    out = capsys.readouterr().out
    assert code == 0
    return json.loads(out[out.index("{\n") :])["batches"]


@pytest.fixture
def question(tmp_path):
    text = (ROOT / "configs/llama2_7b/case3_op_swap.yaml").read_text()
    for old, new in (
        ("hidden_size: 4096", "hidden_size: 128"),
        ("seq_length: 4096", "seq_length: 128"),
        ("num_heads: 32", "num_heads: 2"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "small.yaml").write_text(text)
    return ["plan", str(tmp_path / "small.yaml"), "--strategy", "auto", "--cards", "4"]


@pytest.mark.mindspore
def test_a_search_over_processes_gives_what_one_gives(capsys, question):
    here = planned(capsys, *question)
    assert len({one["pipeline_stage"] for one in here}) == 3
    assert planned(capsys, *question, "--jobs", "2") == here


@pytest.mark.mindspore
def test_a_search_over_nodes_of_which_one_is_killed_gives_what_one_gives(capsys, question, cluster, monkeypatch):
    here = planned(capsys, *question)
    begun = threading.Event()
    monkeypatch.setattr("mindswap.command_line.progress.PhaseLines.__call__", lambda self, text: begun.set())

    def kill():
        begun.wait()
        time.sleep(4)
        cluster.remove_node(cluster.others[1], allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    assert planned(capsys, *question, "--ray", cluster.address) == here
    killer.join()


def test_without_jobs_or_a_cluster_tasks_run_in_this_process():
    with WorkerPool() as here:
        assert here.width == 1
        assert list(here.map(lambda task, tick: (task, os.getpid()), [7])) == [(7, os.getpid())]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_a_signal_ends_leaves_no_folder_and_is_no_signal_here(number, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("ignored by all that nohup starts")
    with WorkerPool(2) as pool, pytest.raises(LaunchError, match="a process that planned was killed"):
        list(pool.map(ended, [number]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_what_runs_when_the_pool_is_left_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with WorkerPool(2) as pool, pytest.raises(Stop):
        list(pool.map(sleeping, [0, 1], lambda: stop_when(list(tmp_path.glob("mindswap-task-*/*")))))
    assert list(tmp_path.iterdir()) == []
