"""Command line of `mindswap prove`."""

import argparse
import sys
import time
from pathlib import Path

from mindswap.command_line.options import add_device, device_overrides, number_from
from mindswap.command_line.progress import PhaseLines
from mindswap.errors import LaunchError
from mindswap.features.prove import prove
from mindswap.features.prove.page import format_proof, proof_to_json
from mindswap.features.prove.request import ProofRequest
from mindswap.features.prove.worker_runs import RayPlace
from mindswap.report.problems import answer_text
from mindswap.rules.machine.software import require_mindformers
from mindswap.runtime.short_run import RunOptions
from mindswap.runtime.training_command import load_trainable
from mindswap.simulator.cost.device_file import load_device
from mindswap.system.streams import print_data, print_text
from mindswap.units import parse_bytes

VARIANTS = ("off", "yaml", "plan")


def _variants(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if any(name not in VARIANTS for name in names):
        raise argparse.ArgumentTypeError(f"{text!r}: write one or more of {','.join(VARIANTS)}")
    return tuple(name for name in VARIANTS if name in names)


EPILOG = """\
examples:
  mindswap prove llama2_7b.yaml --layers 4
  mindswap prove llama2_7b.yaml --layers 4 --memory 20GiB -o proof_20gib
  mindswap prove llama2_7b.yaml --layers 4 --variants off,yaml --steps 10 --no-profile
  mindswap prove configs/llama2_7b/cpu/case3_op_swap.yaml --worker-num 2
  mindswap prove llama2_7b.yaml --layers 8 --ray auto --nodes 2 --worker-num 16
  mindswap prove llama2_7b.yaml --layers 4 --json | jq '.checks[] | select(.verdict == "fail")'

Exit code 0: every check passes, or cannot be made on this machine; 1 if one fails. On a CPU the runs are real, but
memory, step time and copies cannot be measured. Read report.html; send support_bundle.tar.gz with a report.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="YAML of MindFormers")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", type=Path, default=Path("proof"), help="folder for the results (proof)"
    )
    parser.add_argument("--overwrite", action="store_true", help="rename an existing FOLDER to FOLDER.old1")
    parser.add_argument(
        "--layers", metavar="N", type=number_from(1), help="run the first N layers only; default is all"
    )
    parser.add_argument("--steps", metavar="N", type=number_from(3), default=5, help="steps of each run (5)")
    parser.add_argument(
        "--worker-num",
        metavar="N",
        type=number_from(1),
        help="number of workers, one per card; default is that of CONFIG, at most 8",
    )
    parser.add_argument(
        "--variants", metavar="off,yaml,plan", type=_variants, default=VARIANTS, help="runs to make; default is all"
    )
    parser.add_argument(
        "--profile", default=True, action=argparse.BooleanOptionalAction, help="profile the last step of rank 0 (on)"
    )
    parser.add_argument("--synthetic-data", action="store_true", help="generate data even if CONFIG names some")
    parser.add_argument(
        "--deterministic", action="store_true", help="require losses that are equal bit for bit; slower"
    )
    parser.add_argument("--ray", metavar="ADDRESS", help="train on the nodes of a Ray cluster: its address, or auto")
    parser.add_argument("--nodes", metavar="N", type=number_from(1), help="number of nodes of the cluster to train on")
    parser.add_argument("--json", action="store_true", help="print JSON; progress goes to the standard error")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Prove one configuration; 0 if no check failed, 1 if one did, 130 after Ctrl-C."""
    begin_s = time.monotonic()
    document = load_trainable(Path(args.config))
    require_mindformers()
    request = _request(args, begin_s)
    proof, archive, code = prove(request, document, args.overwrite, begin_s)
    if proof is None:
        return code
    if args.json:
        print_data(answer_text("prove", proof_to_json(proof), proof.is_ok))
    else:
        print_text("\n" + format_proof(proof))
        print_text(f"\nreport:       {request.folder / 'report.html'}, {request.folder / 'report.json'}")
        contents = "configurations, log lines, profile; no weights, no data; look through it"
        print_text(f"to send back: {archive} ({contents})")
    return code


def _request(args: argparse.Namespace, begin_s: float) -> ProofRequest:
    if (args.ray is None) != (args.nodes is None):
        raise LaunchError(
            "--ray, --nodes: a cluster needs its address and its nodes\n    fix:     --ray auto --nodes 2"
        )
    if args.device:
        load_device(args.device)  # a wrong name stops here, before anything is made
    overrides = device_overrides(args)
    memory = overrides.pop("memory", None)
    try:
        budget_bytes = parse_bytes(memory) if memory is not None else None
    except ValueError as error:
        raise LaunchError(f"--memory: {error}") from None
    device_words = ["--device", args.device] if args.device else []
    for name, text in overrides.items():
        device_words += [f"--{name.replace('_', '-')}", text]
    return ProofRequest(
        folder=args.output,
        config=Path(args.config),
        variants=args.variants,
        options=RunOptions(
            args.steps, args.worker_num or 0, args.layers, is_profiled=args.profile, is_deterministic=args.deterministic
        ),
        budget_bytes=budget_bytes,
        wants_synthetic_data=args.synthetic_data,
        device_words=tuple(device_words),
        report_status=PhaseLines(begin_s, sys.stderr if args.json else sys.stdout),
        cluster=RayPlace(args.ray, args.nodes) if args.ray is not None else None,
    )
