"""Run CONFIG for a few steps with swap off, as it is and planned; put measured beside simulated.

examples:
  mindswap prove llama2_7b.yaml --layers 4
  mindswap prove llama2_7b.yaml --layers 4 --memory 20GiB -o proof_20gib
  mindswap prove llama2_7b.yaml --layers 4 --variants off,yaml --steps 10 --no-profile
  mindswap prove configs/llama2_7b/cpu/case3_op_swap.yaml --worker-num 2
  mindswap prove llama2_7b.yaml --layers 8 --ray auto --nodes 2 --worker-num 16
  mindswap prove llama2_7b.yaml --layers 4 --json | jq '.checks[] | select(.verdict == "fail")'

Exit code 0: every check holds, or cannot be seen on this machine; 1 if one does not hold. On a CPU the runs are real,
and memory, step time and copies are not visible. Read report.html; support_bundle.tar.gz has what to send for a report.

options:
  CONFIG            YAML of MindFormers
  -o --output FOLDER  default is proof
  --overwrite       put an earlier FOLDER aside as FOLDER.old1
  --layers N        cut the model to N layers; default is all
  --steps N         steps of each run (5)
  --worker-num N    workers, one per card; default: CONFIG's, 8 at most
  --variants off,yaml,plan  default is all
  --profile         profile the last step of rank 0 (on)
  --synthetic-data  make data, although CONFIG has some
  --deterministic   losses must be equal to the last bit; slower
  --ray ADDRESS     train on the nodes of a Ray cluster: its address, or auto
  --nodes N         nodes of the cluster that train
  --json            for machines; progress goes to the standard error
  --device
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from mindswap.adapters.mindrecord import write_synthetic_data
from mindswap.check.doctor.software import count_cards, require_mindformers
from mindswap.commands.options import PhaseLines, device_overrides, number_from
from mindswap.commands.run import cards_missing
from mindswap.config.nodes import Document
from mindswap.config.step import is_on_cpu
from mindswap.errors import LaunchError
from mindswap.files import write_new
from mindswap.report.problems import answer_text
from mindswap.report.proof_html import format_proof, format_proof_html, proof_to_json
from mindswap.simulator.cost.device_file import load_device
from mindswap.training.launch.processes import StoppedBySignal, adopt_orphans, signals_raise, stop_descendants
from mindswap.training.launch.training import load_trainable
from mindswap.training.proof.checks import make_checks
from mindswap.training.proof.children import RayPlace
from mindswap.training.proof.derive import RunOptions
from mindswap.training.proof.model import Proof
from mindswap.training.proof.proving import ProofRequest, prepare, run_variants
from mindswap.training.proof.support_bundle import pack
from mindswap.units import parse_bytes

VARIANTS = ("off", "yaml", "plan")


def _variants(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if any(name not in VARIANTS for name in names):
        raise argparse.ArgumentTypeError(f"{text!r}: write one or more of {','.join(VARIANTS)}")
    return tuple(name for name in VARIANTS if name in names)


ARGUMENTS = {
    "--output": {"type": Path, "default": Path("proof")},
    "--layers": {"type": number_from(1)},
    "--steps": {"type": number_from(3), "default": 5},
    "--worker-num": {"type": number_from(1)},
    "--variants": {"type": _variants, "default": VARIANTS},
    "--profile": {"default": True, "action": argparse.BooleanOptionalAction},
    "--nodes": {"type": number_from(1)},
}


def run(args: argparse.Namespace) -> int:
    """Prove one configuration; 0 if no check failed, 1 if one did, 130 after Ctrl-C."""
    begin_s = time.monotonic()
    document = load_trainable(Path(args.config))
    require_mindformers()
    if args.ray is None:
        _require_cards(document, args.worker_num)
    bench = _bench(args, begin_s)
    _make_fresh(bench.folder, args.overwrite)
    adopt_orphans()
    stopped: StoppedBySignal | None = None
    proof: Proof | None = None
    try:
        with signals_raise():
            proof = prepare(bench, document)
            for state in run_variants(bench, proof):
                proof = state
    except StoppedBySignal as signal:
        bench.say("interrupted: all workers are stopped")
        stopped = signal
    finally:
        stop_descendants()
    if proof is None:
        bench.say(f"no run was started; {bench.folder} has what there is")
        return 128 + stopped.number if stopped else 1
    proof = replace(proof, is_interrupted=stopped is not None, wall_s=time.monotonic() - begin_s)
    proof = replace(proof, checks=make_checks(proof))
    _finish(args, bench, proof)
    return 128 + stopped.number if stopped else 0 if proof.is_ok else 1


def _bench(args: argparse.Namespace, begin_s: float) -> ProofRequest:
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
        wanted=RunOptions(args.steps, args.worker_num or 0, args.layers, None, args.profile, args.deterministic),
        budget_bytes=budget_bytes,
        wants_synthetic_data=args.synthetic_data,
        device_words=tuple(device_words),
        say=PhaseLines(begin_s, sys.stderr if args.json else sys.stdout),
        write_data=write_synthetic_data,
        cluster=RayPlace(args.ray, args.nodes) if args.ray is not None else None,
    )


def _finish(args: argparse.Namespace, bench: ProofRequest, proof: Proof) -> None:
    """Write what there is, and say where."""
    answer = answer_text("prove", proof_to_json(proof), proof.is_ok)
    write_new(bench.folder / "report.json", answer + "\n", overwrite=True)
    write_new(bench.folder / "report.html", format_proof_html(proof), overwrite=True)
    archive = pack(bench.folder)
    if args.json:
        print(answer)
    else:
        print("\n" + format_proof(proof))
        print(f"\nreport:       {bench.folder / 'report.html'}, {bench.folder / 'report.json'}")
        print(f"to send back: {archive} (configurations, log lines, profile; no weights, no data; look through it)")


def _require_cards(document: Document, num_workers: int | None) -> None:
    """Stop before minutes of simulating where the runs cannot start."""
    if missing := cards_missing(document, []):
        raise LaunchError(missing)
    cards = 0 if is_on_cpu(document) else count_cards()
    if num_workers and 0 < cards < num_workers:
        raise LaunchError(f"--worker-num {num_workers}: this machine has {cards} cards, and a worker needs one")


def _make_fresh(folder: Path, is_put_aside: bool) -> None:
    """Make the folder; what an earlier proof left in it must not be taken for this one."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            if not is_put_aside:
                raise LaunchError(f"{folder}: already exists\n    fix:     -o ANOTHER_FOLDER, or --overwrite")
            number = next(n for n in range(1, 1 << 20) if not folder.with_name(f"{folder.name}.old{n}").exists())
            folder.rename(folder.with_name(f"{folder.name}.old{number}"))
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"{folder}: cannot be made: {error.strerror or error}") from error
