from dataclasses import replace
from itertools import product

import pytest

from mindswap.errors import PlanError
from mindswap.planner.strategies import Batch, Strategy, StrategyLimits, list_strategies, needs_more

OWN = Strategy(4, 1, 1)
SPACE = StrategyLimits(
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


def test_least_cut_first_and_of_these_least_tensor_parallel():
    """Behind the own one: cut in 2, then in 4; sequence parallel behind what is without it."""
    found = [(one.tensor, one.stages, one.has_sequence) for one, _ in list_strategies(4, SPACE)]
    assert found == [
        (1, 1, False), (1, 2, False), (2, 1, False), (2, 1, True), (1, 4, False), (2, 2, False), (2, 2, True),
    ]  # fmt: skip


def test_a_strategy_in_words():
    assert str(Strategy(4, 2, 1)) == "data 4, tensor 2, stages 1"
    assert str(Strategy(4, 2, 3, 8, True)) == "data 4, tensor 2, stages 3, experts 8, sequence"


def every_strategy(cards, stage_problem):
    """All combinations of numbers up to those of cards and samples, held against each limit."""
    numbers = range(1, cards + 1)
    for data, tensor, stages, experts in product(numbers, repeat=4):
        has_layers = stage_problem.num_layers >= stages * stage_problem.num_chunks and (
            stage_problem.num_chunks == 1 or stages > 1
        )
        experts_go = experts == 1 or (stage_problem.num_experts and stage_problem.num_experts % experts == 0)
        if (
            data * tensor * stages * stage_problem.context != cards
            or not (has_layers or stages == stage_problem.own.stages)
            or tensor > stage_problem.max_tensor or any(number % tensor for number in stage_problem.divisible)
            or data * tensor % experts or not experts_go or stage_problem.num_samples % data
        ):  # fmt: skip
            continue
        for has_sequence in (False, True):
            if (has_sequence and tensor == 1) or (experts > 1 and tensor > 1 and not has_sequence):
                continue
            for size, count in product(range(1, stage_problem.num_samples + 1), repeat=2):
                is_asked = size in (stage_problem.sizes or (size,)) and count in (stage_problem.counts or (count,))
                if is_asked and data * size * count == stage_problem.num_samples and (stages == 1 or count >= stages):
                    yield Strategy(data, tensor, stages, experts, has_sequence), Batch(size, count)


@pytest.mark.parametrize(
    ("cards", "changes"),
    [
        (4, {}), (8, {"sizes": None, "counts": (2, 4)}), (8, {"sizes": None, "num_experts": 6, "divisible": (8,)}),
        (6, {"sizes": None, "num_samples": 12, "divisible": (6,), "num_layers": 3}),
        (8, {"context": 2, "sizes": (1, 2)}),
        (8, {"num_chunks": 2, "sizes": None, "own": Strategy(2, 1, 4)}), (8, {"max_tensor": 2, "divisible": (8, 16)}),
    ],
)  # fmt: skip
def test_a_list_has_all_that_no_limit_forbids_once(cards, changes):
    stage_problem = replace(SPACE, **changes)
    found = list_strategies(cards, stage_problem)
    assert sorted(found) == sorted(every_strategy(cards, stage_problem))


def test_numbers_of_cards_are_looked_for_up_to_64_away():
    """One sample on one data parallel rank in one stage of one layer: 1 card is all that goes."""
    alone = replace(SPACE, num_samples=1, num_layers=1, divisible=(1,))
    with pytest.raises(PlanError, match="nearest: 1\n"):
        list_strategies(65, alone)
    with pytest.raises(PlanError, match="nearest: none near"):
        list_strategies(66, alone)
    with pytest.raises(PlanError) as error:
        list_strategies(2, alone)
    assert str(error.value).startswith("--cards 2: no strategy spreads 1 samples a step and 1 layers over them")


def test_what_shares_less_of_the_same_split_needs_more():
    shared = (Strategy(8, 8, 4, 8, True), Batch(1, 4))
    assert needs_more((Strategy(8, 8, 4, 4, True), Batch(1, 4)), shared)
    assert needs_more((Strategy(8, 8, 4, 8, False), Batch(1, 4)), shared)
    assert needs_more((shared[0], Batch(2, 2)), shared)
    # Itself, which may have other layers on its stages; more ranks that share; another split; one micro-batch.
    others = [
        shared, (Strategy(8, 8, 4, 16, True), Batch(1, 4)), (Strategy(16, 4, 4, 4, True), Batch(1, 4)),
        (shared[0], Batch(4, 1)),
    ]  # fmt: skip
    assert not any(needs_more(one, shared) for one in others)
