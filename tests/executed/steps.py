"""A step made by hand that can be run with three kernels of numpy.

Every tensor has 1 KiB: 256 numbers of float32. Forward: a = 2x, b = 2a, c = 2b, d = 2c, the loss. Backward, from c and
a: g0 = 2c, g1 = 2 g0, g2 = 2 g1, g3 = g2 + a, which is the only gradient. So with x = 1: a = 2, c = 8, g3 = 64 + 2.
Of a, forward makes a copy to the host.
"""

import numpy as np

from mindswap.graph.model import Graph
from tests.executed.load_code import Call, Function, Instruction, StepCode
from tests.graph.builders import copy_in, copy_out, graph, node

ONES = np.ones(256, np.float32)


def swapped_graph(prefetch: int = 1) -> Graph:
    """The step; operators 0 to 3 are forward, 4 to 7 backward."""
    forward = [
        node("a", "Double", "x"),
        copy_out("out", "a", prefetch=prefetch),
        node("b", "Double", "a"),
        node("c", "Double", "b"),
        node("d", "Double", "c"),
        node("pair", "MakeTuple", "d bound", size_bytes=0),
    ]
    backward = [
        node("g0", "Double", "c_b"),
        node("g1", "Double", "g0"),
        node("g2", "Double", "g1"),
        copy_in("in", "out", prefetch=prefetch),
        node("g3", "Add", "g2 in"),
        node("grads", "MakeTuple", "g3", size_bytes=0),
    ]
    return graph(forward, backward, saved="out c")


def code_of(compiled: Graph) -> StepCode:
    """The code of the step: `main` calls forward with x, and backward with nothing more."""

    def function(name, parameters, nodes, output):
        instructions = tuple(Instruction(n.name, n.op, n.inputs, n.attributes) for n in nodes)
        return Function(name, parameters, instructions, output)

    parameters = tuple(saved.backward_name for saved in compiled.saved)
    main = Function("main", ("input",), (Call("first", "f", ("input",)), Call("second", "first", ())), "second")
    return StepCode(
        main,
        function("f", ("x",), compiled.forward, "pair"),
        function("g", parameters, compiled.backward, "grads"),
        weights={},
        constants={"bound": None},
    )


def kernels(op, attributes, inputs, outputs):
    """`Double` and `Add`."""
    assert {"Double": 1, "Add": 2}[op] == len(inputs)
    return (inputs[0] * 2 if op == "Double" else inputs[0] + inputs[1],)
