"""Real trainings on three Ray nodes, each in a network of its own on this machine; what happens to one of them.

`ip netns` gives every node an address and a cable to a bridge, which a test pulls out. Needs root and Ray: `make
test-ray`. Two nodes train with one worker each, one stands by. The reference is the same training by msrun alone.
"""

import contextlib
import json
import os
import re
import signal
import string
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mindswap.runtime.msrun import free_port
from tests.runtime.attempt.conftest import ROOT, finish, wait_for
from tests.runtime.attempt.test_training import LOSS, MIB, POLICIES, adaptive, environment, folder, limited, training

pytest.importorskip("ray")  # here, because fixtures of the module train
pytestmark = pytest.mark.mindspore
__all__ = ["folder"]  # the fixture

NUM_NODES = 3
_LETTERS = iter(string.ascii_lowercase)
SIX_STEPS = ["--use_parallel", "True", "--num_samples", "96"]  # a checkpoint at 3 and 6


class Network:
    """Nodes with addresses 10.77.0.1, 10.77.0.2, ...: one network namespace each, and a bridge between them."""

    def __init__(self) -> None:
        # Another one each time: the kernel takes a while to remove a cable.
        self.name = f"ms{os.getpid() % 10**6}{next(_LETTERS)}"
        self.started: list[subprocess.Popen] = []

    def create(self) -> None:
        self._ip("link", "add", self.name, "type", "bridge")
        self._ip("link", "set", self.name, "up")
        for node in range(NUM_NODES):
            space = self.space(node)
            self._ip("netns", "add", space)
            self._ip("link", "add", self.cable(node), "type", "veth", "peer", "name", "eth0", "netns", space)
            self._ip("link", "set", self.cable(node), "master", self.name, "up")
            self._ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                self._ip("-n", space, "link", "set", link, "up")

    def remove(self) -> None:
        for node in range(NUM_NODES):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.kill(node)
                self._ip("netns", "del", self.space(node))
        for process in self.started:
            process.wait(60)
        with contextlib.suppress(subprocess.CalledProcessError):
            self._ip("link", "del", self.name)

    def space(self, node: int) -> str:
        return f"{self.name}n{node}"

    def cable(self, node: int) -> str:
        return f"{self.name}v{node}"

    def address(self, node: int) -> str:
        return f"10.77.0.{node + 1}"

    def start_ray(self, node: int, log: Path, hidden: Path | None = None, **extra: str) -> None:
        """Of this node; it has an empty folder of its own in the place of `hidden`."""
        words = ["--head", "--port=6379", "--include-dashboard=false"] if node == 0 else ["--address=10.77.0.1:6379"]
        words += [f"--node-ip-address={self.address(node)}", "--num-cpus=1", "--object-store-memory=80000000"]
        command = ["ip", "netns", "exec", self.space(node), str(Path(sys.executable).with_name("ray")), "start"]
        if hidden:
            script = f'mount -t tmpfs tmpfs "{hidden}" && exec "$@"'
            command[4:4] = ["unshare", "-m", "sh", "-c", script, "ray"]
        with log.open("w") as file:
            self.started.append(
                subprocess.Popen([*command, *words, "--block"], env=environment(RAY_USAGE_STATS_ENABLED="0", **extra),
                                 stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
            )  # fmt: skip
        wait_for(lambda: "Ray runtime started" in log.read_text(), 120)

    def cut(self, node: int) -> None:
        self._ip("link", "set", self.cable(node), "down")

    def pids(self, node: int) -> list[int]:
        return [int(word) for word in self._ip("netns", "pids", self.space(node)).split()]

    def kill(self, node: int) -> None:
        while pids := self.pids(node):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def workers(self, node: int) -> list[int]:
        """Processes of the training on this node."""
        return [pid for pid in self.pids(node) if b"limited_training.py" in _words(pid)]

    @staticmethod
    def _ip(*words: str) -> str:
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def network():
    network = Network()
    try:
        network.create()
    except (OSError, subprocess.CalledProcessError) as error:
        network.remove()
        pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', error)}")
    try:
        yield network
    finally:
        network.remove()


def start(folder, network, name, *words, num_spare=1):
    """The command on node 0; node 1 trains, too, and node 2 stands by, or trains in a later call."""
    command = [
        "ip", "netns", "exec", network.space(0),
        sys.executable, str(Path(__file__).with_name("run_by_hand.py")), json.dumps(POLICIES),
        "--adaptive-memory-optimization", "--memory", "3200MB", "--run-dir", str(folder / name),
        "--measured-steps", "3", "--ray", "10.77.0.1:6379", "--nodes", "2", "--spare", str(num_spare), "--",
        "msrun", "--worker_num=2", "--local_worker_num=1", f"--master_port={free_port()}", "python", *words,
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def losses(log):
    return [(int(step), float(loss)) for step, loss in LOSS.findall(log.read_text())] if log.exists() else []


@pytest.fixture(scope="module")
def reference(folder):
    """Losses of six steps without a fault, of both workers: on this machine by msrun alone."""
    msrun = ["msrun", "--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}", "python"]
    code, out = adaptive(folder, "whole", [*msrun, "-m", "mindswap", "run", *training(folder, "whole"), *SIX_STEPS])
    assert code == 0, out
    found = [losses(folder / f"whole/attempt_1/worker_{rank}.log") for rank in range(2)]
    assert [[step for step, _ in one] for one in found] == [[1, 2, 3, 4, 5, 6]] * 2
    return found


def test_a_node_runs_out_of_memory_and_the_losses_are_those_of_a_run_without(folder, network, reference):
    """5 steps and the sixth; node 1 alone has a limit, and its allocation fails for real after step 5."""
    limits = {"LIMIT_BYTES": str(4100 * MIB), "AFTER_STEP": "5", "CACHE_BYTES": str(250 * MIB)}
    for node in range(NUM_NODES):
        network.start_ray(node, folder / f"oom_ray{node}.txt", **limits if network.address(node) == "10.77.0.2" else {})
    code, out = finish(start(folder, network, "oom", *limited(folder, "oom"), *SIX_STEPS), 600)
    print(out)
    assert code == 0 and re.search(r"worker \d ran out of memory at step 5", out), out
    assert "attempt 2: from the checkpoint of step 3, 2 steps are repeated" in out, out
    check_losses(folder, "oom", reference)


@pytest.mark.parametrize("fault", ["killed", "cut"])
def test_a_node_is_lost_and_the_losses_are_those_of_a_run_without(folder, network, reference, fault):
    """Node 1 waits after step 5 until it is killed, or its cable is pulled out; node 2 takes its place."""
    for node in range(NUM_NODES):
        network.start_ray(node, folder / f"{fault}_ray{node}.txt", **{"AFTER_STEP": "5"} if node == 1 else {})
    with start(folder, network, fault, *limited(folder, fault), *SIX_STEPS) as process:
        wait_for(lambda: len(losses(folder / fault / "attempt_1/node_1/worker_1.log")) == 5, 500)
        begin_s = time.monotonic()
        network.kill(1) if fault == "killed" else network.cut(1)
        wait_for(lambda: not network.workers(1), 300)
        print(f"{fault}: workers of the lost node ended after {time.monotonic() - begin_s:.0f} s")
        code, out = finish(process, 600)
    print(out)
    assert code == 0, out
    assert "node 10.77.0.2 (node_rank 1) is lost" in out
    assert "node 10.77.0.3 takes the place of 10.77.0.2 (node_rank 1)" in out
    assert re.search("attempt 2: from the checkpoint of step 3, [12] steps are repeated", out), out
    check_losses(folder, fault, reference)


def test_the_driver_is_killed_then_a_node_without_a_spare_one(folder, network, reference):
    """Node 1 waits after step 5: the driver is killed, then node 1 in the second attempt; then node 2 trains."""
    name = "driver"
    for node in range(NUM_NODES):
        network.start_ray(node, folder / f"{name}_ray{node}.txt", **{"AFTER_STEP": "5"} if node == 1 else {})
    with start(folder, network, name, *limited(folder, name), *SIX_STEPS, num_spare=0) as process:
        wait_for(lambda: len(losses(folder / name / "attempt_1/node_1/worker_1.log")) == 5, 500)
        process.kill()
    begin_s = time.monotonic()
    wait_for(lambda: not any(network.workers(node) for node in range(NUM_NODES)), 300)
    print(f"workers of all nodes ended {time.monotonic() - begin_s:.0f} s after the driver")
    with start(folder, network, name, *limited(folder, name), *SIX_STEPS, num_spare=0) as process:
        wait_for(lambda: len(losses(folder / name / "attempt_2/node_1/worker_1.log")) == 2, 500)
        network.kill(1)
        code, out = finish(process, 600)
    print(out)
    assert code == 1 and "node 10.77.0.2 (node_rank 1) is lost, and no spare node is left" in out, out
    assert not any(network.workers(node) for node in range(NUM_NODES))
    code, out = finish(start(folder, network, name, *limited(folder, name), *SIX_STEPS, num_spare=0), 600)
    print(out)
    assert code == 0 and re.search("attempt 3: from the checkpoint of step 3, [12] steps are repeated", out), out
    check_losses(folder, name, reference, 1, 2, 3)


def test_a_proof_on_two_nodes_without_a_shared_disk(folder, network):
    """Data and configurations go to node 1, which sees nothing of the folder; its logs come back."""
    proofs = folder / "proofs"
    proofs.mkdir()
    for node in range(2):
        network.start_ray(node, folder / f"proof_ray{node}.txt", hidden=proofs if node else None)
    config = ROOT / "configs/llama2_7b/cpu/case3_op_swap.yaml"
    command = [
        "ip", "netns", "exec", network.space(0), sys.executable, "-m", "mindswap", "prove", str(config), "--layers=2",
        "--worker-num", "2", "--steps", "3", "--variants", "off,yaml", "--no-profile", "-o", str(proofs / "proof"),
        "--ray", "10.77.0.1:6379", "--nodes", "2",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    code, out = finish(process, 900)
    print(out)
    assert code == 0, out
    assert re.search(r"yaml +losses +pass +6 losses equal", out) and re.search(r"yaml +log lines +pass", out), out
    logs = proofs / "proof/yaml/logs"
    assert sorted(path.parent.name for path in logs.glob("*/worker_*.log")) == ["node_0", "node_1"]
    assert not network.workers(0) and not network.workers(1)


def check_losses(folder, name, reference, *attempts):
    """Both workers of all attempts, of which the last comes to the end: the very same numbers as without a fault."""
    for rank in range(2):
        first, *later = (
            losses(folder / name / f"attempt_{number}/node_{rank}/worker_{rank}.log") for number in attempts or (1, 2)
        )
        assert first == reference[rank][: len(first)] and len(first) >= 4
        for found in later:
            assert found and found == reference[rank][3:][: len(found)]
        assert len(later[-1]) == 3
