"""Partition of a compiled step into blocks from which a model of any depth is assembled.

Each segment (before the layers, each compiled layer, after the layers) becomes one block with its operators of forward
and backward. A block lists the tensors that it produces, and those that it reads of the previous block, of the next
block, and of the shared tensors of the step. Three compiled layers therefore suffice for a model of eighty, and layers
with different settings can be combined.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from types import MappingProxyType

from mindswap.errors import SimulationError
from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.analysis.saved_tensors import Names
from mindswap.graph.analysis.weight_copies import find_weight_copies
from mindswap.graph.analysis.work import Work
from mindswap.graph.constants import constant_operators
from mindswap.graph.model import Graph, Node
from mindswap.simulator.captured_step import GradientRule
from mindswap.simulator.layer_block import Block, BlockTensor, Consumers, Read, Role, Source
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.program import ONE_WAY
from mindswap.simulator.segment_reader import StepReader
from mindswap.simulator.step_tensors import OpList, StepTensor
from mindswap.units import ceil_div


class BlockBuilder:
    """Read a compiled step, and build the block of each of its segments on request.

    Args:
        graph: step compiled with lazy_inline, from the compiler or from `graph.passes.swap_recompute`.
        operator_ns: (node, work) -> duration of the operator in ns.
        label: forward operator -> its names.
        collectives: name of a node -> communication that belongs to it.
        collective_ns: communication -> its duration in ns.
        is_fused: whether consecutive element-wise operators are one kernel (jit_level O1).
        per_step_operators: names of forward operators that run once in a step, for all micro-batches; they read only
            weights and each other.
        rule: memory of weight gradients; the default keeps them as produced.
        alignment_bytes: allocation granularity of the memory pool.
        is_swapping: whether another layer of the step, which has one micro-batch, swaps.
        layer_offsets: position of the layer of an operator in a segment of several layers, by name.
        has_rotation_products: whether the backend has one product for the operators of a rotary embedding.

    Raises:
        SimulationError: if the graph was compiled without lazy_inline, or layers that are not neighbours share tensors.
    """

    def __init__(
        self,
        graph: Graph,
        operator_ns: Callable[[Node, Work], int],
        label: Callable[[Node], Names],
        collectives: Mapping[str, tuple[Collective, ...]] = MappingProxyType({}),
        collective_ns: Callable[[Collective], int] = lambda collective: 0,
        is_fused: bool = False,
        per_step_operators: Set[str] = frozenset(),
        rule: GradientRule = GradientRule(),  # noqa: B008 frozen
        alignment_bytes: int = 1,
        is_swapping: bool = False,
        layer_offsets: Mapping[str, int] = MappingProxyType({}),
        has_rotation_products: bool = False,
    ):
        if not graph.has_lazy_inline:
            raise SimulationError("forward and backward are one function: the graph was compiled without lazy_inline")
        # A single micro-batch copies no weights.
        copied = find_weight_copies(graph) if rule.is_summed else frozenset()
        static = constant_operators(graph).keys() if rule.is_summed else frozenset()
        self.step = step = StepReader(
            graph=graph,
            operator_ns=operator_ns,
            label=label,
            collectives=collectives,
            collective_ns=collective_ns,
            per_step_operators=per_step_operators,
            is_fused=is_fused,
            is_merging_casts=not (is_swapping or rule.is_summed),
            copied=copied,
            static=static,
            is_single=not rule.is_summed,
            has_gradient_launches=rule.is_summed or rule.is_shared,
            has_rotation_products=has_rotation_products,
            layer_offsets=layer_offsets,
        )
        step.read()
        self.rule = rule
        self.alignment_bytes = alignment_bytes
        self.roles = self._name_roles()
        # The tensors that each segment produces or reads, in order of production.
        self.known: dict[int, list[StepTensor]] = {segment: [] for segment in range(-1, step.num_layers + 1)}
        for tensor in step.tensors:
            for segment in {tensor.segment, *tensor.uses}:
                self.known[segment].append(tensor)
                if segment != tensor.segment:
                    self._source(tensor, segment)  # raises before any block is built

    def block(self, segment: int) -> Block:
        """Return the block of one segment.

        Args:
            segment: -1 before the layers, 0 to num_layers - 1 for the layers, num_layers after them.
        """
        tensors: list[BlockTensor] = []
        reads: list[Read] = []
        for tensor in self.known[segment]:
            uses, role = tensor.uses_in(segment), self.roles.get(tensor)
            size_bytes = self._memory_of(tensor.type.size_bytes)
            if tensor.segment == segment:
                tensors += self._gradient(tensor) if tensor.is_gradient else ()
                if tensor.op_list.is_forward or tensor.is_read:
                    tensors.append(self._block_tensor(tensor, size_bytes, uses, role))
            elif uses != Consumers():
                if role is None:  # `_name_roles` covers all tensors that another segment reads
                    raise AssertionError("a tensor that another segment reads has no role")
                reads.append(Read(self._source(tensor, segment), role, size_bytes, uses))
        op_lists = (OpList(segment, True), OpList(segment, False), OpList(segment, True, True))
        forward, backward, per_step_operators = map(self.step.ops_of, op_lists)
        return Block(forward, backward, tuple(tensors), tuple(reads), per_step_operators)

    def _name_roles(self) -> dict[StepTensor, Role]:
        """Assign roles to the tensors that other segments read."""
        counts: dict[tuple[object, ...], int] = {}
        roles: dict[StepTensor, Role] = {}
        for tensor in self.step.tensors:
            if tensor.uses.keys() <= {tensor.segment}:
                continue
            tensor_type, is_forward, is_shared = tensor.type, tensor.op_list.is_forward, self._is_shared(tensor)
            key = (tensor.segment, is_forward, is_shared, tensor_type.shape, tensor_type.dtype)
            roles[tensor] = Role(tensor_type.shape, tensor_type.dtype, counts.get(key, 0), is_forward, is_shared)
            counts[key] = counts.get(key, 0) + 1
        return roles

    def _is_shared(self, tensor: StepTensor) -> bool:
        """Return whether the first segment of the pass produces it and more than the second one reads it."""
        first, second = (-1, 0) if tensor.op_list.is_forward else (self.step.num_layers, self.step.num_layers - 1)
        return tensor.segment == first and bool(tensor.uses.keys() - {first, second})

    def _source(self, tensor: StepTensor, segment: int) -> Source:
        if self._is_shared(tensor):
            return Source.SHARED
        if tensor.segment == segment - 1:
            return Source.PREVIOUS
        if tensor.segment == segment + 1:
            return Source.NEXT
        raise SimulationError(
            f"{tensor.label} would be read two or more layers away from where it is made; only neighbouring layers can "
            "share tensors"
        )

    def _memory_of(self, size_bytes: int) -> int:
        """Return the bytes that the memory pool allocates for a tensor."""
        return ceil_div(size_bytes, self.alignment_bytes) * self.alignment_bytes

    def _gradient(self, tensor: StepTensor) -> Iterable[BlockTensor]:
        """Yield the tensors of a weight gradient: until it is accumulated or reduced, and until the optimizer."""
        size_bytes, producer_op_index = tensor.type.size_bytes, tensor.producer_op_index
        ops = self.step.ops[tensor.op_list]
        later_ops = [at for at in range(producer_op_index + 1, len(ops)) if not ops[at].kind.is_communication]
        in_half = (at for at in later_ops if ops[at].is_weight == ops[producer_op_index].is_weight)
        consumers = Consumers(
            last_backward=later_ops[0] if later_ops else producer_op_index, last_weight=next(in_half, producer_op_index)
        )
        rule = self.rule
        segment = -1 if tensor.segment < 0 else int(tensor.segment == self.step.num_layers)
        is_sharded_weight, is_reduced = (
            rule.is_sharded_weight(tensor.type, segment),
            rule.is_reduced(tensor.type, segment),
        )
        parts = rule.parts_bytes(size_bytes, is_sharded_weight, is_reduced)
        for size, uses, is_optimizer_input in zip(
            parts, (consumers, Consumers(), Consumers()), (False, True, True), strict=True
        ):
            if size:
                yield BlockTensor(
                    label=tensor.label,
                    size_bytes=self._memory_of(size),
                    is_forward=False,
                    is_recomputed=False,
                    producer_op_index=producer_op_index,
                    uses=uses,
                    role=None,
                    is_gradient=True,
                    part=MemoryPart.GRADIENTS,
                    is_optimizer_input=is_optimizer_input,
                    layer_offset=self._layer_offset(tensor),
                )

    def _layer_offset(self, tensor: StepTensor) -> int:
        return self.step.offsets[tensor.op_list][tensor.producer_op_index]

    def _block_tensor(self, tensor: StepTensor, size_bytes: int, uses: Consumers, role: Role | None) -> BlockTensor:
        return BlockTensor(
            label=tensor.label,
            size_bytes=size_bytes,
            is_forward=tensor.op_list.is_forward,
            is_recomputed=tensor.is_recomputed,
            producer_op_index=tensor.producer_op_index,
            uses=uses,
            role=role,
            prefetch=max(tensor.prefetch, default=0),
            num_copies=ONE_WAY if tensor.is_one_way else len(tensor.prefetch),
            is_resident=bool(tensor.prefetch)
            and tensor.has_resident_holder,  # then its memory is not freed by the copies
            is_per_step=tensor.op_list.is_per_step,
            is_live_from_start=tensor.is_live_from_start,
            is_live_from_later_starts=tensor.is_live_from_later_starts,
            part=MemoryPart.GRADIENTS if tensor.is_gradient else tensor.role.part,
            layer_offset=self._layer_offset(tensor),
        )
