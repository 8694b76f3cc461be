"""Simulated peaks of configurations of MindFormers 2.x against dry runs of its own trainer.

    .venv-2x/bin/python benchmarks/dryrun/trainer_set.py [--only N,...] [--fresh]
    python benchmarks/dryrun/trainer_set.py --table

The set is `trainer_set.yaml`. Measured peaks are kept in `trainer_measured.json`, simulated ones computed each time.
`--fresh` measures again. `--table` prints the table of docs/mindformers_2x.md from the file alone.
"""

import argparse
import copy
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from mindswap.config.source import load_document
from mindswap.features.dryrun import DryRunOptions, dry_run_trainer
from mindswap.features.step import load_step
from mindswap.system.scratch import scratch_folder

HERE = Path(__file__).parent
MEASURED = HERE / "trainer_measured.json"


def main() -> int:
    """Measure and simulate the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=lambda text: [int(number) for number in text.split(",")], default=None)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    known = json.loads(MEASURED.read_text("utf-8")) if MEASURED.exists() else {}
    if args.table:
        print(table(known))
        return 0
    data = yaml.safe_load((HERE / "trainer_set.yaml").read_text("utf-8"))
    for number, case in enumerate(data["cases"]):
        if args.only is not None and number not in args.only:
            continue
        name = f"{case['model']}: {case['name']}"
        with scratch_folder("set") as folder:
            file = folder / "case.yaml"
            file.write_text(yaml.safe_dump(config_of(data, case)), encoding="utf-8")
            simulated_bytes = load_step(str(file)).simulate().peak_bytes
            measured_bytes = known.get(name, {}).get("measured_bytes")
            if args.fresh or measured_bytes is None:
                report = dry_run_trainer(load_document(str(file)), DryRunOptions(), lambda line: None, "case")
                measured_bytes = report.step.used_peak_bytes
        known = json.loads(MEASURED.read_text("utf-8")) if MEASURED.exists() else {}
        known[name] = {"simulated_bytes": simulated_bytes, "measured_bytes": measured_bytes}
        print(f"{number:3} {name}: {describe(known[name])}", flush=True)
        MEASURED.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return 0


def config_of(data: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a case."""
    config = copy.deepcopy(data["base"])
    config["model"] |= data["models"][case["model"]]
    for section, values in case.get("change", {}).items():
        config[section] |= values
    return config | {name: case[name] for name in ("swap", "recompute", "mindswap") if name in case}


def error_of(row: dict[str, int]) -> float:
    """Return the relative error of the simulation."""
    return row["simulated_bytes"] / row["measured_bytes"] - 1


def describe(row: dict[str, int]) -> str:
    """Format a result."""
    sizes = [f"{row[name] / 2**20:.0f} MiB" for name in ("simulated_bytes", "measured_bytes")]
    return f"simulated {sizes[0]}, dry run {sizes[1]}, {100 * error_of(row):+.1f} %"


def table(known: dict[str, dict[str, int]]) -> str:
    """Format all results as a table in Markdown, with mean and extremes."""
    lines = ["| case | simulated | dry run | error |", "| --- | --- | --- | --- |"]
    for name, row in known.items():
        sizes = " | ".join(f"{row[key] / 2**20:.0f} MiB" for key in ("simulated_bytes", "measured_bytes"))
        lines.append(f"| {name} | {sizes} | {100 * error_of(row):+.1f} % |")
    errors = [100 * error_of(row) for row in known.values()]
    mean = sum(map(abs, errors)) / len(errors)
    return "\n".join(
        [*lines, "", f"{len(errors)} cases: mean {mean:.1f} %, {min(errors):+.1f} % to {max(errors):+.1f} %"]
    )


if __name__ == "__main__":
    sys.exit(main())
