import pytest

from tests.builders import found

ON = "swap_config: {swap: True}\n"


def config(name, interleave="True", swap=ON):
    return f"{swap}parallel: {{pipeline_config: {{pipeline_interleave: {interleave}, pipeline_scheduler: {name}}}}}"


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "seqpipe", "seqvpp", "seqsmartvpp", "zero_bubble_v", "null"])
def test_names_of_mindspore_pass(name):
    assert found(config(name)) == []


@pytest.mark.parametrize("name", ["zero_bubble_h", "1F1B", "True", "[seqpipe]"])
def test_other_names_are_reported(name):
    assert found(config(name)) == [(2, 77, "pipeline-scheduler")]


def test_without_interleave_there_is_1f1b_only():
    assert found(config("1f1b", interleave="False")) == []
    assert found(config("seqpipe", interleave="False")) == [(2, 78, "pipeline-scheduler")]
