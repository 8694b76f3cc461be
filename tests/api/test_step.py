"""The step of a configuration, without MindSpore."""

import pytest

from mindswap.api.step import Step
from mindswap.config.parse import parse_document
from mindswap.errors import SimulationError
from mindswap.policy.model import ALL_LAYERS, OpRecompute, Policy
from tests.simulator.steps import model


def test_what_cannot_be_simulated_is_said_with_its_place():
    """`add` is what a layer of `steps.py` hands on; the value of `select_recompute` begins in line 2, column 21."""
    document = parse_document("recompute_config:\n  select_recompute: ['.*']\n", "x.yaml")
    policy = Policy(True, select_recompute=(OpRecompute(".*", ALL_LAYERS),))
    with pytest.raises(SimulationError, match=r"x\.yaml:2:21: layer 0: .*\n    fix: recompute without add: "):
        Step(document, policy, model(6), None).simulate()
