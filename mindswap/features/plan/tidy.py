"""Take out of a plan what `mindswap check` would warn about: entries, or layers of entries, that do nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mindswap.config.problem import Level
from mindswap.features.plan.written_policies import WrittenPolicies
from mindswap.features.simulate import LoadedStep
from mindswap.planner.build_plan import with_policy
from mindswap.planner.evaluate import evaluate
from mindswap.planner.problem import Plan
from mindswap.planner.write import planned_document
from mindswap.policy.cell_tree import CellNode, match_pattern
from mindswap.policy.equivalence import with_swap_enabled
from mindswap.policy.model import ENTRY_FIELDS, NO_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.policy.resolve import Decision, Path, Treatment, resolve_layer
from mindswap.rules.checker import check_document

Entry = LayerSwap | OpSwap | OpRecompute
SWAP_FIELDS = ("op_swap", "layer_swap")


def without_warnings(written: WrittenPolicies, plan: Plan) -> Plan:
    """Return the plan without what new warnings of `check` are about, if it is as fast and fits without it.

    A plan without new warnings, and one that does not fit, is returned as it is. Pins (decisions of the user) stay.

    Args:
        written: evaluates policies as they are written.
        plan: a plan from `compact`.
    """
    step, fixed = written.step, written.problem.model.layers.fixed
    # Without the policy of the file, which may cause the same warnings as the plan, and is replaced by it.
    known = {found.rule for found in check_document(with_swap_enabled(step.document), _num_layers(step)).problems}
    number = num_new_warnings(step, plan.policy, known) if plan.fits else 0
    trees, layer_map = step.model.captured.trees, step.model.captured.sample.layer_map
    layer_trees = [trees[layer_class] for layer_class in layer_map]
    pinned = pinned_decisions(plan.policy, fixed, layer_trees)
    while number:
        for policy in reduced_policies(plan.policy, trees, len(layer_map)):
            fewer = num_new_warnings(step, policy, known)
            if fewer >= number or pinned_decisions(policy, fixed, layer_trees) != pinned:
                continue
            # Times of one and the same step: without the last entry the file is written without swap.
            if evaluate(written.problem, policy).step_time_ns > plan.step_time_ns:
                continue
            evaluation = written.evaluate(policy)
            if evaluation.fits:
                number = fewer
                plan = with_policy(plan, policy, evaluation)
                break
        else:
            break
    return plan


def pinned_decisions(
    policy: Policy, fixed: Policy | None, layer_trees: Sequence[CellNode]
) -> dict[tuple[int, Path], tuple[Treatment, int | None]]:
    """Return the decision of a policy for each operator that the user has pinned to swap or recompute.

    Args:
        policy: a policy with the pins in it.
        fixed: the pins alone, from `pinned_policy`; None without pins.
        layer_trees: tree of each layer of the model.

    Returns:
        (layer index, path) -> treatment and `backward_prefetch`.
    """
    if fixed is None:
        return {}
    decisions: dict[tuple[int, Path], tuple[Treatment, int | None]] = {}
    for layer_index, tree in enumerate(layer_trees):
        pinned, of_policy = (resolve_layer(each, layer_index, tree) for each in (fixed, policy))
        for path, decision in pinned.operators().items():
            if decision != Decision():
                found = of_policy.decision_for(path)
                decisions[layer_index, path] = found.treatment, found.prefetch
    return decisions


def num_new_warnings(step: LoadedStep, policy: Policy, known: set[str]) -> int:
    """Return the number of warnings of `check` for a policy in the configuration.

    Args:
        step: step of the configuration.
        policy: policy to write into it.
        known: rules that do not count, because the configuration violates them without the policy.
    """
    document = planned_document(policy, step.document, step.model.captured.num_layers)
    checked = check_document(document, _num_layers(step))
    return sum(found.level is Level.WARNING and found.rule not in known for found in checked.problems)


def _num_layers(step: LoadedStep) -> int | None:
    """Return the number of layers of a network without a configuration."""
    return step.model.captured.num_layers if step.path is None else None


def reduced_policies(policy: Policy, trees: Sequence[CellNode], num_layers: int) -> Iterator[Policy]:
    """Yield the policy without one entry, and without the layers of a swap entry that recompute of its operators has.

    Args:
        policy: the policy.
        trees: tree of each compiled layer.
        num_layers: layers of the model.
    """

    def matches(pattern: str) -> set[tuple[int, tuple[str, ...]]]:
        found = ((i, match) for i, tree in enumerate(trees) for match in match_pattern(pattern, tree))
        return {(i, path) for i, match in found for path, _ in match.node.walk(match.path)}

    recomputed = [(entry.layers, matches(entry.pattern)) for entry in policy.select_recompute]
    for name in SWAP_FIELDS:
        for position, entry in enumerate(getattr(policy, name)):
            swapped = matches(entry.pattern) if isinstance(entry, OpSwap) else set()
            overlapping = [layers for layers, paths in recomputed if not paths.isdisjoint(swapped)]
            for layers in (policy.layer_recompute, *overlapping):
                remaining = _without(entry.layers, layers, num_layers)
                if remaining != NO_LAYERS and remaining != entry.layers:
                    yield _with_entry(policy, name, position, replace(entry, layers=remaining))
    for name in ENTRY_FIELDS:
        for position in range(len(getattr(policy, name))):
            yield _with_entry(policy, name, position, None)


def _without(layers: Layers, other: Layers, num_layers: int) -> Layers:
    """Return the layers that are not in the other set; the same object if that is all of them."""
    resolved = layers.resolve(num_layers)
    remaining = tuple(layer for layer in resolved if layer not in other)
    return layers if remaining == tuple(resolved) else Layers(remaining)


def _with_entry(policy: Policy, name: str, position: int, entry: Entry | None) -> Policy:
    """Return the policy with another entry at a position; None for no entry there."""
    entries = list(getattr(policy, name))
    entries[position : position + 1] = [] if entry is None else [entry]
    changed: dict[str, Any] = {name: tuple(entries)}
    return replace(policy, **changed)
