"""Swaps that take no effect by the specification: recomputed operators of the layer use what they move. Pure.

Source:
    Coupling rule 2 of "Fine-Grained Activations SWAP" of MindFormers: for an operator with SWAP enabled whose
    output is used by an operator with recomputation enabled, SWAP does not take effect. MindSpore 2.9.0 inserts the
    copies all the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mindswap.graph.uses import merged_readers, operator_uses
from mindswap.policy.cell_tree import exact_pattern
from mindswap.policy.model import Layers, OpSwap, Policy
from mindswap.policy.resolve import Treatment, resolve_layer
from mindswap.simulator.step_model import StepModel

# The name that covers every operator of a layer: it is recomputed whole.
ALL_OPERATORS = ""

# Operator path -> paths of the operators of the same layer that use its output.
Uses = Mapping[str, frozenset[str]]


def find_uses(model: StepModel) -> tuple[Uses, ...]:
    """The uses in each compiled layer of a captured model."""
    found = [dict(uses) for uses in find_merged_uses(model)]
    for (layer, name), users in operator_uses(model.captured.graph, model.names).items():
        known = found[layer].get(name, frozenset())
        found[layer][name] = known | frozenset(path for other, path in users if other == layer)
    return tuple(found)


def find_merged_uses(model: StepModel) -> tuple[Uses, ...]:
    """Of these, the uses by operators that the graph does not have.

    If such a user is recomputed, the value is copied out, and back never, for nothing (`graph.rewrite.rewrite`): no
    plan swaps it then, whatever the version makes of coupling rule 2.
    """
    trees = model.captured.trees
    found: list[dict[str, frozenset[str]]] = [{} for _ in trees]
    for node in model.captured.graph.forward:
        if node.layer_index is None:
            continue
        names = model.names(node)
        users = merged_readers(node, [tuple(name.split(".")) for name in names], trees[node.layer_index])
        for name in names if users else ():
            found[node.layer_index][name] = frozenset(users)
    return tuple(found)


def idle_swaps(uses: Uses, swapped: Iterable[str], recomputed: Sequence[str]) -> frozenset[str]:
    """Swapped operators whose swap takes no effect.

    Args:
        uses: of the layer.
        swapped: operator paths.
        recomputed: cells and operators that are recomputed in the layer; `ALL_OPERATORS` for all.
    """
    return frozenset(name for name in swapped if any(_is_covered(user, recomputed) for user in uses.get(name, ())))


def without_idle_swaps(model: StepModel, uses: Sequence[Uses], policy: Policy) -> Policy | None:
    """What is left of a policy if swaps of what recomputed operators use take no effect.

    Args:
        model: the step.
        uses: of each compiled layer.
        policy: in layer indices.

    Returns:
        The policy with one entry for each operator and distance; None if it has no such swap.
    """
    left: dict[tuple[str, int], list[int]] = {}
    num_idle = 0
    for index, kind in enumerate(model.captured.sample.layer_map):
        layer = resolve_layer(policy, index, model.captured.trees[kind])
        swapped = {".".join(path): found.prefetch for path, found in layer.primitives().items() if found.prefetch}
        users = frozenset().union(*uses[kind].values())
        recomputed = [user for user in users if layer.of(tuple(user.split("."))).treatment is Treatment.RECOMPUTE]
        idle = idle_swaps(uses[kind], swapped, recomputed)
        num_idle += len(idle)
        for path in swapped.keys() - idle:
            left.setdefault((path, swapped[path]), []).append(index)
    if not num_idle:
        return None
    entries = tuple(OpSwap(exact_pattern(path), Layers(tuple(at)), p) for (path, p), at in sorted(left.items()))
    return replace(policy, layer_swap=(), op_swap=entries)


def _is_covered(path: str, cells: Iterable[str]) -> bool:
    return any(cell == ALL_OPERATORS or path == cell or path.startswith(f"{cell}.") for cell in cells)
