"""What leaves the device leaves the process: the kernel's own count of its memory falls as the policy says."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.mindspore

MIB = 2**20


def test_a_fresh_process_needs_less_memory_the_more_layers_swap():
    """Eight layers keep 16 MiB each. Swapped layers 0-3 are away behind forward, 64 MiB; of 0-7 all but those that the
    last operators still read: at least six, 96 MiB. A check, no figure: half of it must be seen."""
    found = []
    for num_swapped in (0, 4, 8):
        command = [sys.executable, "-m", "tests.adapters.pynative.resident", str(num_swapped)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr[-3000:]
        found.append(int(ran.stdout.splitlines()[-1]))
    none, half, whole = found
    assert none - half > 32 * MIB
    assert half - whole > 16 * MIB
