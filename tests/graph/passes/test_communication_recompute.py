"""Which named operators make backward repeat a redistribution, in steps made by hand.

A norm and its cast, whose output an AllGather gathers for two products: inserted before them, or in place of a Reshape.
"""

from dataclasses import replace

import pytest

from mindswap.graph.analysis.saved_tensors import OperatorNames
from mindswap.graph.passes.communication_recompute import deciding_operators
from mindswap.graph.passes.swap_recompute import rewrite_graph, settings_of_policy
from mindswap.graph.sharding.split_table import ARRIVAL_SUFFIX
from mindswap.policy.model import ALL_LAYERS, OpRecompute, Policy
from mindswap.policy.resolve import resolve_layer
from tests.builders import layer
from tests.graph.builders import graph, node

TREE = layer("""
    attention_norm
      cast*
      norm*
    attention
      wq
        reshape*
        matmul*
      wk
        reshape*
        matmul*
""")
INSERTED = f"rcast{ARRIVAL_SUFFIX}"


def op(name, op_name, inputs, cell_path):
    made = node(name, op_name, inputs, 1024, 0, cell_path=cell_path)
    return replace(made, scope=f"Default/0-Layer/{cell_path}-Cell/{op_name}-{name}")


def step(gather):
    """A layer whose AllGather has this name, and whose backward reads what it gathers."""
    forward = [
        op("norm", "Norm", "x", "attention_norm"),
        op("rcast", "Cast", "norm", "attention_norm"),
        op(gather, "AllGather", "rcast", "attention.wq"),
        op("wq", "Matmul", gather, "attention.wq"),
        op("wk", "Matmul", gather, "attention.wk"),
    ]
    backward = [node("wq_grad", "MatmulGrad", f"dy {gather}_b", layer=0)]
    return graph(forward, backward, saved=gather)


def repeated(made, pattern):
    """Operators that backward repeats if `select_comm_recompute` has a pattern."""
    policy = Policy(True, select_comm_recompute=(OpRecompute(pattern, ALL_LAYERS),))
    settings = settings_of_policy(made, OperatorNames([TREE], made), [resolve_layer(policy, 0, TREE)])
    return [copy.origin for copy in rewrite_graph(made, settings).backward if copy.is_duplicate]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"attention_norm\.norm", [INSERTED]),  # its output is redistributed, and the products have no attribute
        (r".*\.norm", [INSERTED]),  # the default of MindFormers
        (r"attention\.wk\.matmul", [INSERTED]),  # the last reader
        (r"attention\.wq\.matmul", []),  # another reader, whose AllGather the compiler merged into that one
        (r"attention_norm\.cast", []),  # without a strategy, so nothing is inserted for it
        (r"attention\.wq\.reshape", []),
    ],
)
def test_inserted_communication_follows_its_last_reader_or_the_operator_before_it(pattern, names):
    assert repeated(step(INSERTED), pattern) == names


@pytest.mark.parametrize(
    ("pattern", "names"),
    [(r"attention\.wq\.reshape", ["wq.reshape"]), (r".*\.norm", []), (r"attention\.w[qk]\.matmul", [])],
)
def test_a_redistributing_reshape_follows_its_own_name(pattern, names):
    gather = replace(step("wq.reshape").forward[2], attributes={}, paths=("attention.wq.reshape",))
    made = step("wq.reshape")
    made = replace(made, forward=(*made.forward[:2], gather, *made.forward[3:]))
    assert repeated(made, pattern) == names


def test_a_tensor_from_outside_the_step_has_no_operator_before_it():
    made = graph([op(f"x{ARRIVAL_SUFFIX}", "AllGather", "x", "attention.wq")], [])
    assert list(deciding_operators(made, made.forward[0])) == []
