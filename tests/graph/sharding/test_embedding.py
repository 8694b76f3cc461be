"""The embedding of newer models on one rank: 16 rows of 4 numbers over 2 ranks, 8 tokens over 4."""

from dataclasses import replace

from mindswap.graph.model import TensorType
from mindswap.graph.sharding.gather import WEIGHT_MARK, weight_name
from mindswap.graph.sharding.stage import cut_embedding, load_embedding
from tests.graph.builders import graph, node

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
    own = cut_embedding(load_embedding(step()), 2, 4)
    shapes = {made.name: made.outputs[0].shape for made in (*own.forward, *own.backward)}
    assert shapes == {
        "ids": (2,), f"{WEIGHT}@load": (8, 4), "embed": (2, 4), "masked": (2, 4), "view": (1, 2, 4), "layer": (256,),
        "grad": (8, 4),
    }  # fmt: skip
    assert own.backward[0].size_bytes == 8 * 4 * 4
    # What cut whole tokens is a view of the own ones.
    assert own.forward_nodes["view"].op == "Reshape"


def test_rows_that_cannot_be_divided_are_whole():
    assert cut_embedding(load_embedding(step()), 3, 1).backward[0].outputs[0].shape == (16, 4)


def test_other_models_are_left_as_they_are():
    other = graph([node("gather", "Gather", "w ids")])
    assert load_embedding(other).forward == other.forward
    assert cut_embedding(other, 2, 4) is other
