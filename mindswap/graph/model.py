"""A training step as the compiler left it: what forward does, what it keeps, what backward does.

Made by `graph.load` from the compiler's own output. Nothing here is derived from a formula.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType

# A copy of a few numbers to the host that the model itself makes; no activation leaves the device with it.
HOST_COPY = "CopyToHost"
# In a scope: the number of a layer in its list, also where the scope is the name of a weight (`gather_weights`); and at
# the end the compiler's count of operators of one type.
LAYER_NUMBER = re.compile(r"(?:(?<=-CellList/)|(?<=-SequentialCell/))\d+(?=-)|(?<=\.)\d+(?=\.)")
OP_NUMBER = re.compile(r"-op\d+$")
# What tells an operator of forward apart in another graph of the same network: its layer, its scope in that layer, and
# its number among those there.
Identity = tuple[int | None, str, int]
# Two graphs that have the same layers under the same numbers: no layer of one is another one there.
SAME_LAYERS: Mapping[int, int] = MappingProxyType({})

BYTES_PER_ELEMENT = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


# Before the scope of what is computed again, in forward of what will be.
RECOMPUTE_SCOPE = "recompute_"


@dataclass(frozen=True)
class TensorType:
    """Type of one tensor: dims as compiled (per rank where the compiler sliced them), dtype in lower case."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: str) -> "TensorType":
        """With its bytes, none where a dim or the dtype is not known."""
        return cls(shape, dtype, BYTES_PER_ELEMENT.get(dtype, 0) * math.prod(max(dim, 0) for dim in shape))


@dataclass(frozen=True)
class Node:
    """One operator of forward or backward, in execution order."""

    name: str  # unique in its function; what `inputs` of other nodes refer to
    op: str  # primitive name, e.g. `MatMul`
    layer_index: int | None  # index of the transformer layer it belongs to; None outside the layers
    # path of the cell that calls it: below the layer inside one (`attention.wq`), from the root outside; "" for the
    # layer itself
    cell_path: str
    scope: str  # the compiler's own scope text, unique per operator of a function
    inputs: tuple[str, ...]  # names of nodes or function parameters
    outputs: tuple[TensorType, ...]  # types of the outputs, flat; empty where the compiler gives none
    attributes: Mapping[str, object]
    is_recomputed: bool = False  # in forward, the node belongs to a recomputed scope; in backward as `is_duplicate`
    is_duplicate: bool = False  # a copy of a forward operator that backward runs again
    # in backward, name of the forward operator that this is the gradient or the copy of; "" where the compiler does not
    # say, or where it merged that operator into another
    origin: str = ""
    # paths below its layer, where a capture wrote them on primitives (`graph.load.PATH_TAG`); several where equal
    # operators became one
    paths: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all outputs."""
        return sum(output.size_bytes for output in self.outputs)

    @property
    def has_tensor_output(self) -> bool:
        """It makes something that can be cut."""
        return any(math.prod(output.shape) > 1 for output in self.outputs)

    @property
    def operator_key(self) -> tuple[str, str]:
        """Its cell and its type: all that a compiled graph says of most operators of a layer."""
        return self.cell_path, self.op

    @property
    def num_prefetch_ops(self) -> int:
        """Of a `MoveTo`, or what is set on an operator that is to be offloaded: its `backward_prefetch`."""
        return int(str(self.attributes["backward_prefetch"]))

    def renamed(self, names: Mapping[str, str]) -> "Node":
        """The operator, reading values under their new names; itself where it reads none of them."""
        if names.keys().isdisjoint(self.inputs):
            return self
        inputs = tuple([names.get(name, name) for name in self.inputs])
        return self if inputs == self.inputs else replace(self, inputs=inputs)


@dataclass(frozen=True)
class Saved:
    """One value handed from forward to backward."""

    forward_name: str  # node or parameter of forward that gives it
    backward_name: str  # parameter of backward that takes it


@dataclass(frozen=True)
class SwapPair:
    """A copy to the host in forward and the copy back in backward."""

    producer: Node  # operator whose output leaves the device
    copy_out: Node  # `MoveTo` in forward
    # `MoveTo` nodes in backward that bring it back; more than one if the compiler made more
    copies_in: tuple[Node, ...]
    num_prefetch_ops: int  # `backward_prefetch` of the copy in
    size_bytes: int


class GraphIndex:
    """Producers and readers of each value of a graph; each map is made when it is first asked for.

    It is derived from the operators alone, and no part of what a graph is: it is neither written to files nor compared.
    """

    def __init__(self, forward: Sequence[Node], backward: Sequence[Node], saved: Sequence[Saved]):
        self._forward, self._backward, self._saved = forward, backward, saved

    @functools.cached_property
    def forward_nodes(self) -> Mapping[str, Node]:
        """Operators of forward by name."""
        return {node.name: node for node in self._forward}

    @functools.cached_property
    def nodes(self) -> Mapping[str, Node]:
        """Operators of forward and backward by name."""
        return {node.name: node for node in (*self._forward, *self._backward)}

    @functools.cached_property
    def forward_readers(self) -> Mapping[str, Sequence[Node]]:
        """For each value, the operators of forward that read it, in order; twice where it is two inputs of one."""
        return _readers(self._forward)

    @functools.cached_property
    def readers(self) -> Mapping[str, Sequence[Node]]:
        """The same for forward and backward, in which a value of forward has a name of its own (`Saved`)."""
        return _readers((*self._forward, *self._backward))

    @functools.cached_property
    def duplicates(self) -> Mapping[str, Node]:
        """Operators of forward, by name, of which backward has a copy that runs again, with that copy."""
        return {node.origin: node for node in self._backward if node.is_duplicate and node.origin}

    @functools.cached_property
    def forward_names(self) -> Mapping[str, str]:
        """Name of a value in backward -> its name in forward."""
        return {saved.backward_name: saved.forward_name for saved in self._saved}

    @functools.cached_property
    def identities(self) -> Mapping[str, Identity]:
        """For each operator of forward what it is in other graphs of the network, of layers alike under any number.

        Recompute puts a prefix before the scope, and its copies take numbers of the compiler's own count, so only
        the order among operators of one cell and type is the same.
        """
        counts: Counter[tuple[int | None, str]] = Counter()
        found = {}
        for node in self._forward:
            operator_key = node.layer_index, _scope_in_layer(node.scope)
            found[node.name] = (*operator_key, counts[operator_key])
            counts[operator_key] += 1
        return found

    @functools.cached_property
    def swap_pairs(self) -> tuple[SwapPair, ...]:
        """Every `MoveTo` of forward that backward takes, with its way back."""
        backward_names = {saved.forward_name: saved.backward_name for saved in self._saved}
        copies_in: dict[str, list[Node]] = {}
        for node in self._backward:
            if node.op == "MoveTo":
                copies_in.setdefault(node.inputs[0], []).append(node)
        pairs = []
        for node in self._forward:
            back = copies_in.get(backward_names.get(node.name, ""), ())
            if node.op == "MoveTo" and back:
                producer = self.forward_nodes[node.inputs[0]]
                pairs.append(SwapPair(producer, node, tuple(back), back[0].num_prefetch_ops, node.size_bytes))
        return tuple(pairs)

    @functools.cached_property
    def one_way_copies(self) -> tuple[Node, ...]:
        """Every `MoveTo` of swap in forward whose value no operator of backward takes: copied out for nothing."""
        paired = {pair.copy_out.name for pair in self.swap_pairs}
        copies = (node for node in self._forward if node.op == "MoveTo" and "backward_prefetch" in node.attributes)
        return tuple(copy for copy in copies if copy.name not in paired)

    @functools.cached_property
    def kept_nodes(self) -> tuple[Node, ...]:
        """Forward operators whose output stays on the device until backward, in execution order.

        Copies to the host do not stay. Nor does what is handed over and no operator of backward reads (the float32
        output of RmsNorm): once the two functions are inlined, nothing holds it.
        """
        read = {name for node in self._backward for name in node.inputs}
        names = {saved.forward_name for saved in self._saved if saved.backward_name in read}
        held = (node for node in self._forward if node.name in names and node.op not in ("MoveTo", HOST_COPY))
        return tuple(node for node in held if node.size_bytes)


@functools.lru_cache(maxsize=65536)  # each graph of a step has the same ones
def _scope_in_layer(scope: str) -> str:
    return LAYER_NUMBER.sub("", OP_NUMBER.sub("", scope.removeprefix(RECOMPUTE_SCOPE)), count=1)


def first_source(name: str, ops: Set[str], nodes: Mapping[str, Node]) -> str:
    """The value that operators of these types pass on as their first input."""
    while name in nodes and nodes[name].op in ops:
        name = nodes[name].inputs[0]
    return name


def find_dependents(nodes: Iterable[Node], roots: Iterable[str]) -> set[str]:
    """The names of some values, and of all operators (in order of execution) that depend on one of them."""
    found = set(roots)
    for node in nodes:
        if not found.isdisjoint(node.inputs):
            found.add(node.name)
    return found


def _readers(nodes: Iterable[Node]) -> Mapping[str, Sequence[Node]]:
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    return readers


@dataclass(frozen=True, eq=False)
class Graph:
    """One training step."""

    forward: tuple[Node, ...]  # in execution order
    backward: tuple[Node, ...]  # likewise
    # what forward hands to backward; empty without lazy_inline, and then nothing can be swapped
    saved: tuple[Saved, ...]
    has_lazy_inline: bool  # forward and backward are functions of their own
    constants: Mapping[str, int] = field(default_factory=dict)  # values of the integer constants, by name
    # values of the constants that are tuples of integers, by name
    tuples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # types of the tensors that no node makes (constants, parameters of forward), by name
    types: Mapping[str, TensorType] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()  # of these, the parameters of forward: what a step is fed, and weights
    index: GraphIndex = field(init=False, repr=False)  # who makes and who reads each value

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", GraphIndex(self.forward, self.backward, self.saved))

    @property
    def swap_pairs(self) -> tuple[SwapPair, ...]:
        """Every `MoveTo` of forward that backward takes, with its way back."""
        return self.index.swap_pairs

    def owner(self, node: Node) -> Node:
        """The operator of the model behind a forward node: the compiler itself adds `TupleGetItem`."""
        nodes = self.index.forward_nodes
        while node.op == "TupleGetItem" and node.inputs[0] in nodes:
            node = nodes[node.inputs[0]]
        return node
