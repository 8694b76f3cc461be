"""Element-wise operators that jit_level O1 runs as one kernel: what they do not read and write.

MindSpore's graph kernel fusion (backend/common/graph_kernel, `dvm` on Ascend) clusters arithmetic that follows
arithmetic. A value that only the next operator of the cluster reads never gets to memory; one that others need
too is written, and not read again. Clusters across matrix products, norms, transposes and slices are not formed
here. Positions of operators stay those of the single operators.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mindswap.graph.analysis.work import Work
from mindswap.graph.model import Graph, Node, Saved
from mindswap.graph.ops import FUSED_OPS, FUSED_READERS, RANDOM_OPS, VALUE_PASSING_OPS
from mindswap.graph.storage import resolve_storage

# An operator, the one that goes on in the same kernel, and whether what is between them is written all the same.
_Pair = tuple[Node, Node, bool]


def fuse_work(graph: Graph, works: tuple[Sequence[Work], Sequence[Work]]) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """`works`, of `measure_work` on the graph, when element-wise operators are fused."""
    forward, backward = map(Fusion, _pairs_of(graph))
    return tuple(map(forward.fuse, graph.forward, works[0])), tuple(map(backward.fuse, graph.backward, works[1]))


def fuse_forward(graph: Graph, works: Sequence[Work], is_saved: bool = True) -> tuple[Work, ...]:
    """The same of forward alone; without `is_saved` as if backward held nothing of it, so that less is written."""
    fusion = Fusion(_pairs_of(graph)[0] if is_saved else _fused_pairs(graph.forward, set()))
    return tuple(map(fusion.fuse, graph.forward, works))


def find_fusions(graph: Graph) -> tuple["Fusion", "Fusion"]:
    """What is fused in forward, and in backward."""
    forward, backward = _pairs_of(graph)
    return Fusion(forward), Fusion(backward)


class Fusion:
    """What fused operators of forward, or of backward, do not read and write."""

    def __init__(self, pairs: Iterable[_Pair]):
        self._register_bytes: dict[str, int] = {}  # what an operator gets of others in its kernel, by its name
        self._unwritten: set[str] = set()  # operators whose output never gets to memory
        for node, reader, is_written in pairs:
            self._register_bytes[reader.name] = self._register_bytes.get(reader.name, 0) + node.size_bytes
            if not is_written:
                self._unwritten.add(node.name)

    def fuse(self, node: Node, work: Work) -> Work:
        """The work of an operator, of which `work` is that without fusion."""
        if node.name in self._register_bytes:
            left_bytes = max(work.read_bytes - self._register_bytes[node.name], 0)
            work = replace(work, read_bytes=left_bytes, is_fused=True)
        return replace(work, written_bytes=0) if node.name in self._unwritten else work


def find_unwritten(graph: Graph) -> dict[str, str]:
    """Values that are never in memory, with the operators that take them over.

    Only where one operator reads the other at once: a Reshape between them keeps their kernels apart (a dry run of
    2.9.0 has GraphKernel_Mul, Reshape, GraphKernel_SiLUGrad).
    """
    fused_readers = {}
    for node, reader, is_written in itertools.chain(*_pairs_of(graph)):
        if not is_written and node.name in reader.inputs:
            fused_readers[node.name] = reader.name
    return fused_readers


@functools.lru_cache(maxsize=2)  # a planner asks for the work, and then for what is not written
def _pairs_of(graph: Graph) -> tuple[Sequence[_Pair], Sequence[_Pair]]:
    """`_fused_pairs` of forward and of backward."""
    saved_names = {saved.forward_name for saved in graph.saved}
    return tuple(_fused_pairs(graph.forward, saved_names)), tuple(_fused_pairs(graph.backward, set()))


def _fused_pairs(nodes: Sequence[Node], saved_names: set[str]) -> Iterator[_Pair]:
    """Operators with the one that goes on in the same kernel; whether what is between them is written all the same."""
    readers, is_saved_name = _readers(nodes, saved_names, 2)
    for node in nodes:
        users = readers.get(node.name, [])
        if node.op in FUSED_OPS and len(users) == 1 and users[0].op in FUSED_READERS:
            yield node, users[0], node.name in is_saved_name


def min_recompute_work(
    graph: Graph, works: Sequence[Work], users: Mapping[str, Sequence[Node]], has_second_reader: bool = False
) -> tuple[Work, ...]:
    """Work of each operator of forward, at least, if it runs again in backward.

    A copy that is fused with its only reader writes nothing, and one that is fused with the copy that feeds it does
    not read. Here all of this is granted wherever it could be.

    Args:
        graph: the step without recompute.
        works: of forward, not fused.
        users: from `readers_of_saved`.
        is_read_twice: another copy reads each copy, too, so none is handed on in registers.
    """

    def fused_input_bytes(name: str) -> int:
        """Bytes that a copy of the operator that makes a value hands on in registers."""
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
    """Operators of backward that compute with what an operator of forward made, by its name."""
    readers, _ = _readers(graph.backward, set())
    fused_readers: dict[str, list[Node]] = {}
    for saved in graph.saved:
        producer = resolve_storage(graph, saved.forward_name).producer
        if producer is not None and readers.get(saved.backward_name):
            fused_readers.setdefault(producer.name, []).extend(readers[saved.backward_name])
    return fused_readers


def _readers(
    nodes: Sequence[Node], saved_names: set[str], max_readers: int | None = None
) -> tuple[Mapping[str, list[Node]], set[str]]:
    """Operators that compute with each value, behind views and tuples; values that are handed on under any name.

    Args:
        nodes: in order.
        handed: values that are handed on.
        most: no more readers of a value are wanted.
    """
    readers: dict[str, list[Node]] = {}
    is_saved_name = set(saved_names)
    for node in reversed(nodes):
        is_passed = node.op in VALUE_PASSING_OPS
        readers_of_copy = readers.get(node.name, ()) if is_passed else (node,)
        for name in node.inputs:
            value_readers = readers.setdefault(name, [])
            if max_readers is None or len(value_readers) < max_readers:
                value_readers.extend(readers_of_copy)
            if node.op == "MoveTo" or (is_passed and node.name in is_saved_name):
                is_saved_name.add(name)
    return readers, is_saved_name


# Equal operators become one, as the compiler's common subexpression elimination makes them.
#
# A graph in which every primitive carries its path shows what the model computes twice (the inputs of wq, wk and wv
# are reshaped and cast by each of them). Without these tags the compiler computes it once, if the same is set on all
# of them.


def merge_equal(graph: Graph, settings_of: Callable[[Node], Hashable] = lambda node: None) -> Graph:
    """Merge the operators of forward that differ in their path only.

    Of equal ones the first is left, with the paths of all of them. Those of which `settings_of` says something else
    stay apart.
    """
    return _merged(graph, *_merge_forward(graph, settings_of))


def merge_gathers(graph: Graph) -> Graph:
    """One AllGather of each tensor, where the first of them is, with the place and the settings of the last.

    MindSpore makes them one before it recomputes or offloads anything (merge_comm.cc), so of the Reshapes that stand
    for them one decides. That it is the last dry runs of 2.9.0 say (28 November 2026): naming `wv.reshape` of a Llama
    has the AllGather before wq, wk and wv run again, or copied; naming the two others does nothing. Where a tensor is
    not gathered along its first dimension, MindSpore takes apart and joins what arrived, and each Reshape is memory of
    its own behind that.
    """
    groups = parallel_gathers(graph, "AllGather")
    survivor = {group[0].name: replace(group[-1], name=group[0].name) for group in groups}
    name_of = {node.name: group[0].name for group in groups for node in group[1:]}
    forward = (survivor.get(node.name, node) for node in graph.forward if node.name not in name_of)
    return _merged(graph, tuple(node.renamed(name_of) for node in forward), name_of)


def parallel_gathers(graph: Graph, op: str) -> list[list[Node]]:
    """Operators of a type that are, or stand for, AllGathers of one tensor along its first dimension, in order."""
    groups: dict[Hashable, list[Node]] = {}
    for node in graph.forward:
        if node.op == op and _is_along_first(graph, node):
            groups.setdefault((node.layer_index, node.inputs, node.outputs), []).append(node)
    return list(groups.values())


def _is_along_first(graph: Graph, gather: Node) -> bool:
    """An operator changes its operand along the first dimension that is not 1, if any."""
    operand = graph.index.nodes.get(gather.inputs[0])
    if operand is None or len(operand.outputs) != 1:
        return False
    part, whole = (
        tuple(itertools.dropwhile(lambda size: size == 1, value_readers.shape))
        for value_readers in (operand.outputs[0], gather.outputs[0])
    )
    return part[1:] == whole[1:]


def _merged(graph: Graph, forward: tuple[Node, ...], name_of: dict[str, str]) -> Graph:
    """The step with the operators of forward that are left, and the name of what is gone -> that of what is left."""
    if not name_of:
        return graph
    parameter_of: dict[str, str] = {}  # what forward hands over -> its name in backward
    for saved in graph.saved:
        parameter_of.setdefault(name_of.get(saved.forward_name, saved.forward_name), saved.backward_name)
    for saved in graph.saved:
        name_of[saved.backward_name] = parameter_of[name_of.get(saved.forward_name, saved.forward_name)]
    backward = (node.renamed(name_of) for node in graph.backward)
    return replace(
        graph,
        forward=forward,
        backward=tuple(
            replace(node, origin=name_of[node.origin]) if node.origin in name_of else node for node in backward
        ),
        saved=tuple(map(Saved, parameter_of.keys(), parameter_of.values())),
    )


def _merge_forward(graph: Graph, settings_of: Callable[[Node], Hashable]) -> tuple[tuple[Node, ...], dict[str, str]]:
    """Operators that are left, and the name of what is gone -> the name of what is left.

    What has no path the compiler has merged already, but for members of tuples that are merged here.
    """
    survivors: dict[Hashable, Node] = {}
    name_of: dict[str, str] = {}
    attributes = _attributes(graph)
    paths: dict[str, dict[str, None]] = {}  # of each that is left, in order
    for node in graph.forward:
        readers_of_copy = node.renamed(name_of)
        key: Hashable = node.name
        if node.op == "TupleGetItem" or (node.paths and node.op not in RANDOM_OPS):
            key = (
                node.layer_index,
                node.op,
                readers_of_copy.inputs,
                node.outputs,
                attributes[node.name],
                settings_of(node),
            )
        survivor = survivors.setdefault(key, readers_of_copy)
        if survivor is not readers_of_copy:
            name_of[node.name] = survivor.name
        if node.paths:
            paths.setdefault(survivor.name, {}).update(dict.fromkeys(node.paths))
    forward = tuple(
        replace(node, paths=tuple(paths[node.name])) if len(paths.get(node.name, ())) > 1 else node
        for node in survivors.values()
    )
    return forward, name_of


@functools.lru_cache(maxsize=4)  # a step is merged under thousands of policies
def _attributes(graph: Graph) -> Mapping[str, Hashable]:
    """Settings of each operator of forward, as something to compare."""
    return {
        node.name: tuple(sorted((name, repr(value)) for name, value in node.attributes.items()))
        for node in graph.forward
    }
