"""What the compiler hands over, message by message, with the fields of its protobuf filled by hand.

`test_load` reads what MindSpore itself compiles; this needs no MindSpore.
"""

from types import SimpleNamespace

import pytest

from mindswap.errors import GraphError
from mindswap.graph.load import PATH_TAG, load_graph, read_tensor_type, read_value
from mindswap.graph.model import Saved, TensorType


class Kind:
    """The names of an enum; a value of it is its name."""

    @staticmethod
    def Name(value):  # noqa: N802 as protobuf spells it
        return value


def value(kind, name="", **fields):
    known = {"ints": (), "i": 0, "strings": (), "s": b"", "values": (), "tensors": ()} | fields
    return SimpleNamespace(type=kind, name=name, AttributeType=Kind, **known)


def tensor(*dims, dtype="FLOAT"):
    return SimpleNamespace(DataType=Kind, data_type=dtype, dims=dims)


def operator(name, op, inputs="", scope="Default/x", marks=(), identity=None, attributes=()):
    """An operator with one output of its own name, which is a tensor of (2, 4) floats."""
    ids = [SimpleNamespace(name=key, s=text.encode()) for key, text in (identity or {}).items()]
    shape = value("TENSORS", "shape", tensors=(tensor(2, 4),))
    return SimpleNamespace(
        name=name, op_type=op, domain=scope, input=inputs.split(), output=[name], primal_attr=ids,
        node_attr=[SimpleNamespace(name=mark) for mark in marks], attribute=attributes or (shape,),
    )  # fmt: skip


def constant(name, *attributes):
    return SimpleNamespace(name=name, op_type="Constant", output=[name], input=[], attribute=attributes, primal_attr=())


def function(name, *nodes, inputs=()):
    return SimpleNamespace(name=name, node=nodes, input=inputs)


def parameter(name, *tensors):
    return SimpleNamespace(name=name, tensor=tensors)


def model(*functions, graph=(), primitives=()):
    return SimpleNamespace(functions=functions, graph=function("main", *graph), primitives=primitives)


def primitive(name, op, *attributes):
    return SimpleNamespace(name=name, op_type=op, attribute=attributes)


LAYER = "Default/net-Net/layers-CellList/1-Layer/mlp-Mlp/"
FORWARD = (
    constant("two", value("INT64", ints=(2,))),
    constant("sizes", value("TUPLE", values=(value("INT64", i=3), value("INT32", i=-1)))),
    constant("words", value("TUPLE", values=(value("INT64", i=1), value("STRING", s=b"a")))),
    constant("table", value("TENSOR", tensors=(tensor(7, dtype="DOUBLE"),))),
    constant("nothing"),
    operator("up", "REF::up", "x w", f"{LAYER}MatMul-op0", identity={"unique_id": "1"}),
    operator("act", "GeLU", "up two", f"recompute_{LAYER}GeLU-op1", identity={"unique_id": "2"}),
    operator("bind", "Partial", "fprop up act"),
)
BACKWARD = (
    operator("copy", "GeLU", "up_b", f"Gradients/recompute_{LAYER}GeLU-op1", ["duplicated"], {"unique_id": "2"}),
    operator("dup", "MatMulGrad", "up_b copy", identity={"unique_id": "9", "forward_unique_id": "1"}),
)
STEP = model(
    function("net▸", *FORWARD, inputs=[parameter("x", tensor(5, 2)), parameter("pair", tensor(1), tensor(1))]),
    function("net◂", *BACKWARD, inputs=[parameter("up_b", tensor(2, 4, dtype="BFLOAT16")), parameter("act_b")]),
    function("helper", constant("far", value("INT64", i=11))),
    graph=(constant("main_one", value("UINT8", ints=(1,))),),
    primitives=(primitive("up", "MatMul", value("BOOL", "transpose_b", i=1), value("STRING", PATH_TAG, s=b"mlp.up")),),
)


def test_a_step_of_forward_and_backward():
    found = load_graph(STEP)
    assert found.has_lazy_inline
    assert [(node.name, node.op, node.layer_index, node.cell_path) for node in found.forward] == [
        ("up", "MatMul", 1, "mlp"), ("act", "GeLU", 1, "mlp"), ("bind", "Partial", 1, "mlp"),
    ]  # fmt: skip
    up, act, _ = found.forward
    assert (up.attributes, up.paths, act.paths) == ({"transpose_b": True}, ("mlp.up",), ())
    assert up.outputs == (TensorType((2, 4), "float32", 32),)
    assert up.inputs == ("x", "w") and up.scope == f"{LAYER}MatMul-op0"
    assert [(node.is_recomputed, node.is_duplicate) for node in (up, act)] == [(False, False), (True, False)]
    copy, gradient = found.backward
    assert (copy.is_recomputed, copy.is_duplicate, copy.origin) == (True, True, "act")
    assert (gradient.is_duplicate, gradient.origin, gradient.layer_index) == (False, "up", 1)


def test_what_forward_binds_is_what_backward_is_given():
    """The first input of what binds is the function itself."""
    assert load_graph(STEP).saved == (Saved("up", "up_b"), Saved("act", "act_b"))


def test_numbers_tuples_and_types_of_all_functions():
    found = load_graph(STEP)
    assert found.constants == {"two": 2, "far": 11, "main_one": 1}
    assert found.tuples == {"sizes": (3, -1)}
    # A parameter of two tensors, or of none, has no type of its own.
    assert found.types == {
        "table": TensorType((7,), "float64", 56), "x": TensorType((5, 2), "float32", 40),
        "up_b": TensorType((2, 4), "bfloat16", 16),
    }  # fmt: skip


def test_without_a_function_pair_the_main_graph_is_forward():
    """A forward mark alone is no pair: it binds nothing."""
    plain = model(function("net▸", operator("up", "MatMul")), graph=(operator("a", "Neg"), constant("one")))
    found = load_graph(plain)
    assert ([node.name for node in found.forward], found.backward, found.saved) == (["a"], (), ())
    assert not found.has_lazy_inline


@pytest.mark.parametrize("backwards", [0, 2])
def test_one_cell_alone_may_be_lazy_inline(backwards):
    forward = function("a▸", operator("bind", "Partial", "f"))
    with pytest.raises(GraphError, match=r"several cells are lazy_inline: (.|\n)*fix:     take @lazy_inline off"):
        load_graph(model(forward, *[function("a◂")] * backwards))
    with pytest.raises(GraphError, match="a▸, b▸, a◂"):
        load_graph(model(forward, function("b▸", operator("bind", "Partial", "f")), function("a◂")))


@pytest.mark.parametrize(
    ("scope", "layer_list", "place"),
    [
        (f"{LAYER}Mul-op0", None, (1, "mlp")),
        (f"{LAYER}Mul-op0", "layers", (1, "mlp")),
        (f"{LAYER}Mul-op0", "blocks", (None, "net.layers.1.mlp")),
        ("Default/net-Net/layers-SequentialCell/12-Layer/Mul-op0", None, (12, "")),
        ("Default/net-Net/1-Layer/Mul-op0", None, (None, "net.1")),  # in no list
        ("1-Layer/Mul-op0", None, (None, "1")),
        ("1-Layer/layers-CellList/Mul-op0", None, (None, "1.layers")),
        ("Default/layers-CellList/first-Layer/Mul-op0", None, (None, "layers.first")),
        # Of a list in a list the outer one counts.
        ("Default/layers-CellList/1-Layer/experts-CellList/3-Mlp/Mul-op0", None, (1, "experts.3")),
        ("Default/net-Net/Mul-op0", None, (None, "net")),
    ],
)
def test_layer_and_cell_of_a_scope(scope, layer_list, place):
    step = model(function("a▸", operator("up", "Mul", "x", scope), operator("b", "Partial", "f")), function("a◂"))
    node = load_graph(step, layer_list).forward[0]
    assert (node.layer_index, node.cell_path) == place


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (value("BOOL", i=1), True), (value("BOOL", ints=(0,), i=1), False), (value("UINT64", i=5), 5),
        (value("INT8", ints=(6,), i=5), 6), (value("STRING", s=b"a\xff"), "a\ufffd"),
        (value("STRING", strings=(b"b",), s=b"a"), "b"), (value("FLOAT"), None),
        (value("LIST", values=(value("BOOL", i=0), value("FLOAT"))), (False, None)),
        (value("DICT", values=(value("X", "a", values=(value("INT64", i=3),)), value("X", "b"))), {"a": 3}),
    ],
)  # fmt: skip
def test_plain_values(message, expected):
    assert read_value(message) == expected


def test_what_is_no_plain_value_is_for_another_to_read():
    assert read_value(value("LIST", values=(value("FLOAT", i=7), value("INT64", i=2))), lambda one: -one.i) == (-7, 2)


def test_a_tensor_of_an_unknown_dim_has_no_bytes():
    assert read_tensor_type(tensor(2, -1)) == TensorType((2, -1), "float32", 0)


def test_where_all_primitives_have_a_tag_the_others_are_where_they_are_read():
    """`x` is given to the layers, so what is written with the scope of layer 1 is of layer 2, which reads it."""
    far = LAYER.replace("/1-", "/2-")
    nodes = [operator("cast", "Cast", "x", f"{LAYER}Cast-op0"), operator("up", "REF::up", "cast w", f"{far}MatMul-op0")]
    step = model(
        function("a▸", *nodes, operator("bind", "Partial", "f")),
        function("a◂"),
        primitives=(primitive("up", "MatMul", value("STRING", PATH_TAG, s=b"mlp.up")),),
    )
    assert [node.layer_index for node in load_graph(step).forward[:2]] == [1, 2]
    assert [node.layer_index for node in load_graph(step, "layers").forward[:2]] == [2, 2]
