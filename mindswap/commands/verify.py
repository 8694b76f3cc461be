"""`mindswap verify`: what the policy asks for against what the compiler does."""

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mindswap.adapters.installed import require_mindformers
from mindswap.adapters.quiet import quiet
from mindswap.applier.actions import format_log_lines, plan_layer
from mindswap.errors import PolicyError
from mindswap.graph.effect import LayerEffect, compare_effect
from mindswap.logs.compare import LogReport, compare_logs
from mindswap.logs.read import read_worker_logs
from mindswap.policy.check import check_document
from mindswap.policy.model import Policy
from mindswap.policy.yaml_source import load_document
from mindswap.report.effect import effect_to_json, format_effect
from mindswap.report.logs import format_logs, logs_to_json

if TYPE_CHECKING:
    from mindswap.adapters.mindformers import Capture

HELP = "Compile the network of CONFIG without a device and show that every swap of its policy is in the graph."
EXAMPLES = """\
  mindswap verify configs/llama2_7b/case3_op_swap.yaml
  mindswap verify --json llama2_7b.yaml | jq '.layers[].swapped_bytes'
  mindswap verify llama2_7b.yaml --log output/msrun

Exit code 0: the compiled graph does what the policy asks, no more and no less; 1 if not. The
network is compiled for one rank without weights, by MindSpore's own frontend with lazy_inline on.
With --log, 1 also if a worker did not log the policy, or its log shows that it had no effect.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="YAML of MindFormers")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument(
        "--log", metavar="DIR", help="also compare the logs of a run, worker_*.log, usually output/msrun"
    )


def run(args: argparse.Namespace) -> int:
    """Verify one configuration."""
    document = load_document(args.config)
    checked = check_document(document, environ=dict(os.environ))
    if checked.policy is None:
        raise PolicyError(checked.problems)
    logs = read_worker_logs(args.log) if args.log else None
    if not checked.policy.is_swap_enabled:
        report = compare_logs((), logs) if logs is not None else None
        return _print(args, {"ok": True, "layers": []}, "swap is off: nothing to verify in the graph", True, report)
    effects, swapped = verify_policy(str(Path(args.config).resolve()), checked.policy)
    is_ok = all(effect.is_as_asked for effect in effects) and any(effect.pairs for effect in effects)
    report = compare_logs(_expected_lines(checked.policy, swapped), logs) if logs is not None else None
    notes = swapped.notes
    return _print(args, effect_to_json(effects, is_ok, notes), format_effect(effects, is_ok, notes), is_ok, report)


def _print(args: argparse.Namespace, data: dict, text: str, is_ok: bool, report: LogReport | None) -> int:
    if report is not None:
        is_ok = is_ok and report.is_ok
        data = {**data, "ok": is_ok, "logs": logs_to_json(report)}
        text = f"{text}\n\n{format_logs(report)}"
    print(json.dumps(data, indent=1) if args.json else text)
    return 0 if is_ok else 1


def _expected_lines(policy: Policy, swapped: "Capture") -> list[tuple[str, ...]]:
    """What every worker should have logged, layer by layer of the model."""
    return [
        format_log_lines(plan_layer(policy, index, swapped.layers[position]))
        for index, position in enumerate(swapped.sample.layer_map)
    ]


def verify_policy(config_path: str, policy: Policy) -> tuple[tuple[LayerEffect, ...], "Capture"]:
    """Compile with and without swap, and compare with what the policy asks of each layer.

    Returns:
        One effect per layer of the model, and the compiled network under the policy.
    """
    require_mindformers()
    without_swap = dataclasses.replace(policy, default_prefetch=None, op_swap=(), layer_swap=())
    with quiet():
        from mindswap.adapters.mindformers import capture

        swapped = capture(config_path, policy)
        baseline = capture(config_path, without_swap, swapped.sample)
    actions = [
        dataclasses.replace(plan_layer(policy, index, tree), layer_index=position)
        for position, (index, tree) in enumerate(zip(swapped.sample.indices, swapped.layers, strict=True))
    ]
    compiled = compare_effect(actions, swapped.layers, baseline.graph, swapped.graph)
    effects = tuple(
        dataclasses.replace(compiled[position], layer_index=index)
        for index, position in enumerate(swapped.sample.layer_map)
    )
    return effects, swapped
