"""Rows beside pins are simulated as the policy of both, on a model made by hand and on steps that were compiled."""

import numpy as np
import pytest

from mindswap.errors import PlanError
from mindswap.planner.catalog import build_catalog
from mindswap.planner.layer_assignments import LayerAssignments, number_distances
from mindswap.planner.pins import Pin, PinTreatment, pinned_policy, read_pin
from mindswap.planner.problem import DEFAULT_ALLOW, Allow
from mindswap.planner.stage_problem import KEEP
from mindswap.planner.step_problem import PipelineProblem
from mindswap.policy.cell_tree import exact_pattern
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.device_file import load_device
from mindswap.simulator.step_model import StepModel
from tests.compiled_steps import PLAIN, captured
from tests.planner.models import small_model
from tests.strength import examples

UNLIMITED_BYTES = 1 << 50
NUM_PINS = examples(3, 100)  # that are tried on a model
DISTANCES = (1, 4, 12, 30)  # of rows: below, between and above those of the pins
MODELS = {
    "made by hand": small_model,
    **{
        name: lambda name=name: StepModel(captured(name), CostTable(load_device("generic")), PLAIN)
        for name in ("sequences", "experts")
    },
}


@pytest.mark.parametrize(
    ("distances", "fixed", "numbers"),
    [
        ((7, 3, 40), (), {3: 1, 7: 2, 40: 3}),
        ((7, 3, 40), (10,), {3: 1, 7: 2, 10: 10, 40: 11}),
        ((7, 3, 40), (7,), {3: 1, 7: 7, 40: 8}),
        ((1, 2, 3), (2, 3), {1: 1, 2: 2, 3: 3}),
        ((), (5,), {5: 5}),
    ],
)
def test_numbers_of_distances_keep_the_order_and_what_is_fixed(distances, fixed, numbers):
    assert number_distances(distances, fixed) == numbers


def copies_of(block):
    """Of the block's own tensors: prefetch distance by label, from the elements and from the arrays."""
    arrays = block.arrays
    own = zip(arrays.local_tensors.label.tolist(), arrays.local_tensors.prefetch.tolist(), strict=True)
    by_array = {str(arrays.labels[label]): prefetch for label, prefetch in own if prefetch}
    return {str(one.label): one.prefetch for one in block.tensors if one.prefetch and one.role is None}, by_array


def test_copies_of_other_tensors_stay_beside_new_ones():
    model = small_model()
    pinned = model.with_fixed_policy(pinned_policy((read_pin(r"attn\.exp=swap:7"),), model, DEFAULT_ALLOW))
    catalog = build_catalog(pinned, Allow(pinned=(r"attn\.exp",)))
    labels = [str(group.label) for group in catalog.groups[0]]
    row = np.zeros(len(labels), np.int64)
    row[labels.index("mlp.relu")] = 3
    expected = {"attn.exp": 7, "mlp.relu": 3}
    assert copies_of(LayerAssignments(pinned, catalog).block(1, row)) == (expected, expected)


def test_other_distances_are_of_those_that_are_named():
    model = small_model()
    policy = pinned_policy((read_pin(r"attn\.exp=swap:7"), read_pin(r"mlp\.relu=swap:2")), model, DEFAULT_ALLOW)
    changed = {"attn.exp": 7, "mlp.relu": 30}
    assert copies_of(model.layer_block(policy, 1).with_distances({2: 30})) == (changed, changed)


def held_operators(model):
    names = model.holder_names(pinned_policy((), model, DEFAULT_ALLOW), 1).values()
    return sorted({name for groups in names for group in groups for name in group if name})


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_row_beside_a_pin_is_simulated_as_their_policy(name):
    """What a plan moves is what was pinned, as far ahead as pinned, and what the row adds."""
    model = MODELS[name]().with_swap()
    chance = np.random.default_rng(0)
    num_pinned = 0
    for operator in chance.permutation(held_operators(model)).tolist():
        pin = Pin(exact_pattern(operator), PinTreatment.SWAP, int(chance.choice((2, 3, 10))))
        try:
            pinned = model.with_fixed_policy(pinned_policy((pin,), model, DEFAULT_ALLOW)).with_swap()
        except PlanError:
            continue  # another name holds the same memory
        num_pinned += 1
        if num_pinned > NUM_PINS:
            break
        rows = LayerAssignments(pinned, build_catalog(pinned, Allow(pinned=(pin.pattern,))))
        stage_problem = PipelineProblem(rows, pinned, UNLIMITED_BYTES, UNLIMITED_BYTES)
        can_swap = stage_problem.costs.freed_bytes[1, :, 0] > 0
        assignment = np.zeros((stage_problem.costs.num_layers, len(can_swap)), np.int64)
        assignment[1] = np.where(
            can_swap & (chance.random(len(can_swap)) < 0.6), chance.choice(DISTANCES, size=len(can_swap)), KEEP
        )
        found, policy = stage_problem.timeline(assignment), rows.policy(assignment)
        whole = policy.combined_with(pinned.layers.fixed)
        for expected in (pinned.simulate(policy).timeline, model.simulate(whole).timeline):
            assert found.step_time_ns == expected.step_time_ns
            assert found.program.copies.size_bytes.tolist() == expected.program.copies.size_bytes.tolist()
    assert num_pinned >= 3
