"""All strategies on one model: what they give can be simulated, written, and read again."""

import pytest
from other_systems import STRATEGIES
from other_systems.saved import saved_tensors, swap_policy

from mindswap.check.check import check_shape
from mindswap.config.render import document_from_data
from tests.adapters.graphs import ROOT
from tests.planner.loading import capture_apart
from tests.planner.models import MB, small_model

# Near the end of forward their copies back are launched, and take memory, before that of the copy out is given back.
FETCHED_EARLY = ("swap everything", "longest gap, prefetch 10")


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_gives_the_same_policy_again_and_no_more_memory(name):
    model = small_model()
    policy = STRATEGIES[name](model, 10 * MB)
    assert STRATEGIES[name](small_model(), 10 * MB) == policy
    if name not in FETCHED_EARLY:
        assert model.simulate(policy).peak_bytes <= model.simulate(STRATEGIES["keep all"](model, 0)).peak_bytes


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_can_be_written(name):
    policy = STRATEGIES[name](small_model(num_stages=2, num_micro_batches=3), 10 * MB)
    assert check_shape(document_from_data(policy.to_config(), "data"), 4).policy == policy


@pytest.mark.mindspore
def test_every_nameable_tensor_of_a_real_layer_leaves():
    model = capture_apart(ROOT / "tests" / "data" / "qwen3_small.yaml")
    chosen = [tensor for i in range(model.captured.num_layers) for tensor in saved_tensors(model, i)]
    copies = model.program(swap_policy((tensor, 1) for tensor in chosen)).copies
    assert sorted(copies.size_bytes) == sorted(tensor.size_bytes for tensor in chosen)
