"""Compare the requested policy with the compiled graph: `mindswap verify`."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mindswap.config.nodes import Document
from mindswap.config.pipeline_layout import read_pipeline
from mindswap.config.problem import find_errors
from mindswap.config.source import load_document
from mindswap.config.weight_sharding import RankPlacement, gathers_sequence
from mindswap.errors import LaunchError, MindswapError
from mindswap.features.verify.log_comparison import compare_logs
from mindswap.features.verify.log_report import format_logs, logs_to_json
from mindswap.features.verify.report import (
    effect_to_json,
    format_effect,
    format_recompute_effect,
    recompute_effect_to_json,
)
from mindswap.features.verify.states_effect import has_states_on_host, verify_states
from mindswap.features.verify.trainer_verify import refuse_options, verify_2x
from mindswap.files import file_name
from mindswap.graph.analysis.recompute_effect import RecomputeEffect, compare_recompute
from mindswap.graph.analysis.swap_effect import LayerEffect, compare_effect, is_replaced_by_gather
from mindswap.policy.applied import as_applied, format_log_lines
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, find_format
from mindswap.policy.model import Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.rules.checker import CheckResult, check_document, require_num_layers
from mindswap.runtime.logs.read import read_worker_logs
from mindswap.steps.compile_cache import cached_result
from mindswap.steps.compiled import compile_under, compile_with, layer_indices, place_requested_rank
from mindswap.steps.network import read_real_trees
from mindswap.steps.recorded import require_compilable
from mindswap.units import format_bytes

if TYPE_CHECKING:
    from mindswap.adapters.graph.mindformers import Capture

NO_REQUEST = "swap is off: nothing to verify in the graph"


@dataclass(frozen=True)
class Verification:
    """Result of verifying one configuration; `str()` returns the report. Plain data, so that the cache can store it.

    Attributes:
        matches_policy: whether the graph implements exactly the requested policy.
        text: the report as text.
        data: the report as JSON data.
        log_lines: for each layer of the model, the lines that every worker should have logged.
    """

    matches_policy: bool
    text: str
    data: Mapping[str, Any]
    log_lines: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        return self.text


def verify(
    path: str | os.PathLike[str],
    rank: int | None = None,
    logs: str | os.PathLike[str] | None = None,
    use_cache: bool = True,
    progress: Callable[[int, int], None] | None = None,
    brief: bool = False,
    num_cards: int | None = None,
) -> Verification:
    """Compile a configuration and compare its graph with the requested policy. No device is needed.

    A configuration of MindFormers 2.x, which has no graph, is compared with a dry run of its trainer.

    Args:
        path: MindFormers YAML.
        rank: report sizes of this rank and the layers of its pipeline stage; None for one rank with the full model.
        logs: folder with worker logs of a run, or with one folder `node_*` for each node; without
            msrun `output/log` of MindFormers; they are checked, too.
        use_cache: False recompiles and stores nothing.
        progress: function called with the number of logs read so far and the number of logs.
        brief: compile once and omit the sizes without swap, unless the graph differs from the policy.
        num_cards: of MindFormers 2.x: cards of the training; None takes the most that the batch sizes allow.

    Returns:
        The comparison for each layer, and for the logs if there are any.

    Raises:
        PolicyError: if the configuration is wrong.
        GraphError: if the network cannot be built or compiled.
        LogError: if the logs cannot be read.
        LaunchError: of MindFormers 2.x, or with optimizer states on the host: the dry run is not possible, or failed.
    """
    config = file_name(path)
    document = load_document(config)
    if find_format(document) is ConfigFormat.PYNATIVE and not find_errors(document.problems):
        refuse_options(document, rank=rank, log=logs)
        return Verification(*verify_2x(document, brief, num_cards))
    if num_cards is not None:
        raise LaunchError("--cards: of MindFormers 2.x only: a configuration of 1.9 specifies its number of cards")
    checked = check_document(document)
    requested = checked.require_policy()
    workers = read_worker_logs(file_name(logs), progress) if logs is not None else None
    policy = requested if checked.is_swap_enabled else _stage_policy(document, checked.num_layers)
    verification = _verify_graph(document, checked, policy, rank, use_cache, brief)
    if has_states_on_host(document):
        verification = _with_states(verification, document, checked, policy, rank, use_cache, brief)
    if workers is None:
        return verification
    has_peaks = any(log.memory is not None and log.memory.used_peak_bytes is not None for log in workers)
    predicted = _predict_peak(document, use_cache) if has_peaks else None
    num_stages = read_pipeline(document).num_stages
    report = compare_logs(verification.log_lines, workers, predicted, num_stages)
    is_ok = verification.matches_policy and report.is_ok
    data = {**verification.data, "ok": is_ok, "logs": logs_to_json(report)}
    return Verification(is_ok, f"{verification.text}\n\n{format_logs(report)}", data, verification.log_lines)


def _predict_peak(document: Document, use_cache: bool) -> int | None:
    """Return the simulated peak memory (bytes) of the pipeline stage with the highest; None if not supported."""
    from mindswap.features.step import load_step  # slow import: the simulator

    try:
        loaded = load_step(document, use_cache=use_cache)
        return loaded.simulate().peak_bytes
    except MindswapError:
        return None


def _verify_graph(
    document: Document, checked: CheckResult, policy: Policy, rank: int | None, use_cache: bool, brief: bool
) -> Verification:
    """Verify the compiled graph; without swap and recompute return a result that nothing was requested."""
    if not checked.is_swap_enabled and policy == Policy():
        return Verification(True, NO_REQUEST, {"ok": True, "layers": []})
    require_compilable(document, takes_trace=False)
    placement = place_requested_rank(document, rank, checked.num_layers)
    if checked.is_swap_enabled:
        make = partial(_answer_swap, document, policy, placement, use_cache, checked.num_layers, brief)
    else:
        make = partial(_answer_recompute, document, policy, placement, use_cache)
    return cached_result(document, policy, (Verification,), make, use_cache, ask="verify", rank=rank, brief=brief)


def _with_states(
    verification: Verification,
    document: Document,
    checked: CheckResult,
    policy: Policy,
    rank: int | None,
    use_cache: bool,
    brief: bool,
) -> Verification:
    """Return a verification with the effect of `optimizer: {swap: True}`, which no graph of the frontend shows."""

    def make() -> Verification:
        return Verification(*verify_states(document, checked, rank, brief))

    try:
        states = cached_result(document, policy, (Verification,), make, use_cache, ask="states", rank=rank, brief=brief)
    except LaunchError as error:
        if not verification.matches_policy:  # what the graph does otherwise is known
            text = f"{verification.text}\n\noptimizer states: not verified: {error}"
            data = {**verification.data, "optimizer_states": {"ok": None, "reason": str(error)}}
            return Verification(False, text, data, verification.log_lines)
        raise
    is_ok = verification.matches_policy and states.matches_policy
    data = {**verification.data, "ok": is_ok, "optimizer_states": states.data}
    return Verification(is_ok, f"{verification.text}\n\n{states.text}", data, verification.log_lines)


def _stage_policy(document: Document, num_layers: int | None) -> Policy:
    """Return the recompute settings with swap off, without the flags; an empty policy if no operator is selected."""
    if num_layers is None:
        section = document.get("recompute_config")
        if section is not None and section.entries:
            require_num_layers(document, num_layers)
        return Policy()
    policy = expand_stage_recompute(document, num_layers).policy
    if not (policy.layer_recompute or policy.select_recompute or policy.select_comm_recompute):
        return Policy()
    return policy


def _answer_swap(
    document: Document,
    policy: Policy,
    placement: RankPlacement | None,
    use_cache: bool,
    num_layers: int | None,
    brief: bool,
) -> Verification:
    effects, swapped = verify_policy(document, policy, placement, use_cache, brief)
    # False if only recompute is set, or if no swap entry includes a layer of this stage.
    named = [entry.layers for entry in policy.layer_swap] + [entry.layers for entry in policy.op_swap]
    asks_for_swap = any(effect.layer_index in layers for layers in named for effect in effects)
    # Layers of multi-token prediction follow the decoder layers and share the index of the last one.
    outside_layers = [pair for pair in swapped.graph.swap_pairs if pair.producer.layer_index is None]
    has_pairs = bool(outside_layers) or any(effect.pairs for effect in effects)
    is_ok = all(effect.matches_policy for effect in effects) and has_pairs == asks_for_swap
    notes = _notes(swapped, placement)
    if outside_layers:
        size = format_bytes(sum(pair.copy_out.size_bytes for pair in outside_layers))
        notes = (
            *notes,
            f"after the layers, as in multi-token prediction: {len(outside_layers)} MoveTo pairs, {size} swapped",
        )
    text, data = format_effect(effects, is_ok, notes), effect_to_json(effects, is_ok, notes)
    has_all_stages = placement is None or placement.num_stages == 1
    return Verification(is_ok, text, data, _expected_lines(document, policy, swapped, has_all_stages, num_layers))


def _answer_recompute(
    document: Document, policy: Policy, placement: RankPlacement | None, use_cache: bool
) -> Verification:
    effects, compiled = verify_recompute(document, policy, placement, use_cache)
    is_ok = all(effect.matches_policy for effect in effects)
    notes = _notes(compiled, placement)
    text = format_recompute_effect(effects, is_ok, notes)
    return Verification(is_ok, text, recompute_effect_to_json(effects, is_ok, notes))


def _notes(compiled: "Capture", placement: RankPlacement | None) -> tuple[str, ...]:
    return compiled.notes if placement is None else (placement.describe(), *compiled.notes)


def _expected_lines(
    document: Document, policy: Policy, swapped: "Capture", has_all_stages: bool, num_layers: int | None
) -> tuple[tuple[str, ...], ...]:
    """Return, for each layer of the model, the lines that every worker should log: each worker builds all layers."""
    if has_all_stages or num_layers is None:
        layers = tuple(swapped.layers[position] for position in swapped.sample.layer_map)
    else:
        layers = read_real_trees(document.file, num_layers).layers
    return tuple(format_log_lines(resolve_layer(policy, index, layer)) for index, layer in enumerate(layers))


def verify_policy(
    document: Document,
    policy: Policy,
    placement: RankPlacement | None = None,
    use_cache: bool = True,
    brief: bool = False,
) -> tuple[tuple[LayerEffect, ...], "Capture"]:
    """Compile with and without swap, and compare each layer with the policy.

    Args:
        document: the configuration.
        policy: the requested policy.
        placement: compile the pipeline stage of this rank; None for the full model.
        use_cache: False recompiles and stores nothing.
        brief: compile without swap only if the graph differs from the policy.

    Returns:
        One effect per layer of the model or stage, and the network compiled with the policy.
    """
    swapped = compile_under(document, policy, placement, use_cache)
    decided = [
        dataclasses.replace(resolve_layer(policy, index, tree), layer_index=position)
        for position, (index, tree) in enumerate(zip(swapped.sample.indices, swapped.layers, strict=True))
    ]
    effects: tuple[LayerEffect, ...] = ()
    if brief:
        effects = tuple(
            dataclasses.replace(effect, kept_before_bytes=None)
            for effect in compare_effect(decided, swapped.graph, swapped.graph)
        )
    if not brief or not all(effect.matches_policy for effect in effects):
        without_swap = dataclasses.replace(policy, default_prefetch=None, op_swap=(), layer_swap=())
        baseline, matches = compile_with(document, swapped, without_swap, placement, use_cache)
        effects = compare_effect(decided, baseline.graph, swapped.graph, matches)
    if gathers_sequence(document):
        effects = tuple(
            dataclasses.replace(
                effect,
                wasted=tuple(storage for storage in effect.wasted if not is_replaced_by_gather(swapped.graph, storage)),
            )
            for effect in effects
        )
    effects = tuple(
        dataclasses.replace(effects[position], layer_index=index)
        for index, position in zip(layer_indices(swapped, placement), swapped.sample.layer_map, strict=True)
    )
    return effects, swapped


def verify_recompute(
    document: Document, policy: Policy, placement: RankPlacement | None = None, use_cache: bool = True
) -> tuple[tuple[RecomputeEffect, ...], "Capture"]:
    """Compile with and without MindFormers' recompute (swap off), and compare each layer with the policy.

    Args:
        document: the configuration, with swap off.
        policy: the requested recompute, from `expand_stage_recompute`.
        placement: compile the pipeline stage of this rank; None for the full model.
        use_cache: False recompiles and stores nothing.

    Returns:
        One effect per layer of the model or stage, and the network compiled with recompute.
    """
    compiled = compile_under(document, Policy(), placement, use_cache)
    plain, matches = compile_with(document, compiled, Policy(is_swap_enabled=True), placement, use_cache)
    indices = layer_indices(compiled, placement)
    built = dict(zip(indices, compiled.sample.layer_map, strict=True))
    # Layers of other stages are not compiled, so any layer serves as a placeholder for them.
    of_model = tuple(compiled.layers[built.get(index, 0)] for index in range(max(indices) + 1))
    acting = as_applied(policy, LayerTrees(of_model, {}, "the real network"))
    # Resolve each layer of the model on the compiled layer that represents it.
    decided = [
        dataclasses.replace(resolve_layer(acting, index, compiled.layers[position]), layer_index=position)
        for index, position in built.items()
    ]
    effects = compare_recompute(decided, plain.graph, compiled.graph, matches)
    return tuple(
        dataclasses.replace(effect, layer_index=i) for i, effect in zip(indices, effects, strict=True)
    ), compiled
