"""Eight commands in 27 environments that people have: the same answers there, or a message with exit code 1.

Each command is a process of its own, as a shell starts it. Environments that have nothing to do with each other are set
together, as a compile takes 15 s of a CPU and a dry run 30 s.
"""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from mindswap.files import DATA
from mindswap.graph.capture_cache import cache_folder
from tests.adapters.graphs import ROOT

COMMANDS = {
    "doctor": ["doctor", "--json"],
    "check": ["check", "--json"],
    "explain": ["explain", "--json"],
    "convert": ["convert", "--json", "--to", "2.x"],
    "simulate": ["simulate", "--json"],
    "verify": ["verify", "--json"],
    "plan": ["plan", "--json", "--memory", "2GB"],
    "dryrun": ["dryrun", "--json"],
}
# Separators of lists of paths, options of MindSpore and words of a shell.
ODD = "a, b;c:d 数"
# In these environments every command answers; `{place}` is a folder of the test.
HARMLESS = {
    "logs of errors only": {"GLOG_v": "3"},
    "logs in files": {"GLOG_logtostderr": "0", "GLOG_log_dir": "{place}"},
    "logs without the memory": {"MS_SUBMODULE_LOG_v": "{RUNTIME_FRAMEWORK:4,DEVICE:4,PRE_ACT:4}"},
    "logs of another rank": {"STDOUT_DEVICES": "7"},
    "dumps": {"MINDSPORE_DUMP_CONFIG": "/nowhere.json"},
    "a compile cache": {"MS_COMPILER_CACHE_ENABLE": "1", "MS_COMPILER_CACHE_PATH": "{place}"},
    "saved graphs": {"MS_DEV_SAVE_GRAPHS": "1", "MS_DEV_SAVE_GRAPHS_PATH": "{place}"},
    "another simulation": {"MS_SIMULATION_LEVEL": "3"},
    "a worker of another job": {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "8", "MS_SCHED_HOST": "1.2.3.4"},
    "a rank of another job": {"RANK_ID": "5", "RANK_SIZE": "8", "DEVICE_ID": "3", "RANK_TABLE_FILE": "/nowhere.json"},
    "a CANN that is gone": {"ASCEND_HOME_PATH": "/nowhere", "ASCEND_OPP_PATH": "/nowhere"},
    "libraries that are gone": {"LD_LIBRARY_PATH": "/nowhere"},
    "warnings that are errors": {"PYTHONWARNINGS": "error"},
    "no asserts": {"PYTHONOPTIMIZE": "1"},
    "no docstrings": {"PYTHONOPTIMIZE": "2"},
    "an output that is not UTF-8": {"PYTHONIOENCODING": "ascii"},
    "another language": {"LC_ALL": "zh_CN.GBK", "LANGUAGE": "zh"},
    "separators in the temporary folder": {"TMPDIR": f"{{place}}/{ODD}"},
    "a relative cache with separators": {"XDG_CACHE_HOME": f"../cache {ODD}"},
    "no home": {"HOME": None, "MINDSWAP_CACHE": None},
    "a user whom the system does not know": {},  # as of Kubernetes' runAsUser; `prefix` below
    "a working folder that cannot be written": {},
    "stdin is closed": {},
    "stderr is full": {},
}
REDIRECTION = "<&- 2>/dev/full"
UNKNOWN_USER = ("unshare", "--user", "--map-user=12345", "--map-group=12345", "--")
# In these no command can answer: with redirections, commands before it, variables, and the error.
REFUSED = {
    "stdout is closed": (">&-", ":", {}, "the standard output cannot be written: Bad file descriptor"),
    "stdout is full": (">/dev/full", ":", {}, "the standard output cannot be written: No space left on device"),
    "the working folder is gone": (
        "", "cd $(mktemp -d); rmdir $PWD", {}, "the working directory cannot be used: No such file or directory",
    ),
}  # fmt: skip


def run(name, config, *options, environ=os.environ, cwd=ROOT, redirection="", before=":", prefix=()):
    words = [*prefix, sys.executable, "-m", "mindswap", *COMMANDS[name], str(config), *options]
    command = ["bash", "-c", f'{before}; exec "$@" {redirection}', "bash", *words]
    variables = {**environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=1200)


@cache
def prefix():
    """Makes a command that of an unknown user, who may write only what is this user's; () where that is impossible."""
    return UNKNOWN_USER if subprocess.run([*UNKNOWN_USER, "true"], capture_output=True).returncode == 0 else ()


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "配置.yaml"
    shutil.copy(DATA / "example" / "llama2_small.yaml", path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The cache is `cache ODD`, the temporary folder `ODD`, the working folder `cwd`.

    The cache begins with the stand-ins of the default one, if they are there: to make them takes 15 s.
    """
    folder = tmp_path_factory.mktemp("hostile")
    for name in (ODD, f"cache {ODD}/mindswap", "cwd"):
        (folder / name).mkdir(parents=True)
    if (known := cache_folder() / "stand_ins").is_dir():
        shutil.copytree(known, folder / f"cache {ODD}" / "mindswap" / "stand_ins", symlinks=True)
    (folder / "cwd").chmod(0o555)
    return folder


@pytest.fixture(scope="module")
def hostile(place):
    """All harmless environments together, as arguments of `run`."""
    variables = {name: text for found in HARMLESS.values() for name, text in found.items()}
    environ = {name: text for name, text in os.environ.items() if variables.get(name, "") is not None}
    environ |= {name: text.replace("{place}", str(place)) for name, text in variables.items() if text is not None}
    return {"environ": environ, "cwd": place / "cwd", "redirection": REDIRECTION, "prefix": prefix()}


def test_the_doctor_answers(config, place, hostile):
    done = run("doctor", config, **hostile)
    found = Path(json.loads(done.stdout)["machine"]["cache_folder"])
    assert found.is_absolute() and found.resolve() == place / f"cache {ODD}" / "mindswap"


@pytest.mark.parametrize("name", ["check", "explain", "convert"])
def test_the_answer_is_the_same(name, config, hostile):
    done, plain = run(name, config, **hostile), run(name, config)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert json.loads(plain.stdout)["ok"]


@pytest.mark.mindspore
@pytest.mark.parametrize("name", ["simulate", "verify", "plan"])
def test_the_answer_that_takes_a_compile_is_the_same(name, config, place, hostile):
    """Compiled there, not taken from the cache of the other one; and nothing is left."""
    done, plain = run(name, config, **hostile), run(name, config)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert json.loads(plain.stdout)["ok"]
    left = [path.name for folder in ("cwd", ODD) for path in (place / folder).iterdir()]
    assert set(left) <= {"mindswap-user-12345"}


@pytest.mark.mindspore
def test_a_dry_run_is_complete(config, place, hostile):
    """Every table is read, and what it keeps is there; the peak is near the simulated one."""
    done = run("dryrun", config, "--keep", f"{place}/kept {ODD}", **hostile)
    assert done.returncode == 0, done.stdout
    (stage,) = json.loads(done.stdout)["stages"]
    assert stage["used_peak_bytes"] == pytest.approx(stage["simulated_peak_bytes"], rel=0.1)
    assert stage["runs"][0]["copies_out"] == stage["runs"][0]["copies_back"] > 0 and stage["runs"][0]["set_lines"]
    assert len(list(place.glob("kept*/**/memory_block.csv"))) == 1


def is_tried(name, environment):
    """All pairs, but of the two of the output one with each command: it runs first. None with a dry run: it is long."""
    first, second, *_ = REFUSED
    by_turns = (first, second)[list(COMMANDS).index(name) % 2]
    return environment not in (first, second) or (environment == by_turns and name != "dryrun")


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        pytest.param(name, environment, marks=[pytest.mark.mindspore] if name in ("simulate", "verify", "plan") else [])
        for name in COMMANDS
        for environment in REFUSED
        if is_tried(name, environment)
    ],
)
def test_where_no_command_can_answer_it_says_why(name, environment, config):
    redirection, before, variables, message = REFUSED[environment]
    done = run(name, config, environ=os.environ | variables, redirection=redirection, before=before)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if not line.endswith(" s so far")]
    assert errors[0].startswith(f"mindswap: error: {message}")
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert redirection or json.loads(done.stdout)["error"].startswith(message)


APPLY = """
import mindspore, mindswap
from mindswap import Layers, OpSwap, Policy

class Layer(mindspore.nn.Cell):
    def __init__(self):
        super().__init__()
        self.tanh = mindspore.ops.Tanh()

network = mindspore.nn.Cell()
network.blocks = mindspore.nn.CellList([Layer(), Layer()])
policy = Policy(is_swap_enabled=True, op_swap=(OpSwap("tanh", Layers((1,)), 6),))
print(*(len(decisions.offloads) for decisions in mindswap.apply(network, policy, layers="blocks")))
"""


@pytest.mark.mindspore
def test_a_policy_is_applied_where_nothing_can_be_written(place):
    """MindFormers writes into the working folder when it is imported, which a network of others does not need."""
    command = [*prefix(), sys.executable, "-c", APPLY]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=place / "cwd", env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["0 1"]), done.stderr
    assert list((place / "cwd").iterdir()) == []
