"""One rank of several, alone in its process."""

import importlib
import os

import pytest

pytestmark = pytest.mark.mindspore

NAMES = (
    ("mindspore.communication.management", "_get_rank_helper"),
    ("mindspore.communication.management", "_get_size_helper"),
    ("mindspore.communication.management", "_create_group_helper"),
    ("mindformers.parallel_core.inference.parallel_state", "_is_initialized"),
    ("mindformers.parallel_core.inference.parallel_state", "_TENSOR_MODEL_PARALLEL_GROUP"),
    ("mindformers.parallel_core.training_graph.tensor_parallel.utils", "_TP_GROUP_NAME"),
)


def values():
    found = [getattr(importlib.import_module(module), name) for module, name in NAMES]
    return [dict(value) if isinstance(value, dict) else value for value in found]


def test_models_find_themselves_on_a_rank_of_a_stage():
    from mindformers.parallel_core.inference.parallel_state import get_tensor_model_parallel_group as tensor_group
    from mindformers.parallel_core.inference.parallel_state import initialize_model_parallel
    from mindspore import get_auto_parallel_context
    from mindspore.communication import create_group, get_group_size, get_rank

    from mindswap.adapters.graph.build import on_rank

    before, environ = values(), dict(os.environ)
    with on_rank(11, 8):  # the second stage of eight ranks each
        assert (get_rank(), get_group_size()) == (3, 8)
        create_group("pair", [2, 3])
        assert (get_rank("pair"), get_group_size("pair")) == (1, 2)
        initialize_model_parallel(tensor_model_parallel_size=2, data_parallel_size=4)
        assert tensor_group().global_ranks == [2, 3]
        assert get_auto_parallel_context("parallel_mode") == "semi_auto_parallel"
        assert (os.environ["RANK_ID"], os.environ["RANK_SIZE"]) == ("3", "8")
    assert values() == before
    assert dict(os.environ) == environ
    assert get_auto_parallel_context("parallel_mode") == "stand_alone"


def test_an_error_leaves_nothing_behind():
    from mindswap.adapters.graph.build import on_rank

    before = values()
    with pytest.raises(KeyError), on_rank(0, 2):
        importlib.import_module(NAMES[0][0]).get_group_size("no such group")
    assert values() == before
