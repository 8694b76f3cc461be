"""Which layers are compiled when most are alike."""

import pytest

from mindswap.graph.sample import LayerSample, sample_layers


@pytest.mark.parametrize(
    ("kinds", "indices", "layer_map"),
    [
        ("", (), ()),
        ("a", (0,), (0,)),
        ("aaa", (0, 1, 2), (0, 1, 2)),
        ("aaaa", (0, 1, 3), (0, 1, 1, 2)),
        ("aaaaaa", (0, 1, 5), (0, 1, 1, 1, 1, 2)),
        # Case 3 of the specification: 0 | 1-2 | 3.
        ("abbc", (0, 1, 2, 3), (0, 1, 2, 3)),
        ("aaaabbbbb", (0, 1, 3, 4, 5, 8), (0, 1, 1, 2, 3, 4, 4, 4, 5)),
        # Runs count, not kinds: a layer after another neighbour may keep something else.
        ("abab", (0, 1, 2, 3), (0, 1, 2, 3)),
    ],
)
def test_three_layers_stand_for_a_run(kinds, indices, layer_map):
    assert sample_layers(kinds) == LayerSample(indices, layer_map)


def test_eighty_equal_layers_need_three():
    sample = sample_layers(["same"] * 80)
    assert sample.indices == (0, 1, 79)
    assert not sample.is_whole
