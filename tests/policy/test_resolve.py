"""What is decided for each operator, and by which entry."""

import pytest

from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.policy.resolve import Entry, Setting, Treatment, acting_entries, resolve_layer
from tests.builders import LLAMA, layer

LAYER = layer(LLAMA)
WQ = ("attention", "wq", "matmul")
ADD = ("add",)
SWAP, SELECT, EXCLUDE = Setting.OP_SWAP, Setting.SELECT_RECOMPUTE, Setting.SELECT_RECOMPUTE_EXCLUDE


def swap(pattern, prefetch, layers=ALL_LAYERS):
    return OpSwap(pattern, layers, prefetch)


def select(pattern, layers=ALL_LAYERS):
    return OpRecompute(pattern, layers)


def resolve(index=0, **fields):
    return resolve_layer(Policy(is_swap_enabled=True, **fields), index, LAYER)


def entries(claims):
    return [claim.entry for claim in claims]


def why(decisions, *paths):
    """Treatment, distance, the entries that decide, the entries that lose."""
    found = decisions.decision_for(*paths)
    return found.treatment, found.prefetch, entries(found.decided_by), entries(decisions.overridden_on(*paths))


def test_what_nothing_names_is_kept():
    assert why(resolve(op_swap=(swap("feed_forward", 3),)), WQ) == (Treatment.KEEP, None, [], [])


def test_a_disabled_policy_decides_nothing():
    policy = Policy(is_swap_enabled=False, op_swap=(swap("add", 3),), layer_recompute=ALL_LAYERS)
    assert acting_entries(policy, 0) == ()
    assert resolve_layer(policy, 0, LAYER).decision_for(ADD).treatment is Treatment.KEEP


def test_op_swap_goes_before_layer_swap():
    found = resolve(layer_swap=(LayerSwap(ALL_LAYERS, 5),), op_swap=(swap("attention", 9),))
    loser = Entry(Setting.LAYER_SWAP, "", 5)
    assert why(found, WQ) == (Treatment.OFFLOAD, 9, [Entry(SWAP, "attention", 9)], [loser])
    assert why(found, ADD) == (Treatment.OFFLOAD, 5, [loser], [])


def test_a_later_pattern_goes_before_an_earlier_one():
    inside = resolve(op_swap=(swap("attention", 5), swap(r"attention\.wq", 9)))
    assert why(inside, WQ) == (
        Treatment.OFFLOAD, 9, [Entry(SWAP, r"attention\.wq", 9)], [Entry(SWAP, "attention", 5)],
    )  # fmt: skip
    around = resolve(op_swap=(swap(r"attention\.wq", 9), swap("attention", 5)))
    assert why(around, WQ) == (
        Treatment.OFFLOAD, 5, [Entry(SWAP, "attention", 5)], [Entry(SWAP, r"attention\.wq", 9)],
    )  # fmt: skip


def test_the_first_of_two_layer_swaps_and_of_two_equal_patterns():
    found = resolve(
        layer_swap=(LayerSwap(ALL_LAYERS, 5), LayerSwap(ALL_LAYERS, 6)), op_swap=(swap("add", 1), swap("add", 2))
    )
    assert why(found, ADD) == (
        Treatment.OFFLOAD,
        1,
        [Entry(SWAP, "add", 1)],
        [Entry(Setting.LAYER_SWAP, "", 6), Entry(SWAP, "add", 2), Entry(Setting.LAYER_SWAP, "", 5)],
    )


def test_recompute_goes_before_offload():
    found = resolve(op_swap=(swap("attention", 5),), select_recompute=(select(r"attention\.wq"),))
    assert why(found, WQ) == (
        Treatment.RECOMPUTE, None, [Entry(SELECT, r"attention\.wq")], [Entry(SWAP, "attention", 5)],
    )  # fmt: skip
    assert found.decision_for(WQ).requested_prefetch == 5


def test_an_exclude_option_goes_before_recompute():
    found = resolve(layer_recompute=ALL_LAYERS, select_recompute_exclude=(select("attention"),))
    assert why(found, WQ) == (Treatment.KEEP, None, [Entry(EXCLUDE, "attention")], [Entry(Setting.RECOMPUTE)])
    assert why(found, ADD) == (Treatment.RECOMPUTE, None, [Entry(Setting.RECOMPUTE)], [])


def test_what_is_excluded_is_offloaded_if_it_is_named():
    found = resolve(
        select_recompute=(select(r"attention\.wq"),),
        select_recompute_exclude=(select("attention"),),
        op_swap=(swap("attention", 5),),
    )
    assert why(found, WQ) == (
        Treatment.OFFLOAD,
        5,
        [Entry(EXCLUDE, "attention"), Entry(SWAP, "attention", 5)],
        [Entry(SELECT, r"attention\.wq")],
    )


def test_select_options_are_silent_in_a_layer_that_is_recomputed_whole():
    found = resolve(
        layer_recompute=ALL_LAYERS, select_recompute=(select("add"),), select_comm_recompute=(select("add"),)
    )
    assert found.decision_for(ADD).comm_recomputed_by == ()
    assert why(found, ADD) == (
        Treatment.RECOMPUTE,
        None,
        [Entry(Setting.RECOMPUTE)],
        [Entry(SELECT, "add"), Entry(Setting.SELECT_COMM_RECOMPUTE, "add")],
    )


def test_the_output_goes_with_the_whole_layer_only():
    fields = {"layer_recompute": Layers((0, 1)), "output_recompute": Layers((0, 2))}
    assert [resolve(index, **fields).is_output_recomputed for index in range(3)] == [True, False, False]


def test_communication_is_repeated_by_primitives_that_are_not_excluded():
    found = resolve(
        select_comm_recompute=(select(r".*norm\.norm"), select("attention")),
        select_comm_recompute_exclude=(select(r"ffn_norm\.norm"),),
    )
    assert [claim.path for claim in found.comm_recomputes] == [("attention_norm", "norm")]
    assert entries(found.overridden_on(("ffn_norm", "norm"))) == [Entry(Setting.SELECT_COMM_RECOMPUTE, r".*norm\.norm")]
    assert found.decision_for(("attention_norm", "norm")).treatment is Treatment.KEEP


def test_what_has_no_attribute_goes_with_its_cell():
    found = resolve(select_recompute=(select("feed_forward"),))
    assert found.decision_for(("feed_forward", "Cast")).treatment is Treatment.RECOMPUTE
    assert found.decision_for(("Cast",)).treatment is Treatment.KEEP


@pytest.mark.parametrize(("order", "distance"), [((0, 1), 2), ((1, 0), 1)])
def test_of_an_operator_with_several_names_the_last_entry_on_any_decides(order, distance):
    swaps = (swap("add", 1), swap(r"attention\.wq", 2))
    assert resolve(op_swap=tuple(swaps[i] for i in order)).decision_for(ADD, WQ).prefetch == distance


def test_a_pattern_without_parts_names_nothing():
    assert resolve(op_swap=(swap("", 3),)).decision_for(ADD).treatment is Treatment.KEEP


def test_operators_are_primitives_and_cells_that_hold_nothing():
    tree = layer("mlp\n  gate\n  mul*")
    found = resolve_layer(Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, 1),)), 0, tree)
    assert list(found.operators()) == [("mlp", "gate"), ("mlp", "mul")]
    assert list(found.primitives()) == [("mlp", "mul")]
