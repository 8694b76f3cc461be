"""A policy for fewer layers."""

import pytest

from mindswap.policy.model import Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.training.proof.derive import cut_policy, kept_layers


@pytest.mark.parametrize(
    ("num_layers", "num_kept", "kept"),
    # 31 / 3 = 10.33 and 20.67 between the ends; 7 / 2 = 3.5 is rounded up.
    [(32, 4, (0, 10, 21, 31)), (8, 3, (0, 4, 7)), (4, 4, (0, 1, 2, 3)), (32, 2, (0, 31)), (32, 1, (0,))],
)
def test_the_first_the_last_and_evenly_between(num_layers, num_kept, kept):
    assert kept_layers(num_layers, num_kept) == kept


def test_each_layer_does_what_the_one_did_that_it_stands_for():
    policy = Policy(
        is_swap_enabled=True,
        op_swap=(OpSwap("attention", Layers(tuple(range(20))), 20), OpSwap("feed_forward", Layers((5,)), 3)),
        layer_swap=(LayerSwap(Layers((31,)), 10),),
        select_recompute=(OpRecompute("feed_forward", Layers(None)),),
        layer_recompute=Layers((21, 22)),
    )
    # 0 and 10 are below 20; 5 stands for nobody; 31 is the last.
    assert cut_policy(policy, (0, 10, 21, 31)) == Policy(
        is_swap_enabled=True,
        op_swap=(OpSwap("attention", Layers((0, 1)), 20),),
        layer_swap=(LayerSwap(Layers((3,)), 10),),
        select_recompute=(OpRecompute("feed_forward", Layers(None)),),
        layer_recompute=Layers((2,)),
    )
