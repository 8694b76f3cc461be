"""Parallel optimizer: sharded weights, and the AllGathers that restore the full weights.

With `enable_parallel_optimizer` each rank stores a shard of every weight that several ranks share. MindSpore inserts an
AllGather before the readers of the weight (frontend/parallel/step_parallel.cc: ApplyParallelOptOnParam,
InsertAllGatherOp). If a cast from float32 to half precision is the only reader, it is moved before the AllGather, which
then sends less (FindChildCastWithFP32ToFP16 in step_parallel_utils.cc, pass/optimize_parallel_allgather_comm.cc).

Backward reads the output of the AllGather. No policy changes that: the AllGather is marked as not recomputed
(ReplaceNode, `parallel_optimizer_allgather_not_recompute`), has no name for `op_swap`, and is shared by all readers and
all micro-batches (InsertParallelOpt). `parallel_optimizer_comm_recompute` has no effect in MindSpore 2.9 (nn/cell.py,
`recompute`: only a warning), and `select_comm_recompute` concerns tensor parallel communication. With optimizer_level
level3 (ZeRO-3) each micro-batch gathers the weight once in forward and once in backward (context.py,
`optimizer_level`).

Sharded weights are chosen in parallel_optimizer/opt_param_mgr.cc (SplitParam compares `parallel_optimizer_threshold`,
in KiB, with the stored size on one rank) and tensor_layout.cc (GenerateOptShardSliceShape: the first dimension must be
divisible).

tests/adapters/test_gathered_weights.py compares with graphs of MindSpore 2.9.0. With lazy_inline, which swap requires,
there are two differences. On one pipeline stage with one micro-batch (`WeightSharding.is_cast_after_gather`) the stored
weight is gathered before its first reader, and its cast is an ordinary operator of the function: swap of the cell
includes the cast, and recompute of the cell saves the gathered weight, twice as many bytes
(docs/internals/notes.md#gathered-weights). With level3 a layer that is not recomputed saves the full weight for
backward; this pass releases it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mindswap.config.weight_sharding import WeightSharding
from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.model import Graph, Node, Saved, TensorType
from mindswap.graph.ops import BOOKKEEPING_OPS, VIEW_OPS
from mindswap.graph.sequences import is_sequence_state
from mindswap.graph.sharding.splits import PARTS_MARK

# Prefix of the names of weights that a function of a lazy_inline cell reads from outside.
WEIGHT_MARK = "▸CR_"
# Attribute of the AllGather of a weight and of the cast before it: whether backward repeats them.
GATHER_MARK = "parallel_optimizer_allgather"
HALF_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True, eq=False)
class GatheredStep:
    """A step with the AllGathers of its weights."""

    graph: Graph
    # collectives of each AllGather, by name of its node
    collectives: Mapping[str, tuple[Collective, ...]] = field(default_factory=dict)
    # operators that run once in a step, whatever the number of micro-batches
    computed_once: frozenset[str] = frozenset()


def weight_name(node: Node) -> str:
    """Return the name of the weight that a `Load` reads; "" for other operators and untrained parameters."""
    _, mark, name = node.inputs[0].rpartition(WEIGHT_MARK) if node.op == "Load" and node.inputs else ("", "", "")
    return name if mark and not is_sequence_state(name) else ""


def tensor_parallel_parts(node: Node) -> int | None:
    """Return the number of tensor parallel shards of the weight that a `Load` reads; None if unknown."""
    parts = node.attributes.get(PARTS_MARK)
    return parts if isinstance(parts, int) else None


def is_gathering(node: Node) -> bool:
    """Return whether the operator gathers a weight or casts its shard for that; no policy affects it."""
    return GATHER_MARK in node.attributes


def is_narrowing(node: Node) -> bool:
    """Return whether the operator casts to half precision."""
    return node.op == "Cast" and bool(node.outputs) and node.outputs[0].dtype in HALF_DTYPES


def is_released(node: Node) -> bool:
    """Return whether the output is released after forward and gathered a second time in backward."""
    return node.attributes.get(GATHER_MARK) is True


def gather_weights(graph: Graph, sharding: WeightSharding) -> GatheredStep:
    """Shard the weights of a step as the parallel optimizer does.

    Args:
        graph: a step with full weights, under any policy.
        sharding: which weights are sharded over how many ranks.
    """
    sharding = sharding.of_network(graph.unsharded)
    weights = tuple(_find_weights(graph, sharding)) if sharding.num_ranks > 1 else ()
    if not weights:
        return GatheredStep(graph)
    recomputed_copies = (
        {weight.gather.name: weight.recomputed_copies() for weight in weights} if sharding.is_released else {}
    )
    backward, needed = _rewrite_backward(graph, weights, recomputed_copies)
    gathered = {name for weight in weights for name in weight.values}
    is_moved = {node.name for weight in weights for node in weight.chain}
    saved = [entry for entry in graph.saved if entry.forward_name not in gathered]
    if not recomputed_copies:
        saved += [Saved(w.gather.name, w.saved_name) for w in weights if w.gather.name in needed]
    forward = tuple(_rewrite_forward(graph, weights, gathered | is_moved, sharding.is_cast_after_gather))
    rewritten = replace(graph, forward=forward, backward=backward, saved=tuple(saved))
    collectives = {
        w.gather.name: (Collective(w.gather.op, w.gather.size_bytes, w.num_ranks, stride=w.stride),) for w in weights
    }
    computed_once = (
        () if recomputed_copies else (node.name for weight in weights for node in weight.chain if is_gathering(node))
    )
    return GatheredStep(rewritten, collectives, frozenset(computed_once))


@dataclass(frozen=True)
class _Weight:
    """A sharded weight."""

    chain: tuple[Node, ...]  # reads of the shard, its cast if there is one, and the AllGather
    # previous names of the full weight; their readers read the AllGather instead
    values: frozenset[str]
    num_ranks: int
    stride: int  # difference between consecutive ranks of the group

    @property
    def gather(self) -> Node:
        return self.chain[-1]

    @property
    def saved_name(self) -> str:
        return f"{self.gather.name}@saved"

    def recomputed_copies(self) -> tuple[Node, ...]:
        """Return the copies in backward; the shard itself is still available."""
        copies: list[Node] = []
        names: dict[str, str] = {}
        for node in self.chain:
            if is_gathering(node):
                name = f"{node.name}@again"
                copy = replace(node.with_renamed_inputs(names), name=name, origin=node.name)
                copies.append(replace(copy, is_recomputed=True, is_duplicate=True))
                names[node.name] = name
        return tuple(copies)


def _find_weights(graph: Graph, sharding: WeightSharding) -> Iterator[_Weight]:
    readers = graph.index.forward_readers
    backward_uses = _backward_uses(graph)
    loads: dict[str, list[Node]] = {}
    for node in graph.forward:
        name = weight_name(node)
        parts = tensor_parallel_parts(node)
        if (
            name
            and node.outputs
            and sharding.is_sharded(name, node.outputs[0].shape, node.outputs[0].size_bytes, parts)
        ):
            loads.setdefault(name, []).append(node)
    mark = {GATHER_MARK: sharding.is_released}
    for name, nodes in loads.items():
        parts = tensor_parallel_parts(nodes[0])
        num_ranks = sharding.num_ranks_of(name, parts)
        chain = [_part(nodes[0], num_ranks)]
        values = {node.name for node in nodes}
        users = [user for node in nodes for user in _users(node.name, readers)]
        if len(users) == 1 and users[0].op == "TensorMove":
            chain.append(_part(users[0], num_ranks))
            values = {users[0].name}
            users = list(_users(users[0].name, readers))
        source, full_type = chain[-1], nodes[0].outputs[0]
        is_cast = (
            not sharding.is_cast_after_gather
            and len(users) == 1
            and full_type.dtype == "float32"
            and is_narrowing(users[0])
        )
        # Backward may need the weight only to repeat the cast.
        if is_cast and not any(backward_uses.get(value, set()) - {users[0].name} for value in values):
            source, full_type = _part(users[0], num_ranks, **mark), users[0].outputs[0]
            chain.append(source)
            values = {source.name}
        # A copy of the weight to the host no longer has an effect of its own.
        values |= {user.name for name in values for user in readers.get(name, ()) if user.op == "MoveTo"}
        gather = replace(source, op="AllGather", inputs=(source.name,), outputs=(full_type,), attributes=mark, paths=())
        scope = f"parallel_optimizer/{name}"
        gather = replace(gather, name=f"{source.name}@gather", scope=scope, is_recomputed=False)
        stride = 1 if sharding.is_sharded_over_all(name, parts) else sharding.stride
        yield _Weight((*chain, gather), frozenset(values), num_ranks, stride)


def _backward_uses(graph: Graph) -> dict[str, set[str]]:
    """Return, for each saved value, the forward operators whose recomputed copies read it; "" for other readers."""
    readers: dict[str, set[str]] = {}
    for node in reversed(graph.backward):
        if node.op in VIEW_OPS:  # `Depend` delays a recomputed operator until it is needed
            readers.setdefault(node.inputs[0], set()).update(readers.get(node.name, ()))
            continue
        for name in node.inputs:
            readers.setdefault(name, set()).add(node.origin if node.is_duplicate else "")
    return {entry.forward_name: readers.get(entry.backward_name, set()) for entry in graph.saved}


def _users(name: str, readers: Mapping[str, Sequence[Node]]) -> Iterator[Node]:
    """Yield the operators that compute with a value, excluding those that only combine values."""
    for reader in readers.get(name, ()):
        is_tuple = reader.op == "MakeTuple" and any(_users(reader.name, readers))
        if is_tuple or reader.op not in (*BOOKKEEPING_OPS, "MoveTo"):
            yield reader


def _part(node: Node, num_ranks: int, **attributes: object) -> Node:
    """Return the operator on the shard of one rank."""
    full_type = node.outputs[0]
    shard_type = TensorType(
        (full_type.shape[0] // num_ranks, *full_type.shape[1:]), full_type.dtype, full_type.size_bytes // num_ranks
    )
    return replace(node, outputs=(shard_type,), attributes={**node.attributes, **attributes})


def _rewrite_forward(graph: Graph, weights: Iterable[_Weight], removed: set[str], is_late: bool) -> Iterator[Node]:
    """Yield forward with the AllGathers at the start of their layer, or before the first reader.

    Args:
        graph: the step with full weights.
        weights: the sharded weights.
        removed: names of nodes that the AllGathers replace.
        is_late: gather weights of layers before their first reader, as those outside the layers.
    """
    by_layer: dict[int, list[Node]] = {}
    by_node: dict[str, tuple[Node, ...]] = {}
    renamed: dict[str, str] = {}
    first = _first_readers(graph, {value for weight in weights for value in weight.values}) if is_late else {}
    for weight in weights:
        renamed |= dict.fromkeys(weight.values, weight.gather.name)
        readers = [first[value] for value in weight.values if value in first]
        if readers:
            name = min(readers)[1]
            by_node[name] = (*by_node.get(name, ()), *weight.chain)
        elif weight.gather.layer_index is None:
            by_node[weight.chain[0].name] = weight.chain
        else:
            by_layer.setdefault(weight.gather.layer_index, []).extend(weight.chain)
    for node in graph.forward:
        if node.layer_index is not None:
            yield from by_layer.pop(node.layer_index, ())
        yield from by_node.get(node.name, ())
        if node.name not in removed:
            yield node.with_renamed_inputs(renamed)


def _first_readers(graph: Graph, values: set[str]) -> dict[str, tuple[int, str]]:
    """Return position and name of the first forward operator that reads each value."""
    first: dict[str, tuple[int, str]] = {}
    for position, node in enumerate(graph.forward):
        if node.op not in BOOKKEEPING_OPS:
            for name in values.intersection(node.inputs):
                first.setdefault(name, (position, node.name))
    return first


def _rewrite_backward(
    graph: Graph, weights: Iterable[_Weight], recomputed_copies: Mapping[str, tuple[Node, ...]]
) -> tuple[tuple[Node, ...], set[str]]:
    """Return backward with gathered weights, and the names of the AllGathers whose outputs it reads."""
    target = {
        w.gather.name: recomputed_copies[w.gather.name][-1].name if recomputed_copies else w.saved_name for w in weights
    }
    target_of = {value: target[weight.gather.name] for weight in weights for value in weight.values}
    renamed = {e.backward_name: target_of[e.forward_name] for e in graph.saved if e.forward_name in target_of}
    backward: list[Node] = []
    for node in graph.backward:
        if node.is_duplicate and node.origin in target_of:  # a cast that was to be recomputed
            renamed[node.name] = target_of[node.origin]
        elif node.op == "MoveTo" and node.inputs[0] in renamed:
            renamed[node.name] = renamed[node.inputs[0]]
        else:
            backward.append(node.with_renamed_inputs(renamed))
    read = {name for node in backward for name in node.inputs}
    needed = {name for name, new_name in target.items() if new_name in read}
    if recomputed_copies:
        backward = list(
            _with_copies(backward, {name: copies for name, copies in recomputed_copies.items() if name in needed})
        )
    return tuple(backward), needed


def _with_copies(backward: list[Node], recomputed_copies: Mapping[str, tuple[Node, ...]]) -> Iterator[Node]:
    """Yield backward with the repeated AllGathers: at the start of their layer, or before their first reader."""
    by_reader = {copies[-1].name: copies for copies in recomputed_copies.values()}
    by_layer: dict[int, list[str]] = {}
    for name, copies in by_reader.items():
        if copies[-1].layer_index is not None:
            by_layer.setdefault(copies[-1].layer_index, []).append(name)
    for node in backward:
        due = by_layer.pop(node.layer_index, ()) if node.layer_index is not None else ()
        for name in (*node.inputs, *due):
            yield from by_reader.pop(name, ())
        yield node
