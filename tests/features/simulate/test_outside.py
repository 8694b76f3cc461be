"""Device memory outside of MindSpore's pool, and limits of the pool above the memory of the card."""

import re

import pytest

from mindswap.features.simulate import outside_line
from mindswap.simulator.cost.device_file import load_device
from tests.simulator.steps import model

GIB = 2**30


@pytest.mark.parametrize(
    ("device", "limit_gib", "expected"),
    [
        ("atlas_800i_a2_32g", 58, '.* 58.0 GiB is not below the 30.5 GiB .*910B4.*MindSpore stops: at most "29GB"'),
        ("atlas_800i_a2_32g", 31, ".* 31.0 GiB is not below the 30.5 GiB .*"),
        ("atlas_800_9000", 58, '.*910A.*MindSpore stops: at most "30GB"'),
        ("atlas_800t_a2", 64, '.* 64.0 GiB is not below the 61.0 GiB .*at most "58GB"'),
        ("atlas_800t_a2", 58, ""),
        ("atlas_800i_a2_32g", 29, ""),
        ("atlas_800i_a2_32g", 0, ""),
    ],
)
def test_a_limit_must_be_below_the_memory_of_the_card(device, limit_gib, expected):
    single = model(data_parallel=1, pool_limit_bytes=limit_gib * GIB)
    assert re.fullmatch(expected, outside_line(single, load_device(device, {})))
