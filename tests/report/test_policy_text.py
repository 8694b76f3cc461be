from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.policy.summary import summarize_policy
from mindswap.report.policy_text import format_actions, format_policy
from tests.builders import layer, trees

CASE_4 = Policy(
    True,
    op_swap=(
        OpSwap("attention", Layers((0, 1, 2)), 20),
        OpSwap("attention", Layers((3,)), 10),
        OpSwap("feed_forward", Layers((1, 2)), 15),
    ),
    select_recompute=(OpRecompute("feed_forward", Layers((0, 3))),),
)


def lines(policy, num_layers=4, model=None):
    return format_policy(summarize_policy(policy, num_layers, model)).splitlines()


def test_swap_off():
    assert lines(Policy()) == ["policy: swap is off; MindFormers runs as it does without mindswap"]


def test_case_4_with_equal_layers_once():
    # The test model has 4 operators in attention and 5 in feed_forward.
    assert lines(CASE_4, 4, trees()) == [
        "policy: swap is on, 4 layers; operators of the test model",
        "  layer 0",
        "    recompute feed_forward (5 operators)",
        "    offload attention (4 operators)       prefetch 20",
        "  layers 1-2",
        "    offload attention (4 operators)     prefetch 20",
        "    offload feed_forward (5 operators)  prefetch 15",
        "  layer 3",
        "    recompute feed_forward (5 operators)",
        "    offload attention (4 operators)       prefetch 10",
    ]


def test_precedence_is_resolved_to_operators():
    policy = Policy(
        True,
        layer_swap=(LayerSwap(ALL_LAYERS, 2),),
        op_swap=(OpSwap("attention", ALL_LAYERS, 20), OpSwap(r"attention\.wq", ALL_LAYERS, 10)),
        select_recompute=(OpRecompute("feed_forward", ALL_LAYERS),),
        select_recompute_exclude=(OpRecompute(r"feed_forward\.mul", ALL_LAYERS),),
    )
    model = trees(2, "attention\n  wq\n    matmul*\n  wo*\nfeed_forward\n  w1*\n  mul*\nadd*")
    assert lines(policy, 2, model)[1:] == [
        "  layers 0-1",
        "    recompute feed_forward.w1",
        "    offload attention.wq       prefetch 10",
        "    offload attention.wo       prefetch 20",
        "    offload feed_forward.mul   prefetch 2",
        "    offload add                prefetch 2",
    ]


def test_a_recomputed_layer_leaves_no_swap():
    policy = Policy(True, layer_swap=(LayerSwap(ALL_LAYERS, 2),), layer_recompute=Layers((1,)))
    assert lines(policy, 3, trees(3))[1:] == [
        "  layers 0, 2",
        "    offload the full layer (12 operators)  prefetch 2",
        "  layer 1",
        "    recompute the full layer (12 operators)",
    ]


def test_communication_is_named_apart():
    policy = Policy(True, select_comm_recompute=(OpRecompute(r".*\.norm", ALL_LAYERS),))
    assert lines(policy, 1, trees(1))[2:] == [
        "    recompute communication of attention_norm.norm",
        "    recompute communication of ffn_norm.norm",
    ]


def test_without_a_model_patterns_stay_patterns():
    assert lines(CASE_4)[:4] == [
        "policy: swap is on, 4 layers",
        "  layer 0",
        "    recompute feed_forward",
        "    offload attention       prefetch 20",
    ]


def test_without_a_number_of_layers():
    policy = Policy(True, op_swap=(OpSwap("a", ALL_LAYERS, 3), OpSwap("b", Layers((2, 3, 7)), 4)))
    assert lines(policy, None) == [
        "policy: swap is on, unknown number of layers",
        "  layers 2-3, 7",
        "    offload a  prefetch 3",
        "    offload b  prefetch 4",
        "  every other layer",
        "    offload a  prefetch 3",
    ]


def test_nothing_to_do():
    assert lines(Policy(True), 2, trees(2))[1:] == ["  layers 0-1", "    nothing is offloaded or recomputed"]


def test_layers_of_different_kinds():
    dense, sparse = layer("mlp\n  mul*\nadd*"), layer("moe\n  mul*\nadd*")
    model = LayerTrees((dense, sparse, sparse), {}, "mixed")
    assert lines(Policy(True, op_swap=(OpSwap("m.*", ALL_LAYERS, 1),)), 3, model)[1:] == [
        "  layer 0",
        "    offload mlp  prefetch 1",
        "  layers 1-2",
        "    offload moe  prefetch 1",
    ]


def test_the_reason_names_the_entry_that_goes_before():
    """`wq` is excluded and swapped by the later of two patterns: the exclude option has no part in that."""
    policy = Policy(
        True,
        op_swap=(OpSwap("attention", ALL_LAYERS, 20), OpSwap(r"attention\.wq", ALL_LAYERS, 10)),
        select_recompute=(OpRecompute(r"attention\..*", ALL_LAYERS),),
        select_recompute_exclude=(OpRecompute(r"attention\.wq", ALL_LAYERS),),
    )
    (group,) = summarize_policy(policy, 1, trees(1, "attention\n  wq*\n  wo*"), with_overrides=True).groups
    assert format_actions(group.actions) == [
        "recompute attention.wo",
        "    select_recompute 'attention\\..*' overrides op_swap 'attention' with prefetch 20",
        "offload attention.wq    prefetch 10",
        "    select_recompute_exclude 'attention\\.wq' overrides select_recompute 'attention\\..*'",
        "    op_swap 'attention\\.wq' with prefetch 10 overrides op_swap 'attention' with prefetch 20",
    ]
