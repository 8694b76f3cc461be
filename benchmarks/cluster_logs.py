"""Reading the logs of a large run: 10,000 workers on 1,250 nodes, 5 MB each. Target: 60 s and 1 GB on 2 cores.

python benchmarks/cluster_logs.py [WORKERS] [MB]

Names of the same stage and kind are hard links to one file, so that the logs come out of memory and not from a disk.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

from log_speed import LOGS, STEP

from mindswap.features.verify.log_comparison import compare_logs
from mindswap.features.verify.log_report import format_logs
from mindswap.runtime.logs.read import read_worker_logs

PER_NODE, STAGES, DISTINCT = 8, 8, 16
MAX_SECONDS, MAX_BYTES = 60, 10**9
SET = "2026-11-21 01:12:51,271 - mindformers/output/log[mindswap/adapters/graph/apply.py:47] - INFO - "
EXPECTED = [[f"Set op_swap at layer {layer}: .attention, value=20, .feed_forward, value=15"] for layer in range(80)]


def write_logs(folder: Path, workers: int, megabytes: int) -> None:
    """The logs of all nodes; those of node 7 lack a layer, every 1,000th worker ran out of memory."""
    files = folder / "files"
    files.mkdir()
    lines = "".join(LOGS["MindSpore's INFO lines (GLOG_v=1)"] + [STEP] * 16)
    for kind in ("good", "short", "oom"):
        for number in range(DISTINCT):
            start = [SET + line + "\n" for [line] in (EXPECTED[:-1] if kind == "short" else EXPECTED)]
            used = f"Used peak memory usage (without fragments): {50_000 + number}M\n"
            end = ["RuntimeError: Out of memory!!! Request memory size:1048576.\n"] if kind == "oom" else []
            text = "".join(start) + "mindswap: lazy_inline is on, as activation swap needs it.\n"
            text += lines * (megabytes * 1_000_000 // len(lines)) + used
            text += "".join(end) or ".........Training Over!.............\n"
            (files / f"{kind}{number}").write_text(text)
    for worker in range(workers):
        node = folder / f"node_{worker // PER_NODE}"
        node.mkdir(exist_ok=True)
        kind = "short" if worker // PER_NODE == 7 else "oom" if worker % 1000 == 999 else "good"
        (node / f"worker_{worker}.log").hardlink_to(files / f"{kind}{worker % DISTINCT}")


def main() -> int:
    """Write the logs, read and compare them, print time and memory; 1 if a target is missed."""
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    megabytes = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as folder:
        write_logs(Path(folder), workers, megabytes)
        start, before_s = time.perf_counter(), time.process_time()
        report = compare_logs(EXPECTED, read_worker_logs(folder), num_stages=STAGES)
        text = format_logs(report)
        seconds = time.perf_counter() - start
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(text)
    own, children = (used.ru_maxrss for used in usage)
    total_bytes = (own + 2 * children) * 1024  # of the largest child, twice: two processes read
    cpu_s = sum(used.ru_utime + used.ru_stime for used in usage) - before_s
    print(f"{workers} logs of {megabytes} MB: {seconds:.1f} s ({cpu_s:.0f} s of CPU), "
          f"{workers * megabytes / seconds:.0f} MB/s, at most "
          f"{total_bytes / 1e6:.0f} MB of memory; {len(text.splitlines())} lines of text")  # fmt: skip
    return int(seconds > MAX_SECONDS or total_bytes > MAX_BYTES)


if __name__ == "__main__":
    sys.exit(main())
