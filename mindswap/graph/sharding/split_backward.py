"""Splits of backward operators: a gradient has the split of its tensor."""

import math
from collections.abc import Iterator

from mindswap.graph.model import Node
from mindswap.graph.ops import ORDERING_OPS, PRODUCT_OPS, RESHAPING_OPS, SPLIT_PASSING_OPS, TUPLE_OPS
from mindswap.graph.sharding.experts import FROM_LOCAL, TO_LOCAL
from mindswap.graph.sharding.split_table import ForwardSplits, NodeSplits, Operand
from mindswap.graph.sharding.splits import Split, num_shards, read_strategy, reshape_split


class BackwardSplits(ForwardSplits):
    """Derives the splits of backward operators, once those of forward are known."""

    def of(self, node: Node) -> NodeSplits:
        """Return the split of each output of a backward operator; None if nothing is known."""
        if self.table.local.add(node, self.table.forward_names):
            return [(1,) * len(tensor_type.shape) for tensor_type in node.outputs]
        if node.is_duplicate and node.origin in self.table.splits:  # split as in forward
            if node.origin in self.table.communications:
                self.table.communications[node.name] = self.table.communications[node.origin]
            return list(self.table.splits[node.origin])
        if node.op == FROM_LOCAL:
            return [self._full_split(node)]
        if node.op in TUPLE_OPS or node.op in ORDERING_OPS or read_strategy(node.attributes):
            return super().of(node)
        operands = self.table.operands(node)
        return None if not operands and node.outputs else self._gradient_splits(node, operands)

    def _gradient_splits(self, node: Node, operands: list[Operand]) -> NodeSplits:
        """Return the splits of a gradient without a strategy of its own."""
        if node.op in RESHAPING_OPS and len(node.outputs) == 1:
            return [self._reshaped_split(node, operands[0])]
        if node.op in SPLIT_PASSING_OPS:  # a gradient that is redistributed is so before its cast
            return [self._operand_split(node) or operands[0].split] * len(node.outputs)
        if node.op == "AllGather":  # the gradient of a ReduceScatter has the split of its input
            return [self._operand_split(node)]
        gradient = self._gradient_split(node, operands)
        if gradient is not None:
            return [gradient]
        if node.op not in PRODUCT_OPS:
            return self._by_operands(node, operands, has_note=False)
        if all(operand.split is None or num_shards(operand.split) == 1 for operand in operands):
            return [(1,) * len(tensor_type.shape) for tensor_type in node.outputs]
        return [self._unknown(node)]

    def _reshaped_split(self, node: Node, source: Operand) -> Split | None:
        """Return the split of a reshaped gradient; None if that of its operand is not regular in the new shape."""
        if source.split is None:
            return None
        carried = self._operand_split(node) or self._product_split(node)
        carried = carried or reshape_split(source.type.shape, source.split, node.outputs[0].shape)
        if carried is None:
            reason = f"{source.split} of {source.type.shape} is not a regular split of {node.outputs[0].shape}"
            self.table.add_unresolved(node, reason)
        return carried

    def _full_split(self, node: Node) -> Split | None:
        """Return the split of the input of ToLocal, for its gradient."""
        forward = self.table.nodes.get(node.origin)
        operands = self.table.operands(forward) if forward is not None else []
        if forward is not None and forward.op == TO_LOCAL and operands:
            return operands[0].split or next(iter(read_strategy(forward.attributes)), None)
        return self._unknown(node)

    def _unknown(self, node: Node) -> Split | None:
        self.table.add_unresolved(node, "its forward operator is not found; counted as unsharded")
        return None

    def _operand_split(self, node: Node) -> Split | None:
        """Return the split of the first input of the forward operator, if `node` is its gradient."""
        forward = self.table.nodes.get(node.origin)
        if forward is None or node.is_duplicate:
            return None
        operand = next(iter(self.table.operands(forward)), None)
        return operand.split if operand is not None and operand.type.shape == node.outputs[0].shape else None

    def _product_split(self, node: Node) -> Split | None:
        """Return the split of the matrix product or attention whose output gradient `node` is.

        The output may also be that of a cast after the product (`linear_fc1` of TeleChat3 outputs float32).
        """
        for user in self.table.users.get(node.name, ()):
            product = self.table.nodes.get(user.origin)
            if product is None or product.op not in (*PRODUCT_OPS, "FlashAttentionScore", "Cast"):
                continue
            # attention: last output; matrix product: the only one
            if product.outputs[-1].shape == node.outputs[0].shape:
                return self.table.splits[product.name][-1]
        return None

    def _gradient_split(self, node: Node, operands: list[Operand]) -> Split | None:
        """Return the split of a gradient, as far as its forward operator determines it.

        A gradient has the split that the forward operator requires of the operand with its shape. If the forward
        operator is unknown, it is found among the readers of the operands: the gradient of one operand of a matrix
        product reads the other operand.
        """
        if len(node.outputs) != 1 or node.op not in (*PRODUCT_OPS, "UnsortedSegmentSum"):
            return None
        shape = node.outputs[0].shape
        forward_ops = PRODUCT_OPS if node.op in PRODUCT_OPS else frozenset({"Gather"})
        forward = self.table.nodes.get(node.origin)
        if forward is not None and forward.op in forward_ops:
            strategy = read_strategy(forward.attributes)
            read = self.table.operands(forward)[: len(strategy)]
            requested = {
                split for at, operand in enumerate(read) for split in _requested_splits(operand, at, strategy, shape)
            }
            if len(requested) == 1:
                return requested.pop()
        candidates: set[Split] = set()
        for operand in operands:
            for name in self._forward_origins(operand.name):
                for alias, reader in self._readers(name):
                    strategy = read_strategy(reader.attributes)
                    if reader.op not in forward_ops or len(strategy) < 2:
                        continue
                    read = self.table.operands(reader)
                    for position, operand_of_reader in enumerate(read[:2]):
                        if operand_of_reader.name != alias:
                            candidates.update(_requested_splits(operand_of_reader, position, strategy, shape))
        return candidates.pop() if len(candidates) == 1 else None

    def _readers(self, name: str) -> Iterator[tuple[str, Node]]:
        """Yield the readers of a value, each with the name under which it reads it.

        Readers of a value that is also copied to the host read `Depend(value, copy)`.
        """
        for reader in self.table.users.get(name, ()):
            if reader.op == "Depend" and reader.inputs[0] == name:
                yield from self._readers(reader.name)
            else:
                yield name, reader

    def _forward_origins(self, name: str) -> Iterator[str]:
        """Yield the names in forward of a value of backward."""
        for _ in range(8):  # through casts, copies and Depend
            yield name
            node = self.table.nodes.get(name)
            if name in self.table.forward_names:
                name = self.table.forward_names[name]
            elif node is not None and node.is_duplicate and node.origin:
                name = node.origin
            elif node is not None and node.op in SPLIT_PASSING_OPS | RESHAPING_OPS:
                name = node.inputs[0]
            else:
                return


def _requested_splits(
    operand: Operand, position: int, strategy: tuple[Split, ...], shape: tuple[int, ...]
) -> list[Split]:
    """Return the split of the gradient of an operand, if the gradient may have this shape; else an empty list.

    If all groups of the first operand share an operand, its gradient has one entry for each group before their sum. If
    each group looks up its own rows (Gather with `batch_dims`), the gradient has the rows of all groups in one
    dimension.
    """
    operand_shape, num_groups = operand.type.shape, len(shape) - len(operand.type.shape)
    if num_groups >= 0 and shape[num_groups:] == operand_shape:
        return [(*strategy[0][:num_groups], *strategy[position])]
    joined = (
        reshape_split(operand_shape, strategy[position], shape)
        if num_groups == -1 and operand_shape[-1] == shape[-1]
        else None
    )
    return [joined] if joined is not None and math.prod(operand_shape) == math.prod(shape) else []
