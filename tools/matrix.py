"""Tries every pair of MindFormers and MindSpore that mindswap knows, and prints the table: `make matrix`.

Each cell is one environment, kept in ~/.cache/mindswap-matrix, and three things done in it: the YAML of case 3 is
checked, compiled with its swaps counted, and trained on CPU for ten steps, with the same losses as with swap off; from
mindspore 2.7.2 on case 4 is dry run. MindSpore without MindFormers runs the tests of its own instead. Pairs that are no
pair of releases (`TRIALS`) are only dry run. `PYNATIVE` trains in PyNative mode, on a file of MindFormers 2.x: its
environment is that of `make test-2x`, and the dry run that of docs/qwen3_2x.yaml. A cell takes at most four minutes
once its environment is there.
"""

import argparse
import datetime
import json
import os
import pydoc_data.topics
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mindswap.report.tables import format_table
from mindswap.rules.machine.software import ANY_VERSION, SUPPORTED_PAIRS, Pair

ROOT = Path(__file__).resolve().parent.parent
PLACE = Path(os.environ.get("MINDSWAP_MATRIX") or Path.home() / ".cache" / "mindswap-matrix")
CONFIG = ROOT / "configs" / "llama2_7b" / "cpu" / "case3_op_swap.yaml"
PAGES = [ROOT / "docs" / "versions.md", ROOT / "docs" / "versions.zh.md"]
CELL_S, INSTALL_S = 240, 600
DRY_RUN = ROOT / "configs" / "llama2_7b" / "case4_swap_and_recompute.yaml"
# MindSpores whose Ascend backend is dry run; those without a MindFormers of their own with mindformers 1.9.0.
DRY_RUN_VERSIONS = ("2.7.2", "2.8.0", "2.9.0", "2.10.0")
TRIALS = (Pair("1.9.0", "2.8.0"), Pair("1.9.0", "2.10.0"))
# Its only patch is `name_device_of_empty_cells`: `Cell.to_empty()` of mindspore 2.10.0 leaves tensors on meta.
PYNATIVE = Pair("2.1.0", "2.10.0")
PYNATIVE_CONFIG = ROOT / "docs" / "qwen3_2x.yaml"
PYNATIVE_TRAINING = (
    "tests/features/run/test_pynative_2x.py::"
    "test_with_the_own_engine_losses_and_norms_are_those_without_swap_in_every_digit"
)
# What mindswap needs itself, with the numpy that all of these MindSpores take.
OWN = ["PyYAML>=6", "regex", "tqdm", "numba>=0.60", "scipy>=1.11", "numpy<2", "pytest", "hypothesis"]
# mindformers 2.x asks for a package that PyPI does not have, and that its graph mode does not need.
BESIDE = {"2.1.0": "1.9.0"}
TRAINING = [
    "--run_mode", "train", "--use_parallel", "False", "--num_samples", "20", "--parallel_config.data_parallel", "1",
]  # fmt: skip
LOSS = re.compile(r"loss:\[(\d+\.\d+)/")
HEADER = ["mindformers", "mindspore", "swaps per layer", "training", "dry run", "seconds", "result", "tried"]
# The last answer of each pair, so that one can be tried alone.
ROWS = PLACE / "rows.json"


@dataclass(frozen=True)
class Cell:
    """Result of one pair."""

    pair: Pair
    swaps: str = ""
    training: str = ""
    dry_run: str = "-"
    seconds: int = 0
    result: str = ""

    @property
    def is_good(self) -> bool:
        """True if it works."""
        return self.result == "green"

    @property
    def row(self) -> list[str]:
        """The cells of the table."""
        return [
            mindformers_name(self.pair), self.pair.mindspore, self.swaps, self.training, self.dry_run,
            str(self.seconds), self.result,
        ]  # fmt: skip


def mindformers_name(pair: Pair) -> str:
    """MindFormers of a pair in the table, with its mode if that is not graph mode."""
    return f"{pair.mindformers}, PyNative" if pair == PYNATIVE else pair.mindformers or "none"


class CellError(Exception):
    """A step of a cell failed; the text says which and how."""


def main() -> int:
    """Try all of them, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", metavar="VERSION", help="of mindformers, or of mindspore alone")
    parser.add_argument("--write", action="store_true", help="put the table into docs/versions.md and its translation")
    args = parser.parse_args()
    all_pairs = (*SUPPORTED_PAIRS, *TRIALS)
    pairs = [pair for pair in all_pairs if not args.only or (pair.mindformers or pair.mindspore) in args.only]
    rows = read_rows()
    cells = []
    for pair in pairs:
        cells.append(try_pair(pair))
        rows[f"{pair.mindformers}-{pair.mindspore}"] = [*cells[-1].row, datetime.date.today().isoformat()]
        ROWS.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(f"\n{format_table(HEADER[:-1], [cell.row for cell in cells])}")
    if args.write:
        kept = [rows[key] for pair in all_pairs if (key := f"{pair.mindformers}-{pair.mindspore}") in rows]
        for page in PAGES:
            write_table(page, kept)
    return int(not all(cell.is_good for cell in cells))


def try_pair(pair: Pair) -> Cell:
    """One cell of the table."""
    parts = [f"mindformers-{pair.mindformers}"] if pair.mindformers else []
    name = "-".join([*parts, f"mindspore-{pair.mindspore}"])
    say(f"{name} ...")
    folder = PLACE / name
    try:
        install(pair, folder)
        started = time.monotonic()
        if pair == PYNATIVE:
            swaps, training, peaks = try_pynative(folder)
            return Cell(pair, swaps, training, peaks, round(time.monotonic() - started), "green")
        if pair in TRIALS:
            swaps = training = "-"
        else:
            swaps, training = try_training(folder) if pair.mindformers else try_alone(folder)
        has_backend = pair.mindformers not in ("", *BESIDE) and pair.mindspore in DRY_RUN_VERSIONS
        peaks = try_dry_run(folder) if has_backend else "-"
    except CellError as failure:
        return Cell(pair, result=f"FAILED {failure}")
    return Cell(pair, swaps, training, peaks, round(time.monotonic() - started), "green")


def install(pair: Pair, folder: Path) -> None:
    """Make the environment, or take the one that is there."""
    mark = folder / ".installed"
    if mark.exists():
        return
    say("  installing, a minute or two ...")
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    run([sys.executable, "-m", "venv", str(folder)], "venv", INSTALL_S)
    if pair == PYNATIVE:
        run([*pip, *OWN, "-r", str(ROOT / "tools" / "mindformers_2x.txt")], "pip install", INSTALL_S)
        run([*pip, "--no-deps", f"mindformers=={pair.mindformers}"], "pip install", INSTALL_S)
        mark.touch()
        return
    beside = "" if pair in TRIALS else BESIDE.get(pair.mindformers, pair.mindformers)
    pinned = [f"mindspore=={pair.mindspore}", *([f"mindformers=={beside}"] if beside else [])]
    run([*pip, *OWN, *pinned], "pip install", INSTALL_S)
    if beside != pair.mindformers:
        run([*pip, "--no-deps", f"mindformers=={pair.mindformers}"], "pip install", INSTALL_S)
    if pair in TRIALS:  # it asks for another MindSpore
        code = "import importlib.metadata as m; print(*m.requires('mindformers'), sep='\\n')"
        requirements = run([str(folder / "bin" / "python"), "-c", code], "requirements", CELL_S).splitlines()
        run(
            [*pip, *(requirement for requirement in requirements if not requirement.startswith("mindspore"))],
            "pip install",
            INSTALL_S,
        )
    mark.touch()


def try_training(folder: Path) -> tuple[str, str]:
    """Check, compile, train; the swaps of each layer, and the losses."""
    deadline = time.monotonic() + CELL_S
    mindswap = [str(folder / "bin" / "python"), "-m", "mindswap"]
    run([*mindswap, "check", str(CONFIG)], "check", deadline - time.monotonic())
    effect = json.loads(run([*mindswap, "verify", "--json", str(CONFIG)], "verify", deadline - time.monotonic()))
    if not all(layer["ok"] for layer in effect["layers"]):
        raise CellError("verify: the graph is not as asked")
    losses = []
    for swap in ("True", "False"):
        words = ["run", "--config", str(CONFIG), *TRAINING, "--train_dataset_dir", str(samples(mindswap))]
        log = run([*mindswap, *words, "--swap_config.swap", swap], f"train, swap {swap}", deadline - time.monotonic())
        losses.append(LOSS.findall(log))
    if not losses[0] or losses[0] != losses[1]:
        raise CellError(f"train: losses with swap {losses[0][:3]}, without {losses[1][:3]}")
    pairs = " ".join(str(layer["num_pairs"]) for layer in effect["layers"])
    return pairs, f"{len(losses[0])} steps, {losses[0][0]} -> {losses[0][-1]}, as with swap off"


def try_alone(folder: Path) -> tuple[str, str]:
    """MindSpore without MindFormers: the tests that capture and apply on networks of MindSpore itself."""
    words = ["-m", "pytest", "-q", "-m", "mindspore", "tests/graph/test_load.py", "tests/steps/test_network.py"]
    last = run([str(folder / "bin" / "python"), *words], "tests", CELL_S).strip().splitlines()[-1]
    return "-", f"capture and apply: {last.split(' in ')[0].strip('= ')}"


def try_dry_run(folder: Path) -> str:
    """Peaks of case 4 on the Ascend backend, which needs no card."""
    words = [str(folder / "bin" / "python"), "-m", "mindswap", "dryrun", "--json", str(DRY_RUN)]
    figures = json.loads(run(words, "dry run", CELL_S))
    used, actual = (round(figures[key] / 2**20) for key in ("used_peak_bytes", "actual_peak_bytes"))
    return f"{used} MiB, {actual} with fragments"


def try_pynative(folder: Path) -> tuple[str, str, str]:
    """Check and dry run a file of MindFormers 2.x, and train a small one on CPU; the swaps, the training, the peak."""
    python = str(folder / "bin" / "python")
    run([python, "-m", "mindswap", "check", str(PYNATIVE_CONFIG)], "check", CELL_S)
    step = json.loads(run([python, "-m", "mindswap", "dryrun", "--json", str(PYNATIVE_CONFIG)], "dry run", CELL_S))
    (made,) = step["stages"][0]["runs"]
    if not made["copies_out"] or made["copies_out"] != made["copies_back"]:
        raise CellError(f"dry run: {made['copies_out']} copies out, {made['copies_back']} back")
    run([python, "-m", "pytest", "-q", "-m", "mindformers2", PYNATIVE_TRAINING], "tests", CELL_S)
    per_layer = made["copies_out"] // len(made["set_lines"])
    return (
        " ".join([str(per_layer)] * len(made["set_lines"])),
        "5 steps, own engine, as with swap off",
        f"{round(step['used_peak_bytes'] / 2**20)} MiB",
    )


def samples(mindswap: list[str]) -> Path:
    """The help texts of CPython as training samples, made once."""
    data = PLACE / "text.mindrecord"
    if not data.exists():
        text = PLACE / "text.txt"
        text.write_text("\n\n".join(pydoc_data.topics.topics.values())[:20_000], encoding="utf-8")
        run([*mindswap, "prepare-data", str(text), "--output", str(data), "--seq-length", "64"], "data", CELL_S)
    return data


def run(command: list[str], step: str, limit_s: float) -> str:
    """Output of a command.

    Raises:
        Failure: it did not end well, or not in time.
    """
    work = PLACE / "work"
    is_test = "pytest" in command
    work.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MS_", "RANK_", "GLOG_"))}
    environ = {**kept, "PYTHONPATH": str(ROOT), "MINDSWAP_CACHE": str(PLACE / "cache"), ANY_VERSION: "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT if is_test else work, env=environ, capture_output=True, text=True, errors="replace",
            timeout=max(limit_s, 1), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CellError(f"{step}: not done in time ({CELL_S} s a cell)") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise CellError(f"{step}: exit code {done.returncode}: {' '.join(last)}")
    return done.stdout + (done.stderr if step.startswith("train") else "")


def read_rows() -> dict[str, list[str]]:
    """Last results, by pair."""
    PLACE.mkdir(parents=True, exist_ok=True)
    return json.loads(ROWS.read_text("utf-8")) if ROWS.exists() else {}


def write_table(page: Path, rows: list[list[str]]) -> None:
    """Between the two marks of a page."""
    lines = ["<!-- matrix -->", "| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    text = page.read_text("utf-8")
    begin, end = text.index("<!-- matrix -->"), text.index("<!-- end of matrix -->")
    page.write_text(text[:begin] + "\n".join(lines) + "\n" + text[end:], encoding="utf-8")


def say(text: str) -> None:
    """One line of progress."""
    print(f"[matrix] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
