"""A network compiled under a policy, and beside it without what is judged; with the parallel optimizer."""

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
    from mindswap.adapters.graph.mindformers import BuiltLayers, Capture


def compile_under(
    document: Document, policy: Policy, placement: RankPlacement | None, use_cache: bool, with_peak: bool = False
) -> "Capture":
    """A network under a policy, of the layers that tell all others; compiled anew for every answer.

    Args:
        document: MindFormers YAML, read; MindFormers reads its file.
        policy: one with swap disabled leaves recompute to MindFormers.
        placement: as this rank has it; None for one rank that has the whole model.
        use_cache: False builds the layers of the model again and keeps nothing.
        with_peak: also of the layers that `find_peak` needs.

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
    other: Policy,
    placement: RankPlacement | None,
    use_cache: bool,
    with_tags: bool = False,
) -> tuple["Capture", Mapping[int, int]]:
    """The same network under another policy, and which of its layers is like each of the first.

    Without swap fewer layers differ. It is kept, for all policies of which this is the other half.

    Args:
        document: as of `compile_under`.
        compiled: what it stands beside.
        other: what is the same on both sides, without swap.
        placement: as of `compile_under`.
        use_cache: as of `compile_under`.
        with_tags: as of `adapters.graph.mindformers.capture`.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    path = str(Path(document.file).resolve())

    def compile_other(sample: LayerSample | None) -> "Capture":
        from mindswap.adapters.graph.mindformers import Capture, capture

        def make() -> Capture:
            built = _build_layers(document, path, use_cache)
            return capture(path, other, sample, with_tags, placement, with_peak=False, built=built)

        return cached_result(
            document,
            other,
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
        plain = compile_other(None)
        like = find_like(compiled, plain, layer_indices(compiled, placement))
        if like is None:
            plain, like = compile_other(compiled.sample), {}
    return _gathered(plain, document), like


def _build_layers(document: Document, path: str, use_cache: bool) -> "BuiltLayers":
    """The layers of the model, built once and kept, for all policies; for use inside of `quiet`."""
    from mindswap.adapters.graph.mindformers import BuiltLayers, build_layers

    return cached_result(
        document,
        Policy(),
        (BuiltLayers, CellNode),
        lambda: build_layers(path),
        use_cache,
        is_of_network=True,
        ask="layers",
    )


def place_requested_rank(document: Document, rank: int | None, num_layers: int | None) -> RankPlacement | None:
    """Place of the rank that is asked for; None where none is."""
    return None if rank is None else place_rank(document, rank, require_num_layers(document, num_layers, "--rank: "))


def find_like(compiled: "Capture", other: "Capture", indices: Sequence[int]) -> Mapping[int, int] | None:
    """For each compiled layer its like in another compiled network of these layers of the model.

    None where they are no likes: the kind of a layer may depend on its number, which is another one where fewer are
    built.
    """
    stands = dict(zip(indices, other.sample.layer_map, strict=True))
    like = {position: stands[index] for position, index in enumerate(compiled.sample.indices)}
    is_alike = all(compiled.layers[position] == other.layers[found] for position, found in like.items())
    return like if is_alike else None


def layer_indices(compiled: "Capture", placement: RankPlacement | None) -> Sequence[int]:
    """Layers of the model that a compiled network stands for."""
    return placement.layers if placement is not None else range(len(compiled.sample.layer_map))


def _gathered(compiled: "Capture", document: Document) -> "Capture":
    """A compiled network with the AllGathers of weights, which the frontend inserts for Ascend only."""
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
        until = "goes once it is cast, if the cast does not run again"
    sizes = {entry.size_bytes for entries in gathered.collectives.values() for entry in entries}
    note = (
        f"the parallel optimizer cuts weights over {sharding.num_ranks} ranks: the output of each AllGather, up to "
        f"{format_bytes(max(sizes))}, {until}; added by the rules of MindSpore's step_parallel.cc, which does not run "
        "for the CPU"
    )
    return replace(compiled, graph=gathered.graph, notes=(*compiled.notes, note))


# The step of a configuration without its policy: compiled once, and kept.

# What a captured step is made of, for the cache.
STEP_CLASSES = (CapturedStep, *GRAPH_CLASSES)
# Every rank of experts receives as many tokens as it sends, in thousandths; and the most that can be asked for.
BALANCED, MAX_SKEW = 1000, 1_000_000


def capture_config(
    config: str,
    document: Document,
    settings: StepSettings,
    num_layers: int,
    skew_permille: int,
    use_cache: bool,
) -> CapturedStep:
    """The step of a rank, which are all alike; arguments as of `load_step`.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    path = str(Path(config).resolve())
    # In one part, every rank of a stage is like one that has the whole model.
    placement = place_rank(document, 0, num_layers, skew_permille) if settings.num_parts > 1 else None

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
    """Imbalance of tokens over the ranks of experts, in thousandths, of a text such as `"1.5"`; None is balanced.

    Raises:
        GraphError: if it is no number from 1 on.
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
