import pytest

from tests.builders import found


@pytest.mark.parametrize("value", ["1", "PYNATIVE_MODE", "True", "False", "null"])
def test_other_values_are_reported(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{mode: {value}}}}}") == [(1, 45, "context-mode")]


@pytest.mark.parametrize("value", ["0", "GRAPH_MODE"])
def test_the_right_value_passes(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{mode: {value}}}}}") == []


def test_a_missing_key_passes():
    assert found("{swap_config: {swap: True}, context: {}}") == []
