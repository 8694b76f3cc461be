"""What the hook for `MINDSWAP=1` adds to the start of every Python of an environment. Target: below 1 ms.

    python benchmarks/switch_speed.py

The line of mindswap_switch.pth is run as Python's `site` runs it, in a Python without the variable. The start of Python
as a whole is shown for comparison: its scatter is larger than what the hook adds. Exit code 1 if the target is missed,
or if the hook imports anything.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mindswap.report.tables import format_table

HOOK = Path(__file__).resolve().parent.parent / "mindswap_switch.pth"
TARGET_MS = 1.0
NUM_STARTS = 30
# Prints the median time of the hook in milliseconds, and how many modules it has imported.
MEASURE = """
import site, statistics, sys, time
folder, before, times = sys.argv[1], len(sys.modules), []
for _ in range(1000):
    begin = time.perf_counter_ns()
    site.addpackage(folder, "mindswap_switch.pth", None)
    times.append((time.perf_counter_ns() - begin) / 1e6)
print(statistics.median(times), len(sys.modules) - before)
"""


def main() -> int:
    """Measure, print a table, and compare with the target."""
    environ = {name: text for name, text in os.environ.items() if name != "MINDSWAP"}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HOOK, folder)
        words = [sys.executable, "-c", MEASURE, folder]
        printed = subprocess.run(words, env=environ, check=True, capture_output=True, text=True).stdout.split()
    hook_ms, num_imported = float(printed[0]), int(printed[1])
    start_ms = min(_start_ms(environ) for _ in range(NUM_STARTS))
    rows = [("hook, MINDSWAP not set", f"{hook_ms:.3f} ms"), ("start of Python", f"{start_ms:.1f} ms")]
    print(format_table(("part", "time"), rows))
    print(f"modules that the hook imports: {num_imported}")
    return int(hook_ms >= TARGET_MS or num_imported > 0)


def _start_ms(environ: dict[str, str]) -> float:
    begin = time.perf_counter_ns()
    subprocess.run([sys.executable, "-c", "pass"], env=environ, check=True)
    return (time.perf_counter_ns() - begin) / 1e6


if __name__ == "__main__":
    sys.exit(main())
