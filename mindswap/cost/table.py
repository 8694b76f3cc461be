"""Operator -> duration: measured where a profile has it, by the roofline where not. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mindswap.cost.hardware import Device
from mindswap.cost.measured import MeasuredKey, measured_key
from mindswap.cost.roofline import operator_ns
from mindswap.cost.transfer import collective_ns, copy_in_ns, copy_out_ns, send_ns
from mindswap.graph.model import Node
from mindswap.graph.ops import is_kernel
from mindswap.graph.work import Work

__all__ = ["CostTable", "Coverage"]


@dataclass(frozen=True)
class Coverage:
    """How much of a step has measured durations.

    Attributes:
        num_ops: operators with a kernel.
        num_measured: those that a profile has.
        total_ns: duration of all of them, one after another.
        measured_ns: part of `total_ns` that was measured.
    """

    num_ops: int
    num_measured: int
    total_ns: int
    measured_ns: int


class CostTable:
    """What the operators, copies and collectives of a step cost on a device.

    Args:
        device: figures of the roofline and of the links.
        measured: mean duration of operators in ns, from a profile; they go before the roofline.
    """

    def __init__(self, device: Device, measured: Mapping[MeasuredKey, int] | None = None):
        self.device = device
        self.measured = measured or {}

    def operator_ns(self, node: Node, work: Work) -> int:
        """Duration of one operator, in ns; 0 if it has no kernel.

        Raises:
            ValueError: for communication.
        """
        found = self._measured_ns(node, work)
        return operator_ns(node, work, self.device) if found is None else found

    def copy_out_ns(self, size_bytes: int) -> int:
        """Duration of one copy to the host, in ns."""
        return copy_out_ns(size_bytes, self.device)

    def copy_in_ns(self, size_bytes: int) -> int:
        """Duration of one copy from the host, in ns."""
        return copy_in_ns(size_bytes, self.device)

    def collective_ns(self, kind: str, size_bytes: int, num_ranks: int, stride: int = 1) -> int:
        """Duration of one collective, in ns; arguments as in `transfer.collective_ns`."""
        return collective_ns(kind, size_bytes, num_ranks, self.device, stride)

    def send_ns(self, size_bytes: int, is_within_node: bool) -> int:
        """Duration of handing a tensor to another card, in ns."""
        return send_ns(size_bytes, is_within_node, self.device)

    def coverage(self, operators: Iterable[tuple[Node, Work]]) -> Coverage:
        """How many of these operators were measured, and how much of their time."""
        num_ops = num_measured = total_ns = measured_ns = 0
        for node, work in operators:
            if not is_kernel(node.op):
                continue
            found = self._measured_ns(node, work)
            duration = operator_ns(node, work, self.device) if found is None else found
            num_ops += 1
            total_ns += duration
            if found is not None:
                num_measured += 1
                measured_ns += duration
        return Coverage(num_ops, num_measured, total_ns, measured_ns)

    def _measured_ns(self, node: Node, work: Work) -> int | None:
        if not self.measured or not is_kernel(node.op):
            return None
        return self.measured.get(measured_key(node.op, work.inputs, node.outputs))
