"""`mindswap verify`: what is asked for against what the compiler does."""

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindswap.adapters.installed import require_mindformers
from mindswap.adapters.quiet import quiet
from mindswap.check.check import CheckResult, check_document, require_num_layers
from mindswap.commands.caching import cached_result
from mindswap.commands.check import read_real_trees
from mindswap.commands.gathered import with_gathered_weights
from mindswap.config.rank import RankPlacement, place_rank
from mindswap.document.nodes import Document
from mindswap.document.source import load_document
from mindswap.errors import MindswapError, PolicyError
from mindswap.logs.compare import LogReport, compare_logs
from mindswap.logs.read import read_worker_logs
from mindswap.policy.actions import format_log_lines, plan_layer
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.model import Policy
from mindswap.report.effect import effect_to_json, format_effect
from mindswap.report.execution import execution_to_json, format_execution
from mindswap.report.logs import format_logs, logs_to_json
from mindswap.report.recompute import as_applied
from mindswap.report.recompute_effect import format_recompute_effect, recompute_effect_to_json
from mindswap.stage.expand import expand_stage_recompute
from mindswap.verify.effect import LayerEffect, compare_effect
from mindswap.verify.recompute_effect import RecomputeEffect, compare_recompute

if TYPE_CHECKING:
    from mindswap.adapters.mindformers import Capture

HELP = "Compile the network of CONFIG without a device and show that its swap and recompute are in the graph."
EXAMPLES = """\
  mindswap verify configs/llama2_7b/case3_op_swap.yaml
  mindswap verify --json llama2_7b.yaml | jq '.layers[].swapped_bytes'
  mindswap verify llama2_7b.yaml --rank 0
  mindswap verify llama2_7b.yaml --log output/msrun
  mindswap verify configs/llama2_7b/cpu/case3_op_swap.yaml --execute

Exit code 0: the compiled graph does what CONFIG asks, no more and no less; 1 if not. The network is compiled
without weights, by MindSpore's own frontend with lazy_inline on, for one rank that has the whole model, or for
the layers and sizes of --rank. With --execute, that graph is run on CPU with MindSpore's own operators: copies leave,
come back and give memory back by the rules of the Ascend backend, and what is given back is filled with NaN. 1 also
if a gradient is not the plain one bit for bit, or if live memory is not the simulated one at each operator; a large
model is run as a small copy of itself. With swap off, MindFormers' own recompute is compared with recompute_config.
With --log, 1 also if a worker did not log the policy, or its log shows that it had no effect. What was compiled once
is kept in $MINDSWAP_CACHE, or ~/.cache/mindswap.
"""
NOTHING_ASKED = "swap is off: nothing to verify in the graph"


@dataclass(frozen=True)
class Answer:
    """What verifying one configuration gives, in the form that the cache keeps.

    Attributes:
        is_ok: the graph does what is asked.
        text: report for readers.
        data: the same as plain data.
        log_lines: what every worker should have logged, layer by layer of the model.
    """

    is_ok: bool
    text: str
    data: Mapping[str, Any]
    log_lines: tuple[tuple[str, ...], ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="YAML of MindFormers")
    parser.add_argument("--rank", metavar="R", type=int, help="sizes on this rank, layers of its pipeline stage")
    parser.add_argument("--execute", action="store_true", help="also run the compiled step, operator by operator")
    parser.add_argument("--no-cache", action="store_true", help="compile again, keep nothing")
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
    answer = _answer(args, document, checked)
    if args.execute:
        answer = _with_execution(args, document, checked, answer)
    if logs is None:
        return _print(args, answer, None)
    has_peaks = any(log.memory is not None and log.memory.used_peak_bytes is not None for log in logs)
    predicted = _predict_peak(args.config, not args.no_cache) if has_peaks else None
    return _print(args, answer, compare_logs(answer.log_lines, logs, predicted_peak_bytes=predicted))


def _with_execution(args: argparse.Namespace, document: Document, checked: CheckResult, answer: Answer) -> Answer:
    """The answer, and what running the compiled step shows."""
    from mindswap.commands.executing import execute_config  # brings the simulator along

    policy = checked.policy or Policy()
    if not checked.is_swap_enabled:
        policy = _stage_policy(document, checked.num_layers)
    result = execute_config(args.config, document, policy, not args.no_cache)
    return Answer(
        answer.is_ok and result.is_ok,
        f"{answer.text}\n\n{format_execution(result)}",
        {**answer.data, "ok": answer.is_ok and result.is_ok, "execution": execution_to_json(result)},
        answer.log_lines,
    )


def _predict_peak(config: str, use_cache: bool) -> int | None:
    """Simulated highest use of device memory of any pipeline stage; None for what cannot be simulated."""
    from mindswap.commands.stepping import load_step  # brings the simulator along

    try:
        loaded = load_step(config, use_cache=use_cache)
        return loaded.model.simulate(loaded.policy).peak_bytes
    except MindswapError:
        return None


def _answer(args: argparse.Namespace, document: Document, checked: CheckResult) -> Answer:
    """What the compiled graph says, or that there is nothing to ask it."""
    policy, config_path = checked.policy or Policy(), str(Path(args.config).resolve())
    if not checked.is_swap_enabled:
        policy = _stage_policy(document, checked.num_layers)
        if policy == Policy():
            return Answer(True, NOTHING_ASKED, {"ok": True, "layers": []})
    placement = None
    if args.rank is not None:
        placement = place_rank(document, args.rank, require_num_layers(document, checked.num_layers, "--rank: "))
    if checked.is_swap_enabled:
        make = partial(_answer_swap, config_path, policy, placement, checked.num_layers)
    else:
        make = partial(_answer_recompute, config_path, policy, placement)
    return cached_result(
        document,
        policy,
        (Answer,),
        make,
        not args.no_cache,
        ask="verify",
        rank=args.rank,
    )


def _stage_policy(document: Document, num_layers: int | None) -> Policy:
    """What MindFormers recomputes with swap off, without the flags: an empty policy where that is nothing."""
    if num_layers is None:
        section = document.get("recompute_config")
        if section is not None and section.entries:
            require_num_layers(document, num_layers)
        return Policy()
    policy = expand_stage_recompute(document, num_layers).policy
    if not (policy.layer_recompute or policy.select_recompute or policy.select_comm_recompute):
        return Policy()
    return policy


def _answer_swap(config_path: str, policy: Policy, placement: RankPlacement | None, num_layers: int | None) -> Answer:
    effects, swapped = verify_policy(config_path, policy, placement)
    asks_for_swap = bool(policy.layer_swap or policy.op_swap)  # not so where only recompute is in layer indices
    has_pairs = any(effect.pairs for effect in effects)
    is_ok = all(effect.is_as_asked for effect in effects) and has_pairs == asks_for_swap
    notes = _notes(swapped, placement)
    text, data = format_effect(effects, is_ok, notes), effect_to_json(effects, is_ok, notes)
    is_whole = placement is None or placement.num_stages == 1
    return Answer(is_ok, text, data, _expected_lines(config_path, policy, swapped, is_whole, num_layers))


def _answer_recompute(config_path: str, policy: Policy, placement: RankPlacement | None) -> Answer:
    effects, compiled = verify_recompute(config_path, policy, placement)
    is_ok = all(effect.is_as_asked for effect in effects)
    notes = _notes(compiled, placement)
    text = format_recompute_effect(effects, is_ok, notes)
    return Answer(is_ok, text, recompute_effect_to_json(effects, is_ok, notes))


def _notes(compiled: "Capture", placement: RankPlacement | None) -> tuple[str, ...]:
    return compiled.notes if placement is None else (placement.describe(), *compiled.notes)


def _print(args: argparse.Namespace, answer: Answer, report: LogReport | None) -> int:
    is_ok, data, text = answer.is_ok, dict(answer.data), answer.text
    if report is not None:
        is_ok = is_ok and report.is_ok
        data |= {"ok": is_ok, "logs": logs_to_json(report)}
        text = f"{text}\n\n{format_logs(report)}"
    print(json.dumps(data, indent=1) if args.json else text)
    return 0 if is_ok else 1


def _expected_lines(
    config_path: str, policy: Policy, swapped: "Capture", is_whole: bool, num_layers: int | None
) -> tuple[tuple[str, ...], ...]:
    """What every worker should have logged, layer by layer of the model: each worker builds all layers."""
    if is_whole or num_layers is None:
        layers = tuple(swapped.layers[position] for position in swapped.sample.layer_map)
    else:
        layers = read_real_trees(config_path, num_layers).layers
    return tuple(format_log_lines(plan_layer(policy, index, layer)) for index, layer in enumerate(layers))


def verify_policy(
    config_path: str, policy: Policy, placement: RankPlacement | None = None
) -> tuple[tuple[LayerEffect, ...], "Capture"]:
    """Compile with and without swap, and compare with what the policy asks of each layer.

    Returns:
        One effect per layer of the model (of the rank's stage, with `placement`), and the compiled
        network under the policy.
    """
    require_mindformers()
    without_swap = dataclasses.replace(policy, default_prefetch=None, op_swap=(), layer_swap=())
    with quiet():
        from mindswap.adapters.mindformers import capture

        swapped = capture(config_path, policy, placement=placement)
        baseline = capture(config_path, without_swap, swapped.sample, placement=placement)
    swapped, baseline = (with_gathered_weights(each, config_path) for each in (swapped, baseline))
    actions = [
        dataclasses.replace(plan_layer(policy, index, tree), layer_index=position)
        for position, (index, tree) in enumerate(zip(swapped.sample.indices, swapped.layers, strict=True))
    ]
    compiled = compare_effect(actions, swapped.layers, baseline.graph, swapped.graph)
    indices = placement.layers if placement is not None else range(len(swapped.sample.layer_map))
    effects = tuple(
        dataclasses.replace(compiled[position], layer_index=index)
        for index, position in zip(indices, swapped.sample.layer_map, strict=True)
    )
    return effects, swapped


def verify_recompute(
    config_path: str, policy: Policy, placement: RankPlacement | None = None
) -> tuple[tuple[RecomputeEffect, ...], "Capture"]:
    """Compile with MindFormers' own recompute and without, and compare with what is asked of each layer.

    Args:
        config_path: MindFormers YAML with swap off.
        policy: from `policy.stage_recompute`.
        placement: as this rank has it; default is one rank that has the whole model.

    Returns:
        One effect per layer of the model, and the compiled network.
    """
    require_mindformers()
    with quiet():
        from mindswap.adapters.mindformers import capture

        compiled = capture(config_path, Policy(), placement=placement)
        plain = capture(config_path, Policy(is_swap_enabled=True), compiled.sample, placement=placement)
    compiled, plain = (with_gathered_weights(each, config_path) for each in (compiled, plain))
    acting = as_applied(policy, LayerTrees(compiled.layers, {}, "the real network"))
    actions = [plan_layer(acting, index, tree) for index, tree in enumerate(compiled.layers)]
    return compare_recompute(actions, compiled.layers, plain.graph, compiled.graph), compiled
