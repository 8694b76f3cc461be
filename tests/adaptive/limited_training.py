"""The package's own training entry in workers with a limit on their memory, and a cache of samples that grows.

The cache begins to grow at the first checkpoint and ends with CACHE_BYTES. Where the limit (RLIMIT_DATA of Linux)
comes first, an allocation fails for real, and the worker dies of it.
"""

import os
import resource
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np

PIECE_BYTES = 10 << 20


def grow_cache(folder: Path, size_bytes: int) -> None:
    cache = []
    while not list(folder.glob("*.safetensors")):
        time.sleep(0.05)
    try:
        for _ in range(size_bytes // PIECE_BYTES):
            cache.append(np.ones(PIECE_BYTES, np.uint8))
            time.sleep(0.05)  # 157 MiB take 0.8 s, long enough to write a checkpoint
        time.sleep(3600)
    except MemoryError:
        traceback.print_exc()
        os._exit(1)


if os.environ.get("MS_ROLE") != "MS_SCHED":
    limit = int(os.environ["LIMIT_BYTES"])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    checkpoints = Path(
        sys.argv[sys.argv.index("--output_dir") + 1], "checkpoint", f"rank_{os.environ.get('RANK_ID', 0)}"
    )
    threading.Thread(target=grow_cache, args=(checkpoints, int(os.environ["CACHE_BYTES"])), daemon=True).start()
from mindswap.adapters.entry import train  # noqa: E402 after the limit

train(sys.argv[1:])
