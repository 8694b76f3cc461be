"""Capture of MindFormers networks under a policy: compiled without weights, device or other processes."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mindformers.wrapper.wrapper import DataOrderWrapperCell
from mindspore import nn

from mindswap.adapters.graph.apply import apply_policy, check_layers, read_tree
from mindswap.adapters.graph.build import EXCHANGE_KEY, NOTES_KEY, build_network, example_inputs
from mindswap.adapters.graph.expert_exchange import ExchangeSizes, compiled_experts
from mindswap.adapters.graph.file_recompute import MindFormersRecompute, has_model_layer_kinds, with_model_recompute
from mindswap.adapters.graph.frozen_weights import freeze_layers
from mindswap.adapters.graph.layer_choice import (
    BuiltLayers,
    build_layers,
    choose_layers,
    choose_mindformers_layers,
    require_all_layers,
)
from mindswap.adapters.graph.mindspore import (
    compile_training_graph,
    enable_lazy_inline,
    find_layers,
    find_lazy_inline_cell,
    interleave_batch,
    tag_primitives,
)
from mindswap.adapters.quiet import report_progress
from mindswap.config.weight_sharding import RankPlacement
from mindswap.errors import GraphError
from mindswap.graph.analysis.collectives import Collective, find_collectives
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.model import Graph
from mindswap.graph.ops import REDISTRIBUTION_OPS
from mindswap.graph.passes.dropout_masks import with_bit_masks
from mindswap.graph.passes.fusion import merge_gathers
from mindswap.graph.passes.interleaved_batch import order_by_layer
from mindswap.graph.sequences import with_cache_gradients
from mindswap.graph.sharding.experts import is_exchange, restore_names
from mindswap.graph.sharding.pipeline_stage import drop_head, load_embedding, shard_embedding
from mindswap.graph.sharding.rank_sizes import shard_graph
from mindswap.graph.sharding.split_table import Unresolved
from mindswap.policy.cell_tree import CellNode, LayerTrees
from mindswap.policy.model import Policy
from mindswap.policy.resolve import LayerDecisions
from mindswap.simulator.captured_step import CapturedStep


def set_policy(
    network: nn.Cell, policy: Policy, logger: logging.Logger | None = None, indices: Sequence[int] | None = None
) -> tuple[LayerDecisions, ...]:
    """Set a policy on the layers of a MindFormers network; layers of multi-token prediction count as the last layer.

    These layers have the index of the last transformer layer. They contain such a layer, so their operator
    paths begin with `transformer_layer` (multi_token_prediction.py).

    Args:
        network: built and not compiled.
        policy: the policy.
        logger: receives the log lines of the specification.
        indices: index in the model of each layer of the network; default 0, 1, 2, ...
    """
    layers = list(find_layers(network))
    if indices is None:
        check_layers(policy, len(layers))
    indices = list(indices or range(len(layers)))
    mtp_layers = _prediction_layers(network)
    return apply_policy(layers + mtp_layers, policy, logger, indices + indices[-1:] * len(mtp_layers))


def read_layer_trees(config_path: str, num_layers: int) -> LayerTrees:
    """Return the cells and primitives of every layer of the network of a YAML file.

    Raises:
        GraphError: if MindFormers cannot build the network.
    """
    network, _ = build_network(config_path, Policy(is_swap_enabled=True))  # without MindFormers' own recompute
    trees = trees_of_network(network, {})
    if len(trees.layers) != num_layers:
        raise GraphError(f"the network has {len(trees.layers)} layers, the configuration says {num_layers}")
    return trees


def trees_of_network(network: nn.Cell, uses: dict[str, tuple[str, ...]]) -> LayerTrees:
    """Return the cells and primitives of every layer of a MindFormers network."""
    layers = tuple(read_tree(layer) for layer in find_layers(network))
    prediction = next((read_tree(layer) for layer in _prediction_layers(network)), None)
    return LayerTrees(layers, uses, "the real network", prediction)


def _prediction_layers(network: nn.Cell) -> list[nn.Cell]:
    mtp = getattr(getattr(network, "model", None), "mtp", None)
    return list(getattr(mtp, "layers", ()))


@dataclass(frozen=True)
class Capture:
    """A compiled network under a policy."""

    sample: LayerSample  # compiled layers of the model
    layers: tuple[CellNode, ...]  # cell tree of each compiled layer
    graph: Graph  # compiled graph; `layer_index` counts compiled layers
    notes: tuple[str, ...]  # differences between this network and the one that trains
    # tensor parallel communication, by name of its operator
    collectives: Mapping[str, tuple[Collective, ...]] = field(default_factory=dict)


def capture(
    config_path: str,
    policy: Policy,
    sample: LayerSample | None = None,
    with_tags: bool = False,
    placement: RankPlacement | None = None,
    with_all_tags: bool = False,
    with_peak: bool = True,
    built: BuiltLayers | None = None,
) -> Capture:
    """Compile the network of a YAML file under a policy, with lazy_inline.

    Args:
        config_path: MindFormers YAML.
        policy: with swap disabled, MindFormers sets its own recompute.
        sample: layers to compile; default from `choose_layers`. With swap disabled it must be None.
        with_tags: let primitives that share cell and type carry their path (`PATH_TAG`).
        placement: capture the sizes of this rank, and only the layers of its stage; default is one rank without splits.
        with_all_tags: let every primitive carry its path, so that the compiler merges none of them.
        with_peak: if `sample` is None, choose enough layers for `find_peak`.
        built: layers of the model, if they are built already.

    Raises:
        GraphError: if the network cannot be built or compiled.
        ApplyError: if the policy does not fit the network.
    """
    mindformers_recompute = None
    model: BuiltLayers | MindFormersRecompute | None = built
    if sample is None and policy.is_swap_enabled:
        model = built = built or build_layers(config_path)
        sample = choose_layers(policy, built, placement, with_peak)
    elif sample is None:
        sample, mindformers_recompute = choose_mindformers_layers(config_path, placement, with_peak)
        model = mindformers_recompute
    is_partial = not sample.has_all_layers or placement is not None
    as_in_model = (
        with_model_recompute(mindformers_recompute, sample.indices)
        if mindformers_recompute and is_partial
        else contextlib.nullcontext()
    )
    with as_in_model:
        network, config = build_network(config_path, policy, sample.indices if is_partial else None, placement)
    layers = find_layers(network)
    trees = tuple(read_tree(layer) for layer in layers)
    if model is not None and not has_model_layer_kinds(model.trees, sample.indices, trees):
        stage = placement.layers if placement is not None else range(len(model.trees))
        require_all_layers(stage, model.trees, "the kind of a layer depends on its number")
        everything = tuple(range(len(model.trees)))
        return capture(config_path, policy, LayerSample(everything, everything), with_tags, placement, with_all_tags)
    if model is not None:
        freeze_layers(layers, [model.training[index] for index in sample.indices])
    set_policy(network, policy, indices=sample.indices)
    if with_tags or with_all_tags:
        for layer in layers:
            tag_primitives(layer, every_primitive=with_all_tags)
    enable_lazy_inline(find_lazy_inline_cell(network))
    how = "without swap and recompute" if policy == Policy(is_swap_enabled=True) else "as configured"
    report_progress(f"compiling {len(sample.indices)} of {len(sample.layer_map)} layers {how}")
    notes = tuple(config.get(NOTES_KEY, ()))
    if placement is None:
        return Capture(sample, trees, with_bit_masks(compile_network(network, config)), notes)
    graph = compile_network(network, config, placement.data_parallel if placement.has_strategies else 1)
    return _shard_capture(Capture(sample, trees, graph, notes), placement)


def _shard_capture(unsharded: Capture, placement: RankPlacement) -> Capture:
    """Convert a capture to the sizes of one rank, without the parts on other stages."""
    sharding = shard_graph(unsharded.graph, placement.num_stage_ranks if placement.has_strategies else 1)
    collectives, unmatched = find_collectives(sharding)
    token_ranks = placement.data_parallel * placement.context_parallel if placement.has_strategies else 1
    graph = shard_embedding(sharding.graph, placement.model_parallel if placement.has_strategies else 1, token_ranks)
    notes = [*unsharded.notes, *_describe_unresolved((*sharding.unresolved, *unmatched))]
    inserted = (node for node in graph.forward if node.op in REDISTRIBUTION_OPS and not is_exchange(node))
    if any(node.layer_index is not None for node in inserted):
        notes.append(
            "MindSpore inserts AllGather, AllToAll and Slice in place of a Reshape between different shardings: an "
            "entry that names the Reshape applies to them, for several Reshapes of one tensor that of the last; "
            "select_comm_recompute of it recomputes its AllGather"
        )
    if placement.expert_parallel > 1 and any(is_exchange(node) for node in graph.forward):
        skew = placement.expert_skew_permille
        how = "as many tokens as it sends out" if skew == 1000 else f"{skew / 1000:g} times that"
        notes.append(f"assumed: the rank's experts receive {how} (--expert-skew of simulate, plan and compare)")
    if not placement.has_strategies:
        notes.append("parallel.parallel_mode is not semi-auto: the model is not sharded, every rank has all of it")
    if placement.num_stages > 1:
        notes.append("sizes are of one micro-batch; a pipeline stage holds several at a time")
    if placement.stage > 0:
        notes.append("the embedding is replaced by the tensor that the previous stage sends")
    if not placement.is_last_stage:
        graph = drop_head(graph)
        notes.append("head and loss are on another stage; their part is left out")
    return replace(unsharded, graph=with_bit_masks(graph), notes=tuple(notes), collectives=collectives)


def _describe_unresolved(unresolved: Sequence[Unresolved]) -> list[str]:
    """Return one line for each cell and reason, combining the operators of several layers."""
    groups: dict[tuple[str, str], list[str]] = {}
    for entry in unresolved:
        groups.setdefault((entry.node.cell_path, entry.reason), []).append(entry.node.op)
    notes = []
    for (cell, reason), ops in groups.items():
        operators_text = f"{cell}.{'|'.join(dict.fromkeys(ops))}".strip(".")
        notes.append(f"not resolved per rank: {operators_text} (x{len(ops)}): {reason}")
    return notes


def compile_network(network: nn.Cell, config, data_parallel: int = 1) -> Graph:
    """Compile forward and backward of a MindFormers network, for the columns of its data set.

    Raises:
        GraphError: if the compiler refuses the network.
    """
    num_parts = config.get("micro_batch_interleave_num") or 1
    inputs = example_inputs(config, data_parallel * num_parts)
    cell = DataOrderWrapperCell(list(inputs), network)
    if num_parts > 1:
        cell = interleave_batch(cell, num_parts)
    with compiled_experts(config.get(EXCHANGE_KEY) or ExchangeSizes()):
        graph = compile_training_graph(cell, tuple(inputs.values()))
    graph = load_embedding(restore_names(graph))
    return order_by_layer(graph) if num_parts > 1 else graph


# Capture of the step from which simulations start.


def capture_step(
    config_path: str, num_layers: int, placement: RankPlacement | None = None, built: BuiltLayers | None = None
) -> CapturedStep:
    """Compile the network of a YAML file without swap and recompute.

    Args:
        config_path: MindFormers YAML.
        num_layers: layers of the model.
        placement: shard tensors as for this rank; all pipeline stages are captured, whichever it is on.
        built: see `capture`.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    plain = Policy(is_swap_enabled=True)
    if placement is not None and placement.num_stages > 1:
        all_layers = tuple(range(num_layers))
        placement = replace(
            placement, rank=0, num_ranks=placement.num_stage_ranks, num_stages=1, stage=0, layers=all_layers
        )
    plain_capture = capture(config_path, plain, placement=placement, with_all_tags=True, built=built)
    graph = with_cache_gradients(merge_gathers(plain_capture.graph))
    return CapturedStep(
        plain_capture.sample,
        plain_capture.layers,
        graph,
        plain_capture.collectives,
        plain_capture.notes,
        has_all_tags=True,
    )
