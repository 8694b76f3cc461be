"""AllGathers of weights that the parallel optimizer cuts: graphs by hand, bytes by hand."""

from dataclasses import replace

import pytest

from mindswap.config.weight_sharding import WeightSharding
from mindswap.graph.model import Node, TensorType
from mindswap.graph.passes.gather import GATHER_MARK, gather_weights, is_gathering, is_released, weight_name
from mindswap.graph.passes.swap_recompute import NodeSettings, rewrite_graph
from mindswap.graph.sharding.splits import PARTS_MARK
from mindswap.graph.storage import classify_saved
from tests.graph.builders import copy_in, copy_out, graph, node

WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}
HALF = "float16"


def tensor(dtype: str, *shape: int) -> TensorType:
    size = WIDTHS[dtype]
    for dim in shape:
        size *= dim
    return TensorType(shape, dtype, size)


def typed(made: Node, known: TensorType) -> Node:
    return replace(made, outputs=(known,))


def load(name: str, known: TensorType, layer: int | None = 0) -> Node:
    return typed(node(f"{name}_load", "Load", f"f:▸CR_{name} u", layer=layer, cell_path=name), known)


def step(
    known: TensorType, compute: str = HALF, layer: int | None = 0, saved: str = "w_cast", recomputed: bool = False
):
    """`weight -> Load -> Cast -> MatMul`, of which backward reads the cast weight; no Cast where types are equal."""
    whole = replace(known, dtype=compute, size_bytes=known.size_bytes // WIDTHS[known.dtype] * WIDTHS[compute])
    has_cast = known.dtype != compute
    forward = [
        node("x", "Gelu", "input", layer=layer),
        load("w", known, layer),
        *([typed(node("w_cast", "Cast", "w_load", layer=layer, paths=("w.cast",)), whole)] if has_cast else []),
        node("y", "MatMul", f"x {'w_cast' if has_cast else 'w_load'}", layer=layer),
        node("monads", "MakeTuple", "w_load", 0, layer=None),
        node("state", "UpdateState", "u monads", 0, layer=None),
    ]
    saved = saved if has_cast else saved.replace("w_cast", "w_load")
    backward = [node("y_grad", "MatMul", f"dout {saved.split()[0]}_b", layer=layer)]
    if recomputed:
        again = replace(node("w_again", "Cast", "w_load", layer=layer, is_duplicate=True), origin="w_cast")
        backward = [typed(again, whole), node("y_grad", "MatMul", "dout w_again", layer=layer)]
        saved = ""
    return graph(forward, backward, saved)


W = tensor("float32", 64, 256)  # 64 KiB: just not below the threshold


@pytest.mark.parametrize(
    ("known", "compute", "num_ranks", "part_bytes", "whole_bytes"),
    [
        (W, HALF, 2, 16 * 1024, 32 * 1024),  # half of 32 KiB of float16
        (W, HALF, 8, 4 * 1024, 32 * 1024),
        (W, "bfloat16", 8, 4 * 1024, 32 * 1024),
        (W, "float32", 8, 8 * 1024, 64 * 1024),  # no cast: as it is stored
        (tensor(HALF, 128, 256), HALF, 8, 8 * 1024, 64 * 1024),
        (tensor(HALF, 128, 256), "float32", 8, 8 * 1024, 64 * 1024),  # a cast that widens stays behind
    ],
)
def test_the_whole_weight_is_held_in_the_type_that_is_sent(known, compute, num_ranks, part_bytes, whole_bytes):
    gathered = gather_weights(step(known, compute), WeightSharding(num_ranks))
    (gather,) = (each for each in gathered.graph.forward if each.op == "AllGather")
    (source,) = (each for each in gathered.graph.forward if each.name == gather.inputs[0])
    assert (source.size_bytes, gather.size_bytes, gather.is_recomputed) == (part_bytes, whole_bytes, False)
    assert (source.outputs[0].shape[0] * num_ranks, *source.outputs[0].shape[1:]) == gather.outputs[0].shape
    (collective,) = gathered.collectives[gather.name]
    assert (collective.kind, collective.size_bytes, collective.num_ranks) == ("AllGather", whole_bytes, num_ranks)
    kept = {entry.storage.name: entry.kept_bytes for entry in classify_saved(gathered.graph)}
    widened = {"w_cast": 128 * 1024} if (known.dtype, compute) == (HALF, "float32") else {gather.name: whole_bytes}
    assert kept == widened


def test_forward_and_backward_read_the_gathered_weight():
    gathered = gather_weights(step(W), WeightSharding(2))
    names = [each.name for each in gathered.graph.forward]
    # Weights of a layer are gathered when it begins.
    assert names == ["w_load", "w_cast", "w_cast@gather", "x", "y", "monads", "state"]
    assert gathered.graph.index.forward_nodes["y"].inputs == ("x", "w_cast@gather")
    assert gathered.graph.backward[0].inputs == ("dout", "w_cast@gather@saved")
    assert [is_gathering(each) for each in gathered.graph.forward] == [False, True, True, False, False, False, False]
    assert gathered.computed_once == {"w_cast", "w_cast@gather"}


@pytest.mark.parametrize(
    ("known", "name", "sharding"),
    [
        (W, "w", WeightSharding(1)),
        (tensor("float32", 63, 256), "w", WeightSharding(3)),  # 63 KiB are below 64 KiB
        (W, "w", WeightSharding(2, threshold_bytes=65 * 1024)),
        (W, "w", WeightSharding(3)),  # 64 rows are not divisible by 3
    ],
)
def test_weights_that_stay_whole(known, name, sharding):
    before = step(known)
    before = replace(
        before,
        forward=tuple(replace(n, inputs=(f"f:▸CR_{name}", "u")) if n.op == "Load" else n for n in before.forward),
    )
    assert gather_weights(before, sharding).graph is before


def test_a_weight_that_the_network_keeps_unsharded_stays_whole():
    # `parallel_optimizer` of its Parameter is False: an embedding of LlamaEmbedding, but not that of GLM4.
    assert gather_weights(step(W), WeightSharding(2)).collectives
    assert not gather_weights(replace(step(W), unsharded=("w",)), WeightSharding(2)).collectives


def test_a_threshold_of_nothing_cuts_small_weights():
    assert gather_weights(step(tensor("float32", 2, 2)), WeightSharding(2, threshold_bytes=0)).computed_once


def test_only_a_read_of_a_trained_weight_has_its_name():
    reads = [
        ("Load", "f:▸CR_a.w u"),
        ("TensorMove", "f:▸CR_a.w"),
        ("Load", "x u"),
        ("Load", "▸CR_a.seq_chunk u"),
        ("Load", ""),
    ]
    assert [weight_name(node("n", op, inputs)) for op, inputs in reads] == ["a.w", "", "", "", ""]


def test_what_backward_gathers_again_is_released():
    marks = ({GATHER_MARK: True}, {GATHER_MARK: False}, {})
    assert [is_released(node("n", "AllGather", "x", **mark)) for mark in marks] == [True, False, False]
    assert [is_gathering(node("n", "AllGather", "x", **mark)) for mark in marks] == [True, True, False]


def test_two_readers_of_a_weight_share_one_allgather_before_the_casts():
    before = step(W)
    other = node("z", "MatMul", "x w_load")
    gathered = gather_weights(replace(before, forward=(*before.forward, other)), WeightSharding(2))
    (name,) = gathered.collectives
    assert gathered.graph.index.forward_nodes[name].size_bytes == W.size_bytes
    assert gathered.graph.index.forward_nodes["w_cast"].inputs == (name,)
    assert gathered.graph.index.forward_nodes["z"].inputs == ("x", name)


@pytest.mark.parametrize(("more", "num_casts"), [((), 1), ((node("joined", "Concat", "tuple"),), 0)])
def test_a_tuple_reads_a_weight_if_something_computes_with_its_members(more, num_casts):
    """Then the cast is not its only reader, and what is gathered is float32."""
    before = step(W)
    made = node("tuple", "MakeTuple", "w_load")
    gathered = gather_weights(replace(before, forward=(*before.forward, made, *more)), WeightSharding(2))
    (name,) = gathered.collectives
    assert name == ("w_cast@gather" if num_casts else "w_load@gather")


@pytest.mark.parametrize("saved", ["w_load", "w_load2"])
def test_a_weight_that_backward_reads_whole_is_gathered_whole_by_whichever_of_its_reads(saved):
    before = step(W)
    forward = (replace(load("w", W), name="w_load2"), *before.forward)
    gathered = gather_weights(graph([*forward], saved=saved), WeightSharding(2))
    assert [name.removesuffix("@gather") in ("w_load", "w_load2") for name in gathered.collectives] == [True]


def test_recompute_of_the_cast_frees_nothing():
    after = rewrite_graph(gather_weights(step(W), WeightSharding(2)).graph, NodeSettings(frozenset({"w_cast"})))
    assert [entry.kept_bytes for entry in classify_saved(after)] == [32 * 1024]
    assert not any(each.is_duplicate for each in after.backward)


def test_the_same_in_a_graph_that_was_compiled_with_it():
    gathered = gather_weights(step(W, recomputed=True), WeightSharding(2)).graph
    assert [each.name for each in gathered.backward] == ["y_grad"]
    assert [entry.kept_bytes for entry in classify_saved(gathered)] == [32 * 1024]


def test_a_compiled_copy_of_the_cast_may_read_a_handed_over_weight():
    # As MindSpore 2.9 compiles it: Load -> TensorMove -> Cast in forward, TensorMove -> Depend -> Cast in backward.
    before = step(W, recomputed=True)
    move = typed(node("move", "TensorMove", "w_load"), W)
    forward = [replace(each, inputs=("move",)) if each.name == "w_cast" else each for each in before.forward]
    tied = typed(node("tied", "Depend", "move_b x_b"), W)
    again = replace(before.backward[0], inputs=("tied",))
    compiled = graph([*forward[:2], move, *forward[2:]], [tied, again, before.backward[1]], "move")
    gathered = gather_weights(compiled, WeightSharding(2)).graph
    assert [entry.kept_bytes for entry in classify_saved(gathered)] == [32 * 1024]
    assert not any(each.is_duplicate for each in gathered.backward)


def test_a_swap_of_the_cast_moves_nothing():
    before = step(W, saved="out")
    swapped = replace(
        before,
        forward=(*before.forward[:4], copy_out("out", "w_cast"), *before.forward[4:]),
        backward=(copy_in("back", "out"), node("y_grad", "MatMul", "dout back")),
    )
    gathered = gather_weights(swapped, WeightSharding(2)).graph
    assert gathered.swap_pairs == ()
    assert [each.name for each in gathered.backward] == ["y_grad"]
    assert [entry.kept_bytes for entry in classify_saved(gathered)] == [32 * 1024]


def test_a_swap_of_another_tensor_stays():
    before = step(W, saved="w_cast x_out")
    swapped = replace(
        before,
        forward=(before.forward[0], copy_out("x_out", "x"), *before.forward[1:]),
        backward=(copy_in("back", "x_out"), node("y_grad", "MatMul", "dout back w_cast_b")),
    )
    gathered = gather_weights(swapped, WeightSharding(2)).graph
    assert [(pair.copy_out.name, [copy.name for copy in pair.copies_in]) for pair in gathered.swap_pairs] == [
        ("x_out", ["back"])
    ]
    assert gathered.backward[1].inputs == ("dout", "back", "w_cast@gather@saved")


def test_level3_releases_and_gathers_again_when_backward_of_the_layer_begins():
    before = step(W)
    first = node("other_grad", "GeluGrad", "dout")
    gathered = gather_weights(replace(before, backward=(first, *before.backward)), WeightSharding(2, is_released=True))
    assert classify_saved(gathered.graph) == ()
    assert [each.name for each in gathered.graph.backward] == [
        "w_cast@again", "w_cast@gather@again", "other_grad", "y_grad",
    ]  # fmt: skip
    assert gathered.graph.backward[3].inputs == ("dout", "w_cast@gather@again")
    assert gathered.computed_once == frozenset()  # each micro-batch gathers for itself


def test_level3_gathers_the_weights_of_a_layer_again_in_the_order_of_forward():
    """Of six weights: in the order of a set, which changes from run to run, that would be luck of 1 in 720."""
    names = [f"w{number}" for number in range(6)]
    forward = [each for name in names for each in (load(name, W), node(f"y_{name}", "MatMul", f"x {name}_load"))]
    backward = [node(f"{name}_grad", "MatMul", f"dout {name}_load_b") for name in reversed(names)]
    first = node("other_grad", "GeluGrad", "dout")
    whole = graph(forward, [first, *backward], " ".join(f"{name}_load" for name in names))
    gathered = gather_weights(whole, WeightSharding(2, is_released=True)).graph
    again = [each.origin for each in gathered.backward if each.op == "AllGather"]
    assert again == [f"{name}_load@gather" for name in names]


def test_level3_with_recompute_gathers_once_in_backward():
    gathered = gather_weights(step(W), WeightSharding(2, is_released=True)).graph
    settings = NodeSettings(frozenset({"w_cast", "w_cast@gather", "y"}))
    reader = node("z_grad", "GeluGrad", "dout y_b")
    swapped_recompute_inputs = replace(gathered, backward=(*gathered.backward, reader), saved=step(W, saved="y").saved)
    after = rewrite_graph(swapped_recompute_inputs, settings)
    assert [each.op for each in after.backward] == ["Cast", "AllGather", "MatMul", "MatMul", "GeluGrad"]
    assert "w_cast@gather" not in {entry.storage.name for entry in classify_saved(after)}


def test_a_weight_outside_the_layers_is_gathered_where_it_is_read():
    forward = [each.name for each in gather_weights(step(W, layer=None), WeightSharding(2)).graph.forward]
    assert forward[:4] == ["x", "w_load", "w_cast", "w_cast@gather"]


def test_the_matrices_of_llama2_7b_come_to_12_gib():
    # A layer: 4 matrices of 4096 x 4096 (32 MiB each in half precision) and 3 of 11008 x 4096 (86 MiB each):
    # 4 * 32 + 3 * 86 = 386 MiB; 32 layers: 12352 MiB = 12.06 GiB.
    shapes = [(4096, 4096)] * 4 + [(11008, 4096)] * 3
    for dtype in ("float32", HALF):
        forward = [load(f"w{i}", tensor(dtype, *shape)) for i, shape in enumerate(shapes)]
        names = [f"w{i}_load" for i in range(7)]
        if dtype == "float32":
            casts = [node(f"c{i}", "Cast", f"w{i}_load") for i in range(7)]
            forward += [typed(cast, tensor(HALF, *shape)) for cast, shape in zip(casts, shapes, strict=True)]
            names = [cast.name for cast in casts]
        forward += [node(f"y{i}", "MatMul", f"x {name}") for i, name in enumerate(names)]
        for num_ranks in (2, 8):
            gathered = gather_weights(graph(forward, saved=" ".join(names)), WeightSharding(num_ranks)).graph
            kept = sum(entry.kept_bytes for entry in classify_saved(gathered))
            assert kept == 386 * 2**20
            assert round(32 * kept / 2**30, 2) == 12.06


def test_with_swap_on_one_stage_the_cast_is_behind_what_is_gathered():
    """Float32 is sent where the cast stands; a swap or recompute of it is one of any operator."""
    gathered = gather_weights(step(W), WeightSharding(8, is_cast_after_gather=True)).graph
    names = [each.name for each in gathered.forward if each.op in ("Gelu", "Load", "AllGather", "Cast", "MatMul")]
    assert names == ["x", "w_load", "w_load@gather", "w_cast", "y"]
    gather, cast = (gathered.index.forward_nodes[name] for name in ("w_load@gather", "w_cast"))
    assert (gather.size_bytes, cast.inputs, cast.size_bytes) == (64 * 1024, (gather.name,), 32 * 1024)
    assert is_gathering(gather) and not is_gathering(cast)
    kept = {entry.storage.name: entry.kept_bytes for entry in classify_saved(gathered)}
    assert kept == {"w_cast": 32 * 1024}
    again = rewrite_graph(gathered, NodeSettings(frozenset({"w_cast"}), {}))
    assert {entry.storage.name: entry.kept_bytes for entry in classify_saved(again)} == {gather.name: 64 * 1024}


def test_what_is_gathered_late_is_there_for_the_first_of_its_readers():
    """Two operators read the weight, each by a `Load` of its own; the second `Load` is the first in the graph."""
    reads = [load("w", W), replace(load("w", W), name="w_load2")]
    forward = [*reads, node("first", "MatMul", "x w_load2"), node("second", "MatMul", "x w_load")]
    gathered = gather_weights(graph(forward), WeightSharding(8, is_cast_after_gather=True)).graph
    assert [each.name for each in gathered.forward] == ["w_load", "w_load@gather", "first", "second"]
    assert {each.inputs for each in gathered.forward[2:]} == {("x", "w_load@gather")}


@pytest.mark.parametrize(
    ("parts", "num_unsharded_ranks", "num_ranks", "stride"),
    [
        (1, 8, 8, 1),  # whole under tensor parallelism: all ranks of the stage have the same
        (4, 8, 2, 4),
        (None, 8, 2, 4),  # nothing says it
        (1, 2, 2, 4),  # limited by `optimizer_weight_shard_size`
    ],
)
def test_a_weight_is_cut_over_all_ranks_that_have_the_same_of_it(parts, num_unsharded_ranks, num_ranks, stride):
    before = step(W)
    marks = {} if parts is None else {PARTS_MARK: parts}
    forward = [replace(made, attributes=marks) if made.op == "Load" else made for made in before.forward]
    sharding = WeightSharding(2, num_unsharded_ranks=num_unsharded_ranks, stride=4)
    gathered = gather_weights(replace(before, forward=tuple(forward)), sharding)
    ((collective,),) = gathered.collectives.values()
    assert (collective.num_ranks, collective.stride) == (num_ranks, stride)
    (cast,) = [made for made in gathered.graph.forward if made.op == "Cast"]
    assert cast.size_bytes == 32 * 1024 // num_ranks


def test_experts_are_cut_over_the_ranks_that_have_the_same():
    sharding = WeightSharding(4, num_unsharded_ranks=32, num_expert_copies=2)
    assert sharding.num_ranks_of("layers.0.mlp.experts.weight1", 1) == 2
    assert sharding.num_ranks_of("layers.0.mlp.router.weight", 1) == 32
