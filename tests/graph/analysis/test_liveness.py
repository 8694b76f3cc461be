"""The peak of activation memory, by hand."""

import pytest

from mindswap.graph.analysis.liveness import LayerSample, choose_representative_layers, find_peak
from tests.graph.builders import KIB, copy_in, copy_out, graph, node

WHOLE = LayerSample((0,), (0,))


def test_what_is_not_saved_dies_at_its_last_use():
    # a: moments 0-1, b: 1-2, c: 2 on; two of them at a time.
    step = graph([node("a", "Mul", "x"), node("b", "Mul", "a"), node("c", "Mul", "b")])
    peak = find_peak(step, WHOLE)
    assert (peak.size_bytes, peak.node.name, peak.is_forward) == (2 * KIB, "b", True)


def test_what_is_saved_lives_until_backward_has_used_it():
    # Moments: a 0, b 1, c 2, gc 3, gb 4. a lives 0-4, b 1-3, c 2, gc 3-4: three at 2 and at 3.
    step = graph(
        [node("a", "Mul", "x"), node("b", "Mul", "a"), node("c", "Mul", "b")],
        [node("gc", "MulGrad", "b_b"), node("gb", "MulGrad", "gc a_b")],
        saved="a b",
    )
    peak = find_peak(step, WHOLE)
    assert (peak.size_bytes, peak.node.name) == (3 * KIB, "c")


def test_what_nobody_reads_dies_at_once():
    assert find_peak(graph([node("a", "Mul", "x"), node("b", "Mul", "x")]), WHOLE).size_bytes == KIB


def test_the_peak_may_be_the_first_operator_of_backward():
    # a 0-1, ga 1: two at 1.
    step = graph([node("a", "Mul", "x")], [node("ga", "MulGrad", "a_b"), node("end", "Mul", "ga")], saved="a")
    peak = find_peak(step, WHOLE)
    assert (peak.size_bytes, peak.node.name, peak.is_forward) == (2 * KIB, "ga", False)


def test_a_swapped_tensor_leaves_and_comes_back():
    # a leaves after its last use in forward (b at 2); its copy is back for gb alone.
    # b 2-3, c 3-4, d 4, gd 5, a back at 6 with gd: never three.
    step = graph(
        [
            node("a", "Mul", "x"),
            copy_out("out", "a"),
            node("b", "Mul", "a"),
            node("c", "Mul", "b"),
            node("d", "Mul", "c"),
        ],
        [
            node("gd", "MulGrad", "dout"),
            copy_in("back", "out"),
            node("gb", "MulGrad", "gd back"),
            node("end", "Mul", "gb"),
        ],
        saved="out",
    )
    assert find_peak(step, WHOLE).size_bytes == 3 * KIB  # at gb: gd, the copy, and gb itself
    kept = graph(
        [node("a", "Mul", "x"), node("b", "Mul", "a"), node("c", "Mul", "b"), node("d", "Mul", "c")],
        [node("gd", "MulGrad", "dout"), node("gb", "MulGrad", "gd a_b"), node("end", "Mul", "gb")],
        saved="a",
    )
    assert find_peak(kept, WHOLE).node.name == "c"  # a, b and c


def test_layers_left_out_add_what_they_keep():
    # One compiled layer stands for four: three more keep 1 KiB each when the loss runs.
    step = graph(
        [node("a", "Mul", "x", layer=0), node("loss", "Mul", "a", layer=None)],
        [node("ga", "MulGrad", "a_b", layer=0)],
        saved="a",
    )
    peak = find_peak(step, LayerSample((0,), (0, 0, 0, 0)))
    assert (peak.size_bytes, peak.node.name) == (5 * KIB, "loss")


def test_in_backward_the_layers_before_wait():
    # Four layers, of which 1 stands for 1 and 2. While 2 is in backward 0, 1 and 2 keep 1 KiB each; with its own 1 and
    # 10 KiB that is 14 KiB.
    step = graph(
        [node("a", "Mul", "x", layer=0), node("b", "Mul", "a", layer=1), node("c", "Mul", "b", layer=2)],
        [
            node("gc", "MulGrad", "c_b", layer=2),
            node("gb", "MulGrad", "gc", layer=1),
            node("big", "MulGrad", "gb b_b", layer=1, size_bytes=10 * KIB),
            node("ga", "MulGrad", "big a_b", layer=0),
        ],
        saved="a b c",
    )
    peak = find_peak(step, LayerSample((0, 1, 3), (0, 1, 1, 2)))
    assert (peak.size_bytes, peak.node.name) == (14 * KIB, "big")


def test_gradients_of_weights_are_no_activations():
    step = graph(
        [node("a", "Mul", "x")],
        [node("gw", "MulGrad", "a_b", size_bytes=100 * KIB), node("return", "MakeTuple", "gw", size_bytes=0)],
        saved="a",
    )
    assert find_peak(step, WHOLE).size_bytes == KIB


# Which layers are compiled when most are alike.


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
    assert choose_representative_layers(kinds) == LayerSample(indices, layer_map)


@pytest.mark.parametrize(
    ("kinds", "indices", "layer_map"),
    [
        ("", (), ()),
        ("a", (0,), (0,)),
        ("aaaaaa", (0, 1, 5), (0, 1, 1, 1, 1, 2)),
        ("abab", (0, 1, 2, 3), (0, 1, 2, 3)),
        # Layer 2 is a b before a b, as 1 is, though an a is before that one; 3 is a b before an a.
        ("abbba", (0, 1, 3, 4), (0, 1, 1, 2, 3)),
        # Layers 2 and 3 are alike, before a b; the last has nothing behind it.
        ("aabbb", (0, 1, 2, 4), (0, 1, 2, 2, 3)),
        # The first layer, of each kind one before each kind that follows, and the last.
        (("r" * 14 + "k" * 2) * 2, (0, 1, 13, 14, 15, 29, 31), (0, *[1] * 12, 2, 3, 4, *[1] * 13, 5, 3, 6)),
    ],
)
def test_without_the_peak_the_layer_before_does_not_count(kinds, indices, layer_map):
    assert choose_representative_layers(kinds, with_peak=False) == LayerSample(indices, layer_map)


def test_eighty_equal_layers_need_three():
    sample = choose_representative_layers(["same"] * 80)
    assert sample.indices == (0, 1, 79)
    assert not sample.has_all_layers


def test_stages_that_are_alike_need_two():
    # telechat3_36b: 14 layers of 16 recomputed in each of four parts. Of the first part the first two and the last that
    # are recomputed and both others; two recomputed ones next to such a border; and the last two.
    sample = choose_representative_layers(("r" * 14 + "k" * 2) * 4)
    assert sample.indices == (0, 1, 13, 14, 15, 16, 61, 62, 63)


def test_in_backward_a_view_holds_what_it_is_a_view_of():
    """Moments: a 0, ga 1, view 2, gb 3, gc 4. ga lives to 4, where the view is read: with a, gb, gc there are three.

    Without the view it would be gone before: b of 10 KiB reads nothing, so the moment is gc's or gb's alone.
    """
    step = graph(
        [node("a", "Mul", "x")],
        [
            node("ga", "MulGrad", "a_b"),
            node("view", "Reshape", "ga"),
            node("gb", "MulGrad", "dout", size_bytes=10 * KIB),
            node("gc", "MulGrad", "gb view"),
            node("end", "Mul", "gc"),
        ],
        saved="a",
    )
    # a 0-1, ga 1-4, gb 3-4, gc 4-5: at 4 they are ga, gb and gc.
    peak = find_peak(step, WHOLE)
    assert (peak.size_bytes, peak.node.name) == (12 * KIB, "gc")


def test_in_backward_what_an_operator_reads_does_not_live_as_long_as_its_output():
    """ga is read by gb alone, at 2, though gb is read at 4: 1 KiB of gb and 10 KiB of gc at 3, and 1 KiB of gd at 4."""
    step = graph(
        [node("a", "Mul", "x")],
        [
            node("ga", "MulGrad", "a_b", size_bytes=8 * KIB),
            node("gb", "MulGrad", "ga"),
            node("gc", "MulGrad", "dout", size_bytes=10 * KIB),
            node("gd", "MulGrad", "gb gc"),
            node("end", "Mul", "gd"),
        ],
        saved="a",
    )
    peak = find_peak(step, WHOLE)
    assert (peak.size_bytes, peak.node.name) == (12 * KIB, "gd")
