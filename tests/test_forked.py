"""A forked program is as one that is started: words, folder, environment, streams, exit code."""

import json
import subprocess
import sys

import pytest

from tests import forked

pytestmark = pytest.mark.mindspore

PROGRAM = (
    "import json, os, sys; print(json.dumps([sys.argv, os.getcwd(), os.environ['WORD'], sys.stdin.read(), __name__]));"
    "print('an error', file=sys.stderr); sys.exit(7)"
)


@pytest.mark.parametrize("start", ["-c", "-m", "script"])
def test_it_is_as_a_python_that_is_started(tmp_path, start):
    (tmp_path / "program.py").write_text(PROGRAM)
    words = {"-c": ("-c", PROGRAM), "-m": ("-m", "program"), "script": ("program.py",)}[start]
    arguments = {"cwd": tmp_path, "env": {"WORD": "é", "PATH": ""}, "input": "some\ntext"}
    found = forked.run([*words, "a", "-b"], **arguments)
    true = subprocess.run([sys.executable, *words, "a", "-b"], capture_output=True, text=True, **arguments)
    assert (found.returncode, found.stderr) == (true.returncode, true.stderr) == (7, "an error\n")
    ours, theirs = json.loads(found.stdout), json.loads(true.stdout)
    assert ours[1:] == theirs[1:] == [str(tmp_path), "é", "some\ntext", "__main__"]
    assert ours[0][1:] == theirs[0][1:] == ["a", "-b"]


def test_programs_know_nothing_of_each_other():
    assert forked.run(["-c", "import mindspore; mindspore.left = 1; import os; os.chdir('/')"]).returncode == 0
    assert forked.run(["-c", "import mindspore; print(hasattr(mindspore, 'left'))"]).stdout == "False\n"


def test_an_error_is_a_traceback_and_a_program_that_hangs_is_stopped():
    result = forked.run(["-c", "1 / 0"])
    assert result.returncode == 1 and result.stderr.endswith("ZeroDivisionError: division by zero\n")
    with pytest.raises(subprocess.CalledProcessError):
        forked.run(["-c", "raise SystemExit('no')"], check=True)
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(["-c", "import time; time.sleep(60)"], timeout=1)
