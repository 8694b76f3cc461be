"""Passes of a pipeline: what begins them, and backward cut in two, by hand."""

from dataclasses import replace

import numpy as np

from mindswap.config.pipeline_layout import Pipeline
from mindswap.graph.analysis.collectives import Collective
from mindswap.policy.model import ALL_LAYERS, Policy
from mindswap.simulator.layer_block import Consumers, use_rows
from mindswap.simulator.micro_batch_group import MicroBatchGroup
from mindswap.simulator.program import NO_OP, OpKind
from mindswap.simulator.stage_pass import WEIGHT_HALF, PassOps, SplitBackward, StagePass, split_backward_pass
from mindswap.simulator.step_model import StepModel
from tests.graph.builders import KIB, node
from tests.simulator import steps

BACKWARD, COLLECTIVE = OpKind.BACKWARD, OpKind.COLLECTIVE


def test_what_runs_again_waits_for_the_gradient_beside_communication():
    """Layers reduce the gradient that they get; the first stage idles before, while the last one works."""
    pipelined = steps.model(4, pipeline=Pipeline(num_stages=2), num_micro_batches=2)
    step, backward = pipelined.captured.graph, []
    for made in step.backward:
        if made.name.startswith("mul_grad"):
            gradient, *others = made.inputs
            reduced = f"reduced{made.layer_index}"
            backward.append(node(reduced, "AllReduce", gradient, layer=made.layer_index))
            made = replace(made, inputs=(reduced, *others))
        backward.append(made)
    reduce = {f"reduced{i}": (Collective("AllReduce", KIB, 2),) for i in range(3)}
    captured = replace(pipelined.captured, graph=replace(step, backward=tuple(backward)), collectives=reduce)
    own = StepModel(captured, pipelined.costs, pipelined.settings)
    timeline = own.simulate(Policy(layer_recompute=ALL_LAYERS)).timeline
    kind = timeline.program.ops.kind[: timeline.program.stage_starts[1]]
    received, reduced, again = np.flatnonzero(kind == OpKind.RECEIVE)[0] + np.arange(3)
    assert kind[[reduced, again]].tolist() == [COLLECTIVE, OpKind.RECOMPUTE]
    assert timeline.op_start_ns[reduced] == timeline.op_start_ns[again] == timeline.op_end_ns[received]


def test_both_halves_of_a_backward():
    """RECEIVE, g, its AllReduce, w, g, w, SEND; both w and the second g wait for the AllReduce, SEND for the last w."""
    kind = [OpKind.RECEIVE, BACKWARD, COLLECTIVE, BACKWARD, BACKWARD, BACKWARD, OpKind.SEND]
    ops = PassOps(
        kind=np.array(kind),
        piece_ns=np.array([[0, 10, 20, 30, 40, 50, 60]]).T,
        wait_op=np.array([NO_OP, 0, 1, 2, 2, 2, 5]),
        label=np.arange(7),
        layer=np.zeros(7, int),
        is_weight=np.array([False, False, False, True, False, True, False]),
        positions=np.ones(7, int),
    )
    first, second, positions = split_backward_pass(StagePass(ops, {3: 1}, receive=3, send=2))
    assert first.ops.piece_ns[:, 0].tolist() == [0, 10, 20, 40, 60]
    # SEND, which came behind a w, waits for the g before that.
    assert first.ops.wait_op.tolist() == [NO_OP, 0, 1, 2, 3]
    assert (first.receive, first.send) == (3, 2)
    assert second.ops.piece_ns[:, 0].tolist() == [30, 50]
    assert second.ops.wait_op.tolist() == [NO_OP, NO_OP]
    assert second.ops.wait_half.tolist() == [2, 2]  # the AllReduce, from the begin of the first half
    assert (second.receive, second.send) == (None, None)
    assert positions.tolist() == [0, 1, 2, WEIGHT_HALF, 3, WEIGHT_HALF + 1, 4]


# Turns.


NO_OPS = PassOps(*np.zeros((7, 0)))
FORWARD, TURNS_BACKWARD = StagePass(NO_OPS, {}), StagePass(NO_OPS, {})

# Read by operator 0 of backward alone; by 0, 2 and 3; by 1 and 3; by none. Operators 1 and 3 give gradients of weights.
USES = use_rows(
    [
        Consumers(5, 0, 0, first_input=0, last_input=0),
        Consumers(6, 0, 3, first_input=0, last_input=2, first_weight=3, last_weight=3),
        Consumers(7, 1, 3, first_weight=1, last_weight=3),
        Consumers(),
    ]
)


def test_uses_where_backward_is_whole():
    groups = MicroBatchGroup(FORWARD, TURNS_BACKWARD)
    last_forward, first, last = groups.uses_in_pass(USES, np.full(4, 100), np.full(4, 10)).tolist()
    assert last_forward == [105, 106, 107, NO_OP]
    assert (first, last) == ([10, 10, 11, NO_OP], [10, 13, 13, NO_OP])


def test_uses_where_backward_is_cut():
    """A backward of g, w, g, w: operators 0 and 2 go to the first half, 1 and 3 to the second."""
    places = np.array([0, WEIGHT_HALF, 1, WEIGHT_HALF + 1])
    groups = MicroBatchGroup(FORWARD, TURNS_BACKWARD, SplitBackward(TURNS_BACKWARD, TURNS_BACKWARD, places))
    _, first, last = groups.uses_in_pass(USES, np.zeros(4, int), np.zeros(4, int)).tolist()
    assert first == [0, 0, WEIGHT_HALF, NO_OP]
    assert last == [0, WEIGHT_HALF + 1, WEIGHT_HALF + 1, NO_OP]
