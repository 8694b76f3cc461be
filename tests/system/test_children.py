"""Children import exactly what their parent does, whatever is in the working folder, and end with it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mindswap.system import children
from mindswap.system.children import started
from tests.adapters.graphs import ROOT

# Of Python, of others, and of ours; each of them would be imported by any child.
NAMES = ("runpy", "json", "types", "pickle", "multiprocessing", "yaml", "numpy", "psutil", "mindswap", "mindformers")
PROBE = f"""
import importlib.util, json
def places(*_):
    return {{name: str(getattr(importlib.util.find_spec(name), "origin", None)) for name in {NAMES}}}
if __name__ == "__main__":
    print(json.dumps(places()))
"""
PARENT = """
import json, subprocess
import probe
from mindswap.features.plan.worker_pool import WorkerPool
from mindswap.system.children import ask, module_command
if __name__ == "__main__":
    asked = ask([], module="probe").require("probe")
    plain = json.loads(subprocess.check_output(module_command("probe")))
    with WorkerPool(2) as pool:
        spread_out = list(pool.map(probe.places, [1]))
    print(json.dumps([probe.places(), asked, plain, *spread_out]))
"""


def module(folder: Path, name: str, text: str = "raise SystemExit(f'{__file__} was imported')") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


@pytest.fixture
def hostile(tmp_path):
    """A working folder with a file or a folder of the name of what is imported."""
    for name in NAMES[:7]:
        module(tmp_path / "work", name)
    for name in NAMES[7:]:
        module(tmp_path / "work" / name, "__init__")
    return tmp_path / "work"


@pytest.mark.long
@pytest.mark.parametrize("is_relative", [False, True])
def test_children_import_what_their_parent_does(hostile, tmp_path, is_relative):
    """Installed as a wheel is: beside a MindFormers, another one of which is on PYTHONPATH."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "mindswap").symlink_to(ROOT / "mindswap")
    module(tmp_path / "site" / "mindformers", "__init__", "")
    (tmp_path / "copy").mkdir()
    own = module(tmp_path / "copy" / "mindformers", "__init__", "")
    module(tmp_path / "copy", "probe", PROBE)
    script = module(tmp_path / "scripts", "parent", PARENT)
    paths = ["../copy", "../site"] if is_relative else [f"{tmp_path}/copy", f"{tmp_path}/site"]
    done = subprocess.run(
        [sys.executable, script], cwd=hostile, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    parent, *others = json.loads(done.stdout)
    assert parent["mindformers"] == str(own) and parent["mindswap"].startswith(str(tmp_path / "site"))
    assert others == [parent] * 3


def test_the_package_is_found_where_the_paths_do_not_name_it(monkeypatch):
    """As in a program that was started in a checkout, and has changed the folder since."""
    monkeypatch.setattr(sys, "path", ["", *(path for path in sys.path if path and path != str(ROOT))])
    assert children.import_paths()[-1] == str(ROOT) and "" not in children.import_paths()


def test_a_process_that_is_left_ends_with_what_it_started(tmp_path):
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    with started([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
    assert process.returncode == -signal.SIGTERM
    assert has_ended(child)


def has_ended(pid: int, limit_s: float = 60) -> bool:
    """Whether a process ends in time; the signal that it got takes a moment on a busy machine."""
    end_s = time.monotonic() + limit_s
    while is_running(pid) and time.monotonic() < end_s:
        time.sleep(0.05)
    return not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# A child with a scratch folder that hears no signal, as while a compiler holds the interpreter.
DEAF = (
    "import signal, time\n"
    "from mindswap.system.scratch import scratch_folder\n"
    "with scratch_folder('x') as folder:\n"
    "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
    "    print(folder, flush=True)\n"
    "    time.sleep(600)\n"
)


def test_a_child_that_hears_no_signal_is_killed_and_its_folder_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "STOP_GRACE_S", 0.3)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with started([sys.executable, "-c", DEAF], environ, stdout=subprocess.PIPE, text=True) as process:
        assert Path(process.stdout.readline().strip()).is_dir()
    assert process.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_command_ends_with_a_parent_that_is_killed(tmp_path):
    """`mindswap check` of a pipe that nobody writes to; the parent is killed, so only the kernel tells the child."""
    os.mkfifo(tmp_path / "c.yaml")
    code = (
        "import sys, time\n"
        "from mindswap.system.children import module_command, started\n"
        f"with started(module_command('mindswap', 'check', {str(tmp_path / 'c.yaml')!r})) as child:\n"
        "    print(child.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    time.sleep(1)  # it holds the lifeline by then, or finds that its parent has ended
    assert is_running(child)
    parent.kill()
    parent.communicate()
    assert has_ended(child)
