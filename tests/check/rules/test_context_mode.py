import pytest

from mindswap.config.step import read_device_target
from tests.builders import document, found


@pytest.mark.parametrize("value", ["1", "PYNATIVE_MODE", "True", "False", "null", "2"])
def test_other_values_are_reported(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{mode: {value}}}}}") == [(1, 45, "context-mode")]


@pytest.mark.parametrize("value", ["0", "GRAPH_MODE"])
def test_graph_mode_passes(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{mode: {value}}}}}") == []


@pytest.mark.parametrize("value", ["1", "PYNATIVE_MODE"])
def test_pynative_mode_passes_on_cpu_and_what_is_of_the_compiler_is_not_asked(value):
    settings = f"mode: {value}, device_target: CPU, memory_optimize_level: O1, jit_config: {{jit_level: O2}}"
    assert found(f"{{swap_config: {{swap: True}}, context: {{{settings}}}}}") == []


def test_on_a_device_the_copies_have_to_be_asked_for():
    text = (
        "{{swap_config: {{swap: True}}, context: {{mode: 1, device_target: Ascend}}, mindswap: {{stream_copies: {}}}}}"
    )
    assert found(text.format("True")) == []
    assert found(text.format("False")) == [(1, 45, "context-mode")]


def test_a_missing_key_passes():
    assert found("{swap_config: {swap: True}, context: {}}") == []


def test_a_device_target_that_is_null_is_missing():
    assert (
        read_device_target(document("context: {device_target: null}"))
        == read_device_target(document("a: 1"))
        == "Ascend"
    )
