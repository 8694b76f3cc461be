"""Command line of `mindswap doctor`."""

import argparse

from mindswap.command_line.options import add_json, answer
from mindswap.config.problem import Level
from mindswap.features.doctor import examine_machine
from mindswap.features.doctor.report import doctor_to_json, format_doctor

EPILOG = """\
examples:
  mindswap doctor
  mindswap doctor llama2_7b.yaml
  mindswap doctor --json | jq -r '.findings[].check'

No device is needed, and nothing is compiled. The exit code is 1 if a training would not start, or would not swap.
With CONFIG, also what this training needs: host memory for what it swaps and loads, and what `mindswap check` finds.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="YAML of a training that is to run here")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command: print facts and problems."""
    facts, findings = examine_machine(args.config)
    has_errors = any(finding.severity is Level.ERROR for finding in findings)
    return answer(args, doctor_to_json(facts, findings), format_doctor(facts, findings), not has_errors)
