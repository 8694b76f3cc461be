"""Run every command on the training configurations of a checkout of MindFormers 1.9.0, and print a table in Markdown.

    python tools/try_models.py ~/mindformers                     # all of them; hours on a small machine
    python tools/try_models.py ~/mindformers --only qwen3_moe --commands inspect,simulate

A configuration without `swap_config` gets the default one for `verify`. A cell is `right` with its seconds, or what the
command says of the reason. A bug (exit code 3) makes the exit code of this tool 1.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = ("check", "explain", "inspect", "verify", "simulate", "plan")
NOT_FOR_TRAINING = ("predict", "eval", "infer", "convert_config")
SWAP = "\nswap_config:\n  swap: True\n"
BUG = 3


def find_configs(root: Path) -> list[Path]:
    """The training configurations below a checkout."""
    found = [path for folder in ("configs", "research") for path in sorted((root / folder).rglob("*.yaml"))]
    return [path for path in found if not any(word in str(path.relative_to(root)) for word in NOT_FOR_TRAINING)]


def run(command: str, config: Path, seconds: int) -> tuple[str, bool]:
    """What a command gives, as a cell, and whether it is a bug."""
    with tempfile.TemporaryDirectory() as folder:
        if command == "verify" and "swap_config:" not in config.read_text("utf-8"):
            copy = Path(folder) / config.name
            copy.write_text(config.read_text("utf-8") + SWAP, "utf-8")
            config = copy
        extra = ["--output", str(Path(folder) / "planned.yaml")] if command == "plan" else []
        start = time.monotonic()
        try:
            result = subprocess.run(
                [sys.executable, "-m", "mindswap", command, str(config), *extra],
                capture_output=True, text=True, timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"more than {seconds} s", False
    if result.returncode == 0:
        return f"right ({time.monotonic() - start:.0f} s)", False
    text = result.stderr.strip() or result.stdout.strip()
    line = next((line for line in text.splitlines() if "error" in line or "bug" in line), text.split("\n", 1)[0])
    return line.replace(str(config), config.name).replace("|", "/"), result.returncode == BUG


def main() -> int:
    """Try all configurations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="checkout of MindFormers 1.9.0")
    parser.add_argument("--only", default="", help="configurations whose path has this text")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="comma-separated")
    parser.add_argument("--seconds", type=int, default=500, help="for one command")
    args = parser.parse_args()
    commands = args.commands.split(",")
    print(f"| configuration | {' | '.join(commands)} |\n|---{'|---' * len(commands)}|")
    num_bugs = 0
    for config in find_configs(args.root):
        if args.only not in str(config):
            continue
        cells = []
        for command in commands:
            cell, is_bug = run(command, config.resolve(), args.seconds)
            cells.append(cell)
            num_bugs += is_bug
        print(f"| `{config.relative_to(args.root)}` | {' | '.join(cells)} |", flush=True)
    return 1 if num_bugs else 0


if __name__ == "__main__":
    sys.exit(main())
