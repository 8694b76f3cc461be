"""Kinds of operators: one table, which all parts ask.

A new operator is one line of `TABLE`: its class says how long it takes, its cut how it is split over ranks, its traits
how the compiler and the backend treat it. An operator without a line counts as element-wise, with a kernel, no trait,
and no rule for its cut.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any


class ComputeUnit(Enum):
    """Unit of the device that runs an operator."""

    MATRIX = "matrix units"
    VECTOR = "vector units"
    NETWORK = "links between cards"
    NONE = "nowhere"


class OpClass(Enum):
    """Kinds of operators, as costs and reports group them."""

    MATMUL = "matrix product"
    ATTENTION = "attention"
    NORM = "norm"
    SOFTMAX = "softmax"
    EMBEDDING = "embedding"
    CAST = "cast"
    MOVE = "data movement"
    ELEMENTWISE = "element-wise"
    COMMUNICATION = "communication"  # its time depends on the ranks, see `simulator.cost.transfer.collective_ns`
    NONE = "no kernel"

    @property
    def unit(self) -> ComputeUnit:
        """The units that run operators of this class."""
        return _UNITS.get(self, ComputeUnit.VECTOR)


_UNITS = {
    OpClass.MATMUL: ComputeUnit.MATRIX,
    OpClass.ATTENTION: ComputeUnit.MATRIX,
    OpClass.COMMUNICATION: ComputeUnit.NETWORK,
    OpClass.NONE: ComputeUnit.NONE,
}


class Cut(Enum):
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
    # each, and backward reads it (`simulator.blocks.read_blocks`).
    READS_WEIGHT = auto()
    # Ties values into a tuple, and takes one out again.
    BUNDLES = auto()
    UNBUNDLES = auto()
    # Orders side effects or ends a function; no tensor.
    TIES = auto()
    # The compiler's own, between two operators of the model: `op_swap` cannot mean it.
    IS_OF_COMPILER = auto()
    # Hands its cut on: MindSpore gives it no operator info of its own (step_parallel_utils.cc, IsParallelCareNode; a
    # Cast without strategy is looked through).
    PASSES_SPLIT = auto()
    # Takes the cut that the next operator asks for; a redistribution happens inside (step_parallel.cc, ReshapeInit).
    TAKES_ASKED_SPLIT = auto()
    # What a Reshape becomes in the graph of one rank when it redistributes (`name_communication`).
    REDISTRIBUTES = auto()
    # Its backward reads its operands, so one that arrives by communication is kept as it arrived.
    KEEPS_OPERANDS = auto()
    # May stand between a part of a sum and the communication that a model itself has for it.
    IS_BEFORE_SUM = auto()
    # The gradient of a Concat.
    UNJOINS = auto()
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
class Operators:
    """A line of the table: operators that are alike in everything."""

    names: tuple[str, ...]  # primitives, as MindSpore spells them
    kind: OpClass = OpClass.ELEMENTWISE  # class
    traits: Trait = Trait.NONE  # what else is to be known
    # rule for the cut of the outputs; a tuple says of each output as which operand it is cut: the gradient of a tensor
    # as the tensor; None where no rule is known
    cut: Cut | tuple[int, ...] | None = None
    rate: str = ""  # figure in `Device.vector_rates`, for kernels that the vector units bound
    # of communication, the communication that is its gradient (ops/_grad_experimental/grad_comm_ops.py)
    gradient: str = ""
    # of attention, products with the head size of queries and keys, and with that of values
    products: tuple[int, int] | None = None


def _ops(names: str, kind: OpClass = OpClass.ELEMENTWISE, traits: Trait = Trait.NONE, **rest: Any) -> Operators:
    return Operators(tuple(names.split()), kind, traits, **rest)


_C, _T = OpClass, Trait

TABLE = (
    # Views, reads of weights, and what the compiler puts there.
    _ops("Reshape Flatten", _C.NONE, _T.VIEW | _T.TAKES_ASKED_SPLIT),
    _ops("ExpandDims", _C.NONE, _T.VIEW, cut=Cut.EXPAND_DIMS),
    _ops("Squeeze", _C.NONE, _T.VIEW, cut=Cut.SQUEEZE),
    _ops("Depend", _C.NONE, _T.VIEW | _T.IS_OF_COMPILER | _T.PASSES_SPLIT),
    _ops("Load", _C.NONE, _T.READS_WEIGHT | _T.IS_OF_COMPILER | _T.PASSES_SPLIT),
    _ops("TensorMove", _C.MOVE, _T.READS_WEIGHT | _T.PASSES_SPLIT),
    _ops("MakeTuple", _C.NONE, _T.BUNDLES | _T.IS_OF_COMPILER),
    _ops("TupleGetItem", _C.NONE, _T.UNBUNDLES | _T.IS_OF_COMPILER),
    _ops("MoveTo", _C.NONE, _T.IS_OF_COMPILER | _T.PASSES_SPLIT),  # a copy to the host or back: work of the links
    _ops("UpdateState Partial Return", _C.NONE, _T.TIES),
    _ops("Constant", _C.NONE),
    # Matrix units. Attention in forward: scores and output; in backward scores again, the gradients of scores and
    # values, and those of queries and keys.
    _ops("MatMul MatMulExt BatchMatMul BatchMatMulExt", _C.MATMUL, _T.KEEPS_OPERANDS, cut=Cut.PRODUCT),
    _ops("GroupedMatmul", _C.MATMUL),
    _ops("FlashAttentionScore", _C.ATTENTION, _T.KEEPS_OPERANDS, cut=Cut.ATTENTION, products=(1, 1)),
    _ops("FlashAttentionScoreGrad", _C.ATTENTION, cut=(0, 1, 2), products=(3, 2)),
    # Links between cards.
    _ops("AllReduce", _C.COMMUNICATION, _T.PASSES_SPLIT, gradient="AllReduce"),
    _ops("AllGather", _C.COMMUNICATION, _T.REDISTRIBUTES, gradient="ReduceScatter"),
    _ops("ReduceScatter", _C.COMMUNICATION, gradient="AllGather"),
    _ops("AllToAll", _C.COMMUNICATION, _T.REDISTRIBUTES, gradient="AllToAll"),
    _ops("AlltoAll AlltoAllV AlltoAllVC Send Receive", _C.COMMUNICATION),
    # Vector units, with a rate of their own.
    _ops("RmsNorm LayerNorm LayerNormV3", _C.NORM, cut=Cut.LIKE_FIRST, rate="norm"),
    _ops("LayerNormExt", _C.NORM, rate="norm"),
    _ops("RmsNormGrad", _C.NORM, cut=(1, 3), rate="norm_grad"),
    _ops("LayerNormGrad", _C.NORM, cut=(0, 4, 4), rate="norm_grad"),
    _ops("LayerNormGradV3", _C.NORM, cut=(1, 4, 4), rate="norm_grad"),
    _ops("Softmax SoftmaxGrad SoftmaxBackward LogSoftmax LogSoftmaxGrad",
         _C.SOFTMAX, cut=Cut.ELEMENTWISE, rate="softmax"),
    _ops("SiLU GeLU", _C.ELEMENTWISE, _T.FUSED, cut=Cut.ELEMENTWISE, rate="activation"),
    _ops("FastGeLU", _C.ELEMENTWISE, cut=Cut.ELEMENTWISE, rate="activation"),
    _ops("SiLUGrad GeLUGrad", _C.ELEMENTWISE, _T.FUSED, cut=Cut.ELEMENTWISE, rate="activation_grad"),
    _ops("FastGeLUGrad", _C.ELEMENTWISE, cut=Cut.ELEMENTWISE, rate="activation_grad"),
    # Vector units: look-ups and data movement.
    _ops("Gather", _C.EMBEDDING, _T.READS_PART, cut=Cut.GATHER),
    _ops("Embedding", _C.EMBEDDING, _T.READS_PART, cut=Cut.EMBEDDING),
    _ops("UnsortedSegmentSum EmbeddingDenseBackward", _C.EMBEDDING, cut=Cut.SEGMENT_SUM),
    _ops("OneHot", _C.EMBEDDING, cut=Cut.ONE_HOT),
    _ops("GatherD GatherDGradV2 IndexSelect InplaceIndexAddExt InplaceScatterSrc", _C.EMBEDDING),
    _ops("Cast", _C.CAST, _T.PASSES_SPLIT | _T.IS_BEFORE_SUM | _T.FUSED, cut=Cut.ELEMENTWISE),
    _ops("Split SplitWithSize", _C.MOVE, _T.UNJOINS, cut=Cut.LIKE_FIRST),
    _ops("StridedSlice", _C.MOVE, _T.READS_PART, cut=Cut.LIKE_FIRST),
    _ops("Concat StridedSliceGrad", _C.MOVE, cut=Cut.LIKE_FIRST),
    _ops("Slice", _C.MOVE, _T.READS_PART | _T.REDISTRIBUTES),
    _ops("BroadcastTo Tile", _C.MOVE, cut=Cut.BROADCAST),
    _ops("Transpose", _C.MOVE, cut=Cut.TRANSPOSE),
    _ops("Contiguous Pad Stack", _C.MOVE),
    _ops("Assign AssignAdd", _C.MOVE, _T.WRITES, cut=Cut.ELEMENTWISE),
    # Vector units: element-wise, and what counts as such.
    _ops("Add AddExt", _C.ELEMENTWISE, _T.IS_BEFORE_SUM | _T.FUSED, cut=Cut.ELEMENTWISE),
    _ops("BiasAdd", _C.ELEMENTWISE, _T.IS_BEFORE_SUM, cut=Cut.ELEMENTWISE),
    _ops("Mul", _C.ELEMENTWISE, _T.KEEPS_OPERANDS | _T.FUSED, cut=Cut.ELEMENTWISE),
    _ops("Div Exp Log Maximum Minimum Muls Neg RealDiv Rsqrt Sigmoid Sqrt Sub SubExt",
         _C.ELEMENTWISE, _T.FUSED, cut=Cut.ELEMENTWISE),
    _ops("AddN", _C.ELEMENTWISE, _T.FUSED, cut=Cut.ELEMENTWISE),
    _ops("Swiglu SwigluGrad", _C.ELEMENTWISE, _T.FUSED),
    _ops("StopGradient", _C.ELEMENTWISE, _T.PASSES_SPLIT, cut=Cut.ELEMENTWISE),
    _ops("Abs BitwiseAnd BitwiseOr Cos DivNoNan Elu Equal Erf FloorDiv FloorMod Gelu GeluGrad Greater GreaterEqual "
         "Identity InvertPermutation IsFinite Less LessEqual Log1p LogicalAnd LogicalNot LogicalOr MaskedFill Mod "
         "NotEqual OnesLike Pow PowTensorScalar ReLU ReLUGrad Reciprocal ReluGrad Round RsqrtGrad Select SigmoidGrad "
         "Sign Sin SqrtGrad Square Tanh TanhGrad ZerosLike", cut=Cut.ELEMENTWISE),
    _ops("CumSum DropoutGradExt ScatterNd TopK TopKRouter", cut=Cut.LIKE_FIRST),
    _ops("ArgMaxWithValue MeanExt ReduceAll ReduceAny ReduceMax ReduceMean ReduceMin", cut=Cut.REDUCTION),
    _ops("ReduceSum SumExt", traits=_T.ENDS_FUSION, cut=Cut.REDUCTION),
    _ops("OneHotExt", cut=Cut.ONE_HOT),
    _ops("Outer", cut=Cut.OUTER),
    _ops("DropoutExt", _C.ELEMENTWISE, _T.RANDOM, cut=Cut.DROPOUT),
    _ops("Dropout DropoutGenMask DropoutGenMaskExt", _C.ELEMENTWISE, _T.RANDOM),
    _ops("SliceExt", _C.ELEMENTWISE, _T.READS_PART),
)  # fmt: skip

_BY_NAME: Mapping[str, Operators] = {name: line for line in TABLE for name in line.names}
_UNKNOWN = Operators(())


def _having(trait: Trait) -> frozenset[str]:
    return frozenset(name for name, line in _BY_NAME.items() if line.traits & trait)


def _of_class(kind: OpClass) -> frozenset[str]:
    return frozenset(name for name, line in _BY_NAME.items() if line.kind is kind)


# Sets for code that asks of every node of a graph; all of them follow from the table.
VIEW_OPS = _having(Trait.VIEW)
WEIGHT_OPS = _having(Trait.READS_WEIGHT)
TUPLE_OPS = _having(Trait.BUNDLES | Trait.UNBUNDLES)
TYING_OPS = _having(Trait.TIES)
# Tie values together; nothing is computed with them.
BOOKKEEPING_OPS = TYING_OPS | _having(Trait.BUNDLES)
UNNAMED_OPS = _having(Trait.IS_OF_COMPILER)
# Operators of the compiler's own, views, and reads of weights: no work. Copies are the links' work.
NO_WORK_OPS = _of_class(OpClass.NONE)
# Views and tuples are the memory of their inputs; Load reads a weight where it is.
NO_MEMORY_OPS = VIEW_OPS | TUPLE_OPS | (WEIGHT_OPS & NO_WORK_OPS)
MATMUL_OPS = _of_class(OpClass.MATMUL)
# Matrix products with a rule for their cut.
PRODUCT_OPS = frozenset(name for name, line in _BY_NAME.items() if line.cut is Cut.PRODUCT)
COMMUNICATION_OPS = _of_class(OpClass.COMMUNICATION)
REDISTRIBUTION_OPS = _having(Trait.REDISTRIBUTES)
RESHAPING_OPS = _having(Trait.TAKES_ASKED_SPLIT)
KEEPING_OPS = _having(Trait.KEEPS_OPERANDS)
UNJOINING_OPS = _having(Trait.UNJOINS)
RANDOM_OPS = _having(Trait.RANDOM)
PARTIAL_READ_OPS = _having(Trait.READS_PART)
FUSED_OPS = _having(Trait.FUSED)
FUSED_READERS = FUSED_OPS | _having(Trait.ENDS_FUSION)
WRITING_OPS = _having(Trait.WRITES)

# Behind these something is what it was before them. What that something is decides which they are:
# the value itself,
VALUE_PASSING_OPS = VIEW_OPS | TUPLE_OPS
# how it is cut,
SPLIT_PASSING_OPS = _having(Trait.PASSES_SPLIT)
# what one layer hands to the next: the compiler puts these between, casts of norms for one,
LAYER_PASSING_OPS = VALUE_PASSING_OPS | _of_class(OpClass.CAST)
# the part of a sum that a communication of the model's own adds,
SUM_PASSING_OPS = VIEW_OPS | _having(Trait.IS_BEFORE_SUM)
# and the gradient of a weight on its way to the sum; another rank's part is added by communication.
GRADIENT_PASSING_OPS = VIEW_OPS | COMMUNICATION_OPS | _of_class(OpClass.CAST) | _having(Trait.UNBUNDLES)
# What they give is their first input; the others only tie an order.
FIRST_INPUT_OPS = WEIGHT_OPS | (VIEW_OPS & UNNAMED_OPS) | _of_class(OpClass.CAST)


def line_of(op: str) -> Operators:
    """Line of the table for an operator; element-wise where it has none."""
    return _BY_NAME.get(op, _UNKNOWN)


def classify(op: str) -> OpClass:
    """Kind of an operator; element-wise where nothing else is known."""
    return line_of(op).kind


def is_kernel(op: str) -> bool:
    """The device runs something for this operator: views, tuples and reads of weights have no kernel.

    Positions of operators, as `backward_prefetch` counts them, are those of kernels. `MoveTo` is none.
    """
    return op not in NO_WORK_OPS
