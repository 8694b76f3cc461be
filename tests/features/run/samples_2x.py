"""Samples and settings of a short training with the PyNative trainer of MindFormers 2.1.0, on a CPU."""

import json
from pathlib import Path

CPU_TYPES = dict.fromkeys(("params_dtype", "compute_dtype", "layernorm_compute_dtype"), "float32")


def write_samples(folder: Path, num_rows: int, length: int, num_tokens: int) -> dict:
    """Write made-up samples, and return the section `train_dataset` that reads them."""
    rows = [[(7 * row + 3 * i * i) % num_tokens for i in range(length + 1)] for row in range(num_rows)]
    samples = [
        {"input_ids": row[:-1], "labels": row[1:], "loss_mask": [1.0] * length, "position_ids": list(range(length))}
        for row in rows
    ]
    data = folder / "data.json"
    data.write_text("\n".join(map(json.dumps, samples)), encoding="utf-8")
    return {
        "num_parallel_workers": 1,
        "dataloader": {
            "type": "HFDataLoader", "load_func": "load_dataset", "path": "json", "data_files": str(data),
            "split": "train", "handler": [], "create_compressed_eod_mask": False, "column_names": list(samples[0]),
        },
    }  # fmt: skip
