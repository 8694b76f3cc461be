"""Nodes of a Ray cluster on this machine, the real msrun on each; the training is a stub (stub_training.py)."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mindswap.errors import LaunchError
from mindswap.features.prove.worker_runs import RayPlace, read_measured, run_workers
from mindswap.runtime.attempt.checkpoints import SavedStep, incomplete_on
from mindswap.runtime.attempt.model import Ended, Outcome
from mindswap.runtime.attempt.node import (
    NodeFacts,
    NodeTask,
    choose_nodes,
    first_difference,
    node_mistakes,
    read_config,
)
from mindswap.runtime.attempt.nodes import Nodes, first_cause
from mindswap.runtime.msrun import free_port
from tests.runtime.attempt.conftest import ROOT, finish, wait_for
from tests.runtime.attempt.test_supervise import small_disk


def test_what_differs_is_named_with_node_and_value(tmp_path):
    versions, config = {"mindspore": "2.9.0"}, {"runner_config": {"epochs": 2, "sizes": [1, 2]}}
    here = NodeFacts("here", versions, config)
    good = NodeFacts("10.0.0.1", versions, config, 9.0)
    assert node_mistakes([good], tmp_path, here) == []
    others = [
        NodeFacts("10.0.0.2", {"mindspore": "2.8.0"}, config),
        NodeFacts("10.0.0.3", versions, {"runner_config": {"epochs": 3, "sizes": [1, 2]}}),
        NodeFacts("10.0.0.4", versions, {"runner_config": {"epochs": 2, "sizes": [1]}}),
        NodeFacts("10.0.0.5", versions, {"runner_config": {"epochs": 2, "sizes": [1, 2]}, "seed": "0"}),
        NodeFacts("10.0.0.6", versions, None), NodeFacts("10.0.0.7", {}, config, -12.34),
    ]  # fmt: skip
    assert node_mistakes([good, *others], tmp_path, here) == [
        "node 10.0.0.2: mindspore is 2.8.0, here it is 2.9.0",
        f"node 10.0.0.3: {tmp_path}: runner_config.epochs is 3, here it is 2",
        f"node 10.0.0.4: {tmp_path}: runner_config.sizes.1 is missing, here it is 2",
        f"node 10.0.0.5: {tmp_path}: seed is '0', here it is missing",
        f"node 10.0.0.6: {tmp_path}, or what it is based on, cannot be read there",
        "node 10.0.0.7: mindspore is none, here it is 2.9.0",
        "node 10.0.0.7: its clock is -12.3 s off the one here; allowed: 10 s",
    ]


def test_what_a_configuration_is_based_on_counts_and_comments_do_not(tmp_path):
    (tmp_path / "base.yaml").write_text("seed: 1  # a comment\n")
    (tmp_path / "c.yaml").write_text("base_config: base.yaml\nepochs: 2\n")
    here = read_config(tmp_path / "c.yaml")
    (tmp_path / "base.yaml").write_text("seed: 1\n")
    assert first_difference(read_config(tmp_path / "c.yaml"), here) is None
    (tmp_path / "base.yaml").write_text("seed: 2\n")
    assert first_difference(read_config(tmp_path / "c.yaml"), here) == ("seed", "2", "1")
    (tmp_path / "base.yaml").unlink()
    assert read_config(tmp_path / "c.yaml") is None


def ray_node(name, npu=None):
    return {"NodeID": name, "NodeManagerAddress": f"10.0.0.{name}", "Resources": {"NPU": npu} if npu else {}}


def test_nodes_are_taken_in_the_order_of_their_addresses_and_with_enough_cards():
    nodes = [ray_node("10", 8.0), ray_node("9", 8.0), ray_node("2", 4.0), ray_node("3"), ray_node("4", 16.0)]
    assert [node["NodeID"] for node in choose_nodes(nodes, "9", 8, (2, 1))] == ["9", "4", "10"]
    assert [node["NodeID"] for node in choose_nodes(nodes, "3", 8, (2, 0))] == ["4", "9"]  # the driver has no card
    bare = [ray_node(name) for name in ("2", "10", "1")]  # CPU
    assert [node["NodeID"] for node in choose_nodes(bare, "10", 8, (3, 0))] == ["10", "1", "2"]
    with pytest.raises(LaunchError) as error:
        choose_nodes(nodes, "9", 8, (3, 1))
    assert str(error.value).splitlines()[:2] == [
        "--nodes 3 --spare 1: the cluster has 3 nodes for --local_worker_num=8",
        "    found:   10.0.0.10 (8 NPU), 10.0.0.9 (8 NPU), 10.0.0.2 (4 NPU), 10.0.0.3 (0 NPU), 10.0.0.4 (16 NPU)",
    ]


def test_what_brought_the_end_about_goes_before_what_followed():
    failed, killed = Ended(Outcome.FAILED, 3, "lost its peer"), Ended(Outcome.KILLED, 3, "worker 1 was killed")
    memory = Ended(Outcome.OUT_OF_MEMORY, 3, "x", worker=2)
    assert first_cause([failed, killed]) is killed
    assert first_cause([killed, failed, memory]) is memory


def test_the_nodes_that_lack_the_newest_checkpoint():
    old, new = ((SavedStep(1, step), "x", "safetensors") for step in (4, 6))
    both, one = frozenset({old, new}), frozenset({old})
    assert incomplete_on([both, one, both, frozenset()]) == (new, [1, 3])
    assert incomplete_on([both, both]) == (None, [])
    assert incomplete_on([frozenset(), frozenset()]) == (None, [])


def test_checkpoints_that_a_spare_node_has_not_are_not_given_up(tmp_path):
    """The others have several: no restart from step 0, but an error with the node. One alone may be in the making."""
    first, second = ((SavedStep(step, 1), "x", "safetensors") for step in (4, 6))

    class SomeNodes(Nodes):
        answers = ()

        def ask(self, method, arguments=None, ranks=None):
            return list(self.answers)

        def name_of(self, rank):
            return f"node 10.0.0.{rank + 1}"

    nodes, said = SomeNodes(NodeTask(None, tmp_path, tmp_path / "checkpoint", tmp_path, True, False)), []
    nodes.answers = frozenset({first, second}), frozenset()
    with pytest.raises(LaunchError) as error:
        nodes.to_resume((), said.append)
    found = "no checkpoint of its ranks is on node 10.0.0.2; the others have those of steps 4, 6"
    assert str(error.value).splitlines()[0] == found and f"to {tmp_path}/checkpoint there" in str(error.value)
    nodes.answers = frozenset({first}), frozenset({first, second}), frozenset()
    assert nodes.to_resume((), said.append) is None  # only one that both have
    nodes.answers = frozenset({first}), frozenset()
    assert nodes.to_resume((), said.append) is None
    nodes.answers = frozenset({first, second}), frozenset({first})
    assert nodes.to_resume((), said.append) == first
    nodes.answers = frozenset(), frozenset()
    assert nodes.to_resume((), said.append) is None
    assert said == [
        "the checkpoint of step 6 is not complete on node 10.0.0.1, node 10.0.0.3: it is not used",
        "the checkpoint of step 4 is not complete on node 10.0.0.2: it is not used",
        "the checkpoint of step 6 is not complete on node 10.0.0.2: it is not used",
    ]


@pytest.fixture
def cluster(place, monkeypatch, request):
    """Three nodes; the workers have the environment of their `ray start`."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    place.stub |= {"step_s": 0.2, "num_steps": 30, "num_ranks": 4, **getattr(request, "param", {})}
    for name, value in {
        "STUB": json.dumps(place.stub),
        "PYTHONPATH": str(ROOT),
        "RAY_USAGE_STATS_ENABLED": "0",
    }.items():
        monkeypatch.setenv(name, value)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.others = [cluster.add_node(num_cpus=1) for _ in range(2)]
    yield cluster
    cluster.shutdown()


def start(place, cluster, *options, num_workers=4):
    command = [
        "msrun", f"--worker_num={num_workers}", "--local_worker_num=2", f"--master_port={free_port()}",
        "python", "-m", "mindswap", "run", "--config", "c.yaml", "--use_parallel", "True",
    ]  # fmt: skip
    return place.start("--ray", cluster.address, "--nodes", "2", *options, command=command)


def log(place, attempt, node, rank):
    path = place.run_dir / f"attempt_{attempt}/node_{node}/worker_{rank}.log"
    return path.read_text() if path.exists() else ""


def in_the_middle(place, attempt, num_steps=4):
    wait_for(lambda: all(log(place, attempt, rank // 2, rank).count("step:[") >= num_steps for rank in range(4)))


@pytest.mark.mindspore
@pytest.mark.parametrize("cluster", [{"oom": {"recompute": 8}}], indirect=True)
def test_out_of_memory_then_the_driver_killed_then_to_the_end(place, cluster):
    """Saved after every second step, out of memory at step 8; then the driver is killed in attempt 2."""
    process = start(place, cluster)
    in_the_middle(place, 2)
    process.kill()
    out, _ = process.communicate(timeout=300)
    assert re.search("ran out of memory at step [67], 1.0 GiB were missing", out), out
    assert re.search("attempt 2: from the checkpoint of step [46], ", out), out
    wait_for(lambda: not place.workers())
    code, out = finish(start(place, cluster))
    assert code == 0 and "attempt 3: from the checkpoint of step" in out, out
    assert place.outcomes() == ["out of memory", "interrupted", "finished"]
    assert "step:[   30/" in log(place, 3, 1, 3)


@pytest.mark.mindspore
def test_a_driver_that_is_asked_to_end_stops_all_nodes(place, cluster):
    """SIGTERM, as Slurm and Kubernetes send it; Ray has a handler of its own for that."""
    process = start(place, cluster)
    in_the_middle(place, 1)
    process.send_signal(signal.SIGTERM)
    code, out = finish(process)
    assert code == 128 + signal.SIGTERM and "mindswap: stopping all workers" in out, out
    assert place.outcomes() == ["interrupted"] and not place.workers()


@pytest.mark.mindspore
def test_a_lost_node_is_named_and_a_spare_one_takes_its_place(place, cluster):
    place.environment["POLL_S"] = "0.2"
    process = start(place, cluster, "--spare", "1")
    in_the_middle(place, 1)
    used = wait_for(lambda: [node for node in cluster.others if _has_workers(node)])
    cluster.remove_node(used[0], allow_graceful=False)
    code, out = finish(process)
    assert code == 0, out
    assert "(node_rank 1) is lost at step" in out and "takes the place of" in out
    assert place.outcomes()[0] == "killed" and place.outcomes()[-1] == "finished"


def _has_workers(node):
    """Processes of msrun below the raylet of this node."""
    import psutil

    raylet = node.all_processes["raylet"][0].process.pid
    return any("msrun" in " ".join(p.cmdline()) or "cluster.run" in " ".join(p.cmdline())
               for p in psutil.Process(raylet).children(recursive=True))  # fmt: skip


@pytest.mark.mindspore
@pytest.mark.parametrize("cluster", [{"num_ranks": 2}], indirect=True)  # those of a node wait for each other
def test_a_proof_trains_on_two_nodes_without_a_shared_disk(place, cluster, tmp_path_factory):
    """The other node has an empty folder in the place of this one: files go there, and logs come back."""
    place.run_dir = place.folder
    while cluster.others:
        cluster.remove_node(cluster.others.pop(), True)
    files = {path: path.read_bytes() for path in place.folder.rglob("*") if path.is_file()}
    nodes, said = RayPlace(cluster.address, 2, files), []
    config = place.folder / "c.yaml"
    with _node_in_other_mounts(f"-t tmpfs tmpfs {place.folder}", cluster, tmp_path_factory.mktemp("other")):
        assert run_workers(config, config, place.folder, 4, said.append, nodes) == 0, said
    assert not place.workers()
    found = {path.name: path.parent.name for path in (place.folder / "logs").glob("*/worker_*.log")}
    assert found == {f"worker_{rank}.log": f"node_{rank // 2}" for rank in range(4)}
    assert {path.name for path in (place.folder / "output/checkpoint").iterdir()} == {"rank_0", "rank_1"}
    assert [worker.number for worker in read_measured(place.folder, 0, 1.0).workers] == [0, 1, 2, 3]


@pytest.mark.mindspore
def test_nodes_that_do_not_match_the_workers(place, cluster):
    code, out = finish(start(place, cluster, num_workers=6))
    assert code == 1 and "--nodes 2: --worker_num=6, --local_worker_num=2" in out
    code, out = finish(start(place, cluster, "--spare", "2"))
    assert code == 1 and "--nodes 2 --spare 2: the cluster has 3 nodes for --local_worker_num=2" in out
    assert not list(place.run_dir.glob("attempt_*"))


@pytest.mark.mindspore
def test_a_lost_node_without_a_spare_is_named_and_all_workers_end(place, cluster):
    place.environment["POLL_S"] = "0.2"
    process = start(place, cluster)
    in_the_middle(place, 1)
    cluster.remove_node(wait_for(lambda: [node for node in cluster.others if _has_workers(node)])[0], False)
    code, out = finish(process)
    assert code == 1 and "(node_rank 1) is lost, and no spare node is left" in out, out
    assert not place.workers()
    cluster.others.append(cluster.add_node(num_cpus=1))
    code, out = finish(start(place, cluster))
    assert code == 0 and re.search(r"attempt \d: from the checkpoint of step \d+", out), out


@pytest.mark.mindspore
def test_two_drivers_then_a_checkpoint_that_one_node_has_not_completely(place, cluster):
    """The second driver is refused and the first goes on; it is killed, and the newest file of rank 3 cut short."""
    first = start(place, cluster)
    in_the_middle(place, 1)
    code, out = finish(start(place, cluster))
    assert code == 1 and f"{place.run_dir}: an adaptive run is already running here" in out, out
    in_the_middle(place, 1, num_steps=8)
    first.kill()
    first.communicate(timeout=300)
    wait_for(lambda: not place.workers())
    saved = {rank: _saved(place, rank) for rank in range(4)}
    newest = min(max(steps) for steps in saved.values())
    for rank, steps in saved.items():  # all stand at the same step, but for the file of rank 3
        for step in steps:
            if step > newest:
                steps[step].unlink()
            elif step == newest and rank == 3:
                steps[step].write_bytes(steps[step].read_bytes()[:20])
    code, out = finish(start(place, cluster))
    assert code == 0 and f"attempt 2: from the checkpoint of step {newest - 2}" in out, out
    assert re.search(
        rf"the checkpoint of step {newest} is not complete on node \S+ \(node_rank 1\): it is not used", out
    )
    assert place.outcomes() == ["interrupted", "finished"]


def _saved(place, rank):
    """Files by step, before any restart."""
    folder = place.folder / f"output/checkpoint/rank_{rank}"
    return {int(path.stem.rpartition("_")[2]): path for path in folder.glob("*.safetensors")}


@pytest.mark.mindspore
@pytest.mark.parametrize("cluster", [{"fail_at": 8}], indirect=True)
def test_a_crash_that_is_not_for_memory_stops_all_nodes_and_names_one(place, cluster):
    code, out = finish(start(place, cluster))
    assert code == 1 and "the training failed (not out of memory)" in out, out
    assert re.search(r"on node \S+ \(node_rank [01]\):", out) and "ValueError: boom at step 8" in out, out
    assert place.outcomes() == ["failed"] and not place.workers()


@pytest.mark.mindspore
def test_a_full_disk_on_one_node_is_named_then_room_again(place, cluster):
    """4 KiB under the checkpoints of rank 3, the second of node 1, hold that of step 2 alone."""
    folder = place.folder / "output/checkpoint/rank_3"
    with small_disk(folder, "4k") as make_room:
        code, out = finish(start(place, cluster))
        assert code == 1 and "No space left on device" in out, out
        assert re.search(rf"node \S+ \(node_rank 1\): {folder}: 0 B of 4.0 KiB are free", out), out
        assert not re.search(r"node_rank 0\): \S+: 0 B", out) and not place.workers()
        make_room()
        code, out = finish(start(place, cluster))
        assert code == 0 and "attempt 2: from the checkpoint of step 2" in out, out


@pytest.mark.mindspore
def test_what_differs_on_one_node_stops_before_any_worker(place, cluster):
    """One of three nodes has another MindSpore, another file below the YAML, and a clock that is 100 s ahead."""
    other = place.folder / "other/mindspore-2.8.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: mindspore\nVersion: 2.8.0\n")
    (other.parent / "sitecustomize.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 100\n")
    config = place.folder / "c.yaml"
    config.write_text(config.read_text() + "base_config: base.yaml\n")
    for name, seed in (("base.yaml", 1), ("elsewhere.yaml", 2)):
        (place.folder / name).write_text(f"seed: {seed}\n")
    cluster.remove_node(cluster.others.pop(), True)
    mount = f"--bind {place.folder / 'elsewhere.yaml'} {place.folder / 'base.yaml'}"
    with _node_in_other_mounts(mount, cluster, other.parent):
        code, out = finish(start(place, cluster, "--spare", "1"))
    assert code == 1 and "the nodes do not match; nothing was started" in out, out
    assert re.search(r"node \S+: mindspore is 2.8.0, here it is 2.9.0", out), out
    assert re.search(rf"node \S+: {config}: seed is 2, here it is 1", out), out
    assert re.search(r"node \S+: its clock is \+(99|100)\.\d s off the one here; allowed: 10 s", out), out
    assert not list(place.run_dir.glob("attempt_*"))


@contextlib.contextmanager
def _node_in_other_mounts(mount, cluster, path):
    """A node with a mount of its own, and modules of `path` first; needs root."""
    ray = Path(sys.executable).with_name("ray")
    script = f"mount {mount} && exec {ray} start --address={cluster.address} --num-cpus=1 --block"
    environment = {**os.environ, "PYTHONPATH": f"{path}:{ROOT}"}
    with (path / "ray.log").open("w") as log:
        node = subprocess.Popen(["unshare", "-m", "sh", "-c", script], env=environment, stdout=log, stderr=log)
    try:
        wait_for(lambda: node.poll() is not None or "Ray runtime started" in (path / "ray.log").read_text(), 120)
        assert node.poll() is None, (path / "ray.log").read_text()
        yield
    finally:
        node.terminate()
        node.wait(60)


@pytest.mark.mindspore
def test_a_node_with_too_few_cards_is_not_taken(place, cluster):
    cluster.add_node(num_cpus=1, resources={"NPU": 2})
    code, out = finish(start(place, cluster))
    assert code == 1 and "--nodes 2 --spare 0: the cluster has 1 nodes for --local_worker_num=2" in out, out
    assert "(2 NPU)" in out and "(0 NPU)" in out
