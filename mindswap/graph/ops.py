"""Properties of operator types, read from the table `data/graph/operators.json`.

A new operator type is one row: its class determines its cost model, its split rule how it is sharded, its traits how
the compiler and the backend treat it. A type without a row counts as element-wise, with a kernel, without traits and
without a split rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any

from mindswap.files import package_data


class ComputeUnit(Enum):
    """Hardware unit that runs an operator."""

    MATRIX = "matrix units"
    VECTOR = "vector units"
    NETWORK = "links between cards"
    NONE = "nowhere"


class OpClass(Enum):
    """Class of an operator type, as cost models and reports group them."""

    MATMUL = ("matrix product", ComputeUnit.MATRIX)
    ATTENTION = ("attention", ComputeUnit.MATRIX)
    NORM = ("norm", ComputeUnit.VECTOR)
    SOFTMAX = ("softmax", ComputeUnit.VECTOR)
    EMBEDDING = ("embedding", ComputeUnit.VECTOR)
    CAST = ("cast", ComputeUnit.VECTOR)
    MOVE = ("data movement", ComputeUnit.VECTOR)
    ELEMENTWISE = ("element-wise", ComputeUnit.VECTOR)
    # its time depends on the number of ranks, see `simulator.cost.transfer.collective_ns`
    COMMUNICATION = ("communication", ComputeUnit.NETWORK)
    NONE = ("no kernel", ComputeUnit.NONE)

    @property
    def unit(self) -> ComputeUnit:
        """Hardware unit that runs operators of this class."""
        return self.value[1]


class SplitRule(Enum):
    """Rule that derives the split of the outputs from the operands, implemented in `graph/sharding/split_rules.py`."""

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
    """Further property of an operator type, with its source."""

    NONE = 0
    # The output shares the memory of the first input.
    VIEW = auto()
    # Reads a weight. The copy made by TensorMove needs memory only if several micro-batches have one each and backward
    # reads it (`simulator.partition.BlockMaker`).
    READS_WEIGHT = auto()
    # Creates a tuple; reads a member of one.
    MAKES_TUPLE = auto()
    READS_TUPLE = auto()
    # Orders side effects or ends a function; it has no tensor output.
    ORDERS = auto()
    # Inserted by the compiler between two operators of the model; `op_swap` cannot name it.
    IS_COMPILER_OP = auto()
    # Output split equals input split: MindSpore has no operator info for it (step_parallel_utils.cc,
    # IsParallelCareNode), or looks through it if it has no strategy (Cast).
    PASSES_SPLIT = auto()
    # Takes the split that the next operator requires and redistributes if necessary (step_parallel.cc, ReshapeInit).
    TAKES_REQUESTED_SPLIT = auto()
    # Replaces a redistributing Reshape in the graph of one rank (`name_communication`).
    REDISTRIBUTES = auto()
    # Its gradient reads its operands, so an operand that arrives by communication is saved as received.
    SAVES_OPERANDS = auto()
    # May be between a partial sum and the explicit communication of the model that reduces it.
    IS_BEFORE_SUM = auto()
    # Gradient of a Concat.
    IS_CONCAT_GRADIENT = auto()
    # Two operators with equal inputs have different outputs.
    RANDOM = auto()
    # Reads only the rows of its first input that it outputs.
    READS_PART = auto()
    # `jit_level: O1` fuses it into a larger kernel (backend/common/graph_kernel, `dvm`). Of the operators in dvm
    # clusters, those that the supported models use.
    FUSED = auto()
    # May end such a kernel: its input need not be written to memory, its output is. Seen in dry runs of MindSpore
    # 2.9.0: GraphKernel_Sub_Exp_ReduceSum, GraphKernel_Log_Sub_Mul_ReduceSum, GraphKernel_Square_SumExt.
    ENDS_FUSION = auto()
    # Writes into its first input, a parameter; needs no memory of its own.
    WRITES = auto()


@dataclass(frozen=True)
class OperatorInfo:
    """Row of the table: properties shared by some operator types."""

    kind: OpClass = OpClass.ELEMENTWISE  # determines the cost model
    traits: Trait = Trait.NONE  # further properties
    # rule for the split of the outputs; a tuple lists for each output the operand whose split it has (a gradient is
    # split like its tensor); None if no rule is known
    split_rule: SplitRule | tuple[int, ...] | None = None
    rate: str = ""  # key of `Device.vector_rates`, for kernels bound by the vector units
    # of communication: type of its gradient (ops/_grad_experimental/grad_comm_ops.py)
    gradient: str = ""
    # of attention: number of products over the head size of queries and keys, and over that of values
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
# CANN kernel -> operator type of MindSpore that runs it.
OP_OF_KERNEL: Mapping[str, str] = {kernel: op for row in TABLE for kernel, op in row.get("kernels", {}).items()}


def _ops_with_trait(trait: Trait) -> frozenset[str]:
    return frozenset(name for name, line in _BY_NAME.items() if line.traits & trait)


def _of_class(kind: OpClass) -> frozenset[str]:
    return frozenset(name for name, line in _BY_NAME.items() if line.kind is kind)


# Sets of operator types for code that visits every node of a graph, all derived from the table.
VIEW_OPS = _ops_with_trait(Trait.VIEW)
WEIGHT_OPS = _ops_with_trait(Trait.READS_WEIGHT)
TUPLE_OPS = _ops_with_trait(Trait.MAKES_TUPLE | Trait.READS_TUPLE)
ORDERING_OPS = _ops_with_trait(Trait.ORDERS)
# Combine values without computing anything.
BOOKKEEPING_OPS = ORDERING_OPS | _ops_with_trait(Trait.MAKES_TUPLE)
COMPILER_OPS = _ops_with_trait(Trait.IS_COMPILER_OP)
# Types without work: operators inserted by the compiler, views, reads of weights. Copies to and from the host are work
# of the links.
NO_WORK_OPS = _of_class(OpClass.NONE)
# Types without memory of their own: views and tuples share the memory of their inputs, Load that of the weight.
NO_MEMORY_OPS = VIEW_OPS | TUPLE_OPS | (WEIGHT_OPS & NO_WORK_OPS)
MATMUL_OPS = _of_class(OpClass.MATMUL)
NORM_OPS = _of_class(OpClass.NORM)
# Matrix products with a split rule.
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

# Types that preserve a property of their input. The property differs between the sets: the value itself,
VALUE_PASSING_OPS = VIEW_OPS | TUPLE_OPS
# its split,
SPLIT_PASSING_OPS = _ops_with_trait(Trait.PASSES_SPLIT)
# the boundary tensor of two layers (the compiler inserts, for example, casts of norms there),
LAYER_PASSING_OPS = VALUE_PASSING_OPS | _of_class(OpClass.CAST)
# a partial sum that an explicit communication of the model reduces,
SUM_PASSING_OPS = VIEW_OPS | _ops_with_trait(Trait.IS_BEFORE_SUM)
# the gradient of a weight before its accumulation (communication adds the shares of other ranks).
GRADIENT_PASSING_OPS = VIEW_OPS | COMMUNICATION_OPS | _of_class(OpClass.CAST) | _ops_with_trait(Trait.READS_TUPLE)
# Types whose output is their first input; the other inputs only define an order.
FIRST_INPUT_OPS = WEIGHT_OPS | (VIEW_OPS & COMPILER_OPS) | _of_class(OpClass.CAST)


def operator_info(op: str) -> OperatorInfo:
    """Return the row of an operator type; the element-wise default if the table has none."""
    return _BY_NAME.get(op, _UNKNOWN)


def classify(op: str) -> OpClass:
    """Return the class of an operator type; element-wise by default."""
    return operator_info(op).kind


def is_kernel(op: str) -> bool:
    """Return whether the device runs a kernel for this type; views, tuples and reads of weights have none.

    What `backward_prefetch` counts: `graph.analysis.execution_order`.
    """
    return op not in NO_WORK_OPS
