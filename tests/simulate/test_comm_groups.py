"""Weights that are sent together: groups as MindFormers makes them, times counted by hand."""

from mindswap.cost.static_memory import Parameter
from mindswap.simulate.comm_groups import exposed_exchange_ns, exposed_gather_ns, group_parameters

EMBEDDING = (0, Parameter("model.tok_embeddings.embedding_weight", 4, 1))
LAYERS = [(index + 1, Parameter(f"model.layers.{index}.w", 4, 1)) for index in range(8)]
NORM, HEAD = (9, Parameter("model.norm_out.weight", 4, 1)), (9, Parameter("lm_head.weight", 4, 1))
# Groups of 30, 30, 5 and 5 ns that begin before the layers and in layers 0, 2 and 4.
GROUPS = [(0, 30), (1, 30), (3, 5), (5, 5)]
# Each of 8 layers takes 10 ns.
PASS = [0, *[10] * 8, 0]


def layers_of(group) -> list[str]:
    return [parameter.name.removeprefix("model.") for parameter in group.parameters]


def test_the_embedding_goes_with_the_last_layers_and_the_head_with_the_first():
    # 9 // 4 = 2 layers in a group.
    groups = group_parameters([EMBEDDING, *LAYERS, NORM, HEAD], 8, 4, is_pipeline=False)
    assert [group.first_section for group in groups] == [0, 1, 3, 5]
    assert layers_of(groups[0]) == ["tok_embeddings.embedding_weight", "layers.6.w", "layers.7.w", "norm_out.weight"]
    assert layers_of(groups[1]) == ["layers.0.w", "layers.1.w", "lm_head.weight"]


def test_few_layers_are_groups_of_their_own():
    groups = group_parameters(LAYERS[:2], 2, 4, is_pipeline=False)
    assert [group.first_section for group in groups] == [1, 2]


def test_all_layers_of_a_stage_are_one_group():
    groups = group_parameters([*LAYERS[4:], NORM, HEAD], 8, 4, is_pipeline=True)
    assert [(group.first_section, len(group.parameters)) for group in groups] == [(5, 5), (9, 1)]


def test_what_is_complete_at_the_end_of_backward_is_exposed():
    # Layers 4 and 2 are done 40 and 20 ns before the end, and their groups sent by then; 30 + 30 ns follow the end.
    assert exposed_exchange_ns(GROUPS, PASS) == 60
    assert exposed_exchange_ns([(5, 30)], PASS) == 0
    # Sent one after the other: 45 ns from 40 ns before the end.
    assert exposed_exchange_ns([(3, 5), (5, 45)], PASS) == 10
    assert exposed_exchange_ns([], PASS) == 0


def test_forward_waits_for_its_weights():
    # The embedding and layer 0 wait for 30 + 30 ns; the rest comes in time.
    assert exposed_gather_ns(GROUPS, PASS) == 60
    # A group of 50 ns that layer 2 reads, 20 ns after the begin.
    assert exposed_gather_ns([(3, 50)], PASS) == 30
    assert exposed_gather_ns([], PASS) == 0
