"""Longest sequence that fits the card, and step time of long ones: full recompute, its inputs swapped, and plans.

    git clone https://github.com/mindspore-lab/mindformers
    python benchmarks/long_sequences.py mindformers                  # every row: an hour
    python benchmarks/long_sequences.py mindformers Llama 8          # rows whose names contain these words
    python benchmarks/long_sequences.py mindformers --longest        # also the longest sequence of each

Files, splits and lengths are declared in long_sequences.yaml. A row takes a training file of MindFormers, gives it a
sequence length, one sample and a split over the cards, and runs `mindswap compare` and `mindswap plan` on it.
Everything is simulated; docs/long_sequences.md has dry runs of some rows.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from plan_sweeps import read_from_git

DECLARED = Path(__file__).resolve().parent / "long_sequences.yaml"
GIB = 2**30
STEP_TOKENS = 16384  # longest sequences are multiples of this
MOST_TOKENS = 1 << 20
SWAPPED = ("recompute-swap", "recompute-swap-norms")
BUDGET_GIB = 55.1  # 58 GiB, of the 64 GB of the card, less the margin of 5 % that `mindswap plan` keeps
HEADER = ("model and split", "tokens", "method", "step s", "tokens/s/card", "peak GiB", "fits")
ROW = "{:<44} {:>8} {:<20} {:>8} {:>14} {:>9} {:>5}"


@dataclass(frozen=True)
class Case:
    """A model of MindFormers on a number of cards."""

    model: str
    cards: int
    tensor: int  # ranks of tensor parallel
    context: int  # ranks of context parallel
    algorithm: str  # of context parallel; "ring" for ring attention
    recipe: dict[str, Any]  # the training file
    device: str

    @property
    def name(self) -> str:
        """For tables and for the words of the command line."""
        context = f" cp{self.context} {self.algorithm}" if self.context > 1 else ""
        return f"{self.model} {self.cards} cards tp{self.tensor}{context}"

    def configuration(self, tokens: int) -> dict[str, Any]:
        """The training file with a sequence length and this split, layers recomputed as a whole."""
        data: dict[str, Any] = deepcopy(self.recipe)
        data["parallel_config"].update(
            data_parallel=1,
            model_parallel=self.tensor,
            context_parallel=self.context,
            context_parallel_algo=self.algorithm if self.algorithm == "ulysses_cp" else "colossalai_cp",
            pipeline_stage=1,
            micro_batch_num=1,
            use_seq_parallel=self.tensor > 1,
            vocab_emb_dp=False,  # else each card has the logits of the whole vocabulary
        )
        model = data["model"]["model_config"]
        model.update(seq_length=tokens, use_flash_attention=True, use_attn_mask_compression=True)
        model["max_position_embedding"] = max(tokens, model.get("max_position_embedding") or 0)
        if self.algorithm == "ring":
            model["use_ring_attention"] = True
        data["recompute_config"] = {
            "recompute": True,
            "select_recompute": False,
            "parallel_optimizer_comm_recompute": False,
            "mp_comm_recompute": True,
            "recompute_slice_activation": False,
        }
        return data


@dataclass(frozen=True)
class Point:
    """One method at one length; simulated."""

    method: str
    step_time_ns: int
    peak_bytes: int
    least_bytes: int  # least memory of this method; for plans the lower bound
    fits: bool


def main() -> int:
    """Print the chosen rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path, help="git repository of MindFormers")
    parser.add_argument("words", nargs="*", help="rows whose names contain all of these")
    parser.add_argument("--tokens", type=int, nargs="*", help="other sequence lengths, or none")
    parser.add_argument("--longest", action="store_true", help="the longest sequence that fits, too")
    args = parser.parse_args()
    declared = yaml.safe_load(DECLARED.read_text("utf-8"))
    chosen = [case for case in read_cases(declared, args.checkout) if all(word in case.name for word in args.words)]
    print(ROW.format(*HEADER))
    for case in chosen:
        for tokens in declared["tokens"] if args.tokens is None else args.tokens:
            for point in measure(case, tokens):
                print(row(case, tokens, point), flush=True)
        if args.longest:
            for method in ("full recompute", "plan"):
                print(f"{case.name}: longest with {method}: {longest(case, method)} tokens", flush=True)
    return 0 if chosen else 1


def read_cases(declared: dict[str, Any], checkout: Path) -> Iterator[Case]:
    """The cases of long_sequences.yaml."""
    for model, of_model in declared["models"].items():
        recipe = yaml.safe_load(read_from_git(checkout, declared["refs"], of_model["file"]))
        for cards, splits in of_model["splits"].items():
            for tensor, context, algorithm in splits:
                yield Case(model, cards, tensor, context, algorithm, recipe, declared["device"])


def measure(case: Case, tokens: int, with_plan: bool = True) -> list[Point]:
    """Full recompute, the same with inputs of cells (and outputs of norms) swapped, and the plan for the card."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.yaml"
        path.write_text(yaml.safe_dump(case.configuration(tokens), sort_keys=False), "utf-8")
        device = ("--device", case.device, "--memory", f"{BUDGET_GIB}GiB")
        runs = run_command("compare", str(path), *SWAPPED, *device)["configurations"]
        points = [
            Point(method, run["step_time_ns"], run["peak_bytes"], run["peak_bytes"], run["fits"])
            for method, run in zip(("full recompute", *SWAPPED), runs, strict=True)
        ]
        if with_plan:
            plan = run_command("plan", str(path), "--no-verify", *device)
            least_bytes = plan["least_budget_bytes"] or plan["peak_bytes"]
            fits = plan["peak_bytes"] <= plan["budget_bytes"]
            points.append(Point("plan", plan["step_time_ns"], plan["peak_bytes"], least_bytes, fits))
    return points


def run_command(*arguments: str) -> dict[str, Any]:
    """A command of mindswap and its answer."""
    done = subprocess.run([sys.executable, "-m", "mindswap", *arguments, "--json"], capture_output=True, text=True)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise SystemExit(f"mindswap {' '.join(arguments)}: {done.stdout}{done.stderr}") from None
    if answer["error"]:
        raise SystemExit(f"mindswap {' '.join(arguments)}: {done.stdout[:2000]}")
    return answer


def row(case: Case, tokens: int, point: Point) -> str:
    """A line of the table."""
    seconds = point.step_time_ns / 1e9
    peak = f"{point.peak_bytes / GIB:.1f}"
    rate = f"{tokens / seconds / case.cards:.0f}"
    return ROW.format(
        case.name, tokens, point.method, f"{seconds:.2f}", rate, peak, "yes" if point.fits else "no"
    ).rstrip()


def longest(case: Case, method: str) -> int:
    """The longest sequence that fits, a multiple of `STEP_TOKENS`.

    The least memory grows linearly with the length, so the search starts next to where the line of two lengths meets
    the budget; the answer itself is a length that fits, with the next one that does not.
    """

    def measure_length(tokens: int) -> Point:
        found = measure(case, tokens, with_plan=method == "plan")
        return next(point for point in found if point.method == method)

    shorter, longer = 4 * STEP_TOKENS, 8 * STEP_TOKENS
    first, second = measure_length(shorter), measure_length(longer)
    bytes_per_token = (second.least_bytes - first.least_bytes) / (longer - shorter)
    room_tokens = int((BUDGET_GIB * GIB - first.least_bytes) / bytes_per_token)
    guess = min(MOST_TOKENS, max(STEP_TOKENS, (shorter + room_tokens) // STEP_TOKENS * STEP_TOKENS))
    step = STEP_TOKENS if measure_length(guess).fits else -STEP_TOKENS
    while 0 < guess + step <= MOST_TOKENS and measure_length(guess + step).fits == (step > 0):
        guess += step
    return guess if step > 0 else guess + step


if __name__ == "__main__":
    sys.exit(main())
