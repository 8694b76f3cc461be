"""What leaves the device leaves the process: the kernel's own count of its memory falls as the policy says."""

from pathlib import Path

import pytest

from tests import forked

pytestmark = pytest.mark.mindspore

ROOT = Path(__file__).parents[3]
MIB = 2**20


def test_a_fresh_process_needs_less_memory_the_more_layers_swap():
    """Eight layers keep 16 MiB each. Swapped layers 0-3 are away behind forward, 64 MiB; of 0-7 all but those that the
    last operators still read: at least six, 96 MiB. A check, no figure: half of it must be seen."""
    found = []
    for num_swapped in (0, 4, 8):
        ran = forked.run(["-m", "tests.adapters.pynative.resident", str(num_swapped)], cwd=ROOT)
        assert ran.returncode == 0, ran.stderr[-3000:]
        found.append(int(ran.stdout.splitlines()[-1]))
    none, half, whole = found
    assert none - half > 32 * MIB
    assert half - whole > 16 * MIB
