"""Runs a compiled step operator by operator in device memory of its own. Kernels come from an adapter."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindswap.errors import GraphError
from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.ops import NO_MEMORY_OPS, ORDERING_OPS, VIEW_OPS
from tests.executed.load_code import MONAD, Call, Function, Instruction, StepCode, TensorValue, Unknown
from tests.executed.timetable import POISON, ExecutedMemory, StepTimetable, TimedOperator

# What numpy has of the types of the compiler.
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
# Gives the outputs of an operator from its name, its attributes, its inputs, and the types that the compiler says.
Kernels = Callable[[str, Mapping[str, object], tuple[Any, ...], tuple[TensorType, ...]], tuple[np.ndarray, ...]]


@dataclass(frozen=True)
class Misread:
    """An operator that read memory which was not its own: given back before, or not yet fetched."""

    reader: Node  # the operator
    position: int  # its place among all
    buffer: str  # the memory
    was_taken: bool  # it had been given back; else it was not there yet


@dataclass(frozen=True, eq=False)
class Executed:
    """Result of one run of a step."""

    loss: np.ndarray | None  # first output of forward
    gradients: tuple[np.ndarray, ...]  # what the step returns, in order of its outputs
    curve_bytes: tuple[int, ...]  # live bytes while each operator runs
    misreads: tuple[Misread, ...]
    offloaded_bytes: int  # bytes that left for the host


def run_step(
    graph: Graph,
    code: StepCode,
    timetable: StepTimetable,
    inputs: Mapping[str, np.ndarray],
    kernels: Kernels,
    alignment_bytes: int = 1,
) -> Executed:
    """Run one step.

    Args:
        graph, code: of the same compile.
        inputs: weights and inputs of the step by their names in `code.main`.
        alignment_bytes: the memory of a tensor is a multiple of it.

    Raises:
        GraphError: if an operator has no kernel, or stands before one whose output it reads.
    """
    return _Run(graph, code, timetable, inputs, kernels, ExecutedMemory(alignment_bytes)).run()


@dataclass(eq=False)
class _Run:
    graph: Graph
    code: StepCode
    timetable: StepTimetable
    inputs: Mapping[str, np.ndarray]
    kernels: Kernels
    memory: ExecutedMemory

    def __post_init__(self) -> None:
        self.values: dict[str, object] = dict(self.inputs)  # what is not in device memory
        self.made: dict[str, tuple[str | None, ...]] = {}  # operator -> its memory
        self.bound = dict(self.timetable.aliases)  # parameters and repeats -> the value they stand for
        functions = (self.code.main, self.code.forward, self.code.backward)
        entries = [entry for function in functions for entry in function.instructions]
        self.instructions = {entry.name: entry for entry in entries if isinstance(entry, Instruction)}
        self.nodes = self.graph.index.nodes
        self.fetched = {fetch.node.name: fetch for at in self.timetable.fetches for fetch in at}
        self.host: dict[str, np.ndarray] = {}
        self.curve: list[int] = []
        self.misreads: list[Misread] = []
        self.reader: tuple[Node, int] | None = None

    def run(self) -> Executed:
        losses: tuple[np.ndarray, ...] = ()
        for entry in self.code.main.instructions:
            if isinstance(entry, Call):
                is_forward = entry.target == self.code.forward.name
                self.values[entry.name] = self._call(entry, self.code.forward if is_forward else self.code.backward)
                losses = self._flat(self.values[entry.name]) if is_forward else losses
            elif entry.name not in self.values and entry.op not in NO_MEMORY_OPS | ORDERING_OPS:
                results = self.kernels(entry.op, entry.attributes, self._arguments(entry.inputs), ())
                self.values[entry.name] = results[0] if len(results) == 1 else results
        gradients = self._flat(self.value(self.code.main.output))
        bytes_out = sum(array.nbytes for array in self.host.values())
        first = losses[0] if losses else None
        return Executed(first, gradients, tuple(self.curve), tuple(self.misreads), bytes_out)

    # -- passes -----------------------------------------------------------------------------------

    def _call(self, call: Call, function: Function) -> object:
        """The output of forward or backward."""
        # What forward has bound comes first among the parameters of backward.
        parameters = function.parameters[len(function.parameters) - len(call.inputs) :]
        self.bound |= dict(zip(parameters, call.inputs, strict=True))
        for position, operator in enumerate(self.timetable.operators):
            if operator.is_forward is not (function is self.code.forward):
                continue
            for fetch in self.timetable.fetches[position]:
                if fetch.source in self.host:
                    self.memory.take(fetch.buffer, self.host[fetch.source].copy())
            self._run_operator(operator, position)
            self.curve.append(self.memory.live_bytes)
            for node in self.timetable.offloads[position]:
                value = self.value(node.inputs[0])
                assert isinstance(value, np.ndarray)
                self.host[node.name] = value.copy()
            for buffer in self.timetable.releases[position]:
                self.memory.give_back(buffer, poison=buffer not in self._kept)
        return self.value(function.output)

    @functools.cached_property
    def _kept(self) -> frozenset[str]:
        """Results of the step: nobody takes their memory, they count with the weights and the outputs."""
        return frozenset(self._result_buffers())

    def _result_buffers(self) -> Iterator[str]:
        for function in (self.code.forward, self.code.backward):
            pending = [function.output]
            while pending:
                name = self._resolve(pending.pop())
                node = self.instructions.get(name)
                if node is None or node.op == "Partial":
                    continue
                if node.op == "MakeTuple":
                    pending += node.inputs
                elif node.op in VIEW_OPS or node.op in ("TupleGetItem", "TensorMove"):
                    pending.append(node.inputs[0])
                elif name in self.nodes:
                    yield from (f"{name}#{index}" for index in range(len(self.nodes[name].outputs)))

    def _run_operator(self, operator: TimedOperator, position: int) -> None:
        node = operator.node
        self.reader = node, position
        for buffer in operator.reads:
            if not self.memory.is_live(buffer):
                self.misreads.append(Misread(node, position, buffer, self.memory.read(buffer) is not None))
        arguments = self._arguments(node.inputs)
        results = self.kernels(node.op, self.instructions[node.name].attributes, arguments, node.outputs)
        if not operator.makes:  # numbers: no memory of the device
            self.values[node.name] = results[0] if len(results) == 1 else results
            return
        self.made[node.name] = operator.makes
        unmanaged = []
        for made, result in zip(operator.makes, results, strict=True):
            if made is not None:
                self.memory.take(made, np.ascontiguousarray(result))
            unmanaged.append(result)
        if None in operator.makes:
            self.values[node.name] = tuple(unmanaged)

    # -- values -----------------------------------------------------------------------------------

    def _arguments(self, names: tuple[str, ...]) -> tuple[Any, ...]:
        return tuple(value for value in (self.value(name) for name in names) if value is not MONAD)

    def _resolve(self, name: str) -> str:
        while name in self.bound:
            name = self.bound[name]
        return name

    def value(self, name: str) -> object:
        """A value by its name: array, number, tuple, None or `MONAD`."""
        name = self._resolve(name)
        if name in self.made:
            parts = tuple(
                self.memory.read(buffer) if buffer is not None else self.values[name][index]  # type: ignore[index]
                for index, buffer in enumerate(self.made[name])
            )
            return parts[0] if len(parts) == 1 else parts
        if name in self.fetched:
            return self._brought_back(name)
        if name in self.values:
            return self.values[name]
        if name in self.code.constants:
            return self._constant(name)
        if name in self.instructions:
            return self._look_through(self.instructions[name])
        if name.rpartition(":")[2] in ("▸u", "▸io"):
            return MONAD
        raise GraphError(f"{self._where()} reads {name}, which no operator before it makes")

    def _brought_back(self, name: str) -> np.ndarray:
        fetch = self.fetched[name]
        array = self.memory.read(fetch.buffer)
        if array is None:  # not there yet: whatever lies in its place
            array = np.full_like(self.host[fetch.source], 0)
            array.reshape(-1).view(np.uint8)[:] = POISON
        return array

    def _constant(self, name: str) -> object:
        constant = self.code.constants[name]
        if isinstance(constant, Unknown):
            raise GraphError(f"{self._where()} reads a constant of kind {constant.kind}, which is not known here")
        return _as_value(constant)

    def _look_through(self, entry: Instruction) -> object:
        if entry.op == "TupleGetItem":
            members = self.value(entry.inputs[0])
            index = self.value(entry.inputs[1])
            return members[index]  # type: ignore[index]
        if entry.op == "MakeTuple":
            return tuple(self.value(name) for name in entry.inputs)
        if entry.op in ("UpdateState", "Partial"):
            return MONAD if entry.op == "UpdateState" else None
        if entry.op in ("Depend", "Load", "TensorMove"):
            return self.value(entry.inputs[0])
        if entry.op in VIEW_OPS:
            array = self.value(entry.inputs[0])
            assert isinstance(array, np.ndarray)
            node = self.nodes.get(entry.name)
            shape = node.outputs[0].shape if node is not None else self.value(entry.inputs[1])
            assert isinstance(shape, tuple)
            return array.reshape(shape)
        raise GraphError(f"{self._where()} reads {entry.op} {entry.name}, which has not run yet")

    def _where(self) -> str:
        if self.reader is None:
            return "the step"
        node, position = self.reader
        return f"operator {position} ({node.cell_path} {node.op})"

    def _flat(self, value: object) -> tuple[np.ndarray, ...]:
        if isinstance(value, tuple):
            return tuple(array for entry in value for array in self._flat(entry))
        return (value,) if isinstance(value, np.ndarray) else ()


def _as_value(constant: object) -> object:
    if isinstance(constant, TensorValue):
        return np.frombuffer(constant.data, dtype_of(constant.type.dtype)).reshape(constant.type.shape)
    if isinstance(constant, tuple):
        return tuple(_as_value(entry) for entry in constant)
    return constant


def dtype_of(name: str) -> np.dtype:
    """The numpy type of a type as `TensorType` has it.

    Raises:
        GraphError: if numpy has no such type.
    """
    if name not in DTYPES:
        raise GraphError(f"no values of type {name}; use float16 or float32 in the configuration")
    return np.dtype(name)
