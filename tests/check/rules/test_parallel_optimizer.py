import pytest

from mindswap.config.problem import Level
from tests.builders import check, found

SETTINGS = """
        parallel:
          enable_parallel_optimizer: True
          parallel_optimizer_config:
            {}
        parallel_config: {{data_parallel: 8}}
        swap_config: {{swap: {}}}
"""


def config(line, swap=True):
    return SETTINGS.format(line, swap)


@pytest.mark.parametrize(
    "line,column",
    [
        ("optimizer_level: level4", 22),
        ("gradient_accumulation_shard: 1", 34),
        ("parallel_optimizer_threshold: -1", 35),
        ("parallel_optimizer_threshold: 1.5", 35),
        ("optimizer_weight_shard_size: 0", 34),
        ("optimizer_weight_shard_size: True", 34),
        ("optimizer_leve: level1", 5),
        ("optimizer_weight_shard_size: 3", 34),  # 3 does not divide 8
        ("optimizer_weight_shard_size: 1", 34),  # MindSpore ignores it
    ],
)
def test_what_does_not_fit(line, column):
    assert [entry for entry in found(config(line)) if entry[2] == "parallel-optimizer"] == [
        (4, column, "parallel-optimizer")
    ]


@pytest.mark.parametrize(
    "line",
    [
        "optimizer_level: level3",
        "gradient_accumulation_shard: False",
        "parallel_optimizer_threshold: 0",
        "optimizer_weight_shard_size: -1",
        "optimizer_weight_shard_size: 4",
        "optimizer_weight_shard_size: 8",
    ],
)
def test_what_passes(line):
    assert [entry for entry in found(config(line)) if entry[2] == "parallel-optimizer"] == []


def test_level_and_shard_of_gradients_contradict_each_other():
    problems = check(config("{optimizer_level: level1, gradient_accumulation_shard: False}")).problems
    (problem,) = [entry for entry in problems if entry.rule == "parallel-optimizer"]
    assert problem.fix == "delete it; level2 means True, level1 False"


@pytest.mark.parametrize(("shard", "levels"), [("False", [Level.WARNING]), ("True", [])])
def test_level2_overrules_a_shard_of_gradients(shard, levels):
    problems = check(config(f"{{optimizer_level: level2, gradient_accumulation_shard: {shard}}}")).problems
    assert [problem.level for problem in problems if problem.rule == "parallel-optimizer"] == levels


def test_with_swap_off_it_stops_nothing():
    problems = check(config("optimizer_level: level4", swap=False)).problems
    assert [p.level for p in problems if p.rule == "parallel-optimizer"] == [Level.WARNING]
