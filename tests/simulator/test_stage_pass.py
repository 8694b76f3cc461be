"""Backward cut in two, by hand."""

import numpy as np

from mindswap.simulator.program import NO_OP, OpKind
from mindswap.simulator.stage_pass import WEIGHT_HALF, StagePass, cut_backward

BACKWARD, COLLECTIVE = OpKind.BACKWARD, OpKind.COLLECTIVE


def test_both_halves_of_a_backward():
    """RECEIVE, g, its AllReduce, w, g, w, SEND; both w and the second g wait for the AllReduce, SEND for the last w."""
    kind = [OpKind.RECEIVE, BACKWARD, COLLECTIVE, BACKWARD, BACKWARD, BACKWARD, OpKind.SEND]
    columns = {
        "duration_ns": np.array([0, 10, 20, 30, 40, 50, 60]),
        "kind": np.array(kind),
        "wait_op": np.array([NO_OP, 0, 1, 2, 2, 2, 5]),
        "label": np.arange(7),
        "layer": np.zeros(7, int),
        "is_weight": np.array([False, False, False, True, False, True, False]),
    }
    first, second, places = cut_backward(StagePass(columns, {3: 1}, receive=3, send=2))
    assert first.columns["duration_ns"].tolist() == [0, 10, 20, 40, 60]
    # SEND, which came behind a w, waits for the g before that.
    assert first.columns["wait_op"].tolist() == [NO_OP, 0, 1, 2, 3]
    assert (first.receive, first.send) == (3, 2)
    assert second.columns["duration_ns"].tolist() == [30, 50]
    assert second.columns["wait_op"].tolist() == [NO_OP, NO_OP]
    assert second.columns["wait_half"].tolist() == [2, 2]  # the AllReduce, from the begin of the first half
    assert (second.receive, second.send) == (None, None)
    assert places.tolist() == [0, 1, 2, WEIGHT_HALF, 3, WEIGHT_HALF + 1, 4]
