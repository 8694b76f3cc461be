"""Functions on three Ray nodes of this machine."""

import os
import signal
import time
from pathlib import Path

import pytest

from mindswap.errors import LaunchError, PlanError
from mindswap.training.launch.cluster import connect, refuse, require_same_versions, run_tasks, version_mistakes
from tests.training.adaptive.conftest import ROOT, wait_for


def test_other_versions_are_named_with_node_and_value():
    here = {"mindswap": "2.0", "mindspore": "2.9.0"}
    refuse(version_mistakes("10.0.0.1", here, here))
    found = version_mistakes("10.0.0.2", {"mindswap": "2.0"}, here)
    assert found == ["node 10.0.0.2: mindspore is none, here it is 2.9.0"]
    with pytest.raises(LaunchError) as error:
        refuse(found)
    assert str(error.value) == f"the nodes do not match; nothing was started\n    {found[0]}"


@pytest.fixture
def cluster(monkeypatch):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    for name, value in {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, value)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.others = [cluster.add_node(num_cpus=1) for _ in range(2)]
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def slow_square(task):
    """Leaves a file with its node where it begins and one where it ends, and takes a while."""
    import ray

    folder, number = task
    if number < 0:
        raise PlanError("no square")
    begun = Path(folder, f"{number}-{ray.get_runtime_context().get_node_id()}-{os.getpid()}")
    begun.touch()
    time.sleep(2)
    begun.with_suffix(".ended").touch()
    return number * number


@pytest.mark.mindspore
def test_what_ran_on_a_lost_node_runs_again_and_an_error_comes_as_it_is(cluster, tmp_path):
    ray = connect(cluster.address)
    require_same_versions(ray)
    answers, killed = {}, []
    for index, answer in run_tasks(ray, slow_square, [(str(tmp_path), number) for number in range(9)]):
        answers[index] = answer
        if not killed:  # all that runs on one node, in the middle of a task
            node = wait_for(lambda: next((node for node in cluster.others if under_way(tmp_path, node.node_id)), None))
            killed = [path.name for path in under_way(tmp_path, node.node_id)]
            for name in killed:
                os.kill(int(name.split("-")[2]), signal.SIGKILL)
            cluster.remove_node(node, allow_graceful=False)
    assert answers == {number: number * number for number in range(9)}
    begun = [path.name.split("-") for path in tmp_path.iterdir() if not path.suffix]
    assert (
        len({node for _, node, _ in begun}) == 3 and len(begun) == 9 + len(killed) == 10
    )  # all took part; what was lost began twice
    with pytest.raises(PlanError, match="no square"):
        list(run_tasks(ray, slow_square, [(str(tmp_path), -1)]))


@pytest.mark.parametrize(
    ("address", "said"),
    [("127.0.0.1:1", "Connection refused"), ("x.invalid:6379", "--ray x.invalid:6379: "),
     ("local", "allowed: auto, or HOST:PORT"), ("ray://127.0.0.1:10001", "allowed: auto, or HOST:PORT"),
     ("10.0.0.1", "allowed: auto, or HOST:PORT"), ("auto", "fix:     ray start --head")],
)  # fmt: skip
def test_without_a_cluster_the_error_says_so_at_once(address, said):
    pytest.importorskip("ray")
    with pytest.raises(LaunchError) as error:
        connect(address)
    assert said in str(error.value)


def under_way(folder, node_id):
    """Tasks that began on a node and have not ended."""
    begun = (path for path in folder.glob(f"*-{node_id}-*") if not path.suffix)
    return [path for path in begun if not path.with_suffix(".ended").exists()]
