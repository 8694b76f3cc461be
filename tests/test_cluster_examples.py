"""Scripts for Slurm and Kubernetes: they start what `mindswap run --ray` takes, with the right numbers. No cluster."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from mindswap.runtime.attempt.command import parse_command

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "cluster"
# Names, types and what is required of `RayJob` v1 in KubeRay v1.6.2 (helm-chart/kuberay-operator/crds), as far as the
# manifest uses them; nothing else is allowed, as where the API server is strict.
SCHEMA = Path(__file__).parent / "data" / "kuberay_rayjob.json"
# Writes down its words; `srun` runs the command after its options; `python` waits, as the real one, until Ray has
# started on all nodes.
STAND_IN = """#!/usr/bin/env bash
echo "${0##*/} $*" >> "$CALLS"
case "${0##*/}" in
  srun) while [[ "$1" == --* ]]; do shift; done; exec "$@" ;;
  scontrol) printf 'node%d\\n' 1 2 3 ;;
  ray) [[ "$1" != "${FAILING:-}" ]] ;;
  python) until [[ $(grep -c '^ray start' "$CALLS") == 2 ]]; do sleep 0.05; done ;;
  hostname) echo "${ADDRESSES:-10.0.0.1 192.168.0.1}" ;;
esac
"""


def parts(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options of `mindswap run`, and the command of the training behind `--`."""
    end = words.index("--")
    own = words[words.index("--adaptive-memory-optimization") + 1 : end]
    return dict(zip(own[::2], own[1::2], strict=True)), words[end + 1 :]


def submit(tmp_path, **extra):
    """The script on three nodes of Slurm."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("srun", "scontrol", "hostname", "ray", "mindswap", "python"):
        (commands / name).write_text(STAND_IN)
        (commands / name).chmod(0o755)
    environ = {
        "PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(tmp_path), "CALLS": str(tmp_path / "calls"),
        "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "node[1-3]", **extra,
    }  # fmt: skip
    script = ["bash", EXAMPLES / "slurm.sh", "llama.yaml"]
    return subprocess.run(script, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300)


@pytest.fixture
def calls(tmp_path):
    """What it starts, line by line."""
    done = submit(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / ".ray").iterdir()) == []  # the token goes with the job
    return (tmp_path / "calls").read_text().splitlines()


def test_slurm_starts_ray_on_all_nodes_and_trains_on_all_but_the_spare_one(calls):
    starts = [line for line in calls if line.startswith("ray start")]
    assert sorted(line.split()[2] for line in starts) == ["--address=10.0.0.1:6379", "--head"]
    others = "srun --nodes=2 --ntasks=2 --overlap --no-kill --exclude=node1 ray start --address=10.0.0.1:6379 --block"
    assert others in calls  # a lost node does not end Ray on the others
    assert "#SBATCH --no-kill" in (EXAMPLES / "slurm.sh").read_text("utf-8").splitlines()
    (run,) = (line for line in calls if line.startswith("mindswap run"))
    options, training = parts(shlex.split(run))
    assert options == {"--memory": "54GiB", "--ray": "10.0.0.1:6379", "--nodes": "2", "--spare": "1"}
    command = parse_command(training, num_nodes=2)
    assert (command.num_workers, command.num_local, command.config_path.name) == (16, 8, "llama.yaml")


def test_slurm_with_an_address_that_no_other_node_reaches(tmp_path):
    done = submit(tmp_path, ADDRESSES="127.0.1.1")
    assert (done.returncode, done.stderr) == (1, "node1 calls itself 127.0.1.1: no other node reaches that\n")


def test_slurm_where_ray_does_not_start(tmp_path):
    """It ends, and does not wait for its time to be over."""
    done = submit(tmp_path, FAILING="health-check")
    assert (done.returncode, done.stderr) == (1, "Ray did not start on node1\n")


def test_slurm_needs_a_configuration(tmp_path):
    done = subprocess.run(["bash", EXAMPLES / "slurm.sh"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "usage: sbatch slurm.sh CONFIG.yaml" in done.stderr


@pytest.fixture(scope="module")
def job():
    return yaml.safe_load((EXAMPLES / "kuberay.yaml").read_text("utf-8"))


def test_the_manifest_is_a_ray_job(job):
    validator = pytest.importorskip("jsonschema").Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))
    bare = {key: value for key, value in job.items() if key != "metadata"}
    assert [error.message for error in validator.iter_errors(bare)] == []
    wrong = {**bare, "spec": {**job["spec"], "entryPoint": "x"}}
    assert [error.message for error in validator.iter_errors(wrong)] != []


def test_the_manifest_has_as_many_nodes_and_cards_as_the_command_wants(job):
    options, training = parts(shlex.split(job["spec"]["entrypoint"]))
    command = parse_command(training, num_nodes=int(options["--nodes"]))
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert 1 + cluster["workerGroupSpecs"][0]["replicas"] == int(options["--nodes"]) + int(options["--spare"])
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["huawei.com/Ascend910"] == command.num_local
        # KubeRay hands it to a shell, which takes off the outer quotes.
        assert json.loads(shlex.split(group["rayStartParams"]["resources"])[0]) == {"NPU": command.num_local}
    assert cluster["authOptions"] == {"mode": "token"}
