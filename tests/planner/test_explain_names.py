"""Names of tensors in the sentences about a plan, where the step has no other name for them."""

from types import SimpleNamespace

from mindswap.planner.explain import _kept_lines, _LabelSummary, _names, _wasted_line
from mindswap.policy.model import ALL_LAYERS, OpSwap, Policy
from mindswap.simulator.layer_block import BlockTensor, Consumers
from mindswap.simulator.program import NO_OP
from tests.builders import trees


def test_a_tensor_without_another_name_is_no_error():
    """`KeyError: 'feed_forward.w1.AllGather'` before: what is gathered goes by a name that only the swap makes."""
    captured = SimpleNamespace(sample=SimpleNamespace(layer_map=(0, 0)), trees=trees(1).layers)
    model = SimpleNamespace(captured=captured, holder_names=lambda policy, layer: {"add": (("add",),)})
    policy = Policy(True, op_swap=(OpSwap("add", ALL_LAYERS, 5),))
    assert _names(model, policy, "feed_forward.w1.AllGather", 1) == ([], [])
    assert _names(model, policy, "add", 1) == (["add"], [])


def test_a_copy_for_nothing_goes_by_its_maker_then():
    """3 layers with 3072 bytes together: 1024 bytes of a layer."""
    assert _wasted_line("a.AllGather", _LabelSummary([0, 1, 2], 3072), [], []) == (
        "wasted copy of a.AllGather in layers 0-2: 1.0 KiB of a layer are copied with a.AllGather, "
        "which is swapped for something else, and stay"
    )


def test_what_stays_comes_largest_first_and_is_five_operators():
    """Sizes count in all layers together: 4 KiB of `big` in one, 2 of `both` in two, then 900, 800, ... bytes."""

    def kept(label, size_bytes):
        return BlockTensor(label, size_bytes, True, False, 0, Consumers(NO_OP, 0, 0), None)

    small = [kept(f"small{size}", size) for size in (500, 600, 700, 800, 900)]
    layers = [SimpleNamespace(tensors=[*small, kept("both", 1024)]), SimpleNamespace(tensors=[kept("both", 1024)])]
    layers.append(SimpleNamespace(tensors=[kept("big", 4096)]))
    assert _kept_lines(layers) == [
        "keep big in layer 2: 4.0 KiB of a layer",
        "keep both in layers 0-1: 1.0 KiB of a layer",
        *(f"keep small{size} in layer 0: {size} B of a layer" for size in (900, 800, 700)),
    ]
