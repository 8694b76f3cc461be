"""Where MindSpore searches strategies itself, the simulation says so."""

import pytest

from mindswap.config.strategy_search import find_search_caveats
from tests.builders import document


@pytest.mark.parametrize(
    ("mode", "search", "is_searched"),
    [
        ("2", "recursive_programming", True),
        ("auto_parallel", "dynamic_programming", True),
        ("2", "sharding_propagation", False),  # keeps what the model sets
        ("2", None, False),  # the default of MindFormers
        ("1", "recursive_programming", False),
        ("True", "recursive_programming", False),
    ],
)
def test_only_a_search_by_mindspore_is_not_simulated(mode, search, is_searched):
    line = f"\n  search_mode: {search}" if search else ""
    parsed = document(f"use_parallel: True\nparallel:\n  parallel_mode: {mode}{line}\n")
    caveats = list(find_search_caveats(parsed))
    assert len(caveats) == is_searched
    assert all(f"parallel.search_mode: {search}: " in caveat for caveat in caveats)


def test_on_one_card_nothing_is_split():
    text = "use_parallel: False\nparallel:\n  parallel_mode: 2\n  search_mode: recursive_programming\n"
    assert not list(find_search_caveats(document(text)))
