"""Kinds of operators: one table, `data/graph/operators.json`, which all parts ask.

A new operator is one line of it: its class says how long it takes, its cut how it is split over ranks, its traits
how the compiler and the backend treat it. An operator without a line counts as element-wise, with a kernel, no trait,
and no rule for its cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any

from mindswap.files import package_data


class ComputeUnit(Enum):
    """Unit of the device that runs an operator."""

    MATRIX = "matrix units"
    VECTOR = "vector units"
    NETWORK = "links between cards"
    NONE = "nowhere"


class OpClass(Enum):
    """Kinds of operators, as costs and reports group them."""

    MATMUL = ("matrix product", ComputeUnit.MATRIX)
    ATTENTION = ("attention", ComputeUnit.MATRIX)
    NORM = ("norm", ComputeUnit.VECTOR)
    SOFTMAX = ("softmax", ComputeUnit.VECTOR)
    EMBEDDING = ("embedding", ComputeUnit.VECTOR)
    CAST = ("cast", ComputeUnit.VECTOR)
    MOVE = ("data movement", ComputeUnit.VECTOR)
    ELEMENTWISE = ("element-wise", ComputeUnit.VECTOR)
    # its time depends on the ranks, see `simulator.cost.transfer.collective_ns`
    COMMUNICATION = ("communication", ComputeUnit.NETWORK)
    NONE = ("no kernel", ComputeUnit.NONE)

    @property
    def unit(self) -> ComputeUnit:
        """The units that run operators of this class."""
        return self.value[1]


class SplitRule(Enum):
    """Rule for the split of outputs, given that of operands; the rules are in `graph/sharding/split_rules.py`."""

    ELEMENTWISE = auto()
    LIKE_FIRST = auto()
    REDUCTION = auto()
    PRODUCT = auto()
    BROADCAST = auto()
    DROPOUT = auto()
    EMBEDDING = auto()
    SEGMENT_SUM = auto()
    EXPAND_DIMS = auto()
    ATTENTION = auto()
    GATHER = auto()
    ONE_HOT = auto()
    OUTER = auto()
    SQUEEZE = auto()
    TRANSPOSE = auto()


class Trait(Flag):
    """A further trait of an operator, with its source."""

    NONE = 0
    # The output is the memory of the first input.
    VIEW = auto()
    # A weight is read through it. The copy that TensorMove makes is memory only where several micro-batches have one
    # each, and backward reads it (`simulator.partition.BlockMaker`).
    READS_WEIGHT = auto()
    # Ties values into a tuple, and takes one out again.
    MAKES_TUPLE = auto()
    READS_TUPLE = auto()
    # Orders side effects or ends a function; no tensor.
    ORDERS = auto()
    # The compiler's own, between two operators of the model: `op_swap` cannot mean it.
    IS_COMPILER_OP = auto()
    # Hands its cut on: MindSpore gives it no operator info of its own (step_parallel_utils.cc, IsParallelCareNode; a
    # Cast without strategy is looked through).
    PASSES_SPLIT = auto()
    # Takes the cut that the next operator asks for; a redistribution happens inside (step_parallel.cc, ReshapeInit).
    TAKES_REQUESTED_SPLIT = auto()
    # What a Reshape becomes in the graph of one rank when it redistributes (`name_communication`).
    REDISTRIBUTES = auto()
    # Its backward reads its operands, so one that arrives by communication is kept as it arrived.
    SAVES_OPERANDS = auto()
    # May stand between a part of a sum and the communication that a model itself has for it.
    IS_BEFORE_SUM = auto()
    # The gradient of a Concat.
    IS_CONCAT_GRADIENT = auto()
    # Two of them with the same inputs give different results.
    RANDOM = auto()
    # Reads only the rows that it gives, not the whole of its first input.
    READS_PART = auto()
    # `jit_level: O1` makes it part of a larger kernel (backend/common/graph_kernel, `dvm`): of the operators that dvm
    # clusters take, those that the models here use.
    FUSED = auto()
    # May be the last operator of such a kernel: what it sums up need not be in memory, what it gives is. Seen in dry
    # runs of 2.9.0: GraphKernel_Sub_Exp_ReduceSum, GraphKernel_Log_Sub_Mul_ReduceSum, GraphKernel_Square_SumExt.
    ENDS_FUSION = auto()
    # Writes into its first input, a parameter: no memory of its own.
    WRITES = auto()


@dataclass(frozen=True)
class OperatorInfo:
    """A line of the table: operators that are alike in everything."""

    kind: OpClass = OpClass.ELEMENTWISE  # class
    traits: Trait = Trait.NONE  # what else is to be known
    # rule for the cut of the outputs; a tuple says of each output as which operand it is cut: the gradient of a tensor
    # as the tensor; None where no rule is known
    split_rule: SplitRule | tuple[int, ...] | None = None
    rate: str = ""  # figure in `Device.vector_rates`, for kernels that the vector units bound
    # of communication, the communication that is its gradient (ops/_grad_experimental/grad_comm_ops.py)
    gradient: str = ""
    # of attention, products with the head size of queries and keys, and with that of values
    products: Sequence[int] | None = None


def _read_row(row: Mapping[str, Any]) -> OperatorInfo:
    split_rule = row.get("cut")
    return OperatorInfo(
        OpClass[row.get("class", "ELEMENTWISE")],
        Trait(sum(Trait[name].value for name in row.get("traits", "").split())),
        SplitRule[split_rule] if isinstance(split_rule, str) else split_rule and tuple(split_rule),
        row.get("rate", ""),
        row.get("gradient", ""),
        row.get("products"),
    )


TABLE = package_data("graph/operators.json")
_BY_NAME = {name: line for row in TABLE for line in [_read_row(row)] for name in row["ops"].split()}
_UNKNOWN = OperatorInfo()
# Kernels of CANN and the operators of MindSpore that they run.
OP_OF_KERNEL: Mapping[str, str] = {kernel: op for row in TABLE for kernel, op in row.get("kernels", {}).items()}


def _ops_with_trait(trait: Trait) -> frozenset[str]:
    return frozenset(name for name, line in _BY_NAME.items() if line.traits & trait)


def _of_class(kind: OpClass) -> frozenset[str]:
    return frozenset(name for name, line in _BY_NAME.items() if line.kind is kind)


# Sets for code that asks of every node of a graph; all of them follow from the table.
VIEW_OPS = _ops_with_trait(Trait.VIEW)
WEIGHT_OPS = _ops_with_trait(Trait.READS_WEIGHT)
TUPLE_OPS = _ops_with_trait(Trait.MAKES_TUPLE | Trait.READS_TUPLE)
ORDERING_OPS = _ops_with_trait(Trait.ORDERS)
# Tie values together; nothing is computed with them.
BOOKKEEPING_OPS = ORDERING_OPS | _ops_with_trait(Trait.MAKES_TUPLE)
COMPILER_OPS = _ops_with_trait(Trait.IS_COMPILER_OP)
# Operators of the compiler's own, views, and reads of weights: no work. Copies are the links' work.
NO_WORK_OPS = _of_class(OpClass.NONE)
# Views and tuples are the memory of their inputs; Load reads a weight where it is.
NO_MEMORY_OPS = VIEW_OPS | TUPLE_OPS | (WEIGHT_OPS & NO_WORK_OPS)
MATMUL_OPS = _of_class(OpClass.MATMUL)
# Matrix products with a rule for their cut.
PRODUCT_OPS = frozenset(name for name, line in _BY_NAME.items() if line.split_rule is SplitRule.PRODUCT)
COMMUNICATION_OPS = _of_class(OpClass.COMMUNICATION)
REDISTRIBUTION_OPS = _ops_with_trait(Trait.REDISTRIBUTES)
RESHAPING_OPS = _ops_with_trait(Trait.TAKES_REQUESTED_SPLIT)
OPERAND_SAVING_OPS = _ops_with_trait(Trait.SAVES_OPERANDS)
CONCAT_GRADIENT_OPS = _ops_with_trait(Trait.IS_CONCAT_GRADIENT)
RANDOM_OPS = _ops_with_trait(Trait.RANDOM)
PARTIAL_READ_OPS = _ops_with_trait(Trait.READS_PART)
FUSED_OPS = _ops_with_trait(Trait.FUSED)
FUSED_READERS = FUSED_OPS | _ops_with_trait(Trait.ENDS_FUSION)
WRITING_OPS = _ops_with_trait(Trait.WRITES)

# Behind these something is what it was before them. What that something is decides which they are:
# the value itself,
VALUE_PASSING_OPS = VIEW_OPS | TUPLE_OPS
# how it is cut,
SPLIT_PASSING_OPS = _ops_with_trait(Trait.PASSES_SPLIT)
# what one layer hands to the next: the compiler puts these between, casts of norms for one,
LAYER_PASSING_OPS = VALUE_PASSING_OPS | _of_class(OpClass.CAST)
# the part of a sum that a communication of the model's own adds,
SUM_PASSING_OPS = VIEW_OPS | _ops_with_trait(Trait.IS_BEFORE_SUM)
# and the gradient of a weight on its way to the sum; another rank's part is added by communication.
GRADIENT_PASSING_OPS = VIEW_OPS | COMMUNICATION_OPS | _of_class(OpClass.CAST) | _ops_with_trait(Trait.READS_TUPLE)
# What they give is their first input; the others only tie an order.
FIRST_INPUT_OPS = WEIGHT_OPS | (VIEW_OPS & COMPILER_OPS) | _of_class(OpClass.CAST)


def operator_info(op: str) -> OperatorInfo:
    """Line of the table for an operator; element-wise where it has none."""
    return _BY_NAME.get(op, _UNKNOWN)


def classify(op: str) -> OpClass:
    """Kind of an operator; element-wise where nothing else is known."""
    return operator_info(op).kind


def is_kernel(op: str) -> bool:
    """The device runs something for this operator: views, tuples and reads of weights have no kernel.

    Positions of operators, as `backward_prefetch` counts them, are those of kernels. `MoveTo` is none.
    """
    return op not in NO_WORK_OPS
