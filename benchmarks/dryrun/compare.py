"""Memory as simulated against MindSpore's own Ascend backend in a dry run, over a declared set of configurations.

    python benchmarks/dryrun/compare.py                   # all that is not known yet, then the table
    python benchmarks/dryrun/compare.py llama "qwen3 pp2" # rows whose names begin so
    python benchmarks/dryrun/compare.py --again qwen3     # dry run anew
    python benchmarks/dryrun/compare.py --known           # nothing is dry run: what is known, and what is not
    python benchmarks/dryrun/compare.py --write           # the table of docs/dryrun_set.md and its Chinese page

set.yaml declares the rows. Peaks of the dry runs are kept in measured.json by content of the configuration and version
of MindSpore, so that an interrupted run goes on; the simulated ones are made each time. A row takes about a minute on
two cores, a known one seconds. Exit code 1 if a target is missed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from mindswap.config.render import document_from_data
from mindswap.config.step_settings import read_step_settings
from mindswap.graph.capture_cache import make_key
from mindswap.runtime.short_run import format_config

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
MEASURED = FOLDER / "measured.json"
PAGES = (ROOT / "docs/dryrun_set.md", ROOT / "docs/dryrun_set.zh.md")
BEGIN, END = "<!-- set -->\n", "<!-- end of set -->\n"
MIB = 1 << 20
# Percent: mean absolute error, the most above and below the dry run.
MOST_MEAN, MOST_ABOVE, MOST_BELOW = 3.0, 8.0, 3.0
NOT_MEASURED = "not dry run yet"
REFUSED = re.compile(r"\.yaml:\d+:\d+: error: (?P<reason>.*?) \[[a-z-]+\]")  # by a rule of `mindswap check`
FAILED = re.compile(r"dry run of rank \d+: (?!the backend crashed \(SIGKILL\))")  # by MindFormers or MindSpore


@dataclass(frozen=True)
class Row:
    """A stage of a configuration."""

    name: str
    stage: int
    used_bytes: int  # peak of the dry run without fragments
    actual_bytes: int  # with fragments
    simulated_bytes: int | None = None  # without workspace, which a dry run does not know
    simulated_actual_bytes: int | None = None  # with fragments
    error: str = ""  # why there is no figure
    is_inlined: bool = True  # False where MindSpore builds it with MS_DEV_RUNTIME_CONF=switch_inline:False only

    @property
    def percent(self) -> float | None:
        """Distance of the simulated peak above that of the dry run."""
        return self.simulated_bytes and 100 * (self.simulated_bytes / self.used_bytes - 1)

    @property
    def percent_with_fragments(self) -> float | None:
        """The same with what the pool loses in fragments."""
        return self.simulated_actual_bytes and 100 * (self.simulated_actual_bytes / self.actual_bytes - 1)


def main(words: Sequence[str]) -> int:
    """Compare the rows that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="beginnings of names; default is all")
    parser.add_argument("--again", action="store_true", help="dry run rows that are known, too")
    parser.add_argument("--known", action="store_true", help="dry run nothing; rows that are not known are shown so")
    parser.add_argument("--write", action="store_true", help="write the table into the docs")
    args = parser.parse_args(words)
    declared = yaml.safe_load((FOLDER / "set.yaml").read_text(encoding="utf-8"))
    names = [name for name in declared["rows"] if not args.rows or name.startswith(tuple(args.rows))]

    rows = []
    for name in names:
        found = compare(name, configuration(declared, name), args.again, args.known)
        for row in found:
            print(*cells(row), sep=" | ", flush=True)
        rows += found
    print(f"\n{summary(rows)}")
    if args.write:
        for page in PAGES:
            write_table(page, table(rows))
    return 0 if is_good(rows) else 1


def write_table(page: Path, text: str) -> None:
    """Replace the table of a page."""
    before, after = page.read_text(encoding="utf-8").split(BEGIN)[0], page.read_text(encoding="utf-8").split(END)[1]
    page.write_text(before + BEGIN + text + END + after, encoding="utf-8")


def configuration(declared: dict[str, Any], name: str) -> dict[str, Any]:
    """The data of a row."""
    family, *settings = name.split()
    base = declared["families"][family]
    data = yaml.safe_load((ROOT / base["file"]).read_text(encoding="utf-8"))
    for change in (base["set"], base.get("then", {}), *(declared["settings"][key] for key in settings)):
        data = merged(data, change)
    return data


def merged(data: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`change` laid over `data`."""
    result = deepcopy(data)
    for key, value in change.items():
        if key.startswith("="):
            result[key[1:]] = deepcopy(value)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = deepcopy(value)
    return result


def compare(
    name: str, data: dict[str, Any], is_again: bool, is_known_only: bool, results: Path = MEASURED
) -> list[Row]:
    """The rows of a configuration: a dry run, if it is not among the results, and a simulated step."""
    settings = read_step_settings(document_from_data(data, name))
    measured = measure(name, data, is_again, is_known_only, results)
    if measured is None:
        return [Row(name, 0, 0, 0, error=NOT_MEASURED)]
    if error := measured.get("error"):
        refused = REFUSED.search(error)
        return [Row(name, 0, 0, 0, error=f"refused: {refused['reason']}" if refused else error)]
    with tempfile.TemporaryDirectory() as folder:
        simulated, error = simulate(_written(data, name, folder))
    rows = []
    for stage in range(settings.pipeline.num_stages):
        used, actual = measured["peaks"][stage]
        used_simulated, actual_simulated = simulated[stage] if simulated else (None, None)
        if settings.plans_memory:  # the plan is one allocation: its gaps count as used, too
            used_simulated = actual_simulated
        rows.append(Row(name, stage, used, actual, used_simulated, actual_simulated, error, not measured["notes"]))
    return rows


def measure(
    name: str, data: dict[str, Any], is_again: bool = False, is_known_only: bool = False, results: Path = MEASURED
) -> Any:
    """Result of a dry run, which is made if it is not known; None for one that is not known and not to be made."""
    key, known = key_of(data, version("mindspore")), known_results(results)
    if is_again or (key not in known and not is_known_only):
        with tempfile.TemporaryDirectory() as folder:
            known[key] = {"name": name, **dry_run(_written(data, name, folder))}
        # A long run may fail because the machine is busy or small: that is not kept.
        error = known[key].get("error", "")
        if not error or results == MEASURED or REFUSED.search(error) or FAILED.search(error):
            _keep(key, known[key], results)
    return known.get(key)


def key_of(data: dict[str, Any], mindspore: str) -> str:
    """Key of a configuration in measured.json, by a version of MindSpore; the learning rate changes no memory."""
    decisive = {name: section for name, section in data.items() if name != "lr_schedule"}
    return make_key(data=json.dumps(decisive, sort_keys=True), mindspore=mindspore)


def _written(data: dict[str, Any], name: str, folder: str) -> Path:
    path = Path(folder, "row.yaml")
    path.write_text(format_config(data, name), encoding="utf-8")
    return path


def dry_run(path: Path) -> dict[str, Any]:
    """Peaks of each stage, without and with fragments; or the reason why there are none."""
    answer = _mindswap("dryrun", path, "--full")
    if "stages" not in answer:
        return {"error": answer["error"]}
    notes = [note for note in answer["notes"] if "switch_inline" in note]
    peaks = [[stage["used_peak_bytes"], stage["actual_peak_bytes"]] for stage in answer["stages"]]
    return {"peaks": peaks, "notes": notes}


def simulate(path: Path) -> tuple[list[tuple[int, int]], str]:
    """Peaks of each stage without workspace, without and with fragments; or why there are none."""
    # A process of its own: MindFormers builds only legacy or newer models in one.
    answer = _mindswap("simulate", path, "--fragments", "0.09")  # a pool that maps no pages
    if "stages" not in answer:
        return [], answer["error"]
    return [
        (stage["peak_bytes"] - workspace_bytes, stage["actual_peak_bytes"] - workspace_bytes)
        for stage in answer["stages"]
        for workspace_bytes in (stage["static_bytes"]["workspace"],)
    ], ""


def _mindswap(command: str, path: Path, *options: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "mindswap", command, str(path), *options, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"error": (done.stdout + done.stderr)[-500:]}
    if done.returncode and not answer.get("stages"):
        answer["error"] = str(answer.get("error", answer)).replace(f"{path.parent}/", "")
    return answer


def known_results(results: Path = MEASURED) -> dict[str, Any]:
    """Results of all dry runs that were made, by key."""
    return json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}


def _keep(key: str, found: dict[str, Any], results: Path) -> None:
    others = {other: row for other, row in known_results(results).items() if row["name"] != found["name"]}
    rows = sorted({**others, key: found}.items(), key=lambda item: item[1]["name"])
    results.write_text(json.dumps(dict(rows), indent=1) + "\n", encoding="utf-8")


def cells(row: Row) -> list[str]:
    """A row of the table."""
    name = row.name if row.is_inlined else f"{row.name} *"
    if row.simulated_bytes is None:
        return [name, str(row.stage), "-", "-", "-", "-", "-", row.error.strip().splitlines()[0][:120]]
    return [
        name, str(row.stage), f"{row.used_bytes / MIB:.0f} MiB", f"{row.simulated_bytes / MIB:.0f} MiB",
        f"{row.percent:+.1f} %", f"{row.actual_bytes / MIB:.0f} MiB",
        f"{(row.simulated_actual_bytes or 0) / MIB:.0f} MiB", f"{row.percent_with_fragments:+.1f} %",
    ]  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """In Markdown."""
    fragments = ["with fragments", "simulated", "difference"]
    header = ["configuration", "stage", "dry run", "simulated", "difference", *fragments]
    lines = [header, ["---"] * len(header), *map(cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{summary(rows)}\n"


def summary(rows: Sequence[Row]) -> str:
    """Mean absolute error, and the worst rows."""
    both = {f"{row.name}, stage {row.stage}": row for row in rows if row.simulated_bytes is not None}
    names = {row.name for row in rows}
    known = {row.name for row in both.values()}
    if not both:
        return f"{len(names)} configurations, none with both figures"
    errors = {name: row.percent or 0 for name, row in both.items()}
    low, high = min(errors, key=errors.__getitem__), max(errors, key=errors.__getitem__)
    fragments = [abs(row.percent_with_fragments or 0) for row in both.values()]
    return (
        f"{len(names)} configurations declared, {len(known)} with both figures ({len(both)} stages): "
        f"mean absolute error {_mean(list(map(abs, errors.values()))):.1f} %, "
        f"lowest {errors[low]:+.1f} % ({low}), highest {errors[high]:+.1f} % ({high}); "
        f"with fragments {_mean(fragments):.1f} %"
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def is_good(rows: Sequence[Row]) -> bool:
    """True if the targets are met."""
    errors = [row.percent for row in rows if row.percent is not None]
    mean = sum(map(abs, errors)) / max(len(errors), 1)
    return bool(errors) and mean <= MOST_MEAN and min(errors) >= -MOST_BELOW and max(errors) <= MOST_ABOVE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
