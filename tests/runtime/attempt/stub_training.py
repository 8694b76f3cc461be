"""In the place of `mindswap` in the working folder of a test: a training that logs and saves as MindFormers does.

It does no arithmetic: the tests that use it are about processes, logs and files. STUB (JSON) in the environment says
what happens: num_steps, step_s, save_every, peaks {policy: bytes}, oom {policy: step}, fail_at, ignore_term,
chatter_bytes, num_ranks (to wait for before the first step).
"""

import json
import os
import signal
import struct
import sys
import time
from pathlib import Path

import yaml

from mindswap.system.children import hold_lifeline

OOM = (
    "[ERROR] RUNTIME_FRAMEWORK(1,7f,python):2026-11-21-03:44:42.598.627 [mindspore/ccsrc/x.cc:1215] Run] #umsg#Memory "
    "not enough:#umsg#Device(id:0) memory isn't enough and alloc failed, kernel name: Default/MatMul-op7, "
    "alloc size: {}B."
)
STEP = (
    "2026-11-21 01:12:51,271 - mindformers/output/log[mindformers/core/callback/callback.py:747] - INFO - { Epoch:[  1/"
    "  1], step:[%5d/%5d], loss:[3.087671/3.839126], per_step_time: %dms, lr: 0.002, overflow cond: False"
)


def main() -> None:
    hold_lifeline(os.environ)
    stub = json.loads(os.environ["STUB"])
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        time.sleep(stub["num_steps"] * stub["step_s"] + 1)  # msrun waits for it
        return
    if stub.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rank = int(os.environ.get("RANK_ID", "0"))
    config = load(Path(sys.argv[sys.argv.index("--config") + 1]))
    policy = "recompute" if config["recompute_config"]["recompute"] else "keep"
    folder = Path("output/checkpoint", f"rank_{rank}")
    folder.mkdir(parents=True, exist_ok=True)
    while len(list(folder.parent.iterdir())) < stub.get("num_ranks", 0):  # as the others of a training wait
        time.sleep(0.05)
    first = read_step(config)
    for step in range(first + 1, stub["num_steps"] + 1):
        time.sleep(stub["step_s"])
        if stub.get("oom", {}).get(policy) == step:
            print(OOM.format(stub.get("missing", 1 << 30)), flush=True)
            raise RuntimeError("out of memory")
        if stub.get("fail_at") == step:
            raise ValueError(f"boom at step {step}")
        print(STEP % (step, stub["num_steps"], stub["step_s"] * 1000), flush=True)
        print("x" * (stub.get("chatter_bytes", 0) // stub["num_steps"]), flush=True)
        peak = stub.get("peaks", {}).get(policy, 1 << 30)
        print(f"mindswap: peak memory {peak} bytes used, {peak} bytes reserved", flush=True)
        if step % stub["save_every"] == 0:
            save(folder / f"x_rank_{rank}{suffix(first)}-1_{step - first}.safetensors", step)
    print(" - INFO - .........Training Over!.............", flush=True)


def suffix(first: int) -> str:
    """MindFormers counts restarts in the name, and steps from the last start."""
    return f"_{first}" if first else ""


def load(path: Path) -> dict:
    config = yaml.safe_load(path.read_text())
    base = config.pop("base_config", None)
    return {**(load(path.parent / base) if base else {}), **config}


def read_step(config: dict) -> int:
    place = config.get("load_checkpoint")
    if not place:
        return 0
    path = Path(place)  # always a folder: MindFormers 1.9.0 refuses a file
    if config["resume_training"] is True:
        path = path / "hyper_param.safetensors"
    else:
        name = config["resume_training"].replace("_rank_0", f"_rank_{os.environ['RANK_ID']}")
        path = path / f"rank_{os.environ['RANK_ID']}" / name
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return struct.unpack("<q", data[8 + length + 8 :])[0]


def save(path: Path, step: int) -> None:
    header = json.dumps(
        {
            "epoch_num": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]},
            "step_num": {"dtype": "I64", "shape": [], "data_offsets": [8, 16]},
        }
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<qq", 1, step))


if __name__ == "__main__":
    main()
