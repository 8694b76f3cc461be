from dataclasses import replace

import pytest

from mindswap.graph.analysis.liveness import LayerSample
from mindswap.policy.model import Layers, Policy
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.compiled_layers import CompiledLayers, find_kept_operators
from tests.builders import layer
from tests.graph.builders import graph, node
from tests.simulator.steps import SETTINGS

TREE = layer("""
    wq
      cast*
      matmul*
    wk
      cast*
      matmul*
""")
# wq and wk each cast x; backward of each product reads its own cast.
STEP = graph(
    [
        node("x", "Add", "a b", cell_path=""),
        node("cast_q", "Cast", "x", cell_path="", paths=("wq.cast",)),
        node("cast_k", "Cast", "x", cell_path="", paths=("wk.cast",)),
        node("q", "MatMul", "cast_q w", cell_path="", paths=("wq.matmul",)),
        node("k", "MatMul", "cast_k v", cell_path="", paths=("wk.matmul",)),
    ],
    [node("q_grad", "MatMul", "cast_q_b", cell_path="wq"), node("k_grad", "MatMul", "cast_k_b", cell_path="wk")],
    saved="cast_q cast_k",
)


def compiled(has_all_tags):
    source = CapturedStep(LayerSample((0,), (0,)), (TREE,), STEP, has_all_tags=has_all_tags)
    return CompiledLayers(source, SETTINGS)


def forward(step):
    return [n.name for n in step.forward]


def test_equal_operators_are_one_where_tags_kept_them_apart():
    layers = compiled(has_all_tags=True)
    assert forward(layers.graph) == ["x", "cast_q", "cast_k", "q", "k"]
    assert forward(layers.plain.graph) == ["x", "cast_q", "q", "k"]
    # Without tags of all operators the compiler has merged them already; what is left differs.
    assert forward(compiled(has_all_tags=False).plain.graph) == forward(layers.graph)


def test_names_under_which_backward_holds_what_an_operator_makes():
    """The two casts are one where their tags do not keep them apart: backward holds it as either."""
    assert compiled(has_all_tags=True).holder_names(Policy(), 0) == {("wq.cast", "wk.cast"): (("wq.cast", "wk.cast"),)}
    apart = compiled(has_all_tags=False).holder_names(Policy(), 0)
    assert apart == {("wq.cast",): (("wq.cast",),), ("wk.cast",): (("wk.cast",),)}


@pytest.mark.parametrize(
    ("op", "num_micro_batches", "saved"),
    [("DropoutExt", 1, ["dropped"]), ("DropoutExt", 2, ["x"]), ("Dropout", 1, ["x"]), ("Dropout", 2, ["x"])],
)
def test_dropout_of_newer_models_is_kept_with_one_micro_batch_and_else_recomputed(op, num_micro_batches, saved):
    """Dry runs of MindSpore 2.9.0 (docs/internals/notes.md#dropout-in-recomputed-cells).

    x -> projection -> dropout -> norm, whose input backward reads; the next operator is after the layers.
    """
    tree = layer("""
        projection
          matmul*
        dropout
          dropout*
        norm
          cast*
          norm*
    """)
    step = graph(
        [
            node("x", "Add", "a b", layer=None, cell_path=""),
            node("projected", "MatMul", "x w", cell_path="projection", paths=("projection.matmul",)),
            node("dropped", op, "projected", cell_path="dropout", paths=("dropout.dropout",)),
            node("cast", "Cast", "dropped", cell_path="norm", paths=("norm.cast",)),
            node("normed", "RmsNorm", "cast", cell_path="norm", paths=("norm.norm",)),
            node("end", "Mul", "normed", layer=None, cell_path=""),
        ],
        [node("grad", "RmsNormGrad", "cast_b", cell_path="norm")],
        saved="cast",
    )
    source = CapturedStep(LayerSample((0,), (0,)), (tree,), step)
    layers = CompiledLayers(source, replace(SETTINGS, num_micro_batches=num_micro_batches))
    full = Policy(is_swap_enabled=True, layer_recompute=Layers((0,)))
    assert [entry.forward_name for entry in layers.rewritten(full, 0).saved] == saved


SPLIT = {"is_split": True, "data_parallel": 2, "optimizer": "AdamW"}


def test_the_mask_of_a_recomputed_dropout_is_kept():
    """Dry runs of LoRA with 1 and 4 micro-batches have `DropoutDoMask` in recompute, but no `DropoutGenMask`."""
    forward = [
        node("dropout", "Dropout", "x"),
        node("out", "TupleGetItem", "dropout zero"),
        node("mask", "TupleGetItem", "dropout one"),
        node("newer", "DropoutExt", "x"),
        node("newer_mask", "TupleGetItem", "newer one"),
    ]
    for num_micro_batches, kept in ((1, ["mask", "newer"]), (4, ["mask"])):
        settings = replace(SETTINGS, num_micro_batches=num_micro_batches)
        assert sorted(find_kept_operators(graph(forward, [], zero=0, one=1), settings)) == kept


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        (SPLIT, ["merged"]),
        ({**SPLIT, "num_micro_batches": 2}, ["merged"]),
        ({**SPLIT, "optimizer": "FusedAdamW"}, []),
        ({**SPLIT, "is_split": False}, []),
        ({**SPLIT, "data_parallel": 1}, []),
    ],
)
def test_casts_that_the_compiler_made_of_two_are_kept(changes, kept):
    """Dry runs of MindSpore 2.9.0 (docs/internals/notes.md#casts-made-of-two): a cast of a cell has attributes."""
    forward = [
        node("merged", "Cast", "x kind", cell_path="attention"),
        node("written", "Cast", "x kind", cell_path="attention", input_names=("x", "dst_type")),
        node("weight", "Load", "w", cell_path="attention"),
    ]
    assert sorted(find_kept_operators(graph(forward, []), replace(SETTINGS, **changes))) == kept
