"""Names that a capture replaced, and what has the sizes of one rank as it was compiled."""

from mindswap.graph.analysis.collectives import Collective, find_collectives
from mindswap.graph.model import HOST_COPY, Graph, Node, Saved, TensorType
from mindswap.graph.sharding.experts import RankLocalValues, is_exchange, num_copies, restore_names
from mindswap.graph.sharding.rank_sizes import shard_graph


def tensor(*shape):
    size = 4
    for dim in shape:
        size *= dim
    return TensorType(shape, "float32", size)


def node(name, op, inputs, *outputs, **rest):
    attributes = rest.pop("attributes", {})
    return Node(name, op, 0, "mlp", f"Default/{name}", tuple(inputs.split()), outputs, attributes, **rest)


def sharded():
    """8 tokens of width 4 on 2 ranks; a rank exchanges its 4 tokens, each for 2 experts, over 2 ranks."""
    half = {"in_strategy": ((2, 1),)}
    exchange = {"kind": "AlltoAllV", "num_ranks": 2, "stride": 1}
    across = {"kind": "AllGather", "num_ranks": 2, "stride": 8}
    forward = (
        node("x", "SiLU", "input", tensor(8, 4), attributes=half),
        node("own", "ToLocal", "x shape", tensor(4, 4)),
        node("picked", "IndexSelect", "own index", tensor(8, 4)),
        node("sent", "ExchangeTokens", "picked send receive shape2", tensor(12, 4), attributes=exchange),
        node("all", "ExchangeTokens", "sent none none", tensor(24, 4), attributes=across),
        node("w", "Load", "weight", tensor(6, 4)),
        node("own_w", "ToLocal", "w shape3", tensor(3, 4), attributes=half),
        node("y", "MaskedFill", "sent own_w", tensor(12, 4)),
        node("back", "ReduceSum", "y", tensor(4, 4)),
        node("out", "FromLocal", "back shape4", tensor(8, 4)),
        node("end", "SiLU", "out", tensor(8, 4), attributes=half),
    )
    backward = (
        node("mask", "SiLUGrad", "dy y_b", tensor(12, 4)),
        node("dw", "FromLocal", "dy shape3", tensor(6, 4), origin="own_w"),
    )
    types = {"dy": tensor(3, 4), "input": tensor(8, 4)}
    return shard_graph(Graph(forward, backward, (Saved("y", "y_b"),), True, types=types))


def test_what_is_between_has_the_sizes_of_a_rank_and_the_rest_is_cut():
    found = sharded()
    sizes = {each.name: each.outputs[0].shape for each in (*found.graph.forward, *found.graph.backward)}
    # Before and behind: 8 tokens over 2 ranks. Between: as compiled. The weight: 6 rows over 2 ranks, so its gradient.
    assert sizes == {
        "x": (4, 4), "own": (4, 4), "picked": (8, 4), "sent": (12, 4), "all": (24, 4), "w": (3, 4), "own_w": (3, 4),
        "y": (12, 4), "back": (4, 4), "out": (4, 4), "end": (4, 4), "mask": (12, 4), "dw": (3, 4),
    }  # fmt: skip
    assert not found.unresolved
    assert not found.redistributions


def test_the_way_in_and_out_is_a_view_and_the_exchange_a_collective():
    found = sharded()
    ops = {each.name: each.op for each in found.graph.forward}
    assert (ops["own"], ops["out"], ops["sent"]) == ("Reshape", "Reshape", "AlltoAllV")
    # The larger of 8 x 4 x 4 bytes sent and 12 x 4 x 4 received.
    by_node = find_collectives(found)[0]
    assert by_node["sent"] == (Collective("AllToAll", 192, 2),)
    assert ops["all"] == "AllGather"
    assert by_node["all"] == (Collective("AllGather", 24 * 4 * 4, 2, stride=8),)


def test_copies_of_tokens_where_each_goes_once_to_a_rank():
    # 2 of 4 experts on 4 ranks: always 2 ranks. On 2 ranks: both experts on one of them in 2 of 6 cases, so 5/3 ranks.
    assert num_copies(30, 4, 2, 4, 1, 1) == 60
    assert num_copies(30, 4, 2, 2, 1, 1) == 50
    # 8 experts, a rank each, in 2 groups of which a token takes one: a rank is missed if the other is taken (1/2), or
    # with 2 of 4 experts taken elsewhere (1/2 x 3/6): 8 x 1/4 = 2 ranks. With both groups: 8 x (1 - 21/28) = 2.
    assert num_copies(10, 8, 2, 8, 2, 1) == num_copies(10, 8, 2, 8, 2, 2) == 20
    # 4 ranks of 2 experts, 4 groups of 2, two of them taken, 3 experts of these 4: both ranks have one, always.
    assert num_copies(10, 8, 3, 4, 4, 2) == 20
    # 2 ranks of 2 groups each, one group taken: always one rank.
    assert num_copies(10, 8, 2, 2, 4, 1) == 10


def test_stand_ins_get_their_names_back_and_their_gradients_too():
    mark = {"mindswap_name": "IndexSelect"}
    forward = (
        node("a", "Gather", "x index", tensor(2, 4), attributes=mark),
        node("b", "Gather", "x index", tensor(2, 4)),
        node("count", "MoveTo", "n", tensor(2), attributes={"recompute": False}),
        node("swap", "MoveTo", "a", tensor(2, 4)),
    )
    backward = tuple(node(f"d{name}", "UnsortedSegmentSum", "dy index", tensor(4, 4), origin=name) for name in "ab")
    graph = restore_names(Graph(forward, backward, (), True))
    assert [each.op for each in graph.forward] == ["IndexSelect", "Gather", HOST_COPY, "MoveTo"]
    assert [each.op for each in graph.backward] == ["InplaceIndexAddExt", "UnsortedSegmentSum"]


def test_what_reads_a_value_of_one_rank_is_one_but_for_what_only_waits_for_it():
    local = RankLocalValues()
    nodes = [
        node("own", "ToLocal", "x shape", tensor(4, 4)),
        node("waits", "Depend", "x own", tensor(4, 4)),
        node("cast", "Cast", "own waits", tensor(4, 4)),
        node("sum", "Add", "x own", tensor(4, 4)),
        node("loss", "ReduceSum", "own", tensor(1)),
        node("out", "FromLocal", "sum shape", tensor(8, 4)),
    ]
    assert [local.add(each, {}) for each in nodes] == [True, False, True, True, False, False]
    assert local.names == {"own", "cast", "sum"}
    assert local.add(node("grad", "SiLUGrad", "dy sum_b", tensor(4, 4)), {"sum_b": "sum"})


def test_an_exchange_says_its_kind_and_its_ranks():
    found = [{"kind": "AllGather", "num_ranks": 2}, {"kind": "AllGather"}, {"num_ranks": 2}, {}]
    assert [is_exchange(node("a", "AllGather", "x", attributes=each)) for each in found] == [True, False, False, False]
