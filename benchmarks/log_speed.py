"""Speed of reading worker logs, and the memory it takes: one log of training steps, one of MindSpore's own INFO lines.

python benchmarks/log_speed.py [MB]
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

from mindswap.runtime.logs.read import read_worker_log

STEP = (
    "2026-11-21 01:13:50,011 - mindformers/output/log[mindformers/core/callback/callback.py:747] - INFO - { Epoch:[  1/"
    "  1], step:[   37/   40], loss:[3.349747/3.891520], per_step_time: 383ms, lr: 0.002, overflow cond: False, "
    "loss_scale: 1.0, global_norm: [0.7519116], train_throughput_per_npu: 0.036T\n"
)
GLOG = "[INFO] RUNTIME(20300,7f5b167fc6c0,python):2026-11-21-01:13:51.394.090 [mindspore/ccsrc/runtime/a.cc:357] Run] "
LOGS = {
    "training steps": [STEP],
    "MindSpore's INFO lines (GLOG_v=1)": [
        GLOG + "Launch kernel: Default/network-MFTrainOneStepCell/MatMul-op7, stream id: 0\n",
        GLOG + "Event base dispatch success!\n",
        GLOG + "Update the ref count of kernel tensor for node: Default/Load-op3\n",
        GLOG + "Infer shape of MatMul: (4096, 4096)\n",
    ],
    "every second line about memory": [
        GLOG + "Call rtMalloc to allocate device memory Success, size: 1048576 bytes\n",
        GLOG + "Event base dispatch success!\n",
    ],
}


def main() -> None:
    """Write each log, read it, print MB/s (10^6 bytes) of this process and of the wall clock."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in LOGS.items():
            path = Path(folder, "worker_0.log")
            block = "".join(lines) * 4000
            with path.open("w") as file:
                while file.tell() < megabytes * 1_000_000:
                    file.write(block)
            before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            wall, process = time.perf_counter(), time.process_time()
            log = read_worker_log(path, 0)
            wall, process = time.perf_counter() - wall, time.process_time() - process
            size = log.size_bytes / 1e6
            grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
            print(f"{name}: {size:.0f} MB, {size / process:.0f} MB/s (wall {size / wall:.0f}), +{grown_mib:.1f} MiB")


if __name__ == "__main__":
    main()
