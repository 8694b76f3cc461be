"""Load the step of a configuration of MindFormers 2.x (PyNative): record it in the dry run, or take a trace of it."""

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from mindswap.command_line.progress import PhaseLines
from mindswap.config.nodes import Document, show
from mindswap.config.parse import parse_document
from mindswap.config.render import document_from_data
from mindswap.config.step_settings import read_step_settings
from mindswap.errors import PlanError, PolicyError
from mindswap.features.dryrun import (
    find_left_out,
    graph_mode_text,
    num_micro_batches,
    record_trainer_step,
    recorder_versions,
    trace_request,
)
from mindswap.features.simulate import LoadedStep
from mindswap.graph.capture_cache import cached, make_key, open_data_cache
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.formats.mindformers2.effect import SettingsEffect
from mindswap.policy.formats.mindformers2.read import find_mtp_layers, find_num_layers_2x
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, LayerPaths, Model, find_format
from mindswap.policy.model import Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.pynative.trace import SCHEMA_VERSION, RecordedStep, dump_trace, load_trace
from mindswap.rules.checker import PynativeCheck, check_pynative
from mindswap.simulator.cost.device_costs import find_costs
from mindswap.simulator.layer_swap_2x import LayerSwapModel2x
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.traced_step import TracedStepModel
from mindswap.steps.recorded import capture_of, read_trace

# Sizes that must be equal in the file and in the trace: key of `model` in 2.x -> keys of `model.model_config` in 1.9.
SIZES = {
    "hidden_size": ("hidden_size",),
    "intermediate_size": ("intermediate_size",),
    "num_attention_heads": ("num_attention_heads", "num_heads"),
    "vocab_size": ("vocab_size",),
}
# Version of the recorded data; increase it when they change.
RECORDER_VERSION = 2


def is_2x(document: Document) -> bool:
    """Return whether a configuration is of MindFormers 2.x."""
    return find_format(document) is ConfigFormat.PYNATIVE


def with_cards(document: Document, num_cards: int | None) -> Document:
    """Return a configuration whose batch is that of one rank of so many cards; None returns it as it is.

    Args:
        document: a configuration of MindFormers 2.x.
        num_cards: cards of the training.

    Raises:
        LaunchError: the batch cannot be distributed.
    """
    if num_cards is None:
        return document
    data = document.data()
    samples = document.count("training", "local_batch_size") * num_micro_batches(document, num_cards)
    training = {**(data.get("training") or {}), "global_batch_size": samples}
    return document_from_data({**data, "training": training}, document.file, document)


def load_step_2x(
    document: Document,
    trace: str | None,
    device: str | None,
    overrides: dict[str, str],
    use_cache: bool = True,
) -> LoadedStep:
    """Load the step of a MindFormers 2.x configuration.

    Args:
        document: the configuration.
        trace: file made by `mindswap trace`; None records the step, or takes it from the cache.
        device: name or file of the device; default is that of `mindswap:` in the configuration, then in the trace.
        overrides: device properties to replace, by name.
        use_cache: whether to read and write the cache of recorded steps.

    Raises:
        PlanError: the trace is of another network.
        PolicyError: the configuration has errors, or this Python has no MindFormers 2.x to record it.
        LaunchError: the dry run is not possible, or failed.
        DataError: the trace cannot be read.
        CostError: the device is unknown.
    """
    _require_no_errors(check_pynative(document))
    recorded, source = _recorded_step(document, trace, use_cache)
    if trace is not None:
        require_same_model(document, source, recorded, trace)
    checked = check_pynative(document, None, model_of_trees(recorded.layers))
    _require_no_errors(checked)
    costs = find_costs([document, source], device, overrides)
    caveats = list(_caveats(document, source, checked.effect))
    captured = capture_of(recorded)
    captured = replace(captured, notes=(*captured.notes, *caveats))
    settings = read_step_settings(source)
    if recorded.memory is None:
        model: StepModel = LayerSwapModel2x.of(StepModel(captured, costs, settings), caveats)
    else:
        model = TracedStepModel(recorded, captured, costs, settings, caveats, checked.effect.settings.is_own_engine)
    return LoadedStep(document, policy_of_effect(checked.effect), model, None, Path(document.file))


def _caveats(document: Document, source: Document, effect: SettingsEffect) -> Iterator[str]:
    """Yield what of a configuration is not simulated as it is."""
    name, other_name = _architecture(document), _architecture(source)
    if name and other_name and name != other_name:
        yield f"the trace is of {other_name}, this file of {name}: equal sizes, another model"
    if effect.settings.is_comm_enabled:
        yield "recompute_comm stays as it is: a trace of one rank has no communication"
    if left_out := find_left_out(document, None):
        names = ", ".join(f"{name}: {value}" for name, value in left_out.items())
        yield f"one rank with everything: {names} is left out, so each rank of the file holds less"


def _require_no_errors(checked: PynativeCheck) -> None:
    if checked.errors:
        raise PolicyError(checked.problems)


def _recorded_step(document: Document, trace: str | None, use_cache: bool) -> tuple[RecordedStep, Document]:
    """Return the recorded step, and the configuration in it."""
    if trace is not None:
        return read_trace(trace)
    report_status = PhaseLines(time.monotonic(), sys.stderr)

    def make() -> str:
        report_status("recording a step of the trainer of MindFormers 2.x, once")
        return dump_trace(record_trainer_step(document, report_status))

    text = cached(open_data_cache() if use_cache else None, trace_key(document), {}, make)
    # The trace may be that of a file with other micro-batches, or another section `mindswap`: neither is in the key.
    recorded = replace(load_trace(text, document.file), config=graph_mode_text(document))
    return recorded, parse_document(recorded.config, document.file)


def trace_key(document: Document) -> str:
    """Return the key of the recorded step of a configuration of MindFormers 2.x in the cache.

    Args:
        document: the configuration.

    Raises:
        GraphError: a size of the model is missing.
        LaunchError: the batch cannot be distributed.
    """
    return make_key(
        question="trace of MindFormers 2.x",
        versions=[SCHEMA_VERSION, RECORDER_VERSION, *recorder_versions()],
        request=repr(trace_request(document)),
    )


def model_of_trees(trees: tuple[CellNode, ...]) -> Model:
    """Return the paths that patterns can match in the layers of a recorded network."""
    return Model(tuple(map(_paths_of_tree, trees)), "the trace of this network")


def _paths_of_tree(tree: CellNode) -> LayerPaths:
    nodes = {".".join(path): node for path, node in tree.walk()}
    cells = frozenset(path for path, node in nodes.items() if not node.is_primitive)
    return LayerPaths(cells, frozenset(nodes) - cells, tuple(nodes))


def policy_of_effect(effect: SettingsEffect) -> Policy:
    """Return what settings of 2.x do as a policy of exact paths; distances count layers."""
    layers = list(enumerate(effect.layers))
    recomputed = [index for index, layer in layers if layer.is_recomputed]
    modules = _layers_by_path((index, layer.recomputed) for index, layer in layers)
    layer_swap, op_swap = _own_swaps(effect) if effect.settings.is_own_engine else _upstream_swaps(effect)
    return Policy(
        is_swap_enabled=True,
        layer_swap=layer_swap,
        op_swap=op_swap,
        layer_recompute=Layers(recomputed),
        select_recompute=tuple(OpRecompute(path, Layers(indices)) for path, indices in modules.items()),
    )


def _upstream_swaps(effect: SettingsEffect) -> tuple[tuple[LayerSwap, ...], tuple[OpSwap, ...]]:
    """Return what MindFormers swaps: one distance for all."""
    prefetch, layers = effect.settings.prefetch or 1, list(enumerate(effect.layers))
    swapped = [index for index, layer in layers if layer.is_swapped]
    op_swap = _layers_by_path((index, layer.swapped) for index, layer in layers)
    return (
        (LayerSwap(Layers(swapped), prefetch),) if swapped else (),
        tuple(OpSwap(path, Layers(indices), prefetch) for path, indices in op_swap.items()),
    )


def _own_swaps(effect: SettingsEffect) -> tuple[tuple[LayerSwap, ...], tuple[OpSwap, ...]]:
    """Return what mindswap's own executor swaps: all entries, each with its distance."""
    settings = effect.settings
    if not settings.is_swap_enabled:
        return (), ()
    default = settings.prefetch or 1
    layer_swap = tuple(
        LayerSwap(Layers(settings.layers_of(target)), target.prefetch or default)
        for target in settings.of("layer_swap")
    )
    op_swap = [
        OpSwap(path, Layers(indices), target.prefetch or default)
        for target in settings.of("op_swap")
        for path, indices in _layers_by_path(effect.matches(target).items()).items()
    ]
    return layer_swap, tuple(op_swap)


def _layers_by_path(rows: Iterable[tuple[int, tuple[str, ...]]]) -> dict[str, list[int]]:
    by_path: dict[str, list[int]] = {}
    for index, paths in rows:
        for path in paths:
            by_path.setdefault(path, []).append(index)
    return by_path


def _architecture(document: Document) -> str:
    """Return the class of the model; "" if the configuration does not have it. In newer models it is a list."""
    for keys in (("model", "architectures"), ("model", "model_config", "architectures"), ("model", "arch", "type")):
        node = document.get(*keys)
        if node is not None:
            node = node.items[0] if node.items else node
            return node.value if isinstance(node.value, str) else ""
    return ""


def require_same_model(document: Document, source: Document, recorded: RecordedStep, trace: str) -> None:
    """Check that a trace can be the step of a 2.x configuration.

    Args:
        document: the 2.x configuration.
        source: the configuration of the trace.
        recorded: the trace.
        trace: path of the trace, for messages.

    Raises:
        PlanError: with the location of the first difference.
    """
    num_layers, num_mtp_layers = find_num_layers_2x(document), find_mtp_layers(document)
    if num_mtp_layers and recorded.memory is None:
        raise PlanError(
            f"{document.file}: {trace} has no layers for multi-token prediction, which this file has\n"
            f"    fix:     leave --trace out, or mindswap trace {document.file} -o step.json"
        )
    expected = None if num_layers is None else num_layers + num_mtp_layers
    if expected not in (recorded.trace.num_layers, None):
        location = document.location_of("model", "num_hidden_layers")
        raise PlanError(
            f"{location}: model has {expected} layers, {trace} has {recorded.trace.num_layers}\n"
            "    fix:     a trace of a configuration with as many layers"
        )
    pipeline = document.get("parallelism", "pipeline_parallel")
    if pipeline is not None and pipeline.value not in (1, None) and recorded.memory is None:
        raise PlanError(
            f"{pipeline.location}: parallelism.pipeline_parallel: {show(pipeline)}: MindFormers 2.x does not swap with "
            "a pipeline, and a trace has no stages\n    allowed: 1"
        )
    if source.count("parallel_config", "pipeline_stage") > 1:
        raise PlanError(f"{trace}: its configuration has several pipeline stages\n    allowed: 1")
    for key, names in SIZES.items():
        node = document.get("model", key)
        sizes = [value for name in names if (value := source.get("model", "model_config", name)) is not None]
        if node is not None and sizes and node.value != sizes[0].value:
            raise PlanError(
                f"{node.location}: model.{key}: {show(node)}; in the configuration of {trace} it is {show(sizes[0])}\n"
                "    fix:     a trace of the same network"
            )


def step_of_trace(
    recorded: RecordedStep, source: Document, device: str | None, overrides: dict[str, str]
) -> LoadedStep:
    """Load a step that `mindswap trace` recorded of a configuration of 2.x, without a policy.

    Args:
        recorded: a recorded step with its memory.
        source: the configuration in it.
        device: name or file of the device; default is that of the configuration.
        overrides: device properties to replace, by name.

    Raises:
        CostError: the device is unknown.
    """
    costs, settings = find_costs([source], device, overrides), read_step_settings(source)
    model = TracedStepModel(recorded, capture_of(recorded), costs, settings)
    return LoadedStep(source, Policy(is_swap_enabled=True), model, None, Path(source.file))
