import pytest
import yaml

from mindswap.config.parse import parse_document
from mindswap.errors import PolicyError
from mindswap.features.plan import check_plan_writable
from mindswap.policy.equivalence import (
    first_recompute_difference,
    retained_layers,
    rewrite_for_swap,
    truncated_policy,
    with_swap_enabled,
)
from mindswap.policy.model import Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.rules.checker import check_document
from tests.builders import LLAMA, document, trees

# Compare.


ON = Policy(is_swap_enabled=True)


def selecting(pattern, *layers):
    return Policy(is_swap_enabled=True, select_recompute=(OpRecompute(pattern, Layers(layers)),))


def test_equal_operators_under_other_names_are_no_difference():
    """`w1` has one product and one activation below it; named one by one they are the same."""
    both = Policy(
        is_swap_enabled=True,
        select_recompute=tuple(
            OpRecompute(rf"feed_forward\.w1\.{name}", Layers((1,))) for name in ("matmul", r"activation\.silu")
        ),
    )
    assert first_recompute_difference(selecting(r"feed_forward\.w1", 1), both, 4, trees(4, LLAMA)) == ""


def test_the_first_layer_that_differs_is_named_with_its_operators():
    found = first_recompute_difference(
        selecting(r"feed_forward\.mul", 1, 2), selecting(r"feed_forward\.mul", 1), 4, trees(4, LLAMA)
    )
    assert found == "in layer 2 only before recomputed: feed_forward.mul"


def test_whole_layers_and_flags_need_no_model():
    whole = Policy(is_swap_enabled=True, layer_recompute=Layers((0, 3)))
    assert first_recompute_difference(whole, ON, 4, None) == "layer 0 is in recompute only before"
    flag = Policy(is_swap_enabled=True, mp_comm_recompute=False)
    assert first_recompute_difference(ON, flag, 4, None) == "mp_comm_recompute is True before and False after"
    assert first_recompute_difference(selecting("add", 1), ON, 4, None) == ""


# Swap on.


TEXT = """\
# mine
context:
  mode: 0
  memory_optimize_level: "O1"  # why
model: {model_config: {num_layers: 4}}
swap_config: {swap: False}
"""


def rewritten(text):
    own = parse_document(text, "x.yaml")
    return rewrite_for_swap(text, own, own)


def test_the_level_that_swap_needs_is_written_with_a_comment():
    assert rewritten(TEXT) == TEXT.replace('"O1"', "'O0'").replace(
        "context:", "# mindswap: swap needs memory_optimize_level O0; it was 'O1'\ncontext:"
    )


@pytest.mark.parametrize("text", ["a: 1", "context: {mode: 0}", "context: {memory_optimize_level: O0}"])
def test_what_is_good_stays(text):
    assert rewritten(text) == text


def test_a_level_of_the_base_is_overruled_in_the_file_itself():
    own, whole = document("swap_config: {swap: False}"), document("context: {mode: 0, memory_optimize_level: O1}")
    text = rewrite_for_swap("swap_config: {swap: False}\n", own, whole)
    assert yaml.safe_load(text) == {"swap_config": {"swap": False}, "context": {"memory_optimize_level": "O0"}}


def test_a_plan_for_a_file_with_that_level_is_not_refused():
    text = TEXT.replace("swap: False", "swap: True, op_swap: []")
    assert [p.rule for p in check_document(parse_document(text, "x")).errors] == ["memory-optimize-level"]
    check_plan_writable(parse_document(TEXT, "x.yaml"))
    assert check_document(with_swap_enabled(parse_document(TEXT, "x.yaml"))).errors == ()


def test_what_no_plan_can_mend_is_said_at_its_line_before_planning():
    with pytest.raises(PolicyError) as error:
        check_plan_writable(parse_document(TEXT.replace("mode: 0", "mode: 0\n  max_device_memory: 58"), "x.yaml"))
    assert [str(problem.location) for problem in error.value.problems] == ["x.yaml:4:22"]


@pytest.mark.parametrize(
    ("num_layers", "num_kept", "kept"),
    # 31 / 3 = 10.33 and 20.67 between the ends; 7 / 2 = 3.5 is rounded up.
    [(32, 4, (0, 10, 21, 31)), (8, 3, (0, 4, 7)), (4, 4, (0, 1, 2, 3)), (32, 2, (0, 31)), (32, 1, (0,))],
)
def test_the_first_the_last_and_evenly_between(num_layers, num_kept, kept):
    assert retained_layers(num_layers, num_kept) == kept


def test_each_layer_does_what_the_one_did_that_it_stands_for():
    policy = Policy(
        is_swap_enabled=True,
        op_swap=(OpSwap("attention", Layers(tuple(range(20))), 20), OpSwap("feed_forward", Layers((5,)), 3)),
        layer_swap=(LayerSwap(Layers((31,)), 10),),
        select_recompute=(OpRecompute("feed_forward", Layers(None)),),
        layer_recompute=Layers((21, 22)),
    )
    # 0 and 10 are below 20; 5 stands for nobody; 31 is the last.
    assert truncated_policy(policy, (0, 10, 21, 31)) == Policy(
        is_swap_enabled=True,
        op_swap=(OpSwap("attention", Layers((0, 1)), 20),),
        layer_swap=(LayerSwap(Layers((3,)), 10),),
        select_recompute=(OpRecompute("feed_forward", Layers(None)),),
        layer_recompute=Layers((2,)),
    )
