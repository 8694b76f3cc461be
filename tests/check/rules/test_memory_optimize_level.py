import pytest

from tests.builders import found


@pytest.mark.parametrize("value", ["O1", "1", "0", "[O0]"])
def test_other_values_are_reported(value):
    text = f"{{swap_config: {{swap: True}}, context: {{memory_optimize_level: {value}}}}}"
    assert found(text) == [(1, 62, "memory-optimize-level")]


@pytest.mark.parametrize("value", ["O0", "'O0'", "null"])
def test_the_right_value_passes(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{memory_optimize_level: {value}}}}}") == []


def test_a_missing_key_passes():
    assert found("{swap_config: {swap: True}, context: {}}") == []
