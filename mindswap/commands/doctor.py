"""Say what on this machine keeps a training from doing what it says: versions, limits, memory, variables.

examples:
  mindswap doctor
  mindswap doctor llama2_7b.yaml
  mindswap doctor --json | jq -r '.findings[].check'

No device is needed, and nothing is compiled. The exit code is 1 if a training would not start, or would not swap.
With CONFIG, also what this training needs: host memory for what it swaps and loads, and what `mindswap check` finds.
"""

import argparse

from mindswap.api.check import examine_machine
from mindswap.commands.options import add_common
from mindswap.config.problem import Level
from mindswap.report.doctor import doctor_to_json, format_doctor
from mindswap.report.problems import answer_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="YAML of a training that is to run here")
    add_common(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Look at everything, and say what is not as it should be."""
    facts, findings = examine_machine(args.config)
    has_errors = any(finding.severity is Level.ERROR for finding in findings)
    if args.json:
        print(answer_text("doctor", doctor_to_json(facts, findings), not has_errors))
    else:
        print(format_doctor(facts, findings))
    return int(has_errors)
