"""Find the operators that hold the activation memory: `mindswap inspect`."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from mindswap.config.nodes import Document
from mindswap.config.source import load_document
from mindswap.config.weight_sharding import RankPlacement
from mindswap.errors import GraphError
from mindswap.features.inspect.report import LayerMemoryReport, unread_copy_notes
from mindswap.features.inspect.traced import measure_stages, measure_traced
from mindswap.features.simulate import LoadedStep
from mindswap.features.step_2x import is_2x, load_step_2x, step_of_trace
from mindswap.files import file_name
from mindswap.graph.analysis.liveness import Peak, find_peak
from mindswap.graph.analysis.saved_tensors import LayerMemory, OperatorMemory, OperatorNames, measure_layer_memory
from mindswap.graph.model import Node, TensorType
from mindswap.graph.passes.swap_recompute import rewrite_graph, settings_of_policy
from mindswap.policy.model import Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.rules.checker import check_document
from mindswap.simulator.staged_step import StagedStepModel
from mindswap.simulator.traced_step import TracedStepModel
from mindswap.steps.compile_cache import cached_result
from mindswap.steps.compiled import compile_under, compile_with, layer_indices, place_requested_rank
from mindswap.steps.recorded import capture_of, is_trace_path, read_trace, require_compilable

# Classes of a report, for the cache.
REPORT_CLASSES = (LayerMemoryReport, LayerMemory, OperatorMemory, Peak, Node, TensorType)


@dataclass(frozen=True)
class Inspection:
    """Holders of activation memory in a configuration.

    Attributes:
        title: name of the configuration, and the rank.
        report: memory of each layer and operator.
    """

    title: str
    report: LayerMemoryReport


def inspect_memory(path: str | os.PathLike[str], rank: int | None = None, use_cache: bool = True) -> Inspection:
    """Measure saved, swapped and recomputed activations in the compiled graph of a configuration.

    Args:
        path: MindFormers YAML, or a step that `mindswap trace` recorded.
        rank: report sizes of this rank and the layers of its pipeline stage; None for one rank with the full model.
        use_cache: False recompiles and stores nothing.

    Returns:
        Memory of each layer and operator.

    Raises:
        PolicyError: if the configuration is wrong.
        GraphError: if the network cannot be built or compiled.
    """
    if is_trace_path(file_name(path)):
        return _inspect_trace(file_name(path))
    document = load_document(path)
    if is_2x(document):
        return _inspect_2x(document, rank, use_cache)
    checked = check_document(document)
    policy = checked.require_policy()
    require_compilable(document)
    placement = place_requested_rank(document, rank, checked.num_layers)
    report = cached_result(
        document,
        policy,
        REPORT_CLASSES,
        lambda: inspect_config(document, policy, placement, use_cache),
        use_cache,
        ask="inspect",
        rank=rank,
    )
    title = Path(path).stem
    return Inspection(f"{title}, {placement.describe()}" if placement else title, report)


def _inspect_2x(document: Document, rank: int | None, use_cache: bool) -> Inspection:
    """Measure a step of MindFormers 2.x, recorded in the dry run of its trainer."""
    if rank is not None:
        raise GraphError(f"--rank: {document.file} is of MindFormers 2.x, whose step is recorded on one rank")
    step = load_step_2x(document, None, None, {}, use_cache)
    return Inspection(step.title, _measure_2x(step))


def _measure_2x(step: LoadedStep) -> LayerMemoryReport:
    """Return the activation memory of a recorded step, of all pipeline stages."""
    if isinstance(step.model, StagedStepModel):
        return measure_stages(step.model.stages, step.policy)
    if not isinstance(step.model, TracedStepModel):
        raise AssertionError("a recorded step without its memory")
    return measure_traced(step.model, step.policy)


def _inspect_trace(path: str) -> Inspection:
    """Measure a recorded step; the policy is applied by our own copy of the compiler's rules."""
    step, document = read_trace(path)
    if step.memory is not None:
        traced = step_of_trace(step, document, None, {})
        return Inspection(traced.title, _measure_2x(traced))
    policy = replace(check_document(document).require_policy(), is_swap_enabled=True)
    captured = capture_of(step)
    names = captured.names()
    decisions = tuple(resolve_layer(policy, index, tree) for index, tree in enumerate(captured.trees))
    graph = rewrite_graph(captured.graph, settings_of_policy(captured.graph, names, decisions))
    layers = measure_layer_memory(graph, captured.graph, names, captured.sample)
    notes = (*captured.notes, *unread_copy_notes(graph, names, dict(enumerate(captured.sample.layer_map))))
    return Inspection(Path(path).stem, LayerMemoryReport(layers, find_peak(graph, captured.sample), notes))


def inspect_config(
    document: Document, policy: Policy, placement: RankPlacement | None = None, use_cache: bool = True
) -> LayerMemoryReport:
    """Compile with and without the policy, and measure the saved activations.

    Args:
        document: the configuration.
        policy: its policy.
        placement: measure the stage of this rank; None for one rank with the full model.
        use_cache: False recompiles the network without the policy and stores nothing.

    Returns:
        Memory of each layer and operator.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    plain_policy = Policy(is_swap_enabled=True)
    compiled = compile_under(document, policy, placement, use_cache, with_peak=True)
    plain, matches = compile_with(document, compiled, plain_policy, placement, use_cache, with_tags=True)
    names = OperatorNames(plain.layers, plain.graph)
    layers = measure_layer_memory(compiled.graph, plain.graph, names, compiled.sample, matches)
    layer_map = dict(zip(layer_indices(compiled, placement), compiled.sample.layer_map, strict=True))
    notes = (*compiled.notes, *unread_copy_notes(compiled.graph, names.with_renumbered_layers(matches), layer_map))
    if placement is not None:
        layers = tuple(
            layer if layer.layer_index is None else replace(layer, layer_index=placement.layers[layer.layer_index])
            for layer in layers
        )
        notes = (placement.describe(), *notes)
    return LayerMemoryReport(layers, find_peak(compiled.graph, compiled.sample), notes)
