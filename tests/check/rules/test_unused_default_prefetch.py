import pytest

from mindswap.check.check import check_document
from mindswap.config.render import document_from_data
from tests.builders import found

ENTRY = "layer_swap: [{backward_prefetch: 20, layers: [0]}]"


@pytest.mark.parametrize("value", [1, 10])
def test_it_has_no_effect_next_to_entries(value):
    text = f"swap_config: {{swap: True, default_prefetch: {value}, {ENTRY}}}"
    assert found(text) == [(1, 45, "unused-default-prefetch")]


def test_it_acts_in_the_default_strategy():
    assert found("swap_config: {swap: True, default_prefetch: 10}") == []


def test_the_default_that_mindformers_puts_there_is_no_concern():
    data = {"swap": True, "default_prefetch": 1, "layer_swap": [{"backward_prefetch": 20, "layers": [0]}]}
    assert check_document(document_from_data({"swap_config": data}, "x")).problems == ()
