from dataclasses import replace

from mindswap.graph.model import TensorType
from mindswap.graph.passes.gather import WEIGHT_MARK, GatheredStep, is_gathering, weight_name
from mindswap.graph.sharding.pipeline_stage import _tokens, load_embedding, shard_embedding, share_casts
from tests.graph.builders import graph, node

# The embedding of newer models on one rank: 16 rows of 4 numbers over 2 ranks, 8 tokens over 4.


WEIGHT = f"{WEIGHT_MARK}embedding.weight"


def typed(made, *shape):
    return replace(made, cell_path="", layer_index=None, outputs=(TensorType.of(shape, "float32"),))


def step():
    forward = [
        typed(node("ids", "Minimum", "input"), 8),
        typed(node("embed", "Embedding", f"ids {WEIGHT}"), 8, 4),
        typed(node("masked", "Mul", "embed mask"), 8, 4),
        typed(node("view", "Slice", "masked"), 1, 2, 4),
        node("layer", "MatMul", "view"),
    ]
    backward = [typed(node("grad", "EmbeddingDenseBackward", "dout"), 16, 4)]
    return replace(graph(forward, backward), types={WEIGHT: TensorType.of((16, 4), "float32")})


def test_the_weight_is_read_behind_a_load():
    loaded = load_embedding(step())
    load = loaded.forward[1]
    assert (load.op, weight_name(load), load.outputs[0].shape) == ("Load", "embedding.weight", (16, 4))
    assert loaded.forward[2].inputs == ("ids", load.name)


def test_rows_are_cut_over_tensor_and_tokens_over_data_parallel_ranks():
    own = shard_embedding(load_embedding(step()), 2, 4)
    shapes = {made.name: made.outputs[0].shape for made in (*own.forward, *own.backward)}
    assert shapes == {
        "ids": (2,), f"{WEIGHT}@load": (8, 4), "embed": (2, 4), "masked": (2, 4), "view": (1, 2, 4), "layer": (256,),
        "grad": (8, 4),
    }  # fmt: skip
    assert own.backward[0].size_bytes == 8 * 4 * 4
    # What cut whole tokens is a view of the own ones.
    assert own.index.forward_nodes["view"].op == "Reshape"


def test_with_sequence_parallelism_tokens_are_scattered_over_tensor_parallel_ranks_too():
    # 8 tokens as 4 samples of 2, on 4 data and 2 tensor parallel ranks
    forward = [
        *step().forward[:3],
        typed(node("samples", "Reshape", "masked"), 4, 2, 4),
        typed(node("sequence_first", "Transpose", "samples"), 2, 4, 4),
        typed(node("scattered", "ReduceScatter", "sequence_first"), 2, 4, 4),
        typed(node("back", "Transpose", "scattered"), 4, 2, 4),
        typed(node("other", "Reshape", "masked"), 4, 2, 2),
    ]
    backward = [typed(node("whole", "AllGather", "dback"), 2, 4, 4)]
    own = shard_embedding(load_embedding(replace(step(), forward=tuple(forward), backward=tuple(backward))), 2, 4)
    shapes = {made.name: made.outputs[0].shape for made in (*own.forward[4:], *own.backward)}
    assert shapes == {
        "samples": (1, 2, 4), "sequence_first": (2, 1, 4), "scattered": (1, 1, 4), "back": (1, 1, 4),
        "other": (4, 2, 2), "whole": (2, 1, 4),
    }  # fmt: skip
    assert own.index.forward_nodes["back"].size_bytes == 4 * 4


def test_tokens_are_cut_where_they_are_thinnest_and_can_be_divided_and_never_in_their_width():
    shapes = [(4, 2, 4), (2, 4, 4), (3, 4, 8), (3, 5, 8), (4, 8, 2)]
    cut = [_tokens(TensorType.of(shape, "float32"), 2) for shape in shapes]
    assert [part.shape for part in cut] == [(4, 1, 4), (1, 4, 4), (3, 2, 8), (3, 5, 8), (2, 8, 2)]
    assert cut[0].size_bytes == 4 * 4 * 4


def test_rows_that_cannot_be_divided_are_whole():
    assert shard_embedding(load_embedding(step()), 3, 1).backward[0].outputs[0].shape == (16, 4)


def test_other_models_are_left_as_they_are():
    other = graph([node("gather", "Gather", "w ids")])
    assert load_embedding(other).forward == other.forward
    assert shard_embedding(other, 2, 4) is other


# Casts of weights that micro-batches share: graphs by hand.


def share_casts_typed(made, dtype):
    return replace(made, outputs=tuple(replace(known, dtype=dtype) for known in made.outputs))


def share_casts_step(reader: str = "Cast", dtype: str = "float32") -> GatheredStep:
    """`w -> Load -> TensorMove -> Cast -> MatMul`, and a cast of an activation."""
    forward = [
        node("x", "Gelu", "input"),
        share_casts_typed(node("x_cast", "Cast", "x"), "float16"),
        share_casts_typed(node("load", "Load", "f:▸CR_w u"), dtype),
        share_casts_typed(node("move", "TensorMove", "load"), dtype),
        share_casts_typed(node("cast", "Cast", "move"), "float16"),
        node("y", "MatMul", "x_cast cast"),
        node("z", reader, "move"),
        node("state", "UpdateState", "u load", 0),
    ]
    forward[-2] = share_casts_typed(forward[-2], "float16")
    return GatheredStep(graph(forward))


def test_a_cast_of_a_weight_is_made_once_and_out_of_reach():
    shared = share_casts(share_casts_step())
    assert shared.computed_once == {"cast", "z"}
    assert {made.name for made in shared.graph.forward if is_gathering(made)} == {"cast", "z"}


def test_a_weight_that_something_else_reads_is_cast_by_each_micro_batch():
    assert not share_casts(share_casts_step("Mul")).computed_once


def test_a_weight_of_half_precision_needs_none():
    assert not share_casts(share_casts_step(dtype="bfloat16")).computed_once


def test_gathered_weights_keep_their_casts():
    known = share_casts(share_casts_step())
    assert share_casts(replace(known, computed_once=frozenset({"gather"}))).computed_once == {"gather"}


def test_without_lazy_inline_equal_casts_are_one_whatever_their_types():
    assert share_casts(share_casts_step(dtype="float16"), lacks_lazy_inline=True).computed_once == {"cast", "z"}
    assert share_casts(share_casts_step("Mul"), lacks_lazy_inline=True).computed_once == {"cast"}
