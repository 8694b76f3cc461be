"""Compile a network with and without a policy, including the AllGathers of the parallel optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mindswap.adapters.quiet import quiet
from mindswap.config.nodes import Document
from mindswap.config.step_settings import StepSettings
from mindswap.config.weight_sharding import RankPlacement, place_rank, read_weight_sharding
from mindswap.errors import GraphError
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.passes.gather import gather_weights
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import Policy
from mindswap.rules.checker import require_num_layers
from mindswap.rules.machine.software import require_mindformers
from mindswap.simulator.captured_step import CapturedStep
from mindswap.steps.compile_cache import GRAPH_CLASSES, cached_result
from mindswap.units import format_bytes

if TYPE_CHECKING:
    from mindswap.adapters.graph.layer_choice import BuiltLayers
    from mindswap.adapters.graph.mindformers import Capture


def compile_under(
    document: Document, policy: Policy, placement: RankPlacement | None, use_cache: bool, with_peak: bool = False
) -> "Capture":
    """Compile the representative layers of a network with a policy. The result is not cached.

    Args:
        document: the configuration; MindFormers reads its file, too.
        policy: with swap disabled, MindFormers sets its own recompute.
        placement: compile the stage of this rank; None for one rank with the full model.
        use_cache: False rebuilds the layers of the model and stores nothing.
        with_peak: also compile the layers that `find_peak` needs.

    Returns:
        The compiled network.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    require_mindformers()
    path = str(Path(document.file).resolve())
    with quiet():
        from mindswap.adapters.graph.mindformers import capture

        built = _build_layers(document, path, use_cache) if policy.is_swap_enabled else None
        compiled = capture(path, policy, placement=placement, with_peak=with_peak, built=built)
    return _gathered(compiled, document)


def compile_with(
    document: Document,
    compiled: "Capture",
    baseline_policy: Policy,
    placement: RankPlacement | None,
    use_cache: bool,
    with_tags: bool = False,
) -> tuple["Capture", Mapping[int, int]]:
    """Compile the same network with another policy, as a baseline, and match its layers.

    Without swap fewer layers differ, so fewer are compiled. The baseline is cached and shared by all policies that
    are compared with it.

    Args:
        document: see `compile_under`.
        compiled: the network to compare with.
        baseline_policy: policy of the baseline.
        placement: see `compile_under`.
        use_cache: see `compile_under`.
        with_tags: see `adapters.graph.mindformers.capture`.

    Returns:
        The baseline, and the compiled layer of the baseline for each compiled layer of the network.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    path = str(Path(document.file).resolve())

    def compile_baseline(sample: LayerSample | None) -> "Capture":
        from mindswap.adapters.graph.mindformers import Capture, capture

        def make() -> Capture:
            built = _build_layers(document, path, use_cache)
            return capture(path, baseline_policy, sample, with_tags, placement, with_peak=False, built=built)

        return cached_result(
            document,
            baseline_policy,
            (Capture, *GRAPH_CLASSES),
            make,
            use_cache,
            is_of_network=True,
            ask="plain",
            indices=sample and sample.indices,
            with_tags=with_tags,
            placement=repr(placement),
        )

    with quiet():
        baseline = compile_baseline(None)
        matches = match_layers(compiled, baseline, layer_indices(compiled, placement))
        if matches is None:
            baseline, matches = compile_baseline(compiled.sample), {}
    return _gathered(baseline, document), matches


def _build_layers(document: Document, path: str, use_cache: bool) -> "BuiltLayers":
    """Build the layers of the model, cached for all policies; call it inside `quiet`."""
    from mindswap.adapters.graph.frozen_weights import LayerTraining
    from mindswap.adapters.graph.layer_choice import BuiltLayers, build_layers

    return cached_result(
        document,
        Policy(),
        (BuiltLayers, CellNode, LayerTraining),
        lambda: build_layers(path),
        use_cache,
        is_of_network=True,
        ask="layers",
    )


def place_requested_rank(document: Document, rank: int | None, num_layers: int | None) -> RankPlacement | None:
    """Return the placement of the requested rank; None if no rank is requested."""
    return None if rank is None else place_rank(document, rank, require_num_layers(document, num_layers, "--rank: "))


def match_layers(compiled: "Capture", baseline: "Capture", indices: Sequence[int]) -> Mapping[int, int] | None:
    """Match each compiled layer with the layer of the same class in another compiled network.

    Args:
        compiled: the network whose layers are matched.
        baseline: the other network, of the same model.
        indices: layers of the model that `baseline` represents.

    Returns:
        Position in `compiled` -> position in `baseline`. None if trees of matched layers differ: a layer may depend on
        its index, and indices change if fewer layers are built.
    """
    baseline_positions = dict(zip(indices, baseline.sample.layer_map, strict=True))
    matches = {position: baseline_positions[index] for position, index in enumerate(compiled.sample.indices)}
    is_alike = all(compiled.layers[position] == baseline.layers[match] for position, match in matches.items())
    return matches if is_alike else None


def layer_indices(compiled: "Capture", placement: RankPlacement | None) -> Sequence[int]:
    """Return the layers of the model that a compiled network represents."""
    return placement.layers if placement is not None else range(len(compiled.sample.layer_map))


def _gathered(compiled: "Capture", document: Document) -> "Capture":
    """Add the AllGathers of weights to a compiled network, because the frontend inserts them for Ascend only."""
    if not compiled.graph.has_lazy_inline:
        return compiled
    sharding = read_weight_sharding(document)
    gathered = gather_weights(compiled.graph, sharding)
    if not gathered.collectives:
        return compiled
    until = "stays until backward has read it"
    if sharding.is_released:
        until = "is gathered again for backward"
    elif sharding.is_cast_after_gather:
        until = "is freed after the cast, unless the cast is recomputed"
    sizes = {entry.size_bytes for entries in gathered.collectives.values() for entry in entries}
    note = (
        f"the parallel optimizer splits weights over {sharding.num_ranks} ranks: the output of each AllGather, up to "
        f"{format_bytes(max(sizes))}, {until}; added by the rules of MindSpore's step_parallel.cc, which does not run "
        "for the CPU"
    )
    return replace(compiled, graph=gathered.graph, notes=(*compiled.notes, note))


# The step of a configuration without its policy, compiled once and cached.

# Classes of a captured step, for the cache.
STEP_CLASSES = (CapturedStep, *GRAPH_CLASSES)
# Expert imbalance in thousandths: BALANCED if each expert rank receives as many tokens as it sends; upper limit.
BALANCED, MAX_SKEW = 1000, 1_000_000


def capture_config(
    config: str,
    document: Document,
    settings: StepSettings,
    num_layers: int,
    skew_permille: int,
    use_cache: bool,
) -> CapturedStep:
    """Capture the step of one rank, which represents all ranks.

    Args:
        config: path of the configuration.
        document: the configuration.
        settings: parallel and batch settings of the step.
        num_layers: layers of the model.
        skew_permille: tokens of the busiest expert rank, in thousandths of the balanced number.
        use_cache: False recompiles and stores nothing.

    Returns:
        The captured step, without the policy of the configuration.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    path = str(Path(config).resolve())
    # Without sharding every rank of a stage is the same as one rank with the full model.
    placement = place_rank(document, 0, num_layers, skew_permille) if settings.is_network_sharded else None

    def make() -> CapturedStep:
        require_mindformers()
        with quiet():
            from mindswap.adapters.graph.mindformers import capture_step

            return capture_step(path, num_layers, placement, _build_layers(document, path, use_cache))

    return cached_result(
        document,
        Policy(),
        STEP_CLASSES,
        make,
        use_cache,
        is_of_network=True,
        ask="step",
        **({"expert_skew": skew_permille} if skew_permille != BALANCED else {}),
    )


def read_skew(text: str | None) -> int:
    """Parse the imbalance of tokens over expert ranks.

    Args:
        text: tokens of the busiest rank as a factor of the balanced number, such as `"1.5"`; None if balanced.

    Returns:
        The factor in thousandths.

    Raises:
        GraphError: if it is not a number in the range from 1.
    """
    if text is None:
        return BALANCED
    try:
        skew = round(float(text) * BALANCED)
    except (ValueError, OverflowError):
        skew = 0
    if not BALANCED <= skew <= MAX_SKEW:
        raise GraphError(
            f"--expert-skew: {text} is not how many times as many tokens the busiest rank receives\n"
            f"    allowed: a number from 1 (balanced) to {MAX_SKEW // BALANCED}"
        )
    return skew
