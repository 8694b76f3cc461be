"""setup.py: the hook is in the list of built files exactly where it is built."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The command of setup.py itself, for a distribution without packages: what is left of its outputs is the hook.
PROGRAM = """
import setuptools
from distutils.core import run_setup
command = run_setup("setup.py", stop_after="init").get_command_obj("build_py")
command.build_lib, command.editable_mode, command.packages, command.py_modules = "lib", IS_EDITABLE, [], []
command.data_files = []
print(*map(str, command.get_outputs()))
"""


@pytest.mark.parametrize(("is_editable", "outputs"), [(True, ""), (False, str(Path("lib", "mindswap_switch.pth")))])
def test_the_hook_is_listed_where_it_is_copied(is_editable, outputs):
    """`pip install -e` with editable_mode=strict links each listed file, and fails for one that is not there."""
    program = PROGRAM.replace("IS_EDITABLE", str(is_editable))
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (ended.stdout.strip(), ended.returncode) == (outputs, 0), ended.stderr
