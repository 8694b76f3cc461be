import pytest

from tests.builders import found


@pytest.mark.parametrize("value", ["O2", "O3", "2", "True"])
def test_other_levels_are_reported_at_both_places(value):
    text = f"""
        swap_config: {{swap: True}}
        context:
          jit_level: {value}
          jit_config: {{jit_level: {value}}}
    """
    assert found(text) == [(3, 14, "jit-level"), (4, 27, "jit-level")]


@pytest.mark.parametrize("value", ["O0", "O1"])
def test_the_levels_of_the_specification_pass(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{jit_config: {{jit_level: {value}}}}}}}") == []
