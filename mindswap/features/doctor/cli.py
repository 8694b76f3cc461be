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
With CONFIG it also checks this training: host memory for swap and for loading, and the findings of `mindswap check`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="YAML of a training to run on this machine")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command: print facts and problems."""
    facts, findings = examine_machine(args.config)
    has_errors = any(finding.severity is Level.ERROR for finding in findings)
    return answer(args, doctor_to_json(facts, findings), format_doctor(facts, findings), not has_errors)
