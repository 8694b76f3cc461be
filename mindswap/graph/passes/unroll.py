"""Unrolling of the compiled layers of a step into a longer sequence of layers.

A step is compiled with one representative of each class of layers. Settings that tie several layers together (recompute
of their outputs) need all of these layers in one graph, so their representatives are copied.

    compiled    before | 0 | 1 | 2 | after
    sources (0, 1, 1, 2)
    unrolled    before | 0 | 1 | 1'| 2 | after
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mindswap.errors import SimulationError
from mindswap.graph.model import LAYER_NUMBER, Graph, Node, Saved, TensorType, find_dependents
from mindswap.graph.ops import is_kernel
from mindswap.graph.passes.gather import WEIGHT_MARK


@dataclass(frozen=True, eq=False)
class UnrolledStep:
    """A step with a copy of a compiled layer for each layer of a sequence."""

    graph: Graph
    # name of an operator of a compiled layer -> its names in the copies of that layer
    copies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def unroll_layers(graph: Graph, sources: Sequence[int]) -> UnrolledStep:
    """Return the step with these layers; layer i of the result is a copy of the compiled layer `sources[i]`.

    Args:
        graph: a step without swap and recompute, with layer indices as `assign_layer_indices` sets them.
        sources: compiled layer of each layer; the first one and the last one are those of the graph.

    Raises:
        SimulationError: if layers that are no neighbours share tensors, or neighbours do not fit together.
    """
    return _Unroller(_with_views_moved(graph), sources).unroll()


def _with_views_moved(graph: Graph) -> Graph:
    """Return the graph in which `Depend` and other operators of backward that compute nothing are with their readers.

    They have the layer of what they pass on, which is that of the layer before for the input of a recomputed operator.
    """
    layers_of_readers: dict[str, set[int | None]] = {}
    backward = []
    for node in reversed(graph.backward):
        readers = layers_of_readers.get(node.name, set())
        if len(readers) == 1 and not is_kernel(node.op):
            node = replace(node, layer_index=next(iter(readers)))
        for name in node.inputs:
            layers_of_readers.setdefault(name, set()).add(node.layer_index)
        backward.append(node)
    return replace(graph, backward=tuple(reversed(backward)))


class _Unroller:
    """Copies layers and connects each copy with its neighbours.

    Layer s reads values of layer s - 1 in forward and of layer s + 1 in backward. In the unrolled step the neighbour is
    a copy of another layer, so these values are matched by their order among all that a neighbour reads.
    """

    def __init__(self, graph: Graph, sources: Sequence[int]):
        self.graph, self.sources = graph, tuple(sources)
        self.num_compiled = 1 + max(node.layer_index for node in graph.forward if node.layer_index is not None)
        if self.sources[0] != 0 or self.sources[-1] != self.num_compiled - 1:
            raise AssertionError("the first and the last layer of a step are unique")
        self.forward_nodes = graph.index.forward_nodes
        self.backward_nodes = {node.name: node for node in graph.backward}
        self.saved: dict[str, Saved] = {}  # of the unrolled step, by its name in backward
        self.types: dict[str, TensorType] = {}  # of the weights of copies
        self.weights: dict[str, list[str]] = {}  # name of a weight -> its names in the copies
        self.copies: dict[str, list[str]] = {}

    def unroll(self) -> UnrolledStep:
        graph = self.graph
        # A value outside the layers that depends on a layer belongs to the copy that is nearest to its side.
        last, first = self._nearest(reversed(range(len(self.sources)))), self._nearest(range(len(self.sources)))
        before, layers, after = self._split(graph.forward)
        forward = list(before)
        for position, source in enumerate(self.sources):
            forward += [self._copy(node, position, is_forward=True) for node in layers[source]]
        forward += [self._outside(node, last) for node in after]
        before, layers, after = self._split(graph.backward)
        backward = [self._outside(node, last) for node in before]
        for position, source in reversed(list(enumerate(self.sources))):
            backward += [self._copy(node, position, is_forward=False) for node in layers[source]]
        backward += [self._outside(node, first) for node in after]
        unrolled = replace(
            graph,
            forward=tuple(forward),
            backward=tuple(backward),
            saved=tuple(self.saved.values()),
            types={**graph.types, **self.types},
            inputs=(*graph.inputs, *self.types),
            frozen=self._with_copies(graph.frozen),
            unsharded=self._with_copies(graph.unsharded),
        )
        return UnrolledStep(unrolled, {name: tuple(names) for name, names in self.copies.items()})

    def _nearest(self, positions: Iterable[int]) -> dict[int, int]:
        """Return for each compiled layer the first of these positions at which it is."""
        nearest: dict[int, int] = {}
        for position in positions:
            nearest.setdefault(self.sources[position], position)
        return nearest

    def _split(self, nodes: Sequence[Node]) -> tuple[list[Node], dict[int, list[Node]], list[Node]]:
        """Split operators of a pass into those before the layers, those of each layer, and those after them."""
        in_layers = [node.name for node in nodes if node.layer_index is not None]
        dependent = find_dependents(nodes, in_layers)
        needed = {name for node in nodes if node.layer_index is not None for name in node.inputs}
        for node in reversed(nodes):
            if node.name in needed and node.layer_index is None:
                needed.update(node.inputs)
        layers: dict[int, list[Node]] = {source: [] for source in range(self.num_compiled)}
        before, after = [], []
        has_begun = False
        for node in nodes:
            if node.layer_index is not None:
                layers[node.layer_index].append(node)
                has_begun = True
            elif node.name in dependent or (has_begun and node.name not in needed):
                after.append(node)
            else:
                before.append(node)
        return before, layers, after

    # -- copies of layers --------------------------------------------------------------------------

    def _copy(self, node: Node, position: int, *, is_forward: bool) -> Node:
        """Return the copy of an operator of a layer for one position."""
        name = self._copy_name(node.name, position)
        self.copies.setdefault(node.name, []).append(name)
        read = self._forward_value if is_forward else self._backward_value
        return replace(
            node,
            name=name,
            layer_index=position,
            scope=LAYER_NUMBER.sub(str(position), node.scope, count=1),
            inputs=tuple([read(value, position) for value in node.inputs]),
            origin=self._origin(node.origin, position),
        )

    def _origin(self, name: str, position: int) -> str:
        """Return the forward operator of a gradient; it may be in another layer than the gradient."""
        node = self.forward_nodes.get(name)
        if node is None or node.layer_index is None:
            return name
        shifted = position + node.layer_index - self.sources[position]
        if 0 <= shifted < len(self.sources) and self.sources[shifted] == node.layer_index:
            return self._copy_name(name, shifted)
        return self._copy_name(name, self.sources.index(node.layer_index))

    @staticmethod
    def _copy_name(name: str, position: int) -> str:
        return f"{name}@{position}"

    def _forward_value(self, name: str, position: int) -> str:
        """Return the name of a forward value that the copy at a position reads."""
        node = self.forward_nodes.get(name)
        if node is None:
            return self._input(name, position)
        if node.layer_index is None:
            return name
        source = self.sources[position]
        if node.layer_index == source:
            return self._copy_name(name, position)
        if node.layer_index == source - 1:
            produced = _match(name, self._forward_reads[source], self._forward_reads[self.sources[position - 1] + 1])
            return self._copy_name(produced, position - 1)
        raise SimulationError(f"{name} of layer {node.layer_index} is read in layer {source}")

    def _input(self, name: str, position: int) -> str:
        """Return a value that no operator produces; every copy of a layer has weights of its own."""
        head, mark, weight = name.rpartition(WEIGHT_MARK)
        number = LAYER_NUMBER.search(weight) if mark else None
        if number is None or int(number[0]) != self.sources[position]:
            return name
        renamed = LAYER_NUMBER.sub(str(position), weight, count=1)
        self.weights.setdefault(weight, []).append(renamed)
        copy = f"{head}{mark}{renamed}"
        if name in self.graph.types:
            self.types[copy] = self.graph.types[name]
        return copy

    def _backward_value(self, name: str, position: int) -> str:
        """Return the name of a value that backward of the copy at a position reads."""
        forward_name = self.graph.index.forward_names.get(name)
        if forward_name is not None:
            return self._saved_value(name, forward_name, self._forward_value(forward_name, position))
        node = self.backward_nodes.get(name)
        if node is None or node.layer_index is None:
            return name
        source = self.sources[position]
        if node.layer_index == source:
            return self._copy_name(name, position)
        if node.layer_index == source + 1:
            neighbour = self.sources[position + 1]
            produced = _match(name, self._backward_reads[source], self._backward_reads[neighbour - 1])
            return self._copy_name(produced, position + 1)
        raise SimulationError(f"{name} of layer {node.layer_index} is read in backward of layer {source}")

    def _saved_value(self, backward_name: str, forward_name: str, copy: str) -> str:
        """Record that forward saves a value, and return its name in backward."""
        new_name = backward_name if copy == forward_name else f"{copy}@saved"
        self.saved[new_name] = Saved(copy, new_name)
        return new_name

    @cached_property
    def _forward_reads(self) -> Mapping[int, Sequence[str]]:
        """For each layer, the forward values of the layer before it that it reads, in order of production."""
        forward_names = self.graph.index.forward_names
        reads: dict[int, set[str]] = {}
        for node in (*self.graph.forward, *self.graph.backward):
            for name in node.inputs:
                value = self.forward_nodes.get(forward_names.get(name, name))
                if _are_neighbours(value, node):
                    reads.setdefault(node.layer_index or 0, set()).add(value.name if value is not None else "")
        return {layer: [n.name for n in self.graph.forward if n.name in names] for layer, names in reads.items()}

    @cached_property
    def _backward_reads(self) -> Mapping[int, Sequence[str]]:
        """For each layer, the values of backward of the layer after it that it reads, in order of production."""
        reads: dict[int, set[str]] = {}
        for node in self.graph.backward:
            for name in node.inputs:
                value = self.backward_nodes.get(name)
                if _are_neighbours(node, value):
                    reads.setdefault(node.layer_index or 0, set()).add(name)
        return {layer: [n.name for n in self.graph.backward if n.name in names] for layer, names in reads.items()}

    # -- operators outside the layers --------------------------------------------------------------

    def _outside(self, node: Node, nearest: Mapping[int, int]) -> Node:
        """Return an operator outside the layers that reads the nearest copy of a layer; a tuple reads all copies."""
        is_tuple = node.op == "MakeTuple" and not self.graph.index.readers.get(node.name)
        inputs = [name for value in node.inputs for name in self._values_outside(value, nearest, is_tuple)]
        origin = next(iter(self._values_outside(node.origin, nearest, False)), "") if node.origin else ""
        return replace(node, inputs=tuple(inputs), origin=origin)

    def _values_outside(self, name: str, nearest: Mapping[int, int], is_tuple: bool) -> Iterator[str]:
        forward_name = self.graph.index.forward_names.get(name)
        node = self.forward_nodes.get(forward_name or name) or self.backward_nodes.get(name)
        if node is None or node.layer_index is None:
            if forward_name is not None:
                self._saved_value(name, forward_name, forward_name)
            yield name
            return
        positions = [nearest[node.layer_index]]
        if is_tuple:
            positions = [at for at, source in enumerate(self.sources) if source == node.layer_index]
        for position in positions:
            copy = self._copy_name(node.name, position)
            yield copy if forward_name is None else self._saved_value(name, forward_name, copy)

    def _with_copies(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return names of weights, with those of the copies."""
        copies = (copy for name in names for copy in self.weights.get(name, (name,)))
        return tuple(dict.fromkeys(copies))


def _are_neighbours(lower: Node | None, upper: Node | None) -> bool:
    """Return whether two operators are in consecutive layers."""
    if lower is None or upper is None or lower.layer_index is None or upper.layer_index is None:
        return False
    return lower.layer_index + 1 == upper.layer_index


def _match(name: str, values: Sequence[str], candidates: Sequence[str]) -> str:
    """Return the candidate at the place that a value has among equally many values.

    Raises:
        SimulationError: if the numbers differ: the layers do not fit together.
    """
    if values is candidates or name in candidates:
        return name
    if len(values) != len(candidates):
        raise SimulationError(
            "layers of different structure exchange different tensors, so they cannot be recomputed together"
        )
    return candidates[values.index(name)]
