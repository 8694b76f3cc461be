"""What a library prints from C does not get out; what was printed before and is printed after does."""

import subprocess
import sys

PROGRAM = """
import ctypes
from mindswap.planner.solvers.silence import silence

libc = ctypes.CDLL(None)
print("before")
libc.printf(b"C before\\n")
with silence():
    libc.printf(b"C within\\n")
print("after")
"""


def test_only_what_is_printed_within_is_lost():
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert found.stdout == "before\nC before\nafter\n"
