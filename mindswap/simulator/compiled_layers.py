"""Graphs of the compiled layers of a captured step under any policy.

    captured graph --> settled, weights gathered --> under a policy, equal operators merged --> blocks (`blocks`)
                       `CompiledLayers.graph`        `CompiledLayers.rewritten`

The compiler merges equal operators only if a policy applies the same settings to them, so they are merged last.
"""

import functools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from mindswap.config.step_settings import StepSettings
from mindswap.errors import SimulationError
from mindswap.graph.analysis.prediction_layers import find_recomputable
from mindswap.graph.analysis.saved_tensors import Label, Names, find_boundary_operators
from mindswap.graph.analysis.weight_copies import find_weight_casts
from mindswap.graph.layer_paths import assign_layer_indices
from mindswap.graph.model import Graph, Node
from mindswap.graph.passes.dropout_masks import is_mask
from mindswap.graph.passes.fusion import merge_equal
from mindswap.graph.passes.gather import gather_weights
from mindswap.graph.passes.gradient_order import (
    delay_head_gradient,
    find_gradient_pairs,
    find_head_gradients,
    order_weight_gradients,
)
from mindswap.graph.passes.half_gradients import merge_half_gradients
from mindswap.graph.passes.interleaved_halves import order_halves
from mindswap.graph.passes.loss_order import advance_difference, order_labels, order_losses
from mindswap.graph.passes.swap_recompute import (
    NodeSettings,
    normalize_saved_names,
    rewrite_graph,
    settings_of_policy,
)
from mindswap.graph.sequences import cache_readers
from mindswap.graph.sharding.pipeline_stage import share_casts
from mindswap.graph.storage import classify_saved
from mindswap.policy.model import Policy
from mindswap.policy.resolve import LayerDecisions, layer_key, resolve_layer
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.segments import count_layers, find_start_operators, forward_segments

# Marks a holder whose operators no swap setting can offload.
UNSWAPPABLE = ("",)
# Optimizers that cast the number of the step (`global_step`) to float32; fused ones do it in their kernel.
CASTING_OPTIMIZERS = frozenset({"AdamW", "PmaAdamW"})
# Size of the cache of graphs: a planner requests several results for each, for one layer class after another.
NUM_RECENT = 128


class CompiledLayers:
    """The compiled layers if all of them are set as a policy sets one layer of the model.

    `fixed` is a policy that applies together with every other one.
    """

    def __init__(self, source: CapturedStep, settings: StepSettings, fixed: Policy | None = None):
        self.source = source
        self.fixed = fixed
        gathered = gather_weights(assign_layer_indices(source.graph), settings.sharding)
        if settings.shares_casts:
            gathered = share_casts(gathered, settings.lacks_lazy_inline)
        # The step before equal operators are merged; AllGathers of weights by name of their node; operators that run
        # once in a step, for all micro-batches.
        self.graph, self.gathers, self.per_step_operators = gathered.graph, gathered.collectives, gathered.computed_once
        self._has_micro_steps = settings.num_micro_steps > 1
        self._has_early_gradients = not (self._has_micro_steps or settings.is_fused)
        lacks_lazy_inline = settings.lacks_lazy_inline and not self._has_micro_steps
        self._has_early_difference = self._has_early_gradients and settings.is_newer and lacks_lazy_inline
        self._named = normalize_saved_names(self.graph)  # input of `rewrite_graph`
        is_ordered = self._has_micro_steps and not settings.has_interleaved_halves
        # Products of backward that the backend orders; None if it does not.
        self.gradient_pairs = find_gradient_pairs(self._named) if is_ordered else None
        # Products of backward that give the gradients of the head, if that of its weight comes late; else None.
        self._head_gradients = find_head_gradients(self._named) if lacks_lazy_inline else None
        # With several micro-batches a cast of a weight is recomputed with a cell around it, not if a policy names it
        # (docs/internals/notes.md#recomputed-weight-casts).
        self._computed_once = find_weight_casts(self.graph) if self._has_micro_steps else frozenset()
        self._kept = find_kept_operators(self.graph, settings)
        # Operators of the layers for multi-token prediction that recompute of the last layer recomputes, if full.
        self.prediction = find_recomputable(self.graph)
        self.reads_caches = cache_readers(self.graph)  # operators that cannot be recomputed with split sequences
        # The step without any policy, with equal operators merged.
        self.plain = replace(source, graph=self.graph)
        if source.has_all_tags:
            self.plain = replace(source, graph=merge_equal(self.graph))
        self.labels = self.plain.names()  # operator of `plain` -> its paths, several if it was merged
        self._paths = source.names()  # paths of unmerged operators
        self._recent: dict[Hashable, Graph] = {}  # `layer_key` -> rewritten graph

    def with_fixed(self, policy: Policy) -> Policy:
        """Return a policy combined with the fixed one."""
        return policy.combined_with(self.fixed) if self.fixed is not None else policy

    def decisions(self, policy: Policy, layer_index: int) -> tuple[LayerDecisions, ...]:
        """Resolve a policy for one layer of the model, with the cell tree of each compiled layer."""
        policy = self.with_fixed(policy)
        decided = {tree: resolve_layer(policy, layer_index, tree) for tree in dict.fromkeys(self.source.trees)}
        return tuple(decided[tree] for tree in self.source.trees)

    def rewritten(self, policy: Policy, layer_index: int) -> Graph:
        """Return the step in which all compiled layers have the settings of one layer of the model.

        Raises:
            SimulationError: if the policy recomputes operators that read a cache of sequence pieces.
        """
        key = layer_key(policy, layer_index)
        if key not in self._recent:
            while len(self._recent) >= NUM_RECENT:
                del self._recent[next(iter(self._recent))]
            self._recent[key] = self._with_decisions(self.decisions(policy, layer_index))
        return self._recent[key]

    def rewritten_layers(self, policy: Policy, layer_indices: Sequence[int]) -> Graph:
        """Return the step in which each compiled layer has the settings of a layer of the model.

        Args:
            policy: the policy.
            layer_indices: layer of the model of each compiled layer.

        Raises:
            SimulationError: as `rewritten`.
        """
        policy = self.with_fixed(policy)
        layers = zip(layer_indices, self.source.trees, strict=True)
        return self._with_decisions([resolve_layer(policy, index, tree) for index, tree in layers])

    def _with_decisions(self, decisions: Sequence[LayerDecisions]) -> Graph:
        """Return the step with these decisions for its compiled layers."""
        settings = settings_of_policy(self._named, self._paths, decisions).without_named(self._computed_once)
        self._refuse_caches(settings.recomputed)
        graph = merge_equal(self._named, settings.of) if self.source.has_all_tags else self._named
        return self._rewrite(graph, settings)

    @functools.cached_property
    def with_prediction_recomputed(self) -> Graph:
        """The step in which the layers for multi-token prediction are recomputed, and no others."""
        settings = settings_of_policy(self._named, self._paths, self.decisions(Policy(is_swap_enabled=True), 0))
        graph = merge_equal(self._named, settings.of) if self.source.has_all_tags else self._named
        return self._rewrite(graph, replace(settings, recomputed=settings.recomputed | self.prediction))

    def _rewrite(self, graph: Graph, settings: NodeSettings) -> Graph:
        rewritten = rewrite_graph(graph, replace(settings, recomputed=settings.recomputed - self._kept))
        if self._head_gradients is not None:
            return delay_head_gradient(rewritten, self._head_gradients)
        return rewritten if self.gradient_pairs is None else order_weight_gradients(rewritten, self.gradient_pairs)

    def _refuse_caches(self, recomputed: Iterable[str]) -> None:
        refused = sorted(self.reads_caches.intersection(recomputed))
        if refused:
            names = ", ".join(dict.fromkeys(str(self._paths(self.graph.index.forward_nodes[name])) for name in refused))
            raise SimulationError(
                f"{names} cannot be recomputed: later pieces of the sequence have changed the keys and values by then\n"
                "    allowed: recompute of other operators\n    fix:     recompute without them, or seq_split_num: 1"
            )

    def in_backend_order(self, graph: Graph) -> Graph:
        """Order the interleaved halves of `fine_grain_interleave`, and the losses, as MindSpore does."""
        collectives = self.source.collectives.items()
        communicating_first = {name for name, entries in collectives if any(entry.is_before for entry in entries)}
        communicating_after = {name for name, entries in collectives if not all(entry.is_before for entry in entries)}
        ordered = order_halves(graph, communicating_first, communicating_after)
        ordered = merge_half_gradients(ordered) if self._has_micro_steps else ordered
        if not self.prediction:
            num_layers = count_layers(ordered)
            if find_start_operators(ordered, forward_segments(ordered, num_layers), num_layers):
                return ordered  # labels are ready before the layers
            ordered = order_labels(ordered, communicating_after, self._has_early_gradients)
            return advance_difference(ordered) if self._has_early_difference else ordered
        return ordered if self._has_micro_steps else order_losses(ordered, communicating_first, communicating_after)

    def holder_names(self, policy: Policy, layer_index: int) -> dict[Label, tuple[tuple[str, ...], ...]]:
        """Return the holders through which backward saves the tensors of a layer, under the recompute of a policy.

        Returns:
            Label of a tensor -> operator paths of each holder; `UNSWAPPABLE` for a holder that swap cannot offload.
        """
        graph = self.rewritten(replace(policy, op_swap=(), layer_swap=()), layer_index)
        position = self.source.sample.layer_map[layer_index]
        readers_of = _readers_in_backward(graph)
        holders: dict[Label, dict[tuple[str, ...], None]] = {}
        for entry in classify_saved(graph):
            if entry.storage.producer is not None and entry.storage.layer_index == position:
                names = holders.setdefault(self.labels(entry.storage.producer), {})
                for node in entry.holders:
                    owner = graph.owner(node)
                    owner_names = {owner.name}
                    # Swap of a tuple moves the members that its own gradient reads.
                    readers = readers_of.get(node.name, owner_names) if node.name != owner.name else owner_names
                    names.update({self._paths_of(owner): None} if owner.name in readers else {})
                    names.update({UNSWAPPABLE: None} if readers - owner_names else {})
        return {label: tuple(names) for label, names in holders.items()}

    def not_simulated(self, error: SimulationError, policy: Policy, layer_index: int) -> SimulationError:
        """Return an error for a layer whose settings blocks cannot express, with a suggested fix."""
        recomputed = settings_of_policy(self.graph, self._paths, self.decisions(policy, layer_index)).recomputed
        nodes = self.graph.index.forward_nodes
        boundary_nodes = (nodes[name] for name in sorted(find_boundary_operators(self.graph) & set(recomputed)))
        names = ", ".join(dict.fromkeys(str(self._paths(node)) for node in boundary_nodes))
        fix = f"\n    fix: recompute without {names}: operators after the layer read it" if names else ""
        return SimulationError(f"layer {layer_index}: {error}{fix}")

    def _paths_of(self, node: Node) -> Names:
        """Return the paths of an operator of a rewritten graph, in which it may be merged with others."""
        return Names(node.paths) if node.paths and self.source.has_all_tags else self.labels(node)


def find_kept_operators(graph: Graph, settings: StepSettings) -> frozenset[str]:
    """Return the names of operators that backward does not recompute, although their cell is recomputed.

    - `DropoutExt` of newer models, with one micro-batch; the mask of `Dropout` of legacy models and LoRA
      (docs/internals/notes.md#dropout-in-recomputed-cells).
    - Casts that the compiler made of two, if the optimizer casts the number of the step
      (docs/internals/notes.md#casts-made-of-two). They have no attributes, unlike those of a cell.
    """
    are_casts_kept = settings.is_split and settings.num_cards > 1 and settings.optimizer in CASTING_OPTIMIZERS
    return frozenset(
        node.name
        for node in graph.forward
        if is_mask(graph, node)
        or (node.op == "DropoutExt" and settings.num_micro_steps == 1)
        or (node.op == "Cast" and are_casts_kept and not node.attributes and not node.paths)
    )


def _readers_in_backward(graph: Graph) -> dict[str, set[str]]:
    """Return, for each forward value saved for backward, the operators whose gradients read it; "" for recompute.

    Offloading an operator with a tuple of outputs moves only the outputs that its own gradient reads
    (`graph.passes.swap_recompute`).
    """
    forward_names = graph.index.forward_names
    gradients = {name: node.origin for node in graph.backward if node.origin for name in node.inputs}
    readers: dict[str, set[str]] = {}
    for node in graph.backward:
        for name in node.inputs:
            if name in forward_names:
                reader = "" if node.is_duplicate else node.origin or gradients.get(name, "")
                readers.setdefault(forward_names[name], set()).add(reader)
    return readers
