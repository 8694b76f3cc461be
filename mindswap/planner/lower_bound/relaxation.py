"""The least step time within a budget, if layers, tensors and copies could be divided at will.

A linear programme that grants every policy what no simulation does: parts of tensors may be kept, swapped or made
again; copies wait for nothing but the link; operators that run again need only what they read. What it still
demands every policy must pay, so its optimum is a lower bound of the simulated step time:

- at the fullest moment of each stage what has left the device covers what is over the budget;
- so does what some operator holds with every policy (`moments`), or what forward gathers ahead, and what is kept
  of the layers that wait then;
- what has been copied out by then went over the link since forward of these micro-batches began;
- one name swaps all that backward holds of its operator;
- what a name swaps does not run again, nor do other operators of that name;
- functions run again with all of their cell, or one around it; no policy here excludes parts of a cell;
- what the layer before hands on stays for what runs again and reads it, and so does what is read as a view without a
  name, but for copies of all of its cell;
- what runs again reads tensors that are kept, brought back, or made again as well; it hides while the compute stream
  waits for communication, but only where something reads it: of backward, or other copies;
- copies that communicate keep the compute stream waiting, but for copies that may stand between;
- all copies of the step go over the link within the step;
- the compute stream of each stage does its work and what runs again, and waits for what waits without any policy:
  the first backward begins no sooner than without copies, however weights are gathered, less what forward saves;
- passes of a pipeline wait for each other (`pipeline`): the step is as long as each chain of them. Chains are added as
  long as one is longer than the step that the programme finds.

Source:
    Relaxations of this kind bound rematerialization in Jain et al., "Checkmate" (MLSys 2020), and together with
    paging in Patil et al., "POET" (ICML 2022). Here equal layers share their variables, which changes nothing:
    where fractions of the layers solve the programme, their mean does, as each row counts equal layers alike.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from mindswap.planner.linear import METHODS, Solution, UnsolvedError, solve_linear
from mindswap.planner.lower_bound.inputs import Facts
from mindswap.planner.lower_bound.pass_chains import Chain
from mindswap.planner.lower_bound.tensor_graph import CellAgain, Flow, Window, closure
from mindswap.planner.problem import Allow

# One row of the programme: variable -> factor.
Row = dict[int, float]


def least_step_ns(facts: Facts, budget_bytes: int, host_bytes: int, allow: Allow) -> int | None:
    """Step time that no policy can beat within the budgets.

    Args:
        facts: of the step that keeps everything.
        budget_bytes: device memory, static memory included.
        host_bytes: host memory of one card.
        allow: what policies may do.

    Returns:
        Simulated ns; None if no policy fits.
    """
    rows, least_ns = _Rows(), 0  # where no method solves the programme: nothing is below 0 in any case
    times = _add_all(rows, facts, rows.variable(budget_bytes), host_bytes, allow)
    with contextlib.suppress(UnsolvedError):
        while True:
            found = rows.solve(times.step_ns)
            if found is None:
                return None
            least_ns = _whole(found.cost)
            if facts.passes is None:
                break
            # Of the chains those count that are longest by what runs again.
            chain = facts.passes.longest_chain(found.variables[times.recompute_ns].tolist())
            row, limit = _row_of(facts, chain, times)
            if sum(factor * found.variables[at] for at, factor in row.items()) <= limit + 1:
                break
            rows.limit(row, limit)
    return least_ns


def least_budget_bytes(facts: Facts, host_bytes: int, allow: Allow, step_ns: float = math.inf) -> int:
    """Device memory below which no policy fits, whatever time it takes, or within a step time.

    Args:
        facts, host_bytes, allow: as in `least_step_ns`.
        step_ns: time that it may take, not below that of keeping everything.
    """
    rows = _Rows()
    budget_bytes = rows.variable()
    times = _add_all(rows, facts, budget_bytes, host_bytes, allow)
    rows.upper[times.step_ns] = step_ns
    with contextlib.suppress(UnsolvedError):
        if found := rows.solve(budget_bytes):
            return _whole(found.cost)
    return 0  # without a limit to the budget everything can be kept


class _Rows:
    """A linear programme: variables from 0 to an upper bound, and sums of them that must not be above a limit."""

    def __init__(self) -> None:
        self.upper: list[float] = []
        self.rows: list[Mapping[int, float]] = []
        self.limits: list[float] = []

    def variable(self, upper: float = np.inf) -> int:
        self.upper.append(upper)
        return len(self.upper) - 1

    def limit(self, row: Mapping[int, float], limit: float = 0) -> None:
        self.rows.append(row)
        self.limits.append(limit)

    def solve(self, target: int) -> Solution | None:
        """Values at which a variable is least; None if none keep all limits.

        Raises:
            UnsolvedError: by any method, which happens once in thousands.
        """
        cost = np.zeros(len(self.upper))
        cost[target] = 1
        for method in METHODS:
            with contextlib.suppress(UnsolvedError):
                return solve_linear(cost, self.rows, self.limits, upper=self.upper, solver=method)
        raise UnsolvedError


def _whole(cost: float) -> int:
    """A value of the programme, which is solved to less than a unit."""
    return math.floor(round(cost, 3))


@dataclass(frozen=True)
class _Times:
    """Variables of the whole step."""

    step_ns: int
    recompute_ns: list[int]  # what one micro-batch runs again on each stage
    hidden_ns: int  # of gradients, behind what runs again on any stage


def _add_all(rows: _Rows, facts: Facts, budget_bytes: int, host_bytes: int, allow: Allow) -> _Times:
    """The whole programme for a variable budget."""
    step_ns, recompute_ns = rows.variable(), [rows.variable() for _ in facts.stages]
    times = _Times(step_ns, recompute_ns, _add_hidden(rows, facts, recompute_ns))
    if facts.passes is not None:
        rows.limit(*_row_of(facts, facts.passes.longest, times))
    for position in range(len(facts.stages)):
        uses = _add_uses(rows, facts, position, allow)
        rows.limit({**uses.kept_bytes, budget_bytes: -1}, uses.saved_bytes - facts.stages[position].peak_bytes)
        for kept_bytes, moment in zip(uses.kept_then, facts.stages[position].moments, strict=True):
            rows.limit({**kept_bytes, budget_bytes: -1}, -moment.fixed_bytes)
        rows.limit({budget_bytes: -1}, -facts.stages[position].floor_bytes)
        rows.limit(uses.host_bytes, host_bytes)
        waits = _add_waits(rows, facts, position, uses.out_by_then_ns)
        for link_ns in (uses.out_ns, uses.back_ns, uses.both_ns):
            rows.limit({**link_ns, step_ns: -1})
        rows.limit({**uses.recompute_ns, recompute_ns[position]: -1})
        _add_time(rows, facts, position, step_ns, recompute_ns, waits)
    return times


def _row_of(facts: Facts, chain: Chain, times: _Times) -> tuple[Row, int]:
    """The step is as long as a chain of passes, and what comes behind it."""
    row: Row = {times.step_ns: -1, times.hidden_ns: -1}
    row |= {at: number for at, number in zip(times.recompute_ns, chain.num_backward, strict=True) if number}
    return row, -chain.length_ns - facts.terms_ns


def _add_hidden(rows: _Rows, facts: Facts, recompute_ns: Sequence[int]) -> int:
    """The variable of gradients that hide behind what runs again on some stages."""
    hidden_ns = rows.variable(facts.gradients_ns)
    rows.limit({hidden_ns: 1, **dict.fromkeys(recompute_ns, -facts.num_gradient_reductions)})
    return hidden_ns


@dataclass
class _Uses:
    """Sums of variables: what a stage keeps, has on the host, copies and runs again."""

    # kept_bytes, host_bytes: at the fullest moment
    kept_bytes: Row = field(default_factory=dict)
    host_bytes: Row = field(default_factory=dict)
    out_by_then_ns: Row = field(default_factory=dict)  # time on the link by then, less what runs again by then
    # out_ns, back_ns, both_ns: time on the link in the whole step: to the host, back, both together
    out_ns: Row = field(default_factory=dict)
    back_ns: Row = field(default_factory=dict)
    both_ns: Row = field(default_factory=dict)
    recompute_ns: Row = field(default_factory=dict)  # what one micro-batch runs again
    saved_bytes: int = 0  # what is there at the fullest moment if everything is kept
    kept_then: list[Row] = field(default_factory=list)  # what is kept all the time, of what waits at each other moment


def _add_uses(rows: _Rows, facts: Facts, position: int, allow: Allow) -> _Uses:
    """The layers of a stage."""
    stage, transfers = facts.stages[position], facts.transfers
    # Both directions together move at most twice the contended rate.
    rate = max(1000, 2 * transfers.contended_permille) / 1000
    uses = _Uses(kept_then=[{} for _ in stage.moments])
    for layers, num_layers in stage.layers.items():
        flow = facts.flows[layers.kind]
        layer = _Layer(rows, flow, allow)
        num_there = num_layers * layers.in_flight
        num_copied = num_layers * facts.num_micro_batches
        uses.saved_bytes += num_there * flow.saved_bytes
        num_gathered = num_layers * (layers.in_flight - layers.num_begun) * stage.is_past_forward
        num_handed = num_layers * layers.num_waiting
        for tensor, (size, is_kept, is_swapped, is_late) in enumerate(layer.tensors):
            out_ns, back_ns = transfers.copy_out_ns(size), transfers.copy_in_ns(size)
            is_saved_name, is_gathered = tensor in flow.handed, tensor in flow.gathered
            num_here = num_handed if is_saved_name else num_there
            uses.kept_bytes[is_kept] = uses.kept_bytes[is_late] = (num_gathered if is_gathered else num_here) * size
            uses.host_bytes[is_swapped] = num_here * size
            uses.out_by_then_ns[is_swapped] = num_here * out_ns
            for copied in (is_swapped, is_late):
                uses.out_ns[copied] = num_copied * out_ns
                uses.back_ns[copied] = num_copied * back_ns
                uses.both_ns[copied] = num_copied * (out_ns + back_ns) / rate
            for kept_bytes, moment in zip(uses.kept_then, stage.moments, strict=True):
                if moment.is_past_forward or not (is_gathered or is_saved_name):
                    kept_bytes[is_kept] = num_layers * moment.waiting.get(layers, 0) * size
        uses.recompute_ns[layer.recompute_ns] = num_layers
        uses.out_by_then_ns[layer.recompute_ns] = -layers.num_begun * num_layers
    return uses


def _add_waits(rows: _Rows, facts: Facts, position: int, out_by_then_ns: Row) -> Row:
    """Waits of a stage for copies up to the fullest moment, and in how many micro-batches there are such.

    That is in each, where a stage runs forward and backward of one after the other, or is alone; else in the first.
    """
    stage = facts.stages[position]
    windows = [stage.window_ns, *stage.later_windows_ns]
    if len(facts.stages) == 1:
        windows += [stage.window_ns] * (facts.num_micro_batches - len(windows))
    waits: Row = {}
    for window_ns, number in Counter(windows).items():
        wait_ns = rows.variable()
        rows.limit({**out_by_then_ns, wait_ns: -1}, window_ns)
        waits[wait_ns] = number
    return waits


def _add_time(rows: _Rows, facts: Facts, position: int, step_ns: int, recompute_ns: list[int], waits: Row) -> None:
    """Work of a stage, one after another; behind it backward goes on through the stages before it."""
    stage = facts.stages[position]
    earlier = range(position)
    hidden_ns = _add_hidden(rows, facts, [recompute_ns[position]])
    row: Row = {step_ns: -1, recompute_ns[position]: facts.num_micro_batches, hidden_ns: -1, **waits}
    # Forward of other stages, which this one waits for, may write less.
    others = [
        (layers, number) for other in facts.stages if other is not stage for layers, number in other.layers.items()
    ]
    sooner_ns = sum(facts.flows[like.kind].avoided_store_ns * like.in_flight * number for like, number in others)
    fixed_ns = (
        max(0, stage.idle_ns - sooner_ns) + stage.once_ns + facts.num_micro_batches * stage.work_ns + facts.terms_ns
    )
    if stage.num_chunks == 1:
        row |= {recompute_ns[other]: 1 for other in earlier}
        fixed_ns += sum(facts.stages[other].backward_ns for other in earlier)
    rows.limit(row, -fixed_ns)


class _Layer:
    """Variables of a layer: which part of each tensor is kept or swapped, and the time of what runs again.

    What is swapped may be late: at the fullest moment it is on the device all the same.
    """

    def __init__(self, rows: _Rows, flow: Flow, allow: Allow):
        self.tensors: list[tuple[int, int, int, int]] = []  # size, and what is kept, swapped in time, swapped late
        for tensor, size in enumerate(flow.sizes_bytes):
            can_swap = int(allow.swap and tensor not in flow.gathered | flow.unnamed)
            self.tensors.append((size, rows.variable(1), rows.variable(can_swap), rows.variable(can_swap)))
        self.recompute_ns = rows.variable()
        runs_again = [
            rows.variable(1 if allow.recompute and op not in flow.run_once else 0)
            for op in range(len(flow.recompute_ns))
        ]

        def there(tensor: int, is_again: bool = False) -> Row:
            """Minus the part of a tensor that backward can read, or what runs again."""
            may_move = not (is_again and tensor in flow.members)
            row: Row = dict.fromkeys(self.tensors[tensor][1:] if may_move else self.tensors[tensor][1:2], -1)
            return row if tensor in flow.outputs else row | {runs_again[flow.makers[tensor]]: -1}

        for tensor in flow.saved:
            rows.limit(there(tensor), -1)
        for tensor in flow.single - flow.outputs:
            rows.limit(dict.fromkeys((*self.tensors[tensor][1:], runs_again[flow.makers[tensor]]), 1), 1)
        for first, *others in flow.together:
            for one, other in (pair[::step] for pair in ((first, other) for other in others) for step in (1, -1)):
                again = {runs_again[flow.makers[tensor]]: -1.0 for tensor in (one, other)}
                moved = dict.fromkeys(self.tensors[one][2:], 1.0) | dict.fromkeys(self.tensors[other][2:], -1.0)
                rows.limit(moved | again)
        with_cells = [(cell, self._add_cell(rows, flow, cell, runs_again)) for cell in flow.together_again]
        for tensor, op in flow.either:
            rows.limit(dict.fromkeys((*self.tensors[tensor][2:], runs_again[op]), 1), 1)
        for op, other in flow.again_with:
            rows.limit({runs_again[op]: 1, runs_again[other]: -1})
        for op, tensor in flow.reads:
            rows.limit({**there(tensor, is_again=True), runs_again[op]: 1})
        compute: Row = {runs_again[op]: ns for op, ns in enumerate(flow.recompute_ns) if ns}
        apart = {op: rows.variable() for op, ns in enumerate(flow.unfused_extra_ns) if ns}
        for op, tensor in flow.reads:
            maker = flow.makers[tensor]
            if maker in apart:
                rows.limit({runs_again[maker]: 1, runs_again[op]: 1, apart[maker]: -1}, 1)
        compute |= {variable: flow.unfused_extra_ns[op] for op, variable in apart.items()}
        # What runs again, and the time that it may take while the compute stream waits.
        known_ns = {op: max(ns, 0) for op, ns in enumerate(flow.recompute_ns) if ns > 0 or op in apart}

        def hide(stands: Mapping[int, int], groups: Iterable[tuple[int, Set[int]]], idle_ns: int) -> None:
            """Adds time to hide in for copies that stand there, as variables say.

            `groups` are variables and operators: as far as the variable says copies of these stand there, if at all.
            """
            hidden = {op: rows.variable() for op in stands if op in known_ns}
            for op, hidden_ns in hidden.items():
                row: Row = {hidden_ns: 1, stands[op]: -known_ns[op]}
                rows.limit(row | ({apart[op]: -flow.unfused_extra_ns[op]} if op in apart else {}))
            for is_there, ops in groups:
                if own := [hidden[op] for op in ops if op in hidden]:
                    rows.limit({**dict.fromkeys(own, 1), is_there: -idle_ns})
            compute.update(dict.fromkeys(hidden.values(), -1))

        for window in flow.windows:
            stands, any_stands = self._stand_in(rows, flow, window, runs_again)
            for cell, with_cell in with_cells:
                for op in cell.made_before(window.read_before, flow).intersection(stands, with_cell):
                    rows.limit({stands[op]: 1, with_cell[op]: 1, runs_again[op]: -1})
            only_for = [(stands[op], ops) for op, ops in window.only_for(flow).items()]
            hide(stands, [(any_stands, stands.keys()), *only_for], window.idle_ns)
        communication: Row = {runs_again[op]: ns for op, ns in enumerate(flow.communication_ns) if ns}
        rows.limit({**communication, self.recompute_ns: -1})
        for op, ns in enumerate(flow.communication_ns):
            if ns:
                beside = {other: runs_again[other] for other in flow.beside.get(op, ())}
                each = ((variable, {other}) for other, variable in beside.items())
                hide(beside, [(runs_again[op], beside.keys()), *each], ns)
                compute[runs_again[op]] = compute.get(runs_again[op], 0) + ns
        rows.limit({**compute, self.recompute_ns: -1})

    def _add_cell(self, rows: _Rows, flow: Flow, cell: CellAgain, runs_again: Sequence[int]) -> dict[int, int]:
        """What runs again with a cell, in the same layers: for each operator the variable of the part that does."""
        is_again = rows.variable(1)
        with_cell = {op: rows.variable(1) for op in cell.ops}
        for op, part in with_cell.items():
            rows.limit({part: 1, runs_again[op]: -1})
            rows.limit({part: 1, is_again: -1})
        for op in cell.functions:
            rows.limit({runs_again[op]: 1, with_cell.get(op, is_again): -1})
        for tensor in cell.tensors:
            rows.limit(dict.fromkeys((*self.tensors[tensor][1:], is_again), 1), 1)
            if tensor in flow.saved:
                rows.limit({is_again: 1, with_cell[flow.makers[tensor]]: -1})
        for op, tensor in cell.views:
            rows.limit({runs_again[op]: 1, self.tensors[tensor][1]: -1, is_again: -1})
        for op, tensor in flow.reads:
            if op in with_cell and tensor in cell.tensors:
                rows.limit({with_cell[op]: 1, with_cell[flow.makers[tensor]]: -1})
        return with_cell

    def _stand_in(
        self, rows: _Rows, flow: Flow, window: Window, runs_again: Sequence[int]
    ) -> tuple[dict[int, int], int]:
        """For each operator the variable of the part of its copy that stands in a window, and that of all of them.

        What is read before the window is there before: kept, swapped, or its copy stands before the window, too. Where
        no copy stands there for backward itself none does.
        """
        stands, any_stands = {op: rows.variable(1) for op in window.ops}, rows.variable(1)
        rows.limit({any_stands: 1, **dict.fromkeys((stands[op] for op in window.asked), -1)})
        inputs = flow.inputs
        before = {op: rows.variable(1) for op in closure((flow.makers[t] for t in window.read_before), inputs)}
        for tensor in window.read_before:
            rows.limit(dict.fromkeys((before[flow.makers[tensor]], *self.tensors[tensor][1:]), -1), -1)
        readers: dict[int, list[int]] = {}
        for op, tensor in flow.reads:
            maker = flow.makers[tensor]
            readers.setdefault(maker, []).append(op)
            if op in before:
                rows.limit({before[op]: 1, **dict.fromkeys((before[maker], *self.tensors[tensor][1:]), -1)})
        for op, part in stands.items():
            rows.limit({part: 1, runs_again[op]: -1} | ({before[op]: 1} if op in before else {}))
            rows.limit({part: 1, any_stands: -1})
            if op not in window.asked:
                rows.limit({part: 1, **{stands[reader]: -1 for reader in readers.get(op, ()) if reader in stands}})
        return stands, any_stands
