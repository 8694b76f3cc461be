"""Predict, on the rewritten graph, policy entries without effect and copies that free nothing.

`mindswap verify` compiles the policy to find these; a planner needs them thousands of times, so it predicts them.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from mindswap.graph.analysis.saved_tensors import merged_readers, operator_uses
from mindswap.graph.analysis.swap_effect import IdleReason, LayerEffect, compare_effect
from mindswap.policy.cell_tree import exact_pattern, is_within
from mindswap.policy.model import ALL_LAYERS, Layers, OpSwap, Policy
from mindswap.policy.resolve import Treatment, layer_key, resolve_layer
from mindswap.simulator.step_model import StepModel


@dataclass(frozen=True)
class IneffectiveNames:
    """Operator names of a layer whose entries in a policy have no effect."""

    swap: frozenset[str] = frozenset()  # swap moves nothing, or frees no memory
    recompute: frozenset[str] = frozenset()  # backward recomputes none of their operators


NO_INEFFECTIVE_NAMES = IneffectiveNames()


def predict_effect(model: StepModel, policy: Policy, layer_index: int) -> LayerEffect:
    """Return the effect of a policy in one layer of the model.

    A function that a cell calls (`ops.reshape`) may have the cell path of an operator to be swapped. A capture
    distinguishes them, and no entry refers to the function, so functions are not reported as missing.
    """
    layers, kind = model.layers, model.captured.sample.layer_map[layer_index]
    plain = layers.rewritten(replace(policy, op_swap=(), layer_swap=(), default_prefetch=None), layer_index)
    graph = layers.rewritten(policy, layer_index)
    decided = replace(layers.decisions(policy, layer_index)[kind], layer_index=kind)
    effect = compare_effect([decided], plain, graph)[0]
    missing = tuple(node for node in effect.missing if model.names.can_name(graph.owner(node)))
    return replace(effect, layer_index=layer_index, missing=missing)


def is_fully_effective(model: StepModel, policy: Policy) -> bool:
    """Return whether all entries of a policy have an effect in all their layers, and all copies free memory."""
    effects = (predict_effect(model, policy, indices[0]) for indices in _equal_layers(model, policy))
    return all(effect.matches_policy and not effect.wasted for effect in effects)


def without_useless_copies(model: StepModel, policy: Policy) -> Policy:
    """Return a policy without the layers of `op_swap` entries in which a copy of theirs is never prefetched.

    An example is the last sum of a model with sequence parallelism: backward reads it gathered, and not the sum.
    """
    useless: dict[OpSwap, set[int]] = {entry: set() for entry in policy.op_swap}
    for indices in _equal_layers(model, policy):
        num_useless = len(predict_effect(model, policy, indices[0]).one_way)
        for entry in policy.op_swap if num_useless else ():
            others = replace(policy, op_swap=tuple(other for other in policy.op_swap if other != entry))
            if len(predict_effect(model, others, indices[0]).one_way) < num_useless:
                useless[entry].update(indices)
    num_layers = len(model.captured.sample.layer_map)
    entries = (
        replace(entry, layers=Layers(index for index in entry.layers.resolve(num_layers) if index not in layers))
        if layers
        else entry
        for entry, layers in useless.items()
    )
    return replace(policy, op_swap=tuple(entry for entry in entries if entry.layers))


def _equal_layers(model: StepModel, policy: Policy) -> Iterable[tuple[int, ...]]:
    """Return the layers of the model, those of one class with equal decisions together."""
    layers: dict[Hashable, list[int]] = {}
    for index, layer_class in enumerate(model.captured.sample.layer_map):
        layers.setdefault((layer_class, layer_key(policy, index)), []).append(index)
    return map(tuple, layers.values())


# Reasons of recompute entries that recompute nothing.
NO_EFFECT = (IdleReason.NOT_RECOMPUTED, IdleReason.NOT_CALLED)


class EffectPredictor:
    """Predicts names without effect in the layers of a model; cached."""

    def __init__(self, model: StepModel):
        self.model = model
        self._known: dict[tuple[object, ...], IneffectiveNames] = {}

    def ineffective_names(self, layer_index: int, recompute: Policy, swapped: Iterable[str]) -> IneffectiveNames:
        """Return the names to remove from a policy of a layer so that all remaining entries have an effect."""
        names, result = frozenset(swapped), NO_INEFFECTIVE_NAMES
        key = (self.model.captured.sample.layer_map[layer_index], layer_key(recompute, layer_index), names)
        while key not in self._known:
            without = set(map(exact_pattern, result.recompute))
            recompute_entries = tuple(entry for entry in recompute.select_recompute if entry.pattern not in without)
            entries = tuple(OpSwap(exact_pattern(name), ALL_LAYERS, 1) for name in sorted(names - result.swap))
            policy = replace(recompute, select_recompute=recompute_entries, op_swap=entries)
            additional = _find_ineffective_names(self.model, policy, layer_index, names - result.swap)
            previous, result = (
                result,
                IneffectiveNames(result.swap | additional.swap, result.recompute | additional.recompute),
            )
            if result == previous:
                self._known[key] = result
        return self._known[key]


def _find_ineffective_names(model: StepModel, policy: Policy, layer_index: int, swapped: Set[str]) -> IneffectiveNames:
    """Return the names of entries without effect; all of `swapped` if a copy cannot be attributed."""
    effect = predict_effect(model, policy, layer_index)
    patterns = {exact_pattern(name): name for name in swapped}
    not_recomputed = {idle.entry for idle in effect.idle if idle.reason in (*NO_EFFECT, IdleReason.GATHERED)}
    ineffective_swaps = {
        patterns[idle.entry] for idle in effect.idle if idle.entry in patterns and idle.reason not in NO_EFFECT
    }
    graph = model.layers.rewritten(policy, layer_index)
    copied = [graph.index.forward_nodes[copy.inputs[0]] for copy in effect.one_way]
    copied += [pair.producer for entry in effect.wasted for pair in entry.pairs]
    for node in (*copied, *effect.missing):
        ineffective_swaps |= swapped & set(model.names(graph.owner(node))) or swapped
    return IneffectiveNames(frozenset(ineffective_swaps), frozenset(not_recomputed - {"recompute"} - patterns.keys()))


# Swaps without effect by the specification: recomputed operators of the layer read the swapped tensors. Source:
# coupling rule 2 of "Fine-Grained Activations SWAP" of MindFormers: for an operator with SWAP enabled whose output is
# used by an operator with recomputation enabled, SWAP does not take effect. MindSpore 2.9.0 inserts the copies anyway.

# The name of all operators of a layer, for full recompute.
ALL_OPERATORS = ""

# Operator path -> paths of the operators of the same layer that use its output.
Consumers = Mapping[str, frozenset[str]]


def find_consumers(model: StepModel) -> tuple[Consumers, ...]:
    """Return the readers of each operator's output, for each compiled layer of a captured model."""
    consumers = [dict(uses) for uses in find_merged_consumers(model)]
    for (layer, name), users in operator_uses(model.captured.graph, model.names).items():
        readers = consumers[layer].get(name, frozenset())
        consumers[layer][name] = readers | frozenset(path for other, path in users if other == layer)
    return tuple(consumers)


def find_merged_consumers(model: StepModel) -> tuple[Consumers, ...]:
    """Return those of the readers that the compiler merges into another operator, so that the graph lacks them.

    If such a reader is recomputed, an offload of the value would never be prefetched and would free nothing. So no plan
    swaps the value then, however the version implements coupling rule 2.
    """
    trees = model.captured.trees
    consumers: list[dict[str, frozenset[str]]] = [{} for _ in trees]
    for node in model.captured.graph.forward:
        if node.layer_index is None:
            continue
        names = model.names(node)
        users = merged_readers(node, [tuple(name.split(".")) for name in names], trees[node.layer_index])
        for name in names if users else ():
            consumers[node.layer_index][name] = frozenset(users)
    return tuple(consumers)


def coupled_swaps(uses: Consumers, swapped: Iterable[str], recomputed: Sequence[str]) -> frozenset[str]:
    """Return the swapped operators whose swap has no effect, because recomputed operators read their outputs.

    Args:
        uses: readers of each operator's output in the layer.
        swapped: operator paths.
        recomputed: cells and operators that are recomputed in the layer; `ALL_OPERATORS` for all.
    """
    pairs = ((name, user) for name in swapped for user in uses.get(name, ()))
    return frozenset(name for name, user in pairs if any(is_within(user, cell) for cell in recomputed))


def is_coupled(model: StepModel, uses: Sequence[Consumers], policy: Policy) -> bool:
    """Return whether a policy swaps tensors that recomputed operators of the layer use; `uses` by compiled layer."""
    layers = {(kind, layer_key(policy, index)): index for index, kind in enumerate(model.captured.sample.layer_map)}
    for (kind, _), index in layers.items():
        layer = resolve_layer(policy, index, model.captured.trees[kind])
        swapped = [".".join(path) for path, decision in layer.primitives().items() if decision.prefetch]
        users = frozenset().union(*uses[kind].values())
        recomputed = [
            user for user in users if layer.decision_for(tuple(user.split("."))).treatment is Treatment.RECOMPUTE
        ]
        if coupled_swaps(uses[kind], swapped, recomputed):
            return True
    return False
