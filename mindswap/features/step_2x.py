"""Load the step of a configuration of MindFormers 2.x (PyNative): record it in the dry run, or take a trace of it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mindswap.config.nodes import Document, show
from mindswap.config.render import document_from_data
from mindswap.config.step_settings import StepSettings, read_step_settings
from mindswap.errors import PlanError, PolicyError
from mindswap.features.dryrun import count_stages, find_left_out, is_1f1b, num_micro_batches, read_shards
from mindswap.features.recorded_2x import recorded_stages, trees_of
from mindswap.features.simulate import LoadedStep
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.formats.mindformers2.effect import SettingsEffect
from mindswap.policy.formats.mindformers2.read import find_mtp_layers, find_num_layers_2x
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, LayerPaths, Model, find_format
from mindswap.policy.model import Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.pynative.passes_in_flight import count_in_flight
from mindswap.pynative.trace import RecordedStep
from mindswap.rules.checker import PynativeCheck, check_pynative
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.device_costs import find_costs
from mindswap.simulator.layer_swap_2x import LayerSwapModel2x
from mindswap.simulator.staged_step import StagedStepModel
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.traced_step import TracedStepModel
from mindswap.steps.recorded import capture_of

# Sizes that must be equal in the file and in the trace: key of `model` in 2.x -> keys of `model.model_config` in 1.9.
SIZES = {
    "hidden_size": ("hidden_size",),
    "intermediate_size": ("intermediate_size",),
    "num_attention_heads": ("num_attention_heads", "num_heads"),
    "vocab_size": ("vocab_size",),
}


def is_2x(document: Document) -> bool:
    """Return whether a configuration is of MindFormers 2.x."""
    return find_format(document) is ConfigFormat.PYNATIVE


def with_cards(document: Document, num_cards: int | None) -> Document:
    """Return a configuration whose batch is that of one rank of so many cards; None returns it as it is.

    Args:
        document: a configuration of MindFormers 2.x.
        num_cards: cards of the training.

    Raises:
        LaunchError: the batch cannot be distributed, or the parallel sizes do not fit the cards.
    """
    if num_cards is None:
        return document
    read_shards(document, num_cards)  # refuses what does not fit
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
    stages, source = recorded_stages(document, trace, use_cache)
    if trace is not None:
        require_same_model(document, source, stages[0], trace)
    checked = check_pynative(document, None, model_of_trees(trees_of(stages)))
    _require_no_errors(checked)
    costs = find_costs([document, source], device, overrides)
    caveats = list(_caveats(document, source, checked.effect))
    settings = read_step_settings(source)
    if stages[0].memory is None:
        captured = _captured(stages[0], caveats)
        model: StepModel = LayerSwapModel2x.of(StepModel(captured, costs, settings), caveats)
    else:
        model = _model_of_stages(document, stages, costs, settings, caveats, checked.effect.settings.is_own_engine)
    return LoadedStep(document, policy_of_effect(checked.effect), model, None, Path(document.file))


def _captured(recorded: RecordedStep, caveats: Sequence[str]) -> CapturedStep:
    captured = capture_of(recorded)
    return replace(captured, notes=(*captured.notes, *caveats))


def _model_of_stages(
    document: Document,
    stages: Sequence[RecordedStep],
    costs: CostTable,
    settings: StepSettings,
    caveats: Sequence[str],
    is_own_engine: bool,
) -> StepModel:
    """Return the model of one rank, or of a rank of each pipeline stage."""
    count = len(stages)
    settings = replace(settings, pipeline=replace(settings.pipeline, num_stages=count))
    models = [
        TracedStepModel(
            recorded,
            _captured(recorded, caveats),
            costs,
            settings,
            caveats,
            is_own_engine,
            count_in_flight(stage, count, settings.num_micro_batches, is_1f1b(document)) if count > 1 else (),
        )
        for stage, recorded in enumerate(stages)
    ]
    return models[0] if count == 1 else StagedStepModel(models)


def _caveats(document: Document, source: Document, effect: SettingsEffect) -> Iterator[str]:
    """Yield what of a configuration is not simulated as it is."""
    name, other_name = _architecture(document), _architecture(source)
    if name and other_name and name != other_name:
        yield f"the trace is of {other_name}, this file of {name}: equal sizes, another model"
    if effect.settings.is_comm_enabled:
        yield "recompute_comm stays as it is: a trace of one rank has no communication"
    left_out = {
        name: value
        for name, value in find_left_out(document, None).items()
        if name != "pipeline_parallel" or count_stages(document) == 1
    }
    if left_out:
        names = ", ".join(f"{name}: {value}" for name, value in left_out.items())
        less = "less of weights and states, but maybe more activations" if "pipeline_parallel" in left_out else "less"
        yield f"one rank with everything: {names} is left out, so each rank of the file holds {less}"


def _require_no_errors(checked: PynativeCheck) -> None:
    if checked.errors:
        raise PolicyError(checked.problems)


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
    if pipeline is not None and pipeline.value not in (1, None):
        raise PlanError(
            f"{pipeline.location}: parallelism.pipeline_parallel: {show(pipeline)}: {trace} has no stages\n"
            "    allowed: 1 with --trace\n    fix:     leave --trace out: each stage is recorded then"
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
