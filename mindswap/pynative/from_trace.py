"""Conversion of a step recorded in PyNative mode to the `Graph` of compiled steps, so that all analyses apply to it.

Operators are linked by memory. An output in the memory of an input is a view of it. A saved storage without a recorded
producer is the copy that a CPU kernel makes of a view; it becomes an operator `Contiguous` before the operator that
saves it. The same applies to tensors that backward reads and no recorded operator produced.
"""

from collections import Counter
from dataclasses import replace

from mindswap.graph.model import Graph, Node, Saved, TensorType
from mindswap.graph.passes.gather import WEIGHT_MARK
from mindswap.pynative.trace import EventKind, Operator, Trace, Value

# PyNative kernel -> operator type with the same work.
SAME_WORK = {
    "Dense": "MatMul",
    "Mm": "MatMul",
    "MatMulExt": "MatMul",
    "BatchMatMulExt": "BatchMatMul",
    "Addmm": "MatMul",
    "InnerInplaceIndexPut": "Scatter",
}


def graph_of_trace(trace: Trace) -> Graph:
    """Convert a step recorded with the values of operators (`record(..., with_values=True)`)."""
    return _GraphBuilder(trace).build()


class _GraphBuilder:
    """Visits the operators once, and tracks the latest name of each tensor."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.names: dict[tuple[int, tuple[int, ...]], str] = {}  # (memory, shape) -> value
        self.latest: dict[int, str] = {}  # memory -> latest value
        self.forward_values: set[str] = set()
        self.forward: list[Node] = []
        self.backward: list[Node] = []
        self.saved: dict[str, Saved] = {}  # by name in forward
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, int] = {}
        self.copied_at = self._copies_of_views()
        self.origins = self._origins()

    def build(self) -> Graph:
        for index, operator in enumerate(self.trace.operators):
            for storage in self.copied_at.get(index, ()):
                self._add_copy(index, operator, storage)
            self._add(index, operator)
        return Graph(
            forward=tuple(self.forward),
            backward=(*self.backward, self._gradient_tuple()),
            saved=tuple(self.saved.values()),
            has_lazy_inline=True,
            constants=self.constants,
            types=self.types,
            inputs=tuple(self.types),  # every micro-batch runs all operators, whatever their inputs are
        )

    def _copies_of_views(self) -> dict[int, list[int]]:
        """Return, by forward operator, the storages it saves without a producer that are no known copy of a view."""
        produced = {value.memory for operator in self.trace.operators for value in operator.outputs}
        produced |= {value.memory for op in self.trace.operators for value in op.inputs if value.copy_of is not None}
        copies: dict[int, list[int]] = {}
        copied: set[int] = set()
        for save in self.trace.saves:
            storage = self.trace.storages[save.storage]
            is_first = save.storage not in copied
            is_unmade = storage.memory is None or storage.memory not in produced
            if is_first and is_unmade and not storage.protection and self.trace.operators[save.operator].is_forward:
                copies.setdefault(save.operator, []).append(save.storage)
                copied.add(save.storage)
        return copies

    def _origins(self) -> dict[int, int]:
        """Return the forward operator of each backward operator: the one whose saved tensors it reads."""
        origins: dict[int, int] = {}
        for event in self.trace.events:
            if event.kind is EventKind.READ:
                origins.setdefault(event.num_operators, self.trace.saves[event.index].operator)
        return origins

    # -- operators ------------------------------------------------------------------------------

    def _add(self, index: int, operator: Operator) -> None:
        nodes = self.forward if operator.is_forward else self.backward
        inputs = tuple(self._input(value, index, operator) for value in operator.inputs)
        name = f"{'f' if operator.is_forward else 'b'}{index}"
        sources = {value.memory: input_name for value, input_name in zip(operator.inputs, inputs, strict=True)}
        produced = tuple(value for value in operator.outputs if value.memory not in sources)
        if produced or not operator.outputs:
            op = SAME_WORK.get(operator.name, operator.name)
            nodes.append(self._node(name, op, operator, index, inputs, produced))
        for position, value in enumerate(operator.outputs):
            member = name if len(operator.outputs) == 1 else f"{name}.{position}"
            if value.memory in sources:
                nodes.append(self._node(member, "Reshape", operator, index, (sources[value.memory],), (value,)))
            elif len(operator.outputs) > 1:
                constant = f"i{produced.index(value)}"
                self.constants[constant] = produced.index(value)
                chosen = self._node(member, "TupleGetItem", operator, index, (name, constant), (value,))
                nodes.append(replace(chosen, paths=()))
            self._make(member, value, operator.is_forward)

    def _add_copy(self, index: int, operator: Operator, storage: int) -> None:
        """Add the copy of a view, with the type of its first save."""
        save = next(save for save in self.trace.saves if save.storage == storage)
        traced = self.trace.storages[storage]
        memory = traced.memory if traced.memory is not None else -storage - 1
        value = Value(memory, traced.size_bytes, save.shape, save.dtype)
        source = next((operand for operand in operator.inputs if operand.shape == save.shape), None)
        inputs = (self._input(source, index, operator),) if source is not None else ()
        self._add_contiguous(f"copy{storage}", operator, index, inputs, value)

    def _node(
        self, name: str, op: str, operator: Operator, index: int, inputs: tuple[str, ...], outputs: tuple[Value, ...]
    ) -> Node:
        layer = operator.layer_index
        *cell, _ = operator.path
        where = "Default/network-Network" if layer is None else f"Default/layers-CellList/{layer}-Layer"
        scope = "/".join([where, *(f"{cell_name}-Cell" for cell_name in cell), f"{operator.name}-op{name}"])
        origin = f"f{self.origins[index]}" if not operator.is_forward and index in self.origins else ""
        types = tuple(map(_type_of, outputs))
        is_named = operator.is_forward and layer is not None
        paths = tuple(".".join(path) for path in operator.paths) if is_named else ()
        return Node(
            name=name,
            op=op,
            layer_index=layer,
            cell_path=".".join(cell),
            scope=scope,
            inputs=inputs,
            outputs=types,
            attributes={},
            origin=origin,
            paths=paths,
        )

    # -- values ---------------------------------------------------------------------------------

    def _make(self, name: str, value: Value, is_forward: bool) -> None:
        self.names[value.memory, value.shape] = name
        self.latest[value.memory] = name
        if is_forward:
            self.forward_values.add(name)

    def _input(self, value: Value, index: int, operator: Operator) -> str:
        """Return the name under which an operator reads a tensor."""
        if value.weight and value.memory not in self.latest:
            self._load(value, operator)
        name = self.names.get((value.memory, value.shape)) or self.latest.get(value.memory)
        if name is None and operator.is_forward and value.copy_of is None:
            name = f"input{value.memory}"
            self.types[name] = _type_of(value)
            self._make(name, value, False)  # backward reads it under the same name
            return name
        return self._copy_of_view(value, index, operator) if name is None else self._name_at(operator, name, value)

    def _name_at(self, operator: Operator, name: str, value: Value) -> str:
        """Return the name of a value for an operator; backward reads forward values under saved names."""
        if operator.is_forward or name not in self.forward_values:
            return name
        saved = self.saved.setdefault(name, Saved(name, f"{name}.saved"))
        self.types.setdefault(saved.backward_name, _type_of(value))
        return saved.backward_name

    def _copy_of_view(self, value: Value, index: int, operator: Operator) -> str:
        """Add a value without a producer: a kernel's copy of a view, or a sum computed by autograd itself."""
        view = self.names.get((value.copy_of, value.shape)) if value.copy_of is not None else None
        inputs = (self._name_at(operator, view, value),) if view is not None else ()
        return self._add_contiguous(f"copy{value.memory}", operator, index, inputs, value)

    def _add_contiguous(self, name: str, operator: Operator, index: int, inputs: tuple[str, ...], value: Value) -> str:
        name = f"{'f' if operator.is_forward else 'b'}{index}.{name}"
        nodes = self.forward if operator.is_forward else self.backward
        nodes.append(self._node(name, "Contiguous", operator, index, inputs, (value,)))
        self._make(name, value, operator.is_forward)
        return name

    def _load(self, value: Value, operator: Operator) -> None:
        """Add the read of a weight; backward uses that of forward."""
        name = f"load.{value.weight}"
        source = f"{WEIGHT_MARK}{value.weight}"
        load = Node(
            name=name,
            op="Load",
            layer_index=operator.layer_index,
            cell_path="",
            scope=f"Default/{name}",
            inputs=(source,),
            outputs=(_type_of(value),),
            attributes={},
        )
        self.forward.append(load)
        self._make(name, value, True)

    def _gradient_tuple(self) -> Node:
        """Return a tuple of the weight gradients: unread outputs of backward with the shape of a weight."""
        read = {name for node in self.backward for name in node.inputs}
        weights = Counter(node.outputs[0].shape for node in self.forward if node.op == "Load")
        gradients = []
        for node in reversed(self.backward):
            shape = node.outputs[0].shape if len(node.outputs) == 1 else None
            if shape is not None and weights[shape] and node.name not in read:
                weights[shape] -= 1
                gradients.append(node.name)
        return Node(
            name="gradients",
            op="MakeTuple",
            layer_index=None,
            cell_path="",
            scope="Default/gradients",
            inputs=tuple(reversed(gradients)),
            outputs=(),
            attributes={},
        )


def _type_of(value: Value) -> TensorType:
    return TensorType(value.shape, value.dtype, value.size_bytes)
