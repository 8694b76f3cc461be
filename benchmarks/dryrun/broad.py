"""Simulated memory against dry runs, over the training files of MindFormers r1.3 to r1.8 as they are, cut in depth.

    git clone https://github.com/mindspore-lab/mindformers
    python benchmarks/dryrun/broad.py mindformers               # every row that is not measured yet, then the table
    python benchmarks/dryrun/broad.py mindformers --known       # no dry run: what is measured, and what is not
    python benchmarks/dryrun/broad.py mindformers qwen2_5       # rows whose names contain a word
    python benchmarks/dryrun/broad.py mindformers --seconds 600 # only as many dry runs as begin in ten minutes
    python benchmarks/dryrun/broad.py mindformers --write       # the table of docs/dryrun_broad.md and its Chinese page

Nobody tuned the simulator on these files. broad.yaml declares them with their branch, and the policies of each. A
file keeps its sizes, parallelism and options; what 1.9 no longer has is replaced (`migrate`), and the number of
layers, of stages and of micro-batches is cut (`cut`), because a dry run compiles each layer. Results of dry runs are
kept in broad_measured.json by content of the configuration and version of MindSpore. A row takes one to four minutes
on two cores. Exit code 1 if a target is missed.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.dryrun.compare import (  # noqa: E402 the checkout must be importable, installed or not
    NOT_MEASURED,
    Row,
    cells,
    compare,
    is_good,
    merged,
    summary,
    table,
    write_table,
)
from mindswap.rules.mindformers1.classes import OPTIMIZERS  # noqa: E402

MEASURED = FOLDER / "broad_measured.json"
PAGES = (ROOT / "docs/dryrun_broad.md", ROOT / "docs/dryrun_broad.zh.md")
MOST_STAGES = 2
LAYERS_PER_CHUNK = 3
MOST_ACCUMULATION = 4
# Policies: sections that replace those of the file; "own" leaves the file as it is.
RECOMPUTE_OFF = {"recompute": False, "select_recompute": False}
POLICIES: dict[str, dict[str, Any]] = {
    "own": {},
    "off": {"recompute_config": RECOMPUTE_OFF, "swap_config": {"swap": False}},
    "full": {"recompute_config": {**RECOMPUTE_OFF, "recompute": True}, "swap_config": {"swap": False}},
    "swap": {"recompute_config": RECOMPUTE_OFF, "=swap_config": {"swap": True, "default_prefetch": 1}},
}


def main(words: Sequence[str]) -> int:
    """Compare the requested rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="git repository of MindFormers with its branches")
    parser.add_argument("words", nargs="*", help="parts of names; default is all rows")
    parser.add_argument("--known", action="store_true", help="no dry run; rows that are not measured are shown so")
    parser.add_argument("--seconds", type=int, default=10**9, help="begin no dry run after so many seconds")
    parser.add_argument("--write", action="store_true", help="write the table into the docs")
    args = parser.parse_args(words)
    names = [name for name in declared_rows() if not args.words or any(word in name for word in args.words)]
    end_s = time.monotonic() + args.seconds
    rows: list[Row] = []
    for name in names:
        is_known_only = args.known or time.monotonic() > end_s
        found = compare(name, configuration(args.checkout, name), False, is_known_only, MEASURED)
        for row in found:
            print(*cells(row), sep=" | ", flush=True)
        rows += found
    print(f"\n{summary(rows)}\n{count_errors(rows)}")
    if args.write:
        for page in PAGES:
            write_table(page, f"{table(rows)}\n{count_errors(rows)}\n")
    return 0 if is_good(rows) else 1


def declared_rows() -> Iterator[str]:
    """Names of all rows: branch, path and policy."""
    declared = yaml.safe_load((FOLDER / "broad.yaml").read_text(encoding="utf-8"))
    for branch, files in declared["files"].items():
        for path, policies in files.items():
            yield from (f"{branch}:{path} {policy}" for policy in policies.split())


def configuration(checkout: Path, name: str) -> dict[str, Any]:
    """The configuration of a row: the file of the branch, cut, with the policy."""
    blob, policy = name.split()
    shown = subprocess.run(["git", "-C", str(checkout), "show", f"origin/{blob}"], capture_output=True, check=False)
    if shown.returncode:
        shown = subprocess.run(["git", "-C", str(checkout), "show", blob], capture_output=True, check=True)
    data = merged(migrate(cut(yaml.safe_load(shown.stdout))), POLICIES[policy])
    if policy == "swap" and "memory_optimize_level" in data["context"]:
        data["context"]["memory_optimize_level"] = "O0"  # at O1 MindSpore swaps nothing
    return data


def migrate(data: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration of an older branch as MindFormers 1.9 builds it.

    AdamW replaces optimizers that were removed; the package has the networks that `auto_register` took from the
    checkout, and nothing here needs a tokenizer.
    """
    data = deepcopy(data)
    optimizer = data["optimizer"]
    if optimizer["type"] in OPTIMIZERS:
        optimizer["type"] = "AdamW"
        optimizer["betas"] = [optimizer.pop("beta1", 0.9), optimizer.pop("beta2", 0.999)]
    for section in (data["model"]["model_config"], data["model"].get("arch") or {}):
        section.pop("auto_register", None)
    data.pop("processor", None)
    return data


def cut(data: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with fewer layers, stages and micro-batches, and no file of communication options.

    At most `MOST_STAGES` stages with `LAYERS_PER_CHUNK` layers a chunk, twice as many micro-batches as stages in a
    pipeline, otherwise at most `MOST_ACCUMULATION` accumulated ones. Lists per stage keep their first entries, none
    above the layers of a chunk.
    """
    data = deepcopy(data)
    model, parallel = data["model"]["model_config"], data["parallel_config"]
    stages = min(parallel.get("pipeline_stage") or 1, MOST_STAGES)
    chunks = max(model.get("pp_interleave_num") or 1, 1)
    parallel["pipeline_stage"] = stages
    for key in ("num_layers", "num_hidden_layers"):
        if key in model:
            model[key] = stages * chunks * LAYERS_PER_CHUNK
    if "offset" in model:
        model["offset"] = 0
    if isinstance(model.get("first_k_dense_replace"), int):
        model["first_k_dense_replace"] = min(model["first_k_dense_replace"], 1)
    # Options of the HCCL library and of communication fusion in a file of their own, which is not in the configuration.
    ascend = (data.get("context") or {}).get("ascend_config") or {}
    ascend.pop("parallel_speed_up_json_path", None)
    if stages > 1:
        parallel["micro_batch_num"] = 2 * stages
    runner = data.get("runner_config") or {}
    if (runner.get("gradient_accumulation_steps") or 1) > MOST_ACCUMULATION:
        runner["gradient_accumulation_steps"] = MOST_ACCUMULATION
    recompute = data.get("recompute_config") or {}
    data["recompute_config"] = {key: _cut_lists(value, stages) for key, value in recompute.items()}
    return data


def _cut_lists(value: Any, stages: int) -> Any:
    if isinstance(value, dict):
        return {key: _cut_lists(inner, stages) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    kept = value if value and isinstance(value[0], list) else value[:stages]
    return [_cut_lists(item, stages) if isinstance(item, list) else _cut_number(item) for item in kept]


def _cut_number(value: Any) -> Any:
    return min(value, LAYERS_PER_CHUNK) if isinstance(value, int) and not isinstance(value, bool) else value


def count_errors(rows: Sequence[Row]) -> str:
    """How many stages have which error, and the files without a figure."""
    errors = [abs(row.percent) for row in rows if row.percent is not None]
    shares = ", ".join(f"{sum(error <= most for error in errors)} within {most} %" for most in (1, 3, 5, 8))
    failed = sum(bool(row.error) and row.error != NOT_MEASURED for row in rows)
    open_rows = sum(row.error == NOT_MEASURED for row in rows)
    return f"{len(errors)} stages: {shares}; {failed} rows without a figure, {open_rows} not measured"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
