"""Operator -> duration: measured where a profile has it, by the roofline where not."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mindswap.graph.model import Node
from mindswap.graph.ops import is_kernel
from mindswap.graph.work import Work
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.cost.measured import MeasuredKey, measured_key
from mindswap.simulator.cost.roofline import operator_ns


@dataclass(frozen=True, eq=False)
class CostTable:
    """What the operators of a step cost on a device."""

    device: Device
    # mean duration of operators in ns, from a profile; they go before the roofline
    measured: Mapping[MeasuredKey, int] = field(default_factory=dict)

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
