"""A compiled step cut into blocks that can be put together again in any number and order. Pure.

What is before the layers, each compiled layer, and what is behind them become one block each, with its
part of forward and its part of backward. A block knows its own tensors, and which tensors of the block
before, of the block behind and of the whole step it reads. So three compiled layers give a model of eighty,
and layers under different settings can stand side by side.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from mindswap.errors import SimulationError
from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.ops import COMMUNICATION_OPS, VIEW_OPS, WRITING_OPS, is_kernel
from mindswap.graph.predict.fusion import fuse_work
from mindswap.graph.predict.halves import find_weight_gradients
from mindswap.graph.ranks.collectives import Collective
from mindswap.graph.work import Work, measure_work
from mindswap.simulate.block import Block
from mindswap.simulate.block_parts import BlockOp, BlockTensor, Read, Role, Source, Uses
from mindswap.simulate.gradients import GradientRule
from mindswap.simulate.program import OpKind

__all__ = ["StepBlocks", "cut_blocks"]


@dataclass(frozen=True, eq=False)
class StepBlocks:
    """A whole step: before the layers, the compiled layers, behind the layers (head and loss)."""

    prologue: Block
    layers: tuple[Block, ...]
    epilogue: Block


def cut_blocks(
    graph: Graph,
    operator_ns: Callable[[Node, Work], int],
    label: Callable[[Node], str],
    collectives: Mapping[str, tuple[Collective, ...]] | None = None,
    collective_ns: Callable[[Collective], int] | None = None,
    is_fused: bool = False,
    once: Set[str] = frozenset(),
    gradients: GradientRule | None = None,
    alignment_bytes: int = 1,
) -> StepBlocks:
    """The blocks of a compiled step.

    Args:
        graph: a step with lazy_inline on, from the compiler or from `graph.rewrite`.
        operator_ns: time of an operator.
        label: what to call a forward operator.
        collectives: communication that belongs to a node, by its name.
        collective_ns: time of one.
        is_fused: element-wise operators that follow each other are one kernel (jit_level O1).
        once: names of forward operators that run once in a step, for all micro-batches; they read weights and one
            another only.
        gradients: what becomes of gradients of weights; by default they stay as they are made.
        alignment_bytes: the memory of a tensor is a multiple of it.

    Raises:
        SimulationError: if the layers of the step are tied together in a way that blocks cannot express.
    """
    if not graph.has_lazy_inline:
        raise SimulationError("forward and backward are one function: the graph was compiled without lazy_inline")
    works = measure_work(graph)
    if is_fused:
        works = fuse_work(graph, works)
    cutter = _Cutter(graph, operator_ns, label, collectives or {}, collective_ns, once)
    cutter.gradient_rule = gradients or GradientRule()
    cutter.alignment_bytes = alignment_bytes
    return cutter.cut(works)


@dataclass
class _Tensor:
    """A tensor while the graph is read; positions count kernels within (section, pass)."""

    label: str
    type: TensorType
    is_forward: bool
    is_again: bool
    section: int
    made_at: int
    last_forward: dict[int, int] = field(default_factory=dict)  # by section
    first_backward: dict[int, int] = field(default_factory=dict)
    last_backward: dict[int, int] = field(default_factory=dict)
    halves: dict[tuple[int, bool], tuple[int, int]] = field(default_factory=dict)  # by section, whether is_weight
    prefetch: list[int] = field(default_factory=list)
    has_keeper: bool = False
    is_read: bool = False
    is_cast: bool = False  # made by a cast
    collective: int | None = None  # position of the collective that makes it what readers want
    is_once: bool = False
    last_once: int | None = None


class _Cutter:
    """Reads forward, then backward, and books every operator and every use on a section of the step.

    Sections are numbered in forward order: -1 before the layers, 0 to n - 1 the layers, n behind them.
    """

    def __init__(
        self,
        graph: Graph,
        operator_ns: Callable[[Node, Work], int],
        label: Callable[[Node], str],
        collectives: Mapping[str, tuple[Collective, ...]],
        collective_ns: Callable[[Collective], int] | None,
        once: Set[str],
    ):
        self.graph = graph
        self.operator_ns = operator_ns
        self.label = label
        self.collectives = collectives
        self.collective_ns = collective_ns
        self.once = once
        self.num_layers = 1 + max(
            (node.layer_index for node in graph.forward if node.layer_index is not None), default=-1
        )
        if not self.num_layers:
            raise SimulationError("the compiled step has no transformer layers")
        self.ops: dict[tuple[int, bool], list[BlockOp]] = {}
        self.once_ops: dict[int, list[BlockOp]] = {}
        self.tensors: list[_Tensor] = []
        self.values: dict[str, tuple[int | None, ...]] = {}  # value -> its tensors, one per output
        self.gradients: set[int | None] = set()  # tensors that backward hands out
        self.weight_nodes: frozenset[str] = frozenset()
        self.gradient_rule = GradientRule()
        self.alignment_bytes = 1

    def cut(self, works: tuple[Sequence[Work], Sequence[Work]]) -> StepBlocks:
        forward_work, backward_work = works
        sections = self._forward_sections()
        for node, section, work in zip(self.graph.forward, sections, forward_work, strict=True):
            self._read(node, section, True, work)
        for saved in self.graph.saved:
            self.values[saved.backward_name] = self.values.get(saved.forward_name, ())
        self.weight_nodes = find_weight_gradients(self.graph)
        behind = {
            node.name for node, section in zip(self.graph.forward, sections, strict=True) if section == self.num_layers
        }
        sections = self._backward_sections(behind)
        for node, section, work in zip(self.graph.backward, sections, backward_work, strict=True):
            self._read(node, section, False, work)
        self._note_copies()
        self._note_gradients()
        roles = self._name_roles()
        known = self._by_section()
        blocks = [self._block(section, known[section], roles) for section in range(-1, self.num_layers + 1)]
        return StepBlocks(blocks[0], tuple(blocks[1:-1]), blocks[-1])

    # -- sections ---------------------------------------------------------------------------------

    def _forward_sections(self) -> list[int]:
        """What is outside the layers belongs behind them from the first of it on that reads them for good, else before.

        Layers may go on behind that: the compiler lists what routers of experts add to the loss at the end.
        """
        nodes = self.graph.forward
        reads: set[str] = set()  # of a layer, or outside the layers and reads one
        for node in nodes:
            if node.layer_index is not None or any(name in reads for name in node.inputs):
                reads.add(node.name)
        feeds: set[str] = set()  # read by a layer
        for node in reversed(nodes):
            if node.layer_index is not None or node.name in feeds:
                feeds.update(node.inputs)
        ends = reads - feeds
        first = next(
            (
                i
                for i, node in enumerate(nodes)
                if node.layer_index is None and is_kernel(node.op) and node.name in ends
            ),
            len(nodes),
        )
        return [
            node.layer_index if node.layer_index is not None else (self.num_layers if position >= first else -1)
            for position, node in enumerate(nodes)
        ]

    def _backward_sections(self, behind: Set[str]) -> list[int]:
        """Backward goes down the layers; a layer begins with the first gradient of one of its own operators.

        What runs again belongs where it is needed first. The gradient of an operator behind the layers belongs there
        even if the compiler lists it later: it lists the gradient that the head gives a weight tied to the embedding
        just before the sum with that of the embedding, while the backend runs operators as soon as they can.

        Args:
            behind: operators of forward that are behind the layers.
        """
        sections = []
        current = self.num_layers
        behind_values = {saved.backward_name for saved in self.graph.saved if saved.forward_name in behind}
        places: dict[str, int] = {}  # of what backward makes
        for node in self.graph.backward:
            made = [name for name in node.inputs if name in places]
            reads_behind = any(name in behind_values for name in node.inputs) or (
                bool(made) and all(places[name] == self.num_layers for name in made)
            )
            places[node.name] = self.num_layers
            if node.layer_index is None and (node.origin in behind or (not node.origin and reads_behind)):
                sections.append(self.num_layers)
                continue
            if is_kernel(node.op) and not node.is_duplicate:
                if node.layer_index is not None:
                    current = min(current, node.layer_index)
                elif current == 0:
                    current = -1
            sections.append(current)
            places[node.name] = current
        needed: dict[str, int] = {}
        for position in range(len(sections) - 1, -1, -1):
            node = self.graph.backward[position]
            if node.is_duplicate or node.op == "MoveTo" or not is_kernel(node.op):
                sections[position] = needed.get(node.name, sections[position])
            for name in node.inputs:
                needed[name] = max(needed.get(name, -1), sections[position])
        return sections

    # -- operators and uses -----------------------------------------------------------------------

    def _read(self, node: Node, section: int, is_forward: bool, work: Work) -> None:
        if node.op in VIEW_OPS or node.op == "MoveTo":
            self.values[node.name] = self.values.get(node.inputs[0], ())
        elif node.op == "TupleGetItem":
            members = self.values.get(node.inputs[0], ())
            index = self.graph.constants.get(node.inputs[1], 0)
            self.values[node.name] = members[index : index + 1]
        elif node.op == "MakeTuple":
            self.values[node.name] = tuple((self.values.get(name) or (None,))[0] for name in node.inputs)
        elif node.op == "TensorMove" and not self.values.get(node.inputs[0]):
            return  # of a weight: it is read where it is
        elif is_kernel(node.op):
            self._run(node, section, is_forward, work)

    def _run(self, node: Node, section: int, is_forward: bool, work: Work) -> None:
        is_once = is_forward and node.name in self.once
        ops = self.once_ops.setdefault(section, []) if is_once else self.ops.setdefault((section, is_forward), [])
        kind = OpKind.FORWARD if is_forward else OpKind.RECOMPUTE if node.is_duplicate else OpKind.BACKWARD
        label = self._label(node, is_forward)
        waits = []
        wait_once = None
        is_weight = not is_forward and node.name in self.weight_nodes
        collectives = self.collectives.get(node.origin if node.is_duplicate else node.name, ())
        for collective in collectives:
            if collective.is_before:
                begin = self._made_at(node, section, is_forward)
                waits.append(self._communicate(ops, label, collective.kind, collective, begin, is_weight))
        position = len(ops)
        for name in node.inputs:
            for index in self.values.get(name, ()):
                if index is None:
                    continue
                tensor = self.tensors[index]
                self._use(tensor, section, position, is_forward, is_once, is_weight)
                if tensor.collective is None or (tensor.section, tensor.is_forward) != (section, is_forward):
                    continue
                if tensor.is_once == is_once:
                    waits.append(tensor.collective)
                else:
                    wait_once = max(wait_once or 0, tensor.collective)
        after = [collective for collective in collectives if not collective.is_before]
        if node.op in COMMUNICATION_OPS:  # the compiler has it as an operator of its own
            self._communicate(ops, label, node.op, after.pop() if after else None, None, is_weight)
        else:
            wait_op = max(waits, default=None)
            pieces = tuple(self.operator_ns(node, replace(work, flops=flops)) for flops in work.piece_flops)
            duration_ns = sum(pieces) // len(pieces) if pieces else self.operator_ns(node, work)
            ops.append(BlockOp(label, kind, duration_ns, wait_op, node.op, wait_once, is_weight, pieces))
        outputs = []
        for known in () if node.op in WRITING_OPS else node.outputs:
            outputs.append(len(self.tensors) if known.size_bytes else None)
            if known.size_bytes:
                again = node.is_duplicate and not is_forward
                self.tensors.append(
                    _Tensor(
                        label, known, is_forward, again, section, position, is_once=is_once, is_cast=node.op == "Cast"
                    )
                )
        self.values[node.name] = tuple(outputs)
        for collective in after:
            self._communicate(ops, label, collective.kind, collective, None, is_weight)
        if ops[-1].kind is OpKind.COLLECTIVE:
            for index in outputs:
                if index is not None:
                    self.tensors[index].collective = len(ops) - 1

    def _made_at(self, node: Node, section: int, is_forward: bool) -> int | None:
        """Position of the last maker of a node's first operand, if it is in the same pass of the section."""
        known = [self.tensors[index] for index in self.values.get(node.inputs[0], ()) if index is not None]
        is_here = all((tensor.section, tensor.is_forward) == (section, is_forward) for tensor in known)
        return max(tensor.made_at for tensor in known) if known and is_here else None

    def _communicate(
        self,
        ops: list[BlockOp],
        label: str,
        kind: str,
        collective: Collective | None,
        begin: int | None = None,
        is_weight: bool = False,
    ) -> int:
        """Appends communication; its position.

        It begins when the operator at `begin` has ended, by default the one before it. Without `collective` it takes
        no time: another one has the tensor already.
        """
        duration = self.collective_ns(collective) if collective is not None and self.collective_ns is not None else 0
        wait_op = begin if begin is not None else len(ops) - 1 if ops else None
        ops.append(BlockOp(f"{label} {kind}", OpKind.COLLECTIVE, duration, wait_op, kind, None, is_weight))
        return len(ops) - 1

    def _label(self, node: Node, is_forward: bool) -> str:
        if is_forward:
            return self.label(node)
        origin = self.graph.forward_nodes.get(node.origin)
        if origin is not None:
            return self.label(origin)
        return f"{node.cell_path}.{node.op}".strip(".")

    def _use(
        self, tensor: _Tensor, section: int, position: int, is_forward: bool, is_once: bool, is_weight: bool
    ) -> None:
        tensor.is_read = True
        if is_once:
            tensor.last_once = position
        elif is_forward:
            tensor.last_forward[section] = position
        else:
            tensor.first_backward.setdefault(section, position)
            tensor.last_backward[section] = position
            first, _ = tensor.halves.get((section, is_weight), (position, position))
            tensor.halves[section, is_weight] = first, position

    def _note_copies(self) -> None:
        read_in_backward = {name for node in self.graph.backward for name in node.inputs}
        nodes = self.graph.forward_nodes
        for saved in self.graph.saved:
            if saved.backward_name not in read_in_backward:
                continue
            copy = nodes.get(saved.forward_name)
            for index in self.values.get(saved.forward_name, ()):
                if index is None:
                    continue
                if copy is not None and copy.op == "MoveTo":
                    self.tensors[index].prefetch.append(int(copy.attributes["backward_prefetch"]))  # type: ignore[call-overload]
                else:
                    self.tensors[index].has_keeper = True

    def _note_gradients(self) -> None:
        """Backward gives the gradients of what its function reads from outside, as one tuple."""
        last = self.graph.backward[-1] if self.graph.backward else None
        if last is not None and last.op == "MakeTuple":
            self.gradients = {i for i in self.values[last.name] if i is not None and not self.tensors[i].is_forward}

    # -- blocks -----------------------------------------------------------------------------------

    def _readers(self, tensor: _Tensor) -> set[int]:
        return {*tensor.last_forward, *tensor.first_backward}

    def _is_shared(self, tensor: _Tensor) -> bool:
        """Made before the layers (in backward: behind them) and read by more than the next section."""
        if tensor.is_forward:
            return tensor.section == -1 and bool(self._readers(tensor) - {-1, 0})
        return tensor.section == self.num_layers and bool(
            self._readers(tensor) - {self.num_layers, self.num_layers - 1}
        )

    def _name_roles(self) -> dict[int, Role]:
        """Roles of the tensors that other sections read, in order of production."""
        counts: dict[tuple[object, ...], int] = {}
        roles = {}
        for index, tensor in enumerate(self.tensors):
            if not self._readers(tensor) - {tensor.section}:
                continue
            is_shared = self._is_shared(tensor)
            key = (tensor.section, tensor.is_forward, is_shared, tensor.type.shape, tensor.type.dtype)
            known = tensor.type
            roles[index] = Role(known.shape, known.dtype, counts.get(key, 0), tensor.is_forward, is_shared)
            counts[key] = counts.get(key, 0) + 1
        return roles

    def _by_section(self) -> Mapping[int, list[int]]:
        """The tensors that each section makes or reads, in order."""
        found: dict[int, list[int]] = {section: [] for section in range(-1, self.num_layers + 1)}
        for index, tensor in enumerate(self.tensors):
            for section in {tensor.section, *tensor.last_forward, *tensor.first_backward}:
                found[section].append(index)
        return found

    def _block(self, section: int, known: Sequence[int], roles: Mapping[int, Role]) -> Block:
        tensors: list[BlockTensor] = []
        reads: list[Read] = []
        for index in known:
            tensor = self.tensors[index]
            uses = Uses(
                tensor.last_forward.get(section),
                tensor.first_backward.get(section),
                tensor.last_backward.get(section),
                tensor.last_once if tensor.section == section else None,
                *tensor.halves.get((section, False), (None, None)),
                *tensor.halves.get((section, True), (None, None)),
            )
            size_bytes = self._memory_of(tensor.type.size_bytes)
            if tensor.section == section and index in self.gradients:
                tensors += self._gradient(tensor)
            if tensor.section == section and (tensor.is_forward or tensor.is_read):
                tensors.append(
                    BlockTensor(
                        tensor.label, size_bytes, tensor.is_forward, tensor.is_again, tensor.made_at, uses,
                        roles.get(index), *_copies(tensor), tensor.is_once,
                    )
                )  # fmt: skip
            elif uses != Uses():
                reads.append(Read(self._source(tensor, section), roles[index], size_bytes, uses))
        forward, backward = (tuple(self.ops.get((section, is_forward), ())) for is_forward in (True, False))
        return Block(forward, backward, tuple(tensors), tuple(reads), tuple(self.once_ops.get(section, ())))

    def _memory_of(self, size_bytes: int) -> int:
        """The piece of memory that a tensor gets."""
        return -(-size_bytes // self.alignment_bytes) * self.alignment_bytes

    def _gradient(self, tensor: _Tensor) -> Iterable[BlockTensor]:
        """What a gradient of a weight is until its sum or its ReduceScatter has taken it, and what stays."""
        size_bytes, made_at = tensor.type.size_bytes, tensor.made_at
        ops = self.ops[tensor.section, False]
        is_weight = ops[made_at].is_weight
        behind = [at for at in range(made_at + 1, len(ops)) if not ops[at].kind.is_communication]
        taken_at = behind[0] if behind else made_at
        taken_in_half = next((at for at in behind if ops[at].is_weight == is_weight), made_at)
        half = (None, None, taken_in_half, taken_in_half) if is_weight else (taken_in_half, taken_in_half, None, None)
        taken = Uses(None, None, taken_at, None, *half)
        rule, is_cut = self.gradient_rule, self.gradient_rule.is_cut(tensor.type)
        passing_bytes = rule.passing_bytes(size_bytes, is_cut, tensor.is_cast)
        kept_bytes = rule.kept_bytes(size_bytes, is_cut)
        for size, uses, is_final in ((passing_bytes, taken, False), (kept_bytes, Uses(), True)):
            if size:
                yield BlockTensor(
                    tensor.label, self._memory_of(size), False, False, made_at, uses, None, is_gradient=True,
                    is_final=is_final,
                )  # fmt: skip

    def _source(self, tensor: _Tensor, section: int) -> Source:
        if self._is_shared(tensor):
            return Source.SHARED
        if tensor.section == section - 1:
            return Source.BEFORE
        if tensor.section == section + 1:
            return Source.BEHIND
        raise SimulationError(
            f"{tensor.label} would be read two or more layers away from where it is made; only neighbouring layers can "
            "share tensors"
        )


def _copies(tensor: _Tensor) -> tuple[int, int, bool]:
    """Prefetch distance, number of copies, and whether the tensor stays in spite of them."""
    return max(tensor.prefetch, default=0), len(tensor.prefetch), bool(tensor.prefetch) and tensor.has_keeper
