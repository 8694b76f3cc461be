import pytest
from other_systems.hyper_offload import DistanceOptions, hyper_offload

from mindswap.policy.model import Layers, OpSwap
from tests.planner.models import small_model

MIB = 2**20
# Operators between last use in forward and first in backward, layer 0: exp 2 -> 33, relu 4 -> 32, tanh 5 -> 31;
# layer 1: exp 6 -> 29, and less for all others.
GAPS = {"exp": 31, "relu": 28, "tanh": 26, "exp of layer 1": 23}


def swapped(options: DistanceOptions, **kwargs) -> tuple[OpSwap, ...]:
    return hyper_offload(options, small_model(**kwargs), budget_bytes=0).op_swap


def test_the_defaults_are_those_of_mindspore():
    options = DistanceOptions()
    assert (options.select_distance, options.select_num, options.prefetch_distance) == (100, 100, 50)


def test_tensors_unused_for_longer_than_the_distance():
    assert swapped(DistanceOptions(select_distance=GAPS["tanh"] - 1)) == (
        OpSwap(r"attn\.exp", Layers((0,)), 50),
        OpSwap(r"mlp\.relu", Layers((0,)), 50),
        OpSwap(r"mlp\.tanh", Layers((0,)), 50),
    )
    assert swapped(DistanceOptions(select_distance=GAPS["exp"])) == ()


def test_no_more_than_the_number_in_execution_order():
    options = DistanceOptions(select_distance=GAPS["exp of layer 1"] - 1, select_num=2)
    assert swapped(options) == (OpSwap(r"attn\.exp", Layers((0,)), 50), OpSwap(r"mlp\.relu", Layers((0,)), 50))


def test_each_stage_selects_for_itself():
    # Stage 0 runs forward of the second micro-batch before backward of the first, stage 1 does not.
    # exp of layer 0: forward 1 + 1, backward 25 + 2, see test_saved; exp of layer 2: 1 + 1 and 15 + 2.
    entries = swapped(DistanceOptions(select_distance=14), num_stages=2, num_micro_batches=3)
    layers = {entry.pattern: entry.layers.indices for entry in entries}
    assert layers[r"attn\.exp"] == (0, 1, 2)


@pytest.mark.parametrize(
    ("size_bytes", "distance"),
    [
        (1, 1),
        (8 * 10**6, 1),  # 20 GB/s x 400 us, the slower of the two directions
        (8 * 10**6 + 1, 2),
        (86 * MIB, 12),  # 90.2 MB / 8 MB
    ],
)
def test_adaptive_distance_is_the_slower_copy_in_kernels(size_bytes, distance):
    assert DistanceOptions(is_adaptive=True).distance(size_bytes) == distance
