"""Which layers are compiled when most are alike."""

import pytest

from mindswap.graph.lifetime import LayerSample, sample_layers


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
        # Neighbours count: a layer after another neighbour may keep something else.
        ("abab", (0, 1, 2, 3), (0, 1, 2, 3)),
        # Layers 3 and 4 have their like in 1 and 2, between the same neighbours, and 5 still follows an a.
        ("ababab", (0, 1, 2, 5), (0, 1, 2, 1, 2, 3)),
        # Three stages of two a and one b: 5 to 7 can go, as 2, 3 and 4 are like them, and 4 is before a b as well.
        ("aabaabaab", (0, 1, 2, 3, 4, 8), (0, 1, 2, 3, 4, 2, 3, 1, 5)),
    ],
)
def test_a_layer_stands_for_those_with_the_same_neighbours(kinds, indices, layer_map):
    assert sample_layers(kinds) == LayerSample(indices, layer_map)


def test_eighty_equal_layers_need_three():
    sample = sample_layers(["same"] * 80)
    assert sample.indices == (0, 1, 79)
    assert not sample.is_whole


def test_stages_that_are_alike_need_two():
    # telechat3_36b: 14 layers of 16 recomputed in each of four parts. Of the first part the first two and the last that
    # are recomputed and both others; two recomputed ones next to such a border; and the last two.
    sample = sample_layers(("r" * 14 + "k" * 2) * 4)
    assert sample.indices == (0, 1, 13, 14, 15, 16, 61, 62, 63)
