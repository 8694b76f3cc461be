"""The peak of activation memory, by hand."""

from mindswap.graph.lifetime import LayerSample, find_peak
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
