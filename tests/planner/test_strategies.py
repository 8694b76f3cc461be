from dataclasses import replace

import pytest

from mindswap.errors import PlanError
from mindswap.planner.strategies import Batch, Strategy, StrategySpace, list_strategies

OWN = Strategy(4, 1, 1)
SPACE = StrategySpace(
    own=OWN, context=1, num_samples=8, sizes=(1,), counts=None, num_layers=4, num_chunks=1, divisible=(4, 2),
    num_experts=0, max_tensor=8,
)  # fmt: skip


def test_all_that_divide_are_there_and_the_own_one_comes_first():
    found = list_strategies(4, SPACE)
    assert found[0] == (OWN, Batch(1, 2))
    # data x tensor x stages = 4; 2 heads of keys and values take no 4 tensor ranks.
    shapes = {(one.data, one.tensor, one.stages, one.has_sequence) for one, _ in found}
    assert shapes == {
        (4, 1, 1, False), (2, 1, 2, False), (1, 1, 4, False),
        (2, 2, 1, False), (2, 2, 1, True), (1, 2, 2, False), (1, 2, 2, True),
    }  # fmt: skip
    # A step keeps its 8 samples.
    assert all(one.data * batch.num_samples == 8 and batch.size == 1 for one, batch in found)
    assert len(found) == len(set(found)) == 7


def test_a_pipeline_has_a_micro_batch_for_each_stage():
    found = list_strategies(4, replace(SPACE, sizes=(4,)))
    # 1 data rank has 8 samples, 2 micro-batches of 4: too few for 4 stages; 4 ranks have 2 samples, too few for one.
    assert {(one.data, one.stages) for one, _ in found if one.tensor == 1} == set()
    assert {(one.data, one.tensor, one.stages) for one, _ in found} == {(2, 2, 1), (1, 2, 2)}


def test_experts_divide_ranks_and_ask_for_sequence_parallel():
    found = list_strategies(4, replace(SPACE, num_experts=4))
    assert {one.experts for one, _ in found if (one.data, one.tensor, one.stages) == (4, 1, 1)} == {1, 2, 4}
    beside = {(one.experts, one.has_sequence) for one, _ in found if (one.data, one.tensor) == (2, 2)}
    assert beside == {(1, False), (1, True), (2, True), (4, True)}


def test_each_chunk_of_a_stage_has_a_layer_and_the_stages_of_the_file_are_there():
    def stages(**changes):
        return {one.stages for one, _ in list_strategies(4, replace(SPACE, **changes))}

    assert stages(num_layers=6) == {1, 2, 4}
    assert stages(num_layers=3) == {1, 2}
    assert stages(num_layers=3, own=Strategy(1, 1, 4)) == {1, 2, 4}
    assert stages(num_layers=5, num_chunks=2, own=Strategy(2, 1, 2)) == {2}  # one stage has no chunks


def test_cards_that_do_not_divide_are_an_error_with_the_nearest_that_do():
    with pytest.raises(PlanError) as error:
        list_strategies(7, SPACE)  # 7 divides neither 8 samples nor 2 heads, and are more than 4 layers
    # 6 are 2 data parallel ranks of 3 stages, with 1, 2 and 1 layers; 8 are 8 data parallel ranks.
    assert "--cards 7" in str(error.value) and "nearest: 6, 8\n" in str(error.value)


def test_tensor_parallel_stays_in_a_node():
    assert {one.tensor for one, _ in list_strategies(4, replace(SPACE, max_tensor=1))} == {1}
