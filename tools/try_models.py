"""Runs every command on the training configurations of MindFormers 1.9.0, and prints the table of docs/models.md.

    make models FOLDER=~/mindformers                        # all of them: an hour on two cores
    python tools/try_models.py ~/mindformers --only qwen3_moe --commands inspect,simulate
    python tools/try_models.py ~/mindformers --missing      # goes on where it was stopped

FOLDER is a checkout of MindFormers, or `site-packages` with the 15 of them that its wheel brings. "verify plan" is
`verify` of what `plan` wrote, "verify swap" that of a copy with the default swap in place of its recompute. A file
whose model is in a folder of Hugging Face is tried as it is, and once more with a folder, whose `config.json` is the
model of a file for pre-training. A cell says what came out, with CPU time and memory of the command, or "refused" and
the reason that the command gives.
The exit code is 1 after a bug, a traceback, or a command that took too long. Every row is kept in
~/.cache/mindswap-models, so that one can be tried alone; `--write` puts all of them into the page.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mindswap.config.parse import parse_document
from mindswap.config.section_edits import rewrite_section
from mindswap.policy.equivalence import rewrite_for_swap
from mindswap.units import SIZE_UNITS

ROOT = Path(__file__).resolve().parent.parent
PLACE = Path(os.environ.get("MINDSWAP_MODELS") or Path.home() / ".cache" / "mindswap-models")
PAGES = [ROOT / "docs" / "models.md", ROOT / "docs" / "models.zh.md"]
BEGIN, END = "<!-- models -->", "<!-- end of models -->"
# Plan comes after simulate, so that its time is without the capture.
COMMANDS = ("check", "explain", "inspect", "verify", "verify swap", "simulate", "plan", "verify plan")
COMPILING = COMMANDS[2:]
# Of `timeout`, and of a process that took more CPU than it may (SIGKILL, SIGXCPU).
STOPPED = (124, 128 + 9, 128 + 24, -9, -24)
OPTION = "--pretrained_model_dir"
NOT_FOR_TRAINING = ("predict", "eval", "infer", "convert_config")
# Files whose model is in a folder, and the file whose model stands in for it.
WITHOUT_MODEL = {
    "configs/deepseek3/finetune_deepseek3_12b_16p_pp16.yaml": "configs/deepseek3/pretrain_deepseek3_12b_16p_pp16.yaml",
    "configs/deepseek3/finetune_deepseek3_671b.yaml": "configs/deepseek3/pretrain_deepseek3_671b.yaml",
    "configs/general/llm_finetune_dense_template.yaml": "configs/qwen3/pretrain_qwen3_32b_4k.yaml",
    "configs/general/llm_finetune_moe_template.yaml": "configs/qwen3_moe/pretrain_qwen3_30b_a3b_4k.yaml",
    "configs/general/llm_pretrain_dense_template.yaml": "configs/qwen3/pretrain_qwen3_32b_4k.yaml",
    "configs/general/llm_pretrain_moe_template.yaml": "configs/qwen3_moe/pretrain_qwen3_30b_a3b_4k.yaml",
    "configs/qwen3/finetune_qwen3.yaml": "configs/qwen3/pretrain_qwen3_32b_4k.yaml",
}
# How the other file runs, and nothing of Hugging Face's.
NOT_IN_FOLDERS = ("offset", "pp_interleave_num", "seq_length")
MAX_REASON_CHARS = 240
FOLDERS = re.compile(r"(?<=\s)/\S*/(?=[^/\s]+\.yaml\b)")
PLACE_OF = re.compile(r"^(mindswap: error: )?(\S+:\d+:\d+: )?(error: )?")


@dataclass(frozen=True)
class Outcome:
    """Outcome of a command on a configuration.

    Attributes:
        cell: for the table.
        is_fault: a bug, or no answer in time.
    """

    cell: str
    is_fault: bool = False


def find_configs(root: Path) -> list[Path]:
    """The training configurations below a checkout."""
    paths = [path for folder in ("configs", "research") for path in sorted((root / folder).rglob("*.yaml"))]
    return [path for path in paths if not any(word in str(path.relative_to(root)) for word in NOT_FOR_TRAINING)]


def find_tries(root: Path) -> list[tuple[str, Path, list[str]]]:
    """Rows of the table: name, configuration, options."""
    tries: list[tuple[str, Path, list[str]]] = []
    for config in find_configs(root):
        name = str(config.relative_to(root))
        tries.append((name, config.resolve(), []))
        if name in WITHOUT_MODEL:
            folder = write_folder(root / WITHOUT_MODEL[name])
            tries.append((f"{name} --pretrained_model_dir {folder.name}", config.resolve(), [OPTION, str(folder)]))
    return tries


def write_folder(config: Path) -> Path:
    """A folder with the model of a configuration as `config.json`."""
    model = yaml.safe_load(config.read_text("utf-8"))["model"]["model_config"]
    folder = PLACE / config.stem.removeprefix("pretrain_")
    folder.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in model.items() if key not in NOT_IN_FOLDERS}
    (folder / "config.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
    return folder


def run(command: str, config: Path, options: list[str], seconds: int, cache: Path) -> Outcome:
    """Answer of a command.

    Args:
        command: its name.
        config: of MindFormers; never changed.
        options: of the command line.
        seconds: after which it is stopped.
        cache: where captures are kept.
    """
    variables = {**environment(config), "MINDSWAP_CACHE": str(cache)}
    with tempfile.TemporaryDirectory() as folder:
        if command == "verify swap":
            config = write_with_swap(config, Path(folder))
        # Another configuration may have the same name.
        words = [config.parent.name, config.stem, *(Path(word).name for word in options)]
        planned = PLACE / "planned" / f"{'_'.join(words)}.yaml"
        words = options
        name = command.split()[0]
        if command == "plan":
            planned.parent.mkdir(exist_ok=True)
            planned.unlink(missing_ok=True)
            words = [*options, "--no-verify", "--output", str(planned)]
        elif command == "verify plan":
            if not planned.exists():
                return Outcome("no plan")
            # What a user does: the plan is verified before it is written.
            name, words = "plan", [*options, "--overwrite", "--output", str(planned)]
        printed, errors = Path(folder) / "stdout", Path(folder) / "stderr"
        # The limit is for CPU: what else runs on the machine decides only where nothing moves any more.
        limited = ["timeout", str(6 * seconds), "sh", "-c", f'ulimit -t {seconds}; exec "$@"', "sh"]
        with printed.open("w") as out, errors.open("w") as err:
            process = subprocess.Popen(
                [*limited, sys.executable, "-m", "mindswap", name, "--json", str(config), *words],
                stdout=out, stderr=err, cwd=folder,
                env=variables,
            )  # fmt: skip
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        effort = (
            f"{used.ru_utime + used.ru_stime:.0f} s, {used.ru_maxrss * SIZE_UNITS['KiB'] / SIZE_UNITS['GB']:.1f} GB"
        )
        texts = [path.read_text("utf-8", "replace") for path in (printed, errors)]
        return judge(command, process.returncode, *texts, effort)


def write_with_swap(config: Path, folder: Path) -> Path:
    """A copy that swaps by default and recomputes nothing: what is recomputed cannot be swapped."""
    text = config.read_text("utf-8")
    document = parse_document(text.encode(), str(config))
    text = rewrite_for_swap(text, document, document)
    for section, value in (("recompute_config", {}), ("swap_config", {"swap": True})):
        text = rewrite_section(text, section, value, file=str(config))
    copy = folder / config.name
    copy.write_text(text, "utf-8")
    return copy


def environment(config: Path) -> dict[str, str]:
    """Variables of the command; a model that is no part of MindFormers has its code in a folder above its files."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    for above in config.parents:
        if above.parent.name == "research" and list(above.glob("*.py")):
            variables["REGISTER_PATH"] = str(above)
            variables["PYTHONPATH"] += f":{above.parent.parent}:{PLACE / 'stand_ins'}"
            # MindFormers wants every package that such code names; TeleChat2 needs this one for 8-bit weights only.
            stand_in = PLACE / "stand_ins" / "mindspore_gs" / "__init__.py"
            stand_in.parent.mkdir(parents=True, exist_ok=True)
            stand_in.touch()
    return variables


def judge(command: str, code: int, output: str, errors: str, effort: str) -> Outcome:
    """The answer of a command as a cell.

    Args:
        command: its name.
        code: exit code.
        output: JSON on stdout.
        errors: stderr.
        effort: what it took.
    """
    if code in STOPPED:
        return Outcome(f"FAULT, not done after {effort}", is_fault=True)
    try:
        answer = json.loads(output)
    except json.JSONDecodeError:
        answer = {}
    if code not in (0, 1) or not answer or "Traceback" in errors:
        lines = (errors.strip() or output.strip()).splitlines() or ["nothing printed"]
        shown = next((line for line in lines if "a bug" in line), lines[-1])
        return Outcome(f"FAULT, exit code {code} after {effort}: {plain(shown)}", is_fault=True)
    if answer["error"] is not None or (command == "check" and not answer["ok"]):
        return Outcome(f"refused: {reason(answer)}")
    return Outcome(figures(command, answer) + (f" ({effort})" if command in COMPILING else ""))


def reason(answer: dict[str, Any]) -> str:
    """Why a command refuses, in one line without places and fixes."""
    wrong = [problem["message"] for problem in answer["problems"] if problem["level"] == "error"]
    error_lines = (
        [PLACE_OF.sub("", line) for line in answer["error"].splitlines() if line[:1].strip()] if not wrong else []
    )
    return plain((wrong or ["; ".join(error_lines)])[0])[:MAX_REASON_CHARS]


def figures(command: str, answer: dict[str, Any]) -> str:
    """Remark on an answer."""
    if command == "verify plan":
        return "right" if answer["verified"] else "NOT as asked" if answer["verified"] is False else "nobody could tell"
    if command.startswith("verify") and not answer["ok"]:
        wrong = [layer["layer"] for layer in answer["layers"] if not layer["ok"]]
        return f"NOT as asked in {len(wrong)} of {len(answer['layers'])} layers"
    if command.startswith("verify") and not answer["layers"]:
        return "nothing asked"
    if command == "simulate":
        return f"{answer['step_time_ns'] / 1e9:.2f} s{'' if answer['fits'] else ', does not fit'}"
    if command == "plan":
        if answer["status"] != "feasible":
            return "nothing fits"
        return f"{answer['step_time_ns'] / 1e9:.2f} s, {100 * answer['gap']:.1f} % above the bound"
    return "right"


def plain(text: str) -> str:
    """Text that a cell of a table can have, without the folders of this machine."""
    return FOLDERS.sub("", text).replace("|", "/").replace("`", "'").strip()


def read_rows() -> dict[str, dict[str, str]]:
    """Cells of all rows that were tried, by configuration and command."""
    path = PLACE / "rows.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def table(rows: dict[str, dict[str, str]]) -> list[str]:
    """The rows as lines of Markdown; a reason stands once in a row."""
    header = ["configuration", *COMMANDS, "tried"]
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    for name, cells in sorted(rows.items()):
        shown: dict[str, str] = {}
        for column in header[1:]:
            cell = cells.get(column, "not tried")
            same = next((earlier_column for earlier_column in shown if shown[earlier_column] == cell), None)
            shown[column] = f"as `{same}`" if same is not None and cell.startswith("refused") else cell
        lines.append("| " + " | ".join([f"`{name}`", *shown.values()]) + " |")
    return lines


def write_table(page: Path, lines: list[str]) -> None:
    """Between the two marks of a page."""
    text = page.read_text("utf-8")
    begin, end = text.index(BEGIN), text.index(END)
    page.write_text(text[:begin] + "\n".join([BEGIN, *lines, ""]) + text[end:], encoding="utf-8")


def main() -> int:
    """Try all configurations, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="checkout of MindFormers 1.9.0")
    parser.add_argument("--only", default="", help="configurations whose path has this text")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="comma-separated")
    parser.add_argument("--missing", action="store_true", help="only what has no cell yet")
    parser.add_argument("--seconds", type=int, default=240, help="of CPU for one command")
    parser.add_argument("--write", action="store_true", help="put the table into docs/models.md and its translation")
    args = parser.parse_args()
    PLACE.mkdir(parents=True, exist_ok=True)
    has_fault = False
    for name, config, options in find_tries(args.root):
        if args.only not in name:
            continue
        for command in args.commands.split(","):
            if args.missing and command in read_rows().get(name, {}):
                continue
            result = run(command, config, options, args.seconds, PLACE / "captures")
            has_fault |= result.is_fault
            print(f"{name}: {command}: {result.cell}", flush=True)
            rows = read_rows()
            rows.setdefault(name, {}).update({command: result.cell, "tried": datetime.date.today().isoformat()})
            (PLACE / "rows.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    lines = table(read_rows())
    print("\n" + "\n".join(lines))
    if args.write:
        for page in PAGES:
            write_table(page, lines)
    return int(has_fault)


if __name__ == "__main__":
    sys.exit(main())
