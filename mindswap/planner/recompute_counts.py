"""Plans that only recompute, as counts of layers for each pipeline stage: with swap off MindFormers takes no others.

With `swap: False` MindFormers reads `recompute: [3, 2]` as the first 3 layers of stage 0 and the first 2 of stage 1;
lists of layers need `swap: True`, although nothing is swapped then. A stage has equal layers, so a plan may as well
recompute the first ones.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.pipeline_layout import Layout, LayoutError, read_pipeline
from mindswap.config.render import document_from_data
from mindswap.config.weight_sharding import has_single_micro_step, read_weight_sharding
from mindswap.policy.equivalence import map_layers
from mindswap.policy.formats.mindformers1.schema import RECOMPUTE_FLAGS
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute, recomputes_scores
from mindswap.policy.model import ALL_LAYERS, NO_LAYERS, Layers, Policy
from mindswap.policy.resolve import has_swaps


def swaps_nothing(policy: Policy) -> bool:
    """Return whether a policy recomputes and does nothing else, switches of recompute aside."""
    other = policy.select_comm_recompute or policy.select_recompute_exclude or policy.select_comm_recompute_exclude
    has_recompute = bool(policy.layer_recompute) or bool(policy.select_recompute)
    return has_recompute and not (has_swaps(policy) or other or policy.output_recompute)


def only_recomputes(policy: Policy) -> bool:
    """Return whether counts could express a policy: recompute without swap, and nothing that only acts with swap on."""
    has_flags = any(getattr(policy, name) != default for name, default in RECOMPUTE_FLAGS.items())
    return swaps_nothing(policy) and not has_flags


def in_first_layers(policy: Policy, document: Document, num_layers: int) -> Policy | None:
    """Return the policy with each entry in the first layers of each stage and chunk, as many as it has there.

    Switches of recompute (`RECOMPUTE_FLAGS`) get their default values: with swap off MindFormers passes no others on.

    Args:
        policy: a policy of which `swaps_nothing` is true.
        document: configuration with the pipeline.
        num_layers: layers of the model.

    Returns:
        The policy; None if the layers cannot be counted.
    """
    layout = _layout(document, num_layers)
    if layout is None:
        return None

    def first(layers: Layers) -> Layers:
        return layers if layers == ALL_LAYERS else Layers(layout.first_layers(_counts(layers, layout)))

    flags: dict[str, Any] = dict(RECOMPUTE_FLAGS)
    return replace(map_layers(policy, first), **flags)


def counted_sections(policy: Policy, document: Document, num_layers: int) -> dict[str, dict[str, Any]] | None:
    """Return `swap_config` and `recompute_config` of a policy as counts, with swap off.

    Args:
        policy: the policy.
        document: configuration with the pipeline; keys of its `recompute_config` stay, with their default values.
        num_layers: layers of the model.

    Returns:
        The sections; None if MindFormers would not recompute the same in the same layers, or compile another step.
    """
    layout = _layout(document, num_layers)
    if layout is None or not only_recomputes(policy):
        return None

    def value(layers: Layers) -> bool | list[int] | list[list[int]]:
        if layers.resolve(num_layers) == tuple(range(num_layers)):
            return True
        rows = _counts(layers, layout)
        return rows[0] if len(rows) == 1 else rows

    present: Mapping[str, Any] = document.data().get("recompute_config") or {}
    recompute: dict[str, Any] = {key: RECOMPUTE_FLAGS.get(key, False) for key in present}
    recompute["recompute"] = value(policy.layer_recompute) if policy.layer_recompute else False
    if policy.select_recompute:
        recompute["select_recompute"] = {entry.pattern: value(entry.layers) for entry in policy.select_recompute}
    sections = {"swap_config": {"swap": False}, "recompute_config": recompute}
    counted = document_from_data({**document.data(), **sections}, document.file)
    expanded = expand_stage_recompute(counted, num_layers)
    is_equal = not expanded.problems and _resolved(expanded.policy, num_layers) == _resolved(policy, num_layers)
    # Without swap weights are cast before the all-gather: another step than the one that was planned.
    is_other_step = read_weight_sharding(counted).num_ranks > 1 and has_single_micro_step(counted)
    recomputes_more = bool(policy.select_recompute) and recomputes_scores(document)
    return sections if is_equal and not is_other_step and not recomputes_more else None


def _layout(document: Document, num_layers: int) -> Layout | None:
    """Return the layers of each stage and chunk; None if MindFormers has no model, or chunks that run in reverse."""
    pipeline = read_pipeline(document)
    try:
        is_counted = document.get("model") is not None and not pipeline.is_zero_bubble_v
        return pipeline.layout(num_layers) if is_counted else None
    except LayoutError:
        return None


def _counts(layers: Layers, layout: Layout) -> list[list[int]]:
    """Return the number of layers for each chunk (outer) and stage (inner)."""
    rows = [[0] * len(row) for row in layout.sizes]
    for cell in layout.cells():
        rows[cell.chunk][cell.position] = sum(layer in layers for layer in cell.layers)
    return rows


def _resolved(policy: Policy, num_layers: int) -> tuple[Any, ...]:
    """Return the recompute of a policy for comparison: sets of layers as indices, entries in any order."""
    selected = {entry.pattern: entry.layers.resolve(num_layers) for entry in policy.select_recompute if entry.layers}
    return (policy.layer_recompute or NO_LAYERS).resolve(num_layers), selected
