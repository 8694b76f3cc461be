"""Data model of a compiled training step: operators of forward and backward, and the values saved between them.

`graph.load` creates it from the output of the compiler; nothing is computed from formulas.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

# Copy of a few numbers to the host that the model itself contains; it does not free an activation.
HOST_COPY = "CopyToHost"
# The number of a layer in a scope, in a cell list or in the name of a weight (`gather_weights`); and the compiler's
# counter of operators of one type at the end of a scope.
LAYER_NUMBER = re.compile(r"(?:(?<=-CellList/)|(?<=-SequentialCell/))\d+(?=-)|(?<=\.)\d+(?=\.)")
OP_NUMBER = re.compile(r"-op\d+$")


class Identity(NamedTuple):
    """Identity of a forward operator across graphs of the same network."""

    layer_index: int | None
    scope: str  # without the number of the layer
    number: int  # position among the operators with the same layer and scope


# Layer mapping between two graphs that have the same layers under the same numbers.
SAME_LAYERS: Mapping[int, int] = MappingProxyType({})

BYTES_PER_ELEMENT = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


# Prefix of the scope of recomputed operators, in forward as well as in backward.
RECOMPUTE_SCOPE = "recompute_"


@dataclass(frozen=True)
class TensorType:
    """Type of one tensor: shape as compiled (per rank where the compiler sharded it), dtype in lower case."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: str) -> "TensorType":
        """Return the type with its size; 0 bytes if a dimension or the dtype is unknown."""
        return cls(shape, dtype, BYTES_PER_ELEMENT.get(dtype, 0) * math.prod(max(dim, 0) for dim in shape))


@dataclass(frozen=True)
class Node:
    """One operator of forward or backward."""

    name: str  # unique in its function; the inputs of other nodes refer to it
    op: str  # primitive name, e.g. `MatMul`
    layer_index: int | None  # index of the transformer layer; None outside the layers
    # path of the calling cell: relative to the layer (`attention.wq`), from the root outside the layers; "" for the
    # layer itself
    cell_path: str
    scope: str  # scope as the compiler writes it, unique in its function
    inputs: tuple[str, ...]  # names of nodes or function parameters
    outputs: tuple[TensorType, ...]  # types of all outputs; empty where the compiler states none
    attributes: Mapping[str, object]
    is_recomputed: bool = False  # forward: in a recomputed scope; backward: same as `is_duplicate`
    is_duplicate: bool = False  # backward only: a recomputed copy of a forward operator
    # backward only: name of the forward operator whose gradient or copy it is; "" if the compiler does not tell, or
    # merged that operator into another
    origin: str = ""
    # paths below the layer, if the capture wrote them on primitives (`graph.load.PATH_TAG`); several if equal operators
    # were merged
    paths: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Total size of all outputs."""
        return sum(output.size_bytes for output in self.outputs)

    @property
    def has_tensor_output(self) -> bool:
        """Return whether an output has more than one element."""
        return any(math.prod(output.shape) > 1 for output in self.outputs)

    @property
    def operator_key(self) -> tuple[str, str]:
        """Cell path and type: all that a compiled graph contains about most operators of a layer."""
        return self.cell_path, self.op

    @property
    def num_prefetch_ops(self) -> int:
        """`backward_prefetch` of a `MoveTo`, or of an operator that is to be offloaded."""
        return int(str(self.attributes["backward_prefetch"]))

    def with_renamed_inputs(self, names: Mapping[str, str]) -> "Node":
        """Return the operator with inputs renamed; the same object if it reads none of these names."""
        if names.keys().isdisjoint(self.inputs):
            return self
        inputs = tuple([names.get(name, name) for name in self.inputs])
        return self if inputs == self.inputs else replace(self, inputs=inputs)


@dataclass(frozen=True)
class Saved:
    """One value that forward saves for backward."""

    forward_name: str  # node or parameter of forward
    backward_name: str  # parameter of backward


@dataclass(frozen=True)
class SwapPair:
    """A copy to the host in forward and the copies back in backward."""

    producer: Node  # operator whose output is offloaded
    copy_out: Node  # `MoveTo` in forward
    # `MoveTo` nodes in backward; several if the compiler created more than one
    copies_in: tuple[Node, ...]
    num_prefetch_ops: int  # `backward_prefetch` of the copy in
    size_bytes: int


class GraphIndex:
    """Producers and readers of each value of a graph, computed on first access.

    The index is derived from the operators, so it is neither serialized nor compared.
    """

    def __init__(self, forward: Sequence[Node], backward: Sequence[Node], saved: Sequence[Saved]):
        self._forward, self._backward, self._saved = forward, backward, saved

    @functools.cached_property
    def forward_nodes(self) -> Mapping[str, Node]:
        """Forward operators by name."""
        return {node.name: node for node in self._forward}

    @functools.cached_property
    def nodes(self) -> Mapping[str, Node]:
        """Forward and backward operators by name."""
        return {node.name: node for node in (*self._forward, *self._backward)}

    @functools.cached_property
    def forward_readers(self) -> Mapping[str, Sequence[Node]]:
        """Forward operators that read each value, in order; twice if a value is two inputs of one operator."""
        return _readers(self._forward)

    @functools.cached_property
    def readers(self) -> Mapping[str, Sequence[Node]]:
        """Readers in forward and backward; backward reads a forward value under a name of its own (see `Saved`)."""
        return _readers((*self._forward, *self._backward))

    @functools.cached_property
    def duplicates(self) -> Mapping[str, Node]:
        """Recomputed copies in backward, by the name of their forward operator."""
        return {node.origin: node for node in self._backward if node.is_duplicate and node.origin}

    @functools.cached_property
    def forward_names(self) -> Mapping[str, str]:
        """Name in forward of each saved value, by its name in backward."""
        return {saved.backward_name: saved.forward_name for saved in self._saved}

    @functools.cached_property
    def identities(self) -> Mapping[str, Identity]:
        """Identity of each forward operator, equal for the same operator of equal layers in any graph of the network.

        Recompute adds a prefix to the scope, and its copies use numbers of the compiler's counter; only the order among
        operators of one cell and type is stable.
        """
        counts: Counter[tuple[int | None, str]] = Counter()
        identities_by_name = {}
        for node in self._forward:
            scope_key = node.layer_index, _scope_in_layer(node.scope)
            identities_by_name[node.name] = Identity(*scope_key, counts[scope_key])
            counts[scope_key] += 1
        return identities_by_name

    @functools.cached_property
    def swap_pairs(self) -> tuple[SwapPair, ...]:
        """Every `MoveTo` of forward that backward reads, with its copies back."""
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
        """Every `MoveTo` of swap in forward that no operator of backward reads."""
        paired = {pair.copy_out.name for pair in self.swap_pairs}
        copies = (node for node in self._forward if node.op == "MoveTo" and "backward_prefetch" in node.attributes)
        return tuple(copy for copy in copies if copy.name not in paired)

    @functools.cached_property
    def kept_nodes(self) -> tuple[Node, ...]:
        """Forward operators whose output stays on the device until backward, in execution order.

        Copies to the host are excluded, and so are saved values that backward never reads (the float32 output of
        RmsNorm): once the two functions are inlined, nothing holds them.
        """
        read = {name for node in self._backward for name in node.inputs}
        names = {saved.forward_name for saved in self._saved if saved.backward_name in read}
        held = (node for node in self._forward if node.name in names and node.op not in ("MoveTo", HOST_COPY))
        return tuple(node for node in held if node.size_bytes)


@functools.lru_cache(maxsize=65536)  # the graphs of a step share their scopes
def _scope_in_layer(scope: str) -> str:
    return LAYER_NUMBER.sub("", OP_NUMBER.sub("", scope.removeprefix(RECOMPUTE_SCOPE)), count=1)


def first_source(name: str, ops: Set[str], nodes: Mapping[str, Node]) -> str:
    """Follow the first inputs of operators of these types, and return the first value from another operator."""
    while name in nodes and nodes[name].op in ops:
        name = nodes[name].inputs[0]
    return name


def find_dependents(nodes: Iterable[Node], roots: Iterable[str]) -> set[str]:
    """Return the given values and the names of all operators that depend on one of them.

    Args:
        nodes: operators in execution order.
        roots: names of values.
    """
    dependents = set(roots)
    for node in nodes:
        if not dependents.isdisjoint(node.inputs):
            dependents.add(node.name)
    return dependents


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
    # values saved for backward; empty without lazy_inline, in which case nothing can be swapped
    saved: tuple[Saved, ...]
    has_lazy_inline: bool  # forward and backward are separate functions
    constants: Mapping[str, int] = field(default_factory=dict)  # integer constants by name
    # constant tuples of integers by name
    tuples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # types of the tensors that no node makes (constants, parameters of forward), by name
    types: Mapping[str, TensorType] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()  # parameters of forward (inputs of the step, weights), a subset of `types`
    frozen: tuple[str, ...] = ()  # names of the weights that are not trained (`requires_grad` is False)
    # names of the weights that the network keeps unsharded (`parallel_optimizer` is False)
    unsharded: tuple[str, ...] = ()
    index: GraphIndex = field(init=False, repr=False)  # producers and readers of each value

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", GraphIndex(self.forward, self.backward, self.saved))

    @property
    def swap_pairs(self) -> tuple[SwapPair, ...]:
        """Every `MoveTo` of forward that backward reads, with its copies back."""
        return self.index.swap_pairs

    def owner(self, node: Node) -> Node:
        """Return the operator of the model whose output the inserted `TupleGetItem` nodes select."""
        nodes = self.index.forward_nodes
        while node.op == "TupleGetItem" and node.inputs[0] in nodes:
            node = nodes[node.inputs[0]]
        return node
