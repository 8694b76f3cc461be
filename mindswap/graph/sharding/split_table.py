"""What is known of the splits of a step while they are followed through it."""

from dataclasses import dataclass

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.ops import SPLIT_PASSING_OPS, TYING_OPS
from mindswap.graph.sharding.experts import LocalNames
from mindswap.graph.sharding.split_rules import OperatorCall
from mindswap.graph.sharding.splits import Split, fits, num_parts
from mindswap.graph.sharding.strategies import read_strategy

# A split for each output of an operator, None where it is not known; None altogether if no rule fits.
NodeSplits = list[Split | None] | None


@dataclass(frozen=True)
class Unresolved:
    """An operator whose sizes per rank are not certain."""

    node: Node
    reason: str


@dataclass(frozen=True)
class Redistribution:
    """A tensor that is cut in one way where it is made and in another where it is read: communication."""

    producer: str  # name of the value
    consumer: Node  # operator that reads it; a `Reshape` communicates itself
    # before, after: parts per dimension; of the producer's shape and, for a `Reshape`, of its own
    before: Split
    after: Split
    index: int = 0  # which output of the producer


@dataclass(frozen=True)
class PartialSum:
    """What an operator makes is a part of a sum on each rank."""

    num_ranks: int  # ranks that have the parts
    is_scattered: bool = False  # `out_strategy` has each rank keep a part of the result


@dataclass(frozen=True)
class Operand:
    """A tensor that an operator reads: where it comes from, its logical type, its cut (None: not known)."""

    name: str
    index: int
    type: TensorType
    split: Split | None


class SplitTable:
    """Types and splits of every value, one for each output, and what was found on the way (see `Sharding`)."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.types = {name: (known,) for name, known in graph.types.items()} | {
            node.name: node.outputs for node in (*graph.forward, *graph.backward)
        }
        self.splits: dict[str, tuple[Split | None, ...]] = {}
        self.unresolved: list[Unresolved] = []
        self.redistributions: list[Redistribution] = []
        self.sums: dict[str, PartialSum] = {}
        self.scattered: dict[str, Split] = {}  # operators whose sum is scattered: its cut before
        self.users, self.nodes = graph.index.readers, graph.index.nodes
        self.forward_names = graph.index.forward_names
        self.communications: dict[str, str] = {}  # of a Reshape that redistributes: what it is
        self.local = LocalNames()  # values that each rank has for itself

    def note(self, node: Node, reason: str) -> None:
        """The sizes of an operator are not certain."""
        self.unresolved.append(Unresolved(node, reason))

    def add(self, node: Node, splits: NodeSplits) -> None:
        """Takes the splits of a node if they fit the outputs, else none, with a note."""
        checked: list[Split | None] = [None] * len(node.outputs)
        self.splits[node.name] = tuple(checked)
        if node.op in TYING_OPS:
            return
        if splits is None or len(splits) != len(node.outputs):
            if node.makes_more_than_a_number and node.op != "MakeTuple":
                self.note(node, f"no rule for {node.op} with these operands")
            return
        for position, (known, split) in enumerate(zip(node.outputs, splits, strict=True)):
            if split is None or fits(split, known.shape):
                checked[position] = split
            else:
                self.note(node, f"{known.shape} cannot be cut into {split}")
        self.splits[node.name] = tuple(checked)

    def operands(self, node: Node) -> list[Operand]:
        """The tensors among the inputs, members of tuples one by one."""
        found = []
        for name in node.inputs:
            types = self.types.get(name, ())
            splits = self.splits.get(name, (None,) * len(types))
            for index, (known, split) in enumerate(zip(types, splits, strict=False)):
                found.append(Operand(name, index, known, split))
        return found

    def call(self, node: Node, operands: list[Operand], splits: list[Split]) -> OperatorCall:
        """What a rule needs to know of an operator."""
        graph = self.graph
        return OperatorCall(
            op=node.op,
            shapes=[operand.type.shape for operand in operands],
            splits=splits,
            outputs=[known.shape for known in node.outputs],
            integers=[graph.constants[name] for name in node.inputs if name in graph.constants],
            tuples=[graph.tuples[name] for name in node.inputs if name in graph.tuples],
            attributes=node.attributes,
        )

    def tuple_splits(self, node: Node) -> NodeSplits:
        """Splits of the operators that only tie and untie tuples."""
        if node.op == "MakeTuple":
            splits = [operand.split for operand in self.operands(node)]
            return splits if len(splits) == len(node.outputs) else [None] * len(node.outputs)
        members = self.splits.get(node.inputs[0], ())
        index = self.graph.constants.get(node.inputs[1], 0)
        return [members[index]] if index < len(members) and len(node.outputs) == 1 else None

    def asked_split(self, node: Node) -> Split | None:
        """What the first user with a strategy asks of the output of `node`, looking through casts."""
        for user in self.users.get(node.name, ()):
            strategy = read_strategy(user.attributes)
            if strategy:
                for operand, asked in zip(self.operands(user), strategy, strict=False):
                    if operand.name == node.name and len(asked) == len(operand.type.shape):
                        return asked
            elif user.op in SPLIT_PASSING_OPS and user.inputs[0] == node.name:
                asked_later = self.asked_split(user)
                if asked_later is not None:
                    return asked_later
        return None


def cut_type(known: TensorType, split: Split | None) -> TensorType:
    """The part of a tensor that one rank has."""
    if split is None or num_parts(split) == 1:
        return known
    shape = tuple(size // parts for size, parts in zip(known.shape, split, strict=True))
    return TensorType(shape, known.dtype, known.size_bytes // num_parts(split))
