"""MindIR -> StepCode: what `graph.load` leaves out, so that a step can be run. Values of constants, calls of functions.

`graph.load` reads what describes a step; a capture never needs this. Both know the fields of MindSpore's protobuf.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mindswap.graph.load import (
    BACKWARD_MARK,
    FORWARD_MARK,
    Message,
    Primitives,
    primitive_of,
    read_tensor_type,
    read_value,
)
from mindswap.graph.model import TensorType

MONAD = object()  # ties operators with side effects together; no value


@dataclass(frozen=True)
class TensorValue:
    """A constant tensor: its type and its elements, little-endian."""

    type: TensorType
    data: bytes


@dataclass(frozen=True)
class Unknown:
    """A constant of a kind that no operator of a training step has needed so far."""

    kind: str


@dataclass(frozen=True)
class Instruction:
    """One operator of a function, with what it reads by name and the attributes of its primitive."""

    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, object]


@dataclass(frozen=True)
class Call:
    """A call of a function, or of what an instruction gave: the second function comes as a value from the first."""

    name: str
    target: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Function:
    """Parameters and output by name, instructions in execution order."""

    name: str
    parameters: tuple[str, ...]
    instructions: tuple[Instruction | Call, ...]
    output: str


@dataclass(frozen=True)
class StepCode:
    """All that it takes to run a compiled step."""

    main: Function  # calls forward, then backward
    forward: Function  # of the lazy_inline cell
    backward: Function  # likewise
    # name in `main` -> name of the parameter in the network, and its type
    weights: Mapping[str, tuple[str, TensorType]]
    constants: Mapping[str, object]  # by name: numbers, texts, tuples, None, `TensorValue`, `MONAD`, or `Unknown`


def load_code(model: Message) -> StepCode:
    """The code of one compiled step with lazy_inline on, from the `ModelProto` that `load_graph` takes, too."""
    primitives = {primitive.name: primitive for primitive in model.primitives}
    functions = {function.name: _read_function(function, primitives) for function in model.functions}
    constants: dict[str, object] = {}
    for function in (*model.functions, model.graph):
        for node in function.node:
            if node.op_type == "Constant" and node.attribute:
                constants[node.output[0]] = read_value(node.attribute[0], _read_other)
    (forward,) = (f for name, f in functions.items() if FORWARD_MARK in name and _hands_over(f))
    (backward,) = (f for name, f in functions.items() if BACKWARD_MARK in name)
    weights = {p.name: (p.ref_key or p.name.rpartition(":")[2], read_tensor_type(p)) for p in model.graph.parameter}
    return StepCode(_read_function(model.graph, primitives), forward, backward, weights, constants)


def _hands_over(function: Function) -> bool:
    return any(isinstance(entry, Instruction) and entry.op == "Partial" for entry in function.instructions)


def _read_function(function: Message, primitives: Primitives) -> Function:
    instructions: list[Instruction | Call] = []
    for node in function.node:
        if node.op_type == "Constant":
            continue
        op, entries = primitive_of(node, primitives)
        if op.startswith("REF::"):
            instructions.append(Call(node.name, op.removeprefix("REF::"), tuple(node.input)))
        else:
            attributes = {entry.name: read_value(entry, _read_other) for entry in entries}
            instructions.append(Instruction(node.name, op, tuple(node.input), attributes))
    parameters = tuple(parameter.name for parameter in function.input)
    return Function(function.name, parameters, tuple(instructions), function.output[0].name)


def _read_other(entry: Message) -> object:
    kind = entry.AttributeType.Name(entry.type)
    if kind == "FLOAT":
        return entry.floats[0] if entry.floats else entry.f
    if kind == "DOUBLE":
        return entry.doubles[0] if entry.doubles else entry.d
    if kind == "NONE":
        return None
    if kind in ("UMONAD", "IOMONAD"):
        return MONAD
    if kind == "TENSORS" and len(entry.tensors) == 1:
        return TensorValue(read_tensor_type(entry.tensors[0]), entry.tensors[0].raw_data)
    return Unknown(kind)
