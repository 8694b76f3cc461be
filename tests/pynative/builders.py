"""Traces made by hand."""

from mindswap.pynative.trace import Event, EventKind, Operator, Save, SavedStorage, Trace


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
                storages.append(SavedStorage(size_bytes, len(operators) - 2, len(operators) - 1))
                saves.append(Save(layer, layer, len(operators) - 1, (25,), "float32"))
                events.append(Event(EventKind.SAVE, layer, len(operators)))
        events.append(Event(EventKind.FORWARD_END, layer, len(operators)))
    for layer in reversed(range(num_layers)):
        events.append(Event(EventKind.BACKWARD_BEGIN, layer, len(operators)))
        events.append(Event(EventKind.READ, layer, len(operators)))
        operators += [Operator("OpGrad", layer, ("OpGrad",), False)] * num_operators
    return Trace(num_layers, tuple(operators), tuple(storages), tuple(saves), tuple(events))
