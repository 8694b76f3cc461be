"""What is set on real cells is what `policy/resolve.py` decides, for generated policies; nothing is compiled."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from mindswap.adapters.graph.apply import apply_policy, iterate_primitives, read_tree
from mindswap.errors import ApplyError
from mindswap.policy.formats.mindformers1.schema import SELECT_OPTIONS
from mindswap.policy.resolve import Treatment, resolve_layer
from tests.policy.test_resolve_readers import NUM_LAYERS, cases, names
from tests.strength import examples

pytestmark = pytest.mark.mindspore


def build(node):
    """A cell, or a primitive, that has what a node of a tree says."""
    from mindspore import nn, ops

    if node.is_primitive:
        return ops.GeLU()
    cell = nn.Cell()
    for child in node.children:
        setattr(cell, child.name, build(child))
    return cell


def without_unmatched(policy, tree):
    """The policy without the entries that name no part of a layer."""
    paths = [path for path, _ in tree.walk()]
    left = {
        option: [e for e in getattr(policy, option) if any(names(e.pattern, path, is_exact=True) for path in paths)]
        for option in ("op_swap", *SELECT_OPTIONS)
    }
    return replace(policy, **left)


def cell_at(layer, path):
    for name in path:
        layer = getattr(layer, name)
    return layer


@settings(max_examples=examples(30, 300), suppress_health_check=list(HealthCheck))
@given(cases())
def test_attributes_are_what_is_decided(case):
    tree, given_policy = case
    policy = without_unmatched(given_policy, tree)
    layers = [build(tree) for _ in range(NUM_LAYERS)]
    if policy != given_policy:
        with pytest.raises(ApplyError, match="names no operator"):
            apply_policy(layers, given_policy)
    apply_policy(layers, policy)
    for index, layer in enumerate(layers):
        decided = resolve_layer(policy, index, read_tree(layer)).primitives()
        found = dict(iterate_primitives(layer))
        for path, decision in decided.items():
            attributes = found[path].attrs
            is_in_recomputed_cell = (cell_at(layer, path[:-1]).get_scope() or "").startswith("recompute_")
            assert attributes.get("recompute", is_in_recomputed_cell) == (decision.treatment is Treatment.RECOMPUTE)
            assert attributes.get("backward_prefetch") == decision.requested_prefetch
            assert attributes.get("offload", False) == (decision.requested_prefetch is not None)
            assert attributes.get("recompute_comm_op", False) == bool(decision.comm_recomputed_by)
