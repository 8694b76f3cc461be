"""Fusion of element-wise operators by jit_level O1, and merging of equal operators.

MindSpore's graph kernel fusion (backend/common/graph_kernel, `dvm` on Ascend) clusters consecutive arithmetic
operators. A value that only the next operator of the cluster reads is never written to memory; a value with further
readers is written, and not read back by the cluster. Clusters across matrix products, norms, transposes and slices are
not modelled. The positions of operators do not change.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mindswap.graph.analysis.work import Work
from mindswap.graph.model import Graph, Node, Saved
from mindswap.graph.ops import FUSED_OPS, FUSED_READERS, RANDOM_OPS, VALUE_PASSING_OPS
from mindswap.graph.storage import resolve_storage

# (operator, next operator in the same kernel, whether the value between them is still written to memory)
_FusedPair = tuple[Node, Node, bool]


def fuse_work(graph: Graph, works: tuple[Sequence[Work], Sequence[Work]]) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """Return the work of forward and backward with fused element-wise operators.

    Args:
        graph: the step.
        works: from `measure_work` for this graph.
    """
    forward, backward = map(Fusion, _pairs_of(graph))
    return tuple(map(forward.fuse, graph.forward, works[0])), tuple(map(backward.fuse, graph.backward, works[1]))


def fuse_forward(graph: Graph, works: Sequence[Work], is_saved: bool = True) -> tuple[Work, ...]:
    """Return the work of forward with fused element-wise operators.

    Args:
        graph: the step.
        works: of forward, from `measure_work`.
        is_saved: backward reads the saved values; if False nothing is saved, so that less is written.
    """
    fusion = Fusion(_pairs_of(graph)[0] if is_saved else _fused_pairs(graph.forward, set()))
    return tuple(map(fusion.fuse, graph.forward, works))


def find_fusions(graph: Graph) -> tuple["Fusion", "Fusion"]:
    """Return the fusions of forward and of backward."""
    forward, backward = _pairs_of(graph)
    return Fusion(forward), Fusion(backward)


class Fusion:
    """Memory traffic that fused operators of one pass avoid."""

    def __init__(self, pairs: Iterable[_FusedPair]):
        # bytes that an operator receives from others in its kernel, by its name
        self._register_bytes: dict[str, int] = {}
        self._unwritten: set[str] = set()  # operators whose output is never written to memory
        for node, reader, is_written in pairs:
            self._register_bytes[reader.name] = self._register_bytes.get(reader.name, 0) + node.size_bytes
            if not is_written:
                self._unwritten.add(node.name)

    def fuse(self, node: Node, work: Work) -> Work:
        """Return the work of an operator with fusion.

        Args:
            node: the operator.
            work: its work without fusion.
        """
        if node.name in self._register_bytes:
            left_bytes = max(work.read_bytes - self._register_bytes[node.name], 0)
            work = replace(work, read_bytes=left_bytes, is_fused=True)
        return replace(work, written_bytes=0) if node.name in self._unwritten else work


def find_unwritten(graph: Graph) -> dict[str, str]:
    """Return the values that are never written to memory, each with the operator that consumes it.

    Only direct readers count: a Reshape in between separates the kernels (a dry run of MindSpore 2.9.0 has
    GraphKernel_Mul, Reshape, GraphKernel_SiLUGrad).
    """
    readers_by_value = {}
    for node, reader, is_written in itertools.chain(*_pairs_of(graph)):
        if not is_written and node.name in reader.inputs:
            readers_by_value[node.name] = reader.name
    return readers_by_value


def adds_zero(node: Node) -> bool:
    """Return whether an operator adds zero, as the loss of legacy models does to logits and labels.

    MindFormers marks it, so that the frontend keeps it. Where the backend fuses kernels it removes it, and its readers
    read its first input: dry runs have no such kernel at `jit_level: O1`, and have it at O0.
    """
    return node.op == "Add" and node.attributes.get("keep_alive") is True


@functools.lru_cache(maxsize=2)  # a planner needs first the work, then the unwritten values
def _pairs_of(graph: Graph) -> tuple[Sequence[_FusedPair], Sequence[_FusedPair]]:
    """Return the fused pairs of forward and of backward."""
    saved_names = {saved.forward_name for saved in graph.saved}
    return tuple(_fused_pairs(graph.forward, saved_names)), tuple(_fused_pairs(graph.backward, set()))


def _fused_pairs(nodes: Sequence[Node], saved_names: set[str]) -> Iterator[_FusedPair]:
    """Yield the fused pairs of one pass; `saved_names` are the values that backward reads."""
    readers, is_saved_name = _readers(nodes, saved_names, 2)
    for node in nodes:
        users = readers.get(node.name, [])
        if adds_zero(node):
            continue
        if node.op in FUSED_OPS and len(users) == 1 and users[0].op in FUSED_READERS and not is_moved(node, users[0]):
            yield node, users[0], node.name in is_saved_name


def is_moved(node: Node, reader: Node) -> bool:
    """Return whether communication or a slice is between two element-wise operators: one rank reads another shape.

    An operand is as large as the output of an element-wise operator, or has size 1 where it is broadcast.
    """
    if reader.op not in FUSED_OPS or node.name not in reader.inputs or not reader.outputs:
        return False
    sizes = zip(reversed(node.outputs[0].shape), reversed(reader.outputs[0].shape), strict=False)
    return any(size not in (1, read_size) for size, read_size in sizes)


def min_recompute_work(
    graph: Graph, works: Sequence[Work], users: Mapping[str, Sequence[Node]], has_second_reader: bool = False
) -> tuple[Work, ...]:
    """Return a lower limit for the work of each forward operator when it is recomputed in backward.

    A recomputed operator that is fused with its only reader writes nothing, and one fused with its recomputed producer
    does not read that input. Both are assumed wherever they are possible.

    Args:
        graph: the step without recompute.
        works: work of forward without fusion.
        users: from `readers_of_saved`.
        has_second_reader: each recomputed operator has a second, recomputed reader, so its output is always written.
    """

    def fused_input_bytes(name: str) -> int:
        """Return the bytes that the recomputed producer of a value passes on without writing them to memory."""
        producer = resolve_storage(graph, name).producer
        if producer is None or producer.op not in FUSED_OPS or producer.name in users:
            return 0
        return producer.size_bytes

    min_works = []
    for node, work in zip(graph.forward, works, strict=True):
        if node.op in FUSED_READERS:
            readers_of_copy = users.get(node.name, ())
            is_fused = len(readers_of_copy) + has_second_reader < 2 and all(
                user.op in FUSED_READERS for user in readers_of_copy
            )
            is_fused &= node.op in FUSED_OPS
            fed_bytes = sum(map(fused_input_bytes, node.inputs))
            work = replace(
                work,
                read_bytes=max(work.read_bytes - fed_bytes, 0),
                written_bytes=0 if is_fused else work.written_bytes,
                is_fused=fed_bytes > 0,
            )
        min_works.append(work)
    return tuple(min_works)


def readers_of_saved(graph: Graph) -> Mapping[str, Sequence[Node]]:
    """Return the operators of backward that compute with the output of each forward operator."""
    readers, _ = _readers(graph.backward, set())
    readers_by_producer: dict[str, list[Node]] = {}
    for saved in graph.saved:
        producer = resolve_storage(graph, saved.forward_name).producer
        if producer is not None and readers.get(saved.backward_name):
            readers_by_producer.setdefault(producer.name, []).extend(readers[saved.backward_name])
    return readers_by_producer


def _readers(
    nodes: Sequence[Node], saved_names: set[str], max_readers: int | None = None
) -> tuple[Mapping[str, list[Node]], set[str]]:
    """Return the operators that compute with each value, looking through views and tuples, and all saved names.

    Args:
        nodes: operators in execution order.
        saved_names: values that the next pass reads.
        max_readers: number of readers after which a value's list is not extended; None for no limit.

    Returns:
        Readers of each value; `saved_names` extended by the values of which they are views.
    """
    readers: dict[str, list[Node]] = {}
    is_saved_name = set(saved_names)
    for node in reversed(nodes):
        is_passed = node.op in VALUE_PASSING_OPS or adds_zero(node)
        new_readers = readers.get(node.name, ()) if is_passed else (node,)
        for name in node.inputs:
            value_readers = readers.setdefault(name, [])
            if max_readers is None or len(value_readers) < max_readers:
                value_readers.extend(new_readers)
            if node.op == "MoveTo" or (is_passed and node.name in is_saved_name):
                is_saved_name.add(name)
    return readers, is_saved_name


# Merging of equal operators, as done by the compiler's common subexpression elimination.
#
# In a graph in which every primitive carries its path, repeated computations of the model are visible: wq, wk and wv
# each reshape and cast their common input. Without these tags the compiler merges such operators if their settings are
# equal.


def merge_equal(graph: Graph, settings_of: Callable[[Node], Hashable] = lambda node: None) -> Graph:
    """Merge forward operators that differ only in their path.

    The first of equal operators is kept, with the paths of all of them.

    Args:
        graph: a graph in which primitives carry their path.
        settings_of: settings of an operator; operators with different settings are not merged.
    """
    return _merged(graph, *_merge_forward(graph, settings_of))


def merge_gathers(graph: Graph) -> Graph:
    """Merge the AllGathers of each tensor into the first, which gets the cell and the settings of the last.

    MindSpore merges them before it recomputes or offloads anything (merge_comm.cc), so one of the Reshapes that they
    replace determines the settings. It is the last one (docs/internals/notes.md#merged-gathers). If a tensor is not
    gathered along its first dimension, MindSpore adds a Split and a Concat, and the output of each Reshape is memory of
    its own.
    """
    groups = parallel_gathers(graph, "AllGather")
    survivor_of = {group[0].name: replace(group[-1], name=group[0].name) for group in groups}
    name_of = {node.name: group[0].name for group in groups for node in group[1:]}
    forward = (survivor_of.get(node.name, node) for node in graph.forward if node.name not in name_of)
    return _merged(graph, tuple(node.with_renamed_inputs(name_of) for node in forward), name_of)


def parallel_gathers(graph: Graph, op: str) -> list[list[Node]]:
    """Return the operators of a type that gather the same tensor along its first dimension, in groups, in order.

    Args:
        graph: the step.
        op: `AllGather`, or `Reshape` for the operators that AllGathers replace.
    """
    groups: dict[Hashable, list[Node]] = {}
    for node in graph.forward:
        if node.op == op and is_along_first(graph, node):
            groups.setdefault((node.layer_index, node.inputs, node.outputs), []).append(node)
    return list(groups.values())


def is_along_first(graph: Graph, gather: Node) -> bool:
    """Return whether the operator changes only the first dimension that is not 1."""
    operand = graph.index.nodes.get(gather.inputs[0])
    if operand is None or len(operand.outputs) != 1:
        return False
    shard, full = (
        tuple(itertools.dropwhile(lambda size: size == 1, tensor_type.shape))
        for tensor_type in (operand.outputs[0], gather.outputs[0])
    )
    return shard[1:] == full[1:]


def _merged(graph: Graph, forward: tuple[Node, ...], name_of: dict[str, str]) -> Graph:
    """Return the graph with merged operators; `name_of` maps each removed name to the remaining one."""
    if not name_of:
        return graph
    parameter_of: dict[str, str] = {}  # name in forward of a saved value -> its name in backward
    for saved in graph.saved:
        parameter_of.setdefault(name_of.get(saved.forward_name, saved.forward_name), saved.backward_name)
    for saved in graph.saved:
        name_of[saved.backward_name] = parameter_of[name_of.get(saved.forward_name, saved.forward_name)]
    backward = (node.with_renamed_inputs(name_of) for node in graph.backward)
    return replace(
        graph,
        forward=forward,
        backward=tuple(
            replace(node, origin=name_of[node.origin]) if node.origin in name_of else node for node in backward
        ),
        saved=tuple(map(Saved, parameter_of.keys(), parameter_of.values())),
    )


def _merge_forward(graph: Graph, settings_of: Callable[[Node], Hashable]) -> tuple[tuple[Node, ...], dict[str, str]]:
    """Return the remaining operators, and the remaining name for each removed one.

    The compiler has already merged operators without a path, except for members of tuples that are merged here.
    """
    survivors: dict[Hashable, Node] = {}
    name_of: dict[str, str] = {}
    attributes = _attributes(graph)
    paths: dict[str, dict[str, None]] = {}  # of each remaining operator, in order
    for node in graph.forward:
        merged_node = node.with_renamed_inputs(name_of)
        key: Hashable = node.name
        if node.op == "TupleGetItem" or (node.paths and node.op not in RANDOM_OPS):
            key = (
                node.layer_index,
                node.op,
                merged_node.inputs,
                node.outputs,
                attributes[node.name],
                settings_of(node),
            )
        survivor = survivors.setdefault(key, merged_node)
        if survivor is not merged_node:
            name_of[node.name] = survivor.name
        if node.paths:
            paths.setdefault(survivor.name, {}).update(dict.fromkeys(node.paths))
    forward = tuple(
        replace(node, paths=tuple(paths[node.name])) if len(paths.get(node.name, ())) > 1 else node
        for node in survivors.values()
    )
    return forward, name_of


@functools.lru_cache(maxsize=4)  # the same step is merged under thousands of policies
def _attributes(graph: Graph) -> Mapping[str, Hashable]:
    """Return the attributes of each forward operator in a comparable form."""
    return {
        node.name: tuple(sorted((name, repr(value)) for name, value in node.attributes.items()))
        for node in graph.forward
    }
