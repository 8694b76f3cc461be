"""Rewrites of compiled steps are what they were (`tests.recorded_steps`)."""

import json

import pytest

from tests.graph.recorded import rewritten
from tests.recorded_steps import NAMES, captured, recorded

FACTS = {"rewritten": rewritten}


@pytest.mark.parametrize("name", NAMES)
def test_compiled_steps_are_what_they_were(name):
    assert json.loads(json.dumps(rewritten(captured(name)))) == recorded()[__name__]["rewritten"][name]
