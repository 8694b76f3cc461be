"""Command line of `mindswap trace`."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from mindswap.command_line.options import add_json, answer
from mindswap.command_line.progress import PhaseLines
from mindswap.config.problem import find_errors
from mindswap.config.source import load_document
from mindswap.errors import DataError, LaunchError
from mindswap.features.dryrun import count_stages, record_trainer_step
from mindswap.files import require_folders, write_new
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, find_format
from mindswap.pynative.trace import RecordedStep, dump_trace
from mindswap.steps.recorded import is_trace_path, record_step
from mindswap.units import format_bytes

EPILOG = """\
examples:
  mindswap trace configs/llama2_7b/cpu/case3_op_swap.yaml -o step.json
  mindswap trace docs/qwen3_2x.yaml -o step.json           # of MindFormers 2.x, in MindSpore's dry run
  mindswap simulate step.json
  mindswap plan step.json --memory 8MiB

The step runs with random weights and tokens, on one rank, without swap and recompute. The trace contains the device: a
CPU kernel copies a view before it reads it, an Ascend kernel does not. A configuration of MindFormers 2.x is recorded
with its own trainer in the dry run of the Ascend backend (docs/mindformers_2x.md), without a card.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="YAML of MindFormers")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="file to write (.json)")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it is there")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Record one configuration."""
    require_folders(args.output)
    if not is_trace_path(str(args.output)):
        raise DataError(f"-o {args.output}: a trace needs a name that ends in .json, as other commands look for it")
    step = _record(args.config)
    write_new(args.output, dump_trace(step), overwrite=args.overwrite)
    trace = step.trace
    num_forward = sum(operator.is_forward for operator in trace.operators)
    result: dict[str, Any] = {
        "output": str(args.output),
        "device": trace.device,
        "num_layers": trace.num_layers,
        "num_forward_operators": num_forward,
        "num_backward_operators": len(trace.operators) - num_forward,
        "num_saves": len(trace.saves),
        "num_storages": len(trace.storages),
        "saved_bytes": sum(storage.size_bytes for storage in trace.storages if not storage.protection),
    }
    return answer(args, result, _format(result))


def _record(config: str) -> RecordedStep:
    """Record on this CPU, or a configuration of MindFormers 2.x with its own trainer in the dry run."""
    document = load_document(config)
    if find_format(document) is not ConfigFormat.PYNATIVE or find_errors(document.problems):
        return record_step(config)
    if count_stages(document) > 1:
        raise LaunchError(
            f"{document.location_of('parallelism', 'pipeline_parallel')}: parallelism.pipeline_parallel: a trace is of "
            "one rank with all layers\n    allowed: 1\n"
            "    fix:     leave the trace out: simulate and plan record each stage themselves"
        )
    return record_trainer_step(document, PhaseLines(time.monotonic(), sys.stderr))


def _format(result: dict[str, Any]) -> str:
    return (
        f"{result['output']}: one step on {result['device']}, {result['num_layers']} layers\n"
        f"{result['num_forward_operators']} operators in forward, {result['num_backward_operators']} in backward\n"
        f"the layers save {result['num_saves']} tensors in {result['num_storages']} storages, "
        f"{format_bytes(result['saved_bytes'])} of them activations"
    )
