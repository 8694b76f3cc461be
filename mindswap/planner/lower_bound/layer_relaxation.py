"""The linear relaxation of the decisions of one layer.

Every policy satisfies these constraints:

- names: operators that share one are recomputed together;
- pins: what the user has decided is decided (`pinned_layers`);
- functions (operators without a name) are recomputed only with their whole cell, or one around it. No policy
  considered here excludes parts of a cell. A layer that is recomputed swaps nothing, and holds its outputs;
- boundary tensors of the previous layer stay for recomputed operators that read them, and so do tensors read through
  an unnamed view, except if its whole cell is recomputed;
- recomputed operators read tensors that are kept, prefetched or recomputed as well. Their time is hidden while the
  compute stream waits for communication, but only if backward or another recomputed operator reads their outputs;
- recomputed communication delays the compute stream, except for recomputed operators that overlap it.
"""

from collections.abc import Iterable, Mapping, Set

import numpy as np

from mindswap.planner.linear import Solution, solve_linear
from mindswap.planner.lower_bound.captured_layer import closure
from mindswap.planner.lower_bound.communication_gaps import CommunicationGap
from mindswap.planner.lower_bound.recomputed_cells import RecomputedCell
from mindswap.planner.lower_bound.tensor_graph import TensorGraph
from mindswap.planner.problem import Allow

# A linear expression: variable -> factor.
Constraint = dict[int, float]


class LinearProgram:
    """A linear program: variables from 0 to an upper bound, and upper limits of linear expressions."""

    def __init__(self) -> None:
        self.variable_upper: list[float] = []
        self.constraints: list[Mapping[int, float]] = []
        self.limits: list[float] = []

    def add_variable(self, variable_upper: float = np.inf) -> int:
        """Add a variable; return its index."""
        self.variable_upper.append(variable_upper)
        return len(self.variable_upper) - 1

    def add_constraint(self, constraint: Mapping[int, float], limit: float = 0) -> None:
        """Add an upper limit of a linear expression."""
        self.constraints.append(constraint)
        self.limits.append(limit)

    def solve(self, target: int) -> Solution | None:
        """Minimize a variable; return None if the program is infeasible.

        Raises:
            UnsolvedError: no method solves the program.
        """
        cost = np.zeros(len(self.variable_upper))
        cost[target] = 1
        return solve_linear(cost, self.constraints, self.limits, variable_upper=self.variable_upper)


class LayerRelaxation:
    """Variables and constraints of one layer. A swapped tensor may be offloaded so late that it is there at the peak.

    Args:
        program: gets the variables and constraints.
        graph: tensors and operators of the layer.
        allow: means that policies may use.

    Attributes:
        tensors: of each its size, and variables of the fractions kept, offloaded before the peak, and offloaded later.
        recompute_ns: variable of the recompute time.
        avoided_ns: variable of each avoided copy of a weight -> its duration.
    """

    def __init__(self, program: LinearProgram, graph: TensorGraph, allow: Allow):
        self.program, self.graph = program, graph
        self.tensors: list[tuple[int, int, int, int]] = []
        for tensor, size in enumerate(graph.sizes_bytes):
            can_swap = int(allow.swap and tensor not in graph.gathered | graph.unswappable_tensors)
            kept, early, late = (program.add_variable(upper) for upper in (1, can_swap, can_swap))
            self.tensors.append((size, kept, early, late))
        self.recompute_ns = program.add_variable()
        self._share = [
            program.add_variable(int(allow.recompute and op not in graph.never_recomputed))
            for op in range(len(graph.recompute_ns))
        ]
        self.avoided_ns = {self._share[op]: copy_ns for op, copy_ns in graph.weight_copies.items()}
        self._add_availability()
        for cell in graph.recomputed_cells:
            self._add_cell(cell)
        self._compute: Constraint = {self._share[op]: ns for op, ns in enumerate(graph.recompute_ns) if ns}
        self._unfused = self._add_unfused()
        for gap in graph.gaps:
            self._add_gap(gap)
        self._add_communication()
        program.add_constraint({**self._compute, self.recompute_ns: -1})

    def _available(self, tensor: int, is_recomputed: bool = False) -> Constraint:
        """Return minus the available fraction of a tensor, for backward or for recomputed operators."""
        may_move = not (is_recomputed and tensor in self.graph.tuple_members)
        constraint: Constraint = dict.fromkeys(self.tensors[tensor][1:] if may_move else self.tensors[tensor][1:2], -1)
        is_output = tensor in self.graph.outputs
        return constraint if is_output else constraint | {self._share[self.graph.producers[tensor]]: -1}

    def _add_availability(self) -> None:
        """Add what backward and recomputed operators read, and what is decided for all policies."""
        program, graph = self.program, self.graph
        for tensor in graph.saved:
            program.add_constraint(self._available(tensor), -1)
        for op, tensor in graph.reads:
            program.add_constraint({**self._available(tensor, is_recomputed=True), self._share[op]: 1})
        for op, other in graph.implied_recomputes:
            program.add_constraint({self._share[op]: 1, self._share[other]: -1})
        for op in graph.always_recomputed:
            program.add_constraint({self._share[op]: -1}, -1)
        for tensor in graph.always_swapped:
            program.add_constraint(dict.fromkeys(self.tensors[tensor][2:], -1), -1)

    def _add_unfused(self) -> dict[int, int]:
        """Add the fraction of each operator that is recomputed with one of its readers, which takes longer."""
        graph = self.graph
        unfused = {op: self.program.add_variable() for op, ns in enumerate(graph.unfused_extra_ns) if ns}
        for op, tensor in graph.reads:
            producer = graph.producers[tensor]
            if producer in unfused:
                self.program.add_constraint({self._share[producer]: 1, self._share[op]: 1, unfused[producer]: -1}, 1)
        self._compute |= {variable: graph.unfused_extra_ns[op] for op, variable in unfused.items()}
        return unfused

    def _add_hidden(self, fractions: Mapping[int, int], groups: Iterable[tuple[int, Set[int]]], idle_ns: int) -> None:
        """Add hidden time of recomputed operators in a wait.

        Args:
            fractions: operator -> variable of its fraction that may run in the wait.
            groups: (variable, operators): the variable limits the fraction of these that runs in the wait.
            idle_ns: duration of the wait.
        """
        graph, hidden = self.graph, dict[int, int]()
        for op, fraction in fractions.items():
            time_ns = graph.recompute_ns[op]
            if time_ns > 0 or op in self._unfused:
                hidden[op] = self.program.add_variable()
                extra = {self._unfused[op]: -graph.unfused_extra_ns[op]} if op in self._unfused else {}
                self.program.add_constraint({hidden[op]: 1, fraction: -max(time_ns, 0)} | extra)
        for limit, ops in groups:
            if own := [hidden[op] for op in ops if op in hidden]:
                self.program.add_constraint({**dict.fromkeys(own, 1), limit: -idle_ns})
        self._compute |= dict.fromkeys(hidden.values(), -1)

    def _add_communication(self) -> None:
        """Add recomputed communication: it delays the compute stream, except for operators that overlap it."""
        graph, share = self.graph, self._share
        communication: Constraint = {share[op]: ns for op, ns in enumerate(graph.communication_ns) if ns}
        self.program.add_constraint({**communication, self.recompute_ns: -1})
        for op, ns in enumerate(graph.communication_ns):
            if ns:
                overlapping = {other: share[other] for other in graph.overlapping_ops.get(op, ())}
                each = ((variable, {other}) for other, variable in overlapping.items())
                self._add_hidden(overlapping, [(share[op], overlapping.keys()), *each], ns)
                self._compute[share[op]] = self._compute.get(share[op], 0) + ns

    def _add_cell(self, cell: RecomputedCell) -> None:
        """Add a recomputed cell, and the fraction of each operator that is recomputed with it."""
        program, graph, share = self.program, self.graph, self._share
        is_recomputed = program.add_variable(1)
        with_cell = {op: program.add_variable(1) for op in cell.ops}
        for op, part in with_cell.items():
            program.add_constraint({part: 1, share[op]: -1})
            program.add_constraint({part: 1, is_recomputed: -1})
        for op in cell.functions:
            program.add_constraint({share[op]: 1, with_cell.get(op, is_recomputed): -1})
        if not cell.path:  # a recomputed layer swaps nothing, so it holds what it hands on
            for tensor in graph.outputs - graph.gathered - graph.boundary_inputs:
                program.add_constraint(dict.fromkeys((*self.tensors[tensor][2:], is_recomputed), 1), 1)
        for tensor in cell.tensors:
            program.add_constraint(dict.fromkeys((*self.tensors[tensor][1:], is_recomputed), 1), 1)
            if tensor in graph.saved:
                program.add_constraint({is_recomputed: 1, with_cell[graph.producers[tensor]]: -1})
        for op, tensor in cell.views:
            program.add_constraint({share[op]: 1, self.tensors[tensor][1]: -1, is_recomputed: -1})
        self._add_held(cell, is_recomputed, with_cell)
        for op, tensor in graph.reads:
            if op in with_cell and tensor in cell.tensors:
                program.add_constraint({with_cell[op]: 1, with_cell[graph.producers[tensor]]: -1})

    def _add_held(self, cell: RecomputedCell, is_recomputed: int, with_cell: Mapping[int, int]) -> None:
        """Add that no swap frees what backward holds under no name, with or without recompute of the cell."""
        graph, program = self.graph, self.program
        for tensor in cell.held - graph.always_swapped:
            program.add_constraint({self.tensors[tensor][1]: -1, is_recomputed: -1}, -1)
        for op, tensor in cell.inputs:
            if tensor not in graph.always_swapped:
                kept: Constraint = {self.tensors[tensor][1]: -1}
                made = {} if tensor in graph.outputs else {self._share[graph.producers[tensor]]: -1}
                program.add_constraint({with_cell[op]: 1, **kept, **made})

    def _add_gap(self, gap: CommunicationGap) -> None:
        """Add a communication gap of backward, and the time that it hides."""
        in_gap, any_in_gap = self._add_fractions(gap)
        only_for = gap.only_for(self.graph.producers, self.graph.reads)
        groups = [(any_in_gap, in_gap.keys()), *((in_gap[op], ops) for op, ops in only_for.items())]
        self._add_hidden(in_gap, groups, gap.idle_ns)

    def _add_fractions(self, gap: CommunicationGap) -> tuple[dict[int, int], int]:
        """Return the fraction of each operator that is recomputed in a gap, and of any operator, as variables.

        A tensor that is read before the gap is kept, swapped, or recomputed before it, too. Operators are recomputed in
        the gap only if backward itself reads one of their outputs there.
        """
        program, graph = self.program, self.graph
        in_gap, any_in_gap = {op: program.add_variable(1) for op in gap.ops}, program.add_variable(1)
        program.add_constraint({any_in_gap: 1, **dict.fromkeys((in_gap[op] for op in gap.first_read_ops), -1)})
        read_before = (graph.producers[tensor] for tensor in gap.read_before)
        recomputed_before = {op: program.add_variable(1) for op in closure(read_before, graph.inputs)}
        for tensor in gap.read_before:
            available = (recomputed_before[graph.producers[tensor]], *self.tensors[tensor][1:])
            program.add_constraint(dict.fromkeys(available, -1), -1)
        readers: dict[int, list[int]] = {}
        for op, tensor in graph.reads:
            producer = graph.producers[tensor]
            readers.setdefault(producer, []).append(op)
            if op in recomputed_before:
                available = (recomputed_before[producer], *self.tensors[tensor][1:])
                program.add_constraint({recomputed_before[op]: 1, **dict.fromkeys(available, -1)})
        for op, part in in_gap.items():
            before = {recomputed_before[op]: 1} if op in recomputed_before else {}
            program.add_constraint({part: 1, self._share[op]: -1} | before)
            program.add_constraint({part: 1, any_in_gap: -1})
            if op not in gap.first_read_ops:
                for_readers = {in_gap[reader]: -1 for reader in readers.get(op, ()) if reader in in_gap}
                program.add_constraint({part: 1, **for_readers})
        return in_gap, any_in_gap
