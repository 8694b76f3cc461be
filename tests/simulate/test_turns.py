import numpy as np

from mindswap.simulate.stage_pass import NONE, WEIGHT_HALF
from mindswap.simulate.turns import in_halves


def test_uses_where_backward_is_cut():
    """A backward of g, w, g, w: operators 0 and 2 go to the first half, 1 and 3 to the second.

    Tensors: read by 0 alone; by 0, 2 and 3; by 1 and 3; by none.
    """
    places = np.array([0, WEIGHT_HALF, 1, WEIGHT_HALF + 1])
    first, last = in_halves(
        places,
        first_input=np.array([0, 0, NONE, NONE]),
        last_input=np.array([0, 2, NONE, NONE]),
        first_weight=np.array([NONE, 3, 1, NONE]),
        last_weight=np.array([NONE, 3, 3, NONE]),
    )
    assert first.tolist() == [0, 0, WEIGHT_HALF, NONE]
    assert last.tolist() == [0, WEIGHT_HALF + 1, WEIGHT_HALF + 1, NONE]
