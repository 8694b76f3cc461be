"""Time and memory of the whole command `mindswap inspect`, imports included, nothing cached.

    python benchmarks/capture_speed.py

Targets on two idle cores: Llama2-7B (32 layers, sequence 4096) in 8 s and 1.2 GB; a 70B shape (hidden 8192, 80
layers) in 10 s and 1.5 GB; less than 20 ms for each further layer.
"""

import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mindswap.report.tables import format_table

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "llama2_7b" / "pretrain_llama2_7b.yaml"
SHAPE_70B = {
    "hidden_size": "8192",
    "num_heads": "64\n    n_kv_heads: 8\n    intermediate_size: 28672",
    "num_layers": "80",
}
# name -> settings, seconds, bytes
CASES = {
    "Llama2-7B, 32 layers": ({}, 8.0, 1.2e9),
    "7B shape, 80 layers": ({"num_layers": "80"}, None, None),
    "70B shape, 80 layers": (SHAPE_70B, 10.0, 1.5e9),
}


def main() -> int:
    """Print a table; exit code 1 if a target is missed."""
    rows, seconds, is_ok = [], {}, True
    for name, (settings, max_seconds, max_bytes) in CASES.items():
        seconds[name], peak_bytes = measure(settings)
        reached = (max_seconds is None or seconds[name] <= max_seconds) and (
            max_bytes is None or peak_bytes <= max_bytes
        )
        is_ok &= reached
        target = f"{max_seconds:.0f} s, {max_bytes / 1e9:.1f} GB" if max_seconds else "-"
        rows.append((name, f"{seconds[name]:.1f} s", f"{peak_bytes / 1e9:.2f} GB", target, "yes" if reached else "NO"))
    per_layer_ms = (seconds["7B shape, 80 layers"] - seconds["Llama2-7B, 32 layers"]) / 48 * 1000
    is_ok &= per_layer_ms < 20
    rows.append(("each further layer", f"{per_layer_ms:.0f} ms", "", "20 ms", "yes" if per_layer_ms < 20 else "NO"))
    print(format_table(("inspect", "time", "peak memory", "target", "reached"), rows))
    return 0 if is_ok else 1


def measure(settings: dict[str, str]) -> tuple[float, int]:
    """Best of two runs in seconds, and the highest resident memory in bytes."""
    text = CONFIG.read_text()
    for key, value in settings.items():
        text = re.sub(rf"(?m)^(\s*){key}: .*$", rf"\g<1>{key}: {value}", text)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.yaml"
        path.write_text(text)
        times = []
        for _ in range(2):
            started = time.perf_counter()
            command = [sys.executable, "-m", "mindswap", "inspect", "--no-cache", "--by", "layer", str(path)]
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - started)
    return min(times), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
