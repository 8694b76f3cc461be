"""Traces made by hand."""

from math import prod

from mindswap.pynative.trace import Event, EventKind, Operator, Save, Trace, TracedStorage, Value


def chain(num_layers=3, size_bytes=100, num_operators=4):
    """Layers of `num_operators` operators; the second makes one storage that the third saves, backward reads it first.

    Operators of forward are numbered from 0, layer after layer. Backward runs `num_operators` operators for each
    layer, last layer first, and reads the storage of a layer before the first of them.
    """
    operators, storages, saves, events = [], [], [], []
    for layer in range(num_layers):
        events.append(Event(EventKind.FORWARD_BEGIN, layer, len(operators)))
        for position in range(num_operators):
            operators.append(Operator("Op", layer, ("cell", f"op{position}"), True))
            if position == 2:
                storages.append(TracedStorage(size_bytes, len(operators) - 2, len(operators) - 1))
                saves.append(Save(layer, layer, len(operators) - 1, (25,), "float32"))
                events.append(Event(EventKind.SAVE, layer, len(operators)))
        events.append(Event(EventKind.FORWARD_END, layer, len(operators)))
    for layer in reversed(range(num_layers)):
        events.append(Event(EventKind.BACKWARD_BEGIN, layer, len(operators)))
        events.append(Event(EventKind.READ, layer, len(operators)))
        operators += [Operator("OpGrad", layer, ("OpGrad",), False)] * num_operators
    return Trace(num_layers, tuple(operators), tuple(storages), tuple(saves), tuple(events))


def squares():
    """One layer: y = (x w)^2 with a view between, as a CPU runs it: the square reads a copy of the view.

    Memories: 0 x, 1 w, 2 x w and its view, 3 the copy of that view, 4 y; in backward 5 and 6 gradients.
    """

    def value(memory, shape, weight="", copy_of=None):
        return Value(memory, 4 * prod(shape), shape, "float32", weight, copy_of)

    x, w, product, view = value(0, (2, 3)), value(1, (3, 4), "w"), value(2, (2, 4)), value(2, (8,))
    copy, y = value(3, (8,), copy_of=2), value(4, (8,))
    operators = (
        Operator("MatMul", 0, ("matmul",), True, (x, w), (product,)),
        Operator("Reshape", 0, ("Reshape",), True, (product,), (view,)),
        Operator("Square", 0, ("square",), True, (copy,), (y,)),
        Operator("Mul", 0, ("Mul",), False, (copy, y), (value(5, (8,)),)),
        Operator("MatMul", 0, ("MatMul",), False, (x, value(5, (2, 4))), (value(6, (3, 4)),)),
    )
    storages = (TracedStorage(24, None, 2, "input", 0), TracedStorage(32, None, 2, "", 3))
    saves = (Save(0, 0, 0, (2, 3), "float32"), Save(1, 0, 2, (8,), "float32"))
    events = (
        Event(EventKind.FORWARD_BEGIN, 0, 0), Event(EventKind.SAVE, 0, 1), Event(EventKind.SAVE, 1, 3),
        Event(EventKind.FORWARD_END, 0, 3), Event(EventKind.BACKWARD_BEGIN, 0, 3), Event(EventKind.READ, 1, 3),
        Event(EventKind.READ, 0, 4),
    )  # fmt: skip
    return Trace(1, operators, storages, saves, events)
