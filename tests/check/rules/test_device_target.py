import pytest

from tests.builders import found


@pytest.mark.parametrize("value", ["CPU", "GPU", "ascend"])
def test_other_values_are_reported(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{device_target: {value}}}}}") == [(1, 54, "device-target")]


@pytest.mark.parametrize("value", ["Ascend", "'Ascend'"])
def test_the_right_value_passes(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{device_target: {value}}}}}") == []


def test_a_missing_key_passes():
    assert found("{swap_config: {swap: True}, context: {}}") == []
