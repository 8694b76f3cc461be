"""Sentences about a plan, of the small model on CPU. It keeps tensors of 32 KiB and, in feed_forward, of 96 KiB."""

import pytest

from mindswap.planner.explain import explain_plan
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from tests.adapters.graphs import ROOT
from tests.planner.loading import capture_apart
from tests.planner.test_write import plan_of

pytestmark = pytest.mark.mindspore


@pytest.fixture(scope="module")
def model():
    return capture_apart(ROOT / "configs/llama2_7b/cpu/case3_op_swap.yaml")


def sentences(model, **policy):
    return explain_plan(model, plan_of(Policy(True, **policy)))


def starting(lines, start):
    (found,) = (line for line in lines if line.startswith(start))
    return found


def test_a_swap_goes_by_its_maker_and_by_the_name_in_the_policy(model):
    lines = sentences(model, op_swap=(OpSwap(r"attention\.reshape", Layers((0, 1)), 5),))
    line = starting(lines, "swap ")
    assert line.startswith("swap attention.merger_head_transpose (as attention.reshape) in layers 0-1: 32.0 KiB of a")
    assert not any(line.startswith("wasted copy ") for line in lines)


def test_what_is_copied_and_stays_is_no_swap(model):
    """`w3.reshape` is the view of what w3 takes, which `w1.reshape` holds too, and of what w3 makes."""
    lines = sentences(model, op_swap=(OpSwap(r"feed_forward\.w3\.reshape", ALL_LAYERS, 5),))
    starting(lines, "swap feed_forward.w3.matmul (as feed_forward.w3.reshape) in layers 0-3: 96.0 KiB of a layer")
    assert starting(lines, "wasted copy ") == (
        "wasted copy of ffn_norm.mul2 in layers 0-3: 32.0 KiB of a layer are copied with feed_forward.w3.reshape, "
        "which is swapped for something else, and stay as feed_forward.w1.reshape"
    )


def test_whole_layers_and_whole_cells_are_named_by_their_operators(model):
    lines = sentences(
        model, layer_swap=(LayerSwap(Layers((0,)), 5),), op_swap=(OpSwap("feed_forward", Layers((1,)), 5),)
    )
    starting(lines, "swap feed_forward.mul (as feed_forward.w2.reshape) in layers 0-1: 96.0 KiB of a layer are")
    starting(lines, "swap add in layer 0: 64.0 KiB of a layer are on the host")
    assert not any(line.startswith("recompute ") for line in lines)


def test_recompute_says_what_it_frees_and_what_stays(model):
    """Backward holds the product as `w2.reshape`, its view: both run again."""
    names = (r"feed_forward\.mul", r"feed_forward\.w2\.reshape")
    lines = sentences(model, select_recompute=tuple(OpRecompute(name, Layers((2,))) for name in names))
    line = starting(lines, "recompute ")
    assert line.startswith("recompute feed_forward.mul in layer 2: frees 96.0 KiB of a layer, takes ")


def test_largest_first_of_what_stays(model):
    lines = [line for line in sentences(model) if not line.startswith("keep ")]
    assert lines == []
    first = sentences(model)[0]
    assert first == "keep attention.flash_attention.softmax in layers 0-3: 128.0 KiB of a layer"
