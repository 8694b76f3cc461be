"""Halves of a layer that calls the same cells for each of them (`fine_grain_interleave`).

MindSpore keeps one id for an operator however often the model calls it. So the gradients of both halves carry the id of
both forward operators, and only what they read tells whose they are.
"""

import re
from collections.abc import Iterable, Mapping

from mindswap.graph.model import Node
from mindswap.graph.ops import UNJOINING_OPS

# The cell that cuts a half out of a tensor: llama_interleave.py, `interleave1_inputs`, `interleave2_inputs`.
CUTTING_CELL = re.compile(r"(?:^|\.)interleave\d+_inputs\.(\d+)$")
JOINING_OP = "Concat"


class Branches:
    """The half that each value is computed for; None for what is of the whole.

    `aliases` has the names in forward of what it hands over, `constants` which member of a tuple is taken.
    """

    def __init__(self, forward: Iterable[Node], aliases: Mapping[str, str], constants: Mapping[str, int]):
        self._constants = constants
        self._of: dict[str, int | None] = {}
        self._cut: set[str] = set()  # gradients of a join: their members are of one half each
        for node in forward:
            cut = CUTTING_CELL.search(node.cell_path) if node.op == "StridedSlice" else None
            self._of[node.name] = int(cut[1]) if cut else self._of_inputs(node)
        for backward_name, forward_name in aliases.items():
            self._of[backward_name] = self._of.get(forward_name)

    def __getitem__(self, name: str) -> int | None:
        return self._of.get(name)

    @property
    def are_there(self) -> bool:
        return any(branch is not None for branch in self._of.values())

    def add(self, node: Node, origins: Iterable[Node]) -> None:
        """Place an operator of backward behind all that it reads; it may be the gradient of one of `origins`."""
        own = self._of_inputs(node)
        if node.op in UNJOINING_OPS and any(origin.op == JOINING_OP for origin in origins):
            self._cut.add(node.name)
        elif own is None and node.op == "TupleGetItem" and node.inputs[0] in self._cut:
            own = self._constants.get(node.inputs[1], 0)
        self._of[node.name] = own

    def _of_inputs(self, node: Node) -> int | None:
        """That of all inputs that have one; None where they differ: halves are put together."""
        found = {branch for name in node.inputs if (branch := self._of.get(name)) is not None}
        return found.pop() if len(found) == 1 else None
