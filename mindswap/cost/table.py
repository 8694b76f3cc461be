"""Operator -> duration: measured where a profile has it, by the roofline where not. Pure."""

from collections.abc import Mapping

from mindswap.cost.hardware import Device
from mindswap.cost.measured import MeasuredKey, measured_key
from mindswap.cost.roofline import operator_ns
from mindswap.cost.transfer import collective_ns, copy_in_ns, copy_out_ns, send_ns
from mindswap.graph.model import Node
from mindswap.graph.ops import is_kernel
from mindswap.graph.work import Work

__all__ = ["CostTable"]


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
        if self.measured and is_kernel(node.op):
            found = self.measured.get(measured_key(node.op, work.inputs, node.outputs))
            if found is not None:
                return found
        return operator_ns(node, work, self.device)

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
