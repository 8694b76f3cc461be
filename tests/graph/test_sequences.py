"""Steps of pieces of sequences: caches of keys and values, attention of each piece. Counted by hand."""

from dataclasses import replace

from mindswap.graph.analysis.work import measure_work
from mindswap.graph.constants import constant_bytes
from mindswap.graph.model import TensorType
from mindswap.graph.sequences import cache_bytes, cache_readers, is_sequence_state, with_cache_gradients
from tests.graph.builders import graph, node

CACHE = "\u25b8CR_model.layers.0.attention.key_cache"

# 1 sample, 2 heads, 4 of 12 positions in a piece, 8 numbers per head; bfloat16.
# Tokens before and after, precision, layout BNSD, sparse mode 2: causal.
CAUSAL = "many zero zero one two"
QUERY, KEY = (1, 2, 4, 8), (1, 2, 12, 8)


def shaped(name, op, inputs, *shapes):
    sizes = [2 * shape[0] * shape[1] * shape[2] * shape[3] for shape in shapes]
    outputs = tuple(TensorType(shape, "bfloat16", size) for shape, size in zip(shapes, sizes, strict=True))
    return replace(node(name, op, inputs), outputs=outputs)


def step():
    """Keys are added to the cache and written to it; attention reads the sum, values are the same here."""
    forward = [
        shaped("q", "Mul", "x", QUERY),
        shaped("own", "Mul", "x", KEY),
        shaped("load", "Load", f"{CACHE} u", KEY),
        shaped("k", "Add", "own load", KEY),
        shaped("left", "Select", "k", KEY),
        shaped("write", "Assign", f"{CACHE} left", KEY),
        replace(node("mask", "Mul", "x"), outputs=(TensorType((2048, 2048), "uint8", 2048 * 2048),)),
        shaped("f", "FlashAttentionScore", f"q k k mask {CAUSAL}", QUERY),
    ]
    backward = [
        shaped("d", "Mul", "x", QUERY),
        shaped("g", "FlashAttentionScoreGrad", f"q_b k_b k_b d mask_b {CAUSAL}", QUERY, KEY, KEY),
        shaped("dk", "TupleGetItem", "g one", KEY),
        shaped("back", "Mul", "dk", KEY),
    ]
    return graph(forward, backward, "q k mask", one=1, two=2, many=2**31 - 1, zero=0)


def test_parameters_that_pieces_hand_on_are_no_weights():
    assert is_sequence_state("model.layers.3.attention.value_cache")
    assert is_sequence_state("model.seq_chunk")
    assert not is_sequence_state("model.layers.3.attention.wk.weight")


def test_what_computes_with_a_cache_in_a_layer_or_writes_it_reads_it():
    more = (node("outside", "Mul", "load", layer=None), node("tie", "UpdateState", "load", 0))
    with_more = replace(step(), forward=(*step().forward, *more))
    assert cache_readers(with_more) == {"k", "write"}
    assert cache_readers(graph([node("a", "Assign", "x")])) == frozenset()


def test_caches_and_those_of_their_gradients():
    # 2 x 12 x 8 x 2 = 384 bytes, and as many for the gradients.
    assert cache_bytes(step(), 0) == 2 * 384
    assert cache_bytes(step(), 1) == 0
    # The write names the parameter itself, which is no constant beside that.
    known = TensorType(KEY, "bfloat16", 384)
    assert constant_bytes(replace(step(), types={CACHE: known, "x": known})) == {0: 384}


def test_what_cannot_run_again():
    assert cache_readers(step()) == {"k", "write"}


def test_gradients_of_keys_are_added_to_their_cache():
    added = with_cache_gradients(step())
    assert [(made.op, made.inputs) for made in added.backward[3:]] == [
        ("Add", ("dk", "dk")),  # the second stands for the cache, which has its size
        ("BroadcastTo", ()),
        ("Select", ("dk+zeros", "dk+cache")),
        ("Assign", ("dk+left",)),
        ("Mul", ("dk+cache",)),  # goes on with the sum
    ]
    _forward, backward = measure_work(added)
    # Add reads 2 x 384 and writes 384 bytes.
    assert (backward[3].read_bytes, backward[3].written_bytes) == (768, 384)


def test_attention_of_each_piece():
    # 12 positions in 3 pieces of 4: piece i has 16 i + 4 x 5 / 2 = 10, 26, 42 pairs, two heads, and
    # 2 x (8 + 8) operations for each pair: 640, 1664, 2688; in backward 2 x (3 x 8 + 2 x 8) = 80 for each.
    forward, backward = measure_work(step())
    assert forward[-1].piece_flops == (640, 1664, 2688)
    assert forward[-1].flops == 1664
    assert backward[1].piece_flops == (1600, 4160, 6720)
