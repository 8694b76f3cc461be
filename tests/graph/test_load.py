"""Small cells through MindSpore's own compiler, and read back: what is kept, what is moved, in bytes.

The input is float32 of shape (4, 8) and weights are (8, 8), so every activation has 4 x 8 x 4 = 128 bytes
unless a comment says otherwise. What backward needs is worked out from the gradients: MatMul needs its
input (the weight is not an activation), GeLU its input and its output, Mul both sides, Tanh its output, Add nothing.
"""

from collections import Counter
from types import SimpleNamespace

import pytest

from mindswap.adapters.graph.apply import apply_policy
from mindswap.errors import GraphError
from mindswap.graph.load import load_graph
from mindswap.graph.model import TensorType
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy

pytestmark = pytest.mark.mindspore

NO_SWAP = Policy(is_swap_enabled=True)


@pytest.fixture(scope="module")
def ms():  # noqa: C901 cells, none of which does much
    """MindSpore, and the layers of these tests."""
    import mindspore
    from mindspore import Parameter, Tensor, nn, ops

    from mindswap.adapters.graph import mindspore as adapter

    def weight(name, shape=(8, 8)):
        return Parameter(Tensor(shape=shape, dtype=mindspore.float32, init=mindspore.common.initializer.Zero()), name)

    class Inner(nn.Cell):
        """x w -> GeLU -> Tanh -> times x w."""

        def __init__(self):
            super().__init__()
            self.weight = weight("w")
            self.matmul, self.gelu, self.tanh, self.mul = ops.MatMul(), ops.GeLU(), ops.Tanh(), ops.Mul()

        def construct(self, x):
            hidden = self.matmul(x, self.weight)
            return self.mul(self.tanh(self.gelu(hidden)), hidden)

    class Nested(nn.Cell):
        """GeLU of an Inner."""

        def __init__(self):
            super().__init__()
            self.inner = Inner()
            self.gelu = ops.GeLU()

        def construct(self, x):
            return self.gelu(self.inner(x))

    class Gated(nn.Cell):
        """x w times GeLU of it."""

        def __init__(self):
            super().__init__()
            self.weight = weight("w")
            self.matmul, self.gelu, self.mul = ops.MatMul(), ops.GeLU(), ops.Mul()

        def construct(self, x):
            hidden = self.matmul(x, self.weight)
            return self.mul(hidden, self.gelu(hidden))

    class Residual(nn.Cell):
        """x + Tanh(x w)."""

        def __init__(self):
            super().__init__()
            self.weight = weight("w")
            self.matmul, self.tanh, self.add = ops.MatMul(), ops.Tanh(), ops.Add()

        def construct(self, x):
            return self.add(x, self.tanh(self.matmul(x, self.weight)))

    class Shared(nn.Cell):
        """Two products by weights that read one Tanh."""

        def __init__(self):
            super().__init__()
            self.left, self.right = weight("left"), weight("right")
            self.tanh, self.matmul, self.matmul2, self.add = ops.Tanh(), ops.MatMul(), ops.MatMul(), ops.Add()

        def construct(self, x):
            shared = self.tanh(x)
            return self.add(self.matmul(shared, self.left), self.matmul2(shared, self.right))

    class Halves(nn.Cell):
        """x w, split in two, one half times the other."""

        def __init__(self):
            super().__init__()
            self.weight = weight("w")
            self.matmul, self.split, self.mul, self.tile = ops.MatMul(), ops.Split(1, 2), ops.Mul(), ops.Tile()

        def construct(self, x):
            left, right = self.split(self.matmul(x, self.weight))
            return self.tile(self.mul(left, right), (1, 2))

    class Norm(nn.Cell):
        """LayerNorm(x) w."""

        def __init__(self):
            super().__init__()
            self.weight, self.gamma, self.beta = weight("w"), weight("gamma", (8,)), weight("beta", (8,))
            self.norm, self.matmul = ops.LayerNorm(1, 1), ops.MatMul()

        def construct(self, x):
            normed, _, _ = self.norm(x, self.gamma, self.beta)
            return self.matmul(normed, self.weight)

    class Broken(nn.Cell):
        """(4, 8) times (3, 3)."""

        def __init__(self):
            super().__init__()
            self.weight, self.matmul = weight("w", (3, 3)), ops.MatMul()

        def construct(self, x):
            return self.matmul(x, self.weight)

    class Model(nn.Cell):
        def __init__(self, layer, num_layers):
            super().__init__()
            self.layers = nn.CellList([layer() for _ in range(num_layers)])
            self.loss = ops.ReduceSum()

        def construct(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.loss(x)

    def compile_graph(layer, policy=NO_SWAP, num_layers=1, with_lazy_inline=True):
        model = Model(layer, num_layers)
        for index, cell in enumerate(model.layers):
            for parameter in cell.get_parameters():
                parameter.name = f"layers.{index}.{parameter.name}"
        apply_policy(model.layers, policy)
        if with_lazy_inline:
            adapter.enable_lazy_inline(model)
        inputs = Tensor(shape=(4, 8), dtype=mindspore.float32, init=mindspore.common.initializer.Zero())
        return adapter.compile_training_graph(model, [inputs])

    layers = (Inner, Nested, Gated, Residual, Shared, Halves, Norm, Broken)
    return SimpleNamespace(compile=compile_graph, **{layer.__name__.lower(): layer for layer in layers})


def swap(*patterns, prefetch=3):
    return Policy(is_swap_enabled=True, op_swap=tuple(OpSwap(pattern, ALL_LAYERS, prefetch) for pattern in patterns))


def swap_all(prefetch=3, layers=ALL_LAYERS):
    return Policy(is_swap_enabled=True, layer_swap=(LayerSwap(layers, prefetch),))


def kept(graph):
    """Layer, operator and bytes of what stays on the device, without the weights."""
    return [
        (n.layer_index, graph.owner(n).op, n.size_bytes)
        for n in graph.index.kept_nodes
        if n.op not in ("Load", "TensorMove")
    ]


def pairs(graph):
    """Layer, operator, prefetch and bytes of each pair, in order of execution."""
    return [
        (p.producer.layer_index, graph.owner(p.producer).op, p.num_prefetch_ops, p.size_bytes) for p in graph.swap_pairs
    ]


def duplicates(graph):
    """Operators that backward runs again."""
    return Counter(node.op for node in graph.backward if node.is_duplicate and node.op not in ("Load", "Depend"))


# What is kept without swap.


def test_a_gated_product_keeps_both_sides(ms):
    assert kept(ms.compile(ms.gated)) == [(0, "MatMul", 128), (0, "GeLU", 128)]


def test_of_a_residual_the_sum_is_kept_where_the_next_layer_needs_it(ms):
    """Tanh by its own gradient; the sum of layer 0 by the weight of layer 1; the last sum by nobody."""
    assert kept(ms.compile(ms.residual, num_layers=2)) == [(0, "Tanh", 128), (0, "Add", 128), (1, "Tanh", 128)]


def test_an_output_with_two_readers_is_kept_once(ms):
    assert kept(ms.compile(ms.shared)) == [(0, "Tanh", 128)]


def test_each_output_of_an_operator_is_kept_by_itself(ms):
    """Two halves of 4 x 4 x 4 = 64 bytes; what was split is not needed."""
    graph = ms.compile(ms.halves)
    assert kept(graph) == [(0, "Split", 64), (0, "Split", 64)]
    assert [node.op for node in graph.index.kept_nodes] == ["TupleGetItem", "TupleGetItem"]


def test_nodes_carry_layer_cell_and_types(ms):
    graph = ms.compile(ms.nested, num_layers=2)
    found = [(n.layer_index, n.cell_path, n.op) for n in graph.forward if n.op in ("MatMul", "GeLU", "Tanh", "Mul")]
    layer = [("inner", "MatMul"), ("inner", "GeLU"), ("inner", "Tanh"), ("inner", "Mul"), ("", "GeLU")]
    assert found == [(0, *operator) for operator in layer] + [(1, *operator) for operator in layer]
    gelu = next(node for node in graph.forward if node.op == "GeLU")
    assert [(t.shape, t.dtype, t.size_bytes) for t in gelu.outputs] == [((4, 8), "float32", 128)]
    assert next(n for n in graph.forward if n.op == "ReduceSum").layer_index is None
    assert not graph.types.keys() & {node.name for node in (*graph.forward, *graph.backward)}  # operators say their own
    (saved, *_) = [entry.backward_name for entry in graph.saved if entry.forward_name == gelu.name]
    assert graph.types[saved] == TensorType((4, 8), "float32", 128)  # a parameter of backward


def test_values_of_attributes():
    from mindspore.train.mind_ir_pb2 import AttributeProto, ModelProto

    def put(entries, kind, name="", **fields):
        return entries.add(name=name, type=AttributeProto.AttributeType.Value(kind), **fields)

    model = ModelProto()
    model.graph.node.add(name="n", op_type="REF::p", domain="Default/Mul-op0")
    attributes = model.primitives.add(name="p", op_type="Mul").attribute
    put(attributes, "BOOL", "yes", i=1)
    put(attributes, "STRING", "text", s=b"mlp.mul")
    put(attributes, "INT64", "number", i=7)
    put(attributes, "INT64", "of a list", ints=[8])
    put(attributes, "FLOAT", "not read", f=1.5)
    for kind, name in (("TUPLE", "tuple"), ("LIST", "list")):
        values = put(attributes, kind, name).values
        put(values, "INT64", i=2)
        put(values, "STRING", s=b"a")
    layout = put(attributes, "DICT", "layout").values
    put(put(layout, "TUPLE", "device_matrix").values, "INT64", i=4)
    put(layout, "TUPLE", "empty")
    put(attributes, "STRING", "mindswap_path", s=b"mlp.mul")  # what a capture wrote: no attribute of the model's
    (node,) = load_graph(model).forward
    assert node.paths == ("mlp.mul",)
    assert node.attributes == {
        "yes": True, "text": "mlp.mul", "number": 7, "of a list": 8, "not read": None, "tuple": (2, "a"),
        "list": (2, "a"), "layout": {"device_matrix": 4},
    }  # fmt: skip


def test_gradients_belong_to_the_layer_and_cell_of_their_operator(ms):
    """Autodiff makes the gradient of an operator once and uses it for every layer; the scope tells only of one.

    Each layer gives the gradient of its weight and of its input; layer 0 reads the input of the step, of which
    nobody wants the gradient.
    """
    graph = ms.compile(ms.inner, swap_all(), num_layers=3)
    wanted = {"GeLUGrad": "GeLU", "TanhGrad": "Tanh", "MatMul": "MatMul"}
    gradients = [node for node in graph.backward if node.op in wanted]
    counts = Counter((node.layer_index, node.op) for node in gradients)
    assert counts == Counter({(layer, op): 1 + (op == "MatMul" and layer > 0) for layer in range(3) for op in wanted})
    for node in gradients:
        origin = graph.index.forward_nodes[node.origin]
        assert (origin.op, origin.layer_index) == (wanted[node.op], node.layer_index)


def test_copies_to_the_device_belong_to_the_layer_of_what_they_bring_back(ms):
    graph = ms.compile(ms.inner, swap("gelu"), num_layers=3)
    assert [(p.producer.layer_index, [n.layer_index for n in p.copies_in]) for p in graph.swap_pairs] == [
        (0, [0]), (1, [1]), (2, [2]),
    ]  # fmt: skip


def test_what_runs_again_names_the_operator_that_it_is_a_copy_of(ms):
    graph = ms.compile(ms.inner, recompute("gelu"), num_layers=2)
    copies = [node for node in graph.backward if node.is_duplicate and node.op == "GeLU"]
    origins = [graph.index.forward_nodes[node.origin] for node in copies]
    assert [(origin.op, origin.layer_index) for origin in origins] == [("GeLU", 1), ("GeLU", 0)]


# What is swapped.


def test_a_swapped_operator_leaves_and_comes_back(ms):
    graph = ms.compile(ms.gated, swap("gelu", prefetch=7))
    assert pairs(graph) == [(0, "GeLU", 7, 128)]
    assert kept(graph) == [(0, "MatMul", 128)]
    (pair,) = graph.swap_pairs
    assert pair.copy_out.attributes["backward_prefetch"] == 7
    assert [copy.op for copy in pair.copies_in] == ["MoveTo"]


def test_what_backward_does_not_need_is_not_moved(ms):
    """The product itself is read by the sum of the loss, whose gradient needs no value."""
    graph = ms.compile(ms.gated, swap_all())
    assert pairs(graph) == [(0, "MatMul", 3, 128), (0, "GeLU", 3, 128)]
    assert kept(graph) == []


def test_only_the_layers_of_the_policy_are_swapped(ms):
    graph = ms.compile(ms.residual, swap_all(5, Layers((1,))), num_layers=3)
    assert pairs(graph) == [(1, "Tanh", 5, 128), (1, "Add", 5, 128)]
    assert kept(graph) == [(0, "Tanh", 128), (0, "Add", 128), (2, "Tanh", 128)]


def test_an_output_with_two_readers_is_moved_once(ms):
    assert pairs(ms.compile(ms.shared, swap("tanh"))) == [(0, "Tanh", 3, 128)]


def test_every_output_that_only_backward_reads_is_moved(ms):
    """Mean and variance, 4 values of 4 bytes. The normed value, which the next operator reads, see below."""
    before = [(op, size) for _, op, size in kept(ms.compile(ms.norm))]
    assert sorted(before) == [("LayerNorm", 16), ("LayerNorm", 16), ("LayerNorm", 128)]
    assert pairs(ms.compile(ms.norm, swap("norm"))) == [(0, "LayerNorm", 3, 16), (0, "LayerNorm", 3, 16)]


def test_of_several_outputs_those_that_other_operators_read_stay(ms):
    """A limit of MindSpore 2.9.0: it does not look through the `TupleGetItem` between the two operators."""
    assert kept(ms.compile(ms.norm, swap("norm"))) == [(0, "LayerNorm", 128)]
    graph = ms.compile(ms.halves, swap("split"))
    assert (pairs(graph), kept(graph)) == ([], [(0, "Split", 64), (0, "Split", 64)])


def test_without_lazy_inline_nothing_is_moved(ms):
    graph = ms.compile(ms.gated, swap_all(), with_lazy_inline=False)
    assert not graph.has_lazy_inline
    assert (graph.swap_pairs, graph.saved, graph.backward) == ((), (), ())
    assert "MoveTo" not in {node.op for node in graph.forward}
    assert {"MatMul", "GeLU"} <= {node.op for node in graph.forward}


# What is recomputed.


def recompute(pattern, exclude=None, **more):
    excludes = (OpRecompute(exclude, ALL_LAYERS),) if exclude else ()
    return Policy(
        is_swap_enabled=True,
        select_recompute=(OpRecompute(pattern, ALL_LAYERS),),
        select_recompute_exclude=excludes,
        **more,
    )


def test_a_recomputed_operator_runs_again_and_is_not_kept(ms):
    graph = ms.compile(ms.gated, recompute("gelu"))
    assert duplicates(graph) == {"GeLU": 1}
    assert kept(graph) == [(0, "MatMul", 128)]


def test_recompute_wins_over_swap_of_the_same_operator(ms):
    graph = ms.compile(ms.gated, recompute("gelu", op_swap=(OpSwap("gelu", ALL_LAYERS, 3),)))
    assert pairs(graph) == []
    assert duplicates(graph) == {"GeLU": 1}


def test_all_of_a_recomputed_cell_runs_again_but_its_output(ms):
    """Its output is the product; it is what the GeLU behind the cell needs, with its own output."""
    graph = ms.compile(ms.nested, recompute("inner"))
    assert duplicates(graph) == {"MatMul": 1, "GeLU": 1, "Tanh": 1}
    assert kept(graph) == [(0, "Mul", 128), (0, "GeLU", 128)]


def test_an_excluded_operator_of_a_recomputed_cell_is_kept(ms):
    graph = ms.compile(ms.nested, recompute("inner", exclude=r"inner\.tanh"))
    assert duplicates(graph) == {"MatMul": 1, "GeLU": 1}
    assert kept(graph) == [(0, "Tanh", 128), (0, "Mul", 128), (0, "GeLU", 128)]


def test_an_excluded_operator_of_a_recomputed_cell_is_not_swapped_either(ms):
    """A limit of MindSpore 2.9.0: inside a recomputed cell it offloads nothing, excluded or not."""
    policy = recompute("inner", exclude=r"inner\.tanh", op_swap=(OpSwap(r"inner\.tanh", ALL_LAYERS, 4),))
    graph = ms.compile(ms.nested, policy)
    assert pairs(graph) == []
    assert kept(graph) == [(0, "Tanh", 128), (0, "Mul", 128), (0, "GeLU", 128)]


def test_a_recomputed_layer_keeps_its_input(ms):
    """Of layer 0 the input is the input of the step; of layer 1 it is the sum of layer 0, the output of a cell."""
    policy = Policy(is_swap_enabled=True, layer_recompute=ALL_LAYERS)
    graph = ms.compile(ms.residual, policy, num_layers=2)
    assert kept(graph) == [(0, "Add", 128)]
    assert duplicates(graph) == {"MatMul": 2, "Tanh": 2}


# What the compiler refuses.


def test_what_does_not_compile_is_an_error_with_its_place(ms):
    with pytest.raises(
        GraphError, match=r"MatMul[\s\S]*\n    at \S*test_load\.py:\d+: return self\.matmul\(x, self\.weight\)"
    ):
        ms.compile(ms.broken)
