import numpy as np

from mindswap.simulator.block import use_rows
from mindswap.simulator.block_parts import Uses
from mindswap.simulator.program import NO_OP
from mindswap.simulator.stage_pass import WEIGHT_HALF, MicroBatchGroup, StagePass

FORWARD, BACKWARD = StagePass({}, {}), StagePass({}, {})
# Read by operator 0 of backward alone; by 0, 2 and 3; by 1 and 3; by none. Operators 1 and 3 give gradients of weights.
USES = use_rows(
    [
        Uses(5, 0, 0, first_input=0, last_input=0),
        Uses(6, 0, 3, first_input=0, last_input=2, first_weight=3, last_weight=3),
        Uses(7, 1, 3, first_weight=1, last_weight=3),
        Uses(),
    ]
)


def test_uses_where_backward_is_whole():
    turns = MicroBatchGroup(FORWARD, BACKWARD)
    last_forward, first, last = turns.placed_uses(USES, np.full(4, 100), np.full(4, 10)).tolist()
    assert last_forward == [105, 106, 107, NO_OP]
    assert (first, last) == ([10, 10, 11, NO_OP], [10, 13, 13, NO_OP])


def test_uses_where_backward_is_cut():
    """A backward of g, w, g, w: operators 0 and 2 go to the first half, 1 and 3 to the second."""
    places = np.array([0, WEIGHT_HALF, 1, WEIGHT_HALF + 1])
    turns = MicroBatchGroup(FORWARD, BACKWARD, (BACKWARD, BACKWARD), places)
    _, first, last = turns.placed_uses(USES, np.zeros(4, int), np.zeros(4, int)).tolist()
    assert first == [0, 0, WEIGHT_HALF, NO_OP]
    assert last == [0, WEIGHT_HALF + 1, WEIGHT_HALF + 1, NO_OP]
