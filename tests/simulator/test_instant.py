"""Live bytes of the step of `steps` while each operator runs, copies taking no time."""

from mindswap.policy.model import Layers, OpSwap, Policy
from mindswap.simulator.memory import simulate_instant
from tests.simulator.steps import model

KIB = 1024


def curve(policy):
    return simulate_instant(model(3).blocks(policy))


def test_without_a_policy_what_backward_needs_piles_up():
    own = curve(Policy(True))
    assert own.num_forward == 15
    assert own.ops[:6] == ("Gather", "Less", "MatMul", "Gelu", "Mul", "Add")
    # embed; and the mask; layer 0: matmul, gelu, mul, add; mul goes, matmul1 comes: ...
    assert [size // KIB for size in own.live_bytes[:8]] == [1, 2, 3, 4, 5, 6, 6, 7]


def test_a_swapped_output_leaves_and_comes_back():
    policy = Policy(True, op_swap=(OpSwap(r"mlp\.gelu", Layers((0,)), 1),))
    own, plain = curve(policy), curve(Policy(True))
    difference = [(a - b) // KIB for a, b in zip(plain.live_bytes, own.live_bytes, strict=True)]
    # gelu0 is operator 3, its copy the place behind it, three places on is operator 6, so the wait is after it;
    # operator 24 reads it in backward, so it is back before 24 - 1. The last operator, 28, is that of the embedding.
    assert difference == [0] * 7 + [1] * (23 - 7) + [0] * (28 + 1 - 23)
