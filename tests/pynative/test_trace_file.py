import json

import pytest

from mindswap.errors import DataError
from mindswap.policy.cell_tree import CellNode
from mindswap.pynative.trace import RecordedStep, dump_trace, load_trace
from tests.pynative.builders import chain, squares

LAYER = CellNode("", "Layer", False, (CellNode("mul", "Mul", True),))


@pytest.mark.parametrize("trace", [chain(), squares()])
def test_what_is_written_is_read_back(trace):
    step = RecordedStep(trace, (LAYER,) * 3, "seed: 0\n", {"mindspore": "2.9.0"}, ("a note",))
    read = load_trace(dump_trace(step), "step.json")
    assert (read.trace, read.layers, read.config) == (step.trace, step.layers, step.config)
    assert (read.versions, read.notes) == (step.versions, step.notes)


def test_the_file_says_what_it_is_and_where_it_was_made():
    data = json.loads(dump_trace(RecordedStep(chain(), (), "")))
    assert (data["schema"], data["version"], data["device"]) == ("mindswap-trace", 2, "CPU")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "step.json:1:2: no JSON"),
        ("[]", "step.json: no trace of a step"),
        ('{"schema": "mindswap-trace", "version": 9}', "step.json: version 9 of a trace"),
        ('{"schema": "mindswap-trace", "version": 2}', "step.json: the trace is damaged"),
    ],
)
def test_other_files_are_refused(text, message):
    with pytest.raises(DataError, match=message.replace(".", r"\.")):
        load_trace(text, "step.json")
