from mindswap.graph.analysis.liveness import LayerSample
from mindswap.policy.model import Policy
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.compiled_layers import CompiledLayers
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
