"""Files of recorded steps whose indices are damaged."""

import gzip
import json
from pathlib import Path

import pytest

from mindswap.errors import DataError
from mindswap.pynative.trace import load_trace

STEP = Path(__file__).parents[1] / "data/qwen3_2x_step.json.gz"
NUM_TASKS, NUM_OPERATORS = 1404, 603


@pytest.fixture(scope="module")
def text():
    return gzip.decompress(STEP.read_bytes()).decode()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("memory", "tasks", 30, 3), 99999, "task 30: operator 99999, allowed: -1 to 602"),
        (("memory", "tasks", 30, 3), 1.0, "task 30: operator 1.0, allowed"),
        (("memory", "tasks", -1, 3), 5, "operator 5, allowed: -1 to -1"),
        (("memory", "tasks", 3, 2), 10**9, "task 3: micro-batch 1000000000, allowed: 0 to 1403"),
        (("memory", "tasks", 3, 2), -1, "task 3: micro-batch -1"),
        (("memory", "tasks", 3, 1), "later", "task 3: phase 'later', allowed: forward, backward, optimizer"),
        (("memory", "tasks", 3, 1), [], "task 3: phase"),
        (("memory", "blocks", 2, 1), NUM_TASKS, "block 2: begin 1404, allowed: -1 to 1403"),
        (("memory", "blocks", 2, 2), NUM_TASKS + 1, "block 2: end 1405, allowed: 0 to 1404"),
        (("memory", "blocks", 2, 2), -1, "block 2: end -1"),
        (("memory", "blocks", 2, 3), [3, NUM_TASKS], "block 2: use 1404, allowed: 0 to 1403"),
        (("memory", "blocks", 2, 0), -512, "block 2: bytes -512"),
        (("memory", "blocks", 2, 4), "x", "block 2: memory 'x'"),
        (("memory", "weight_bytes"), None, "weight_bytes None"),
        (("operators", 50, 1), 4, "operator 50: layer 4, allowed: 0 to 3"),
        (("operators", 50, 5, 0, 0), -2, "operator 50: memory -2"),
        (("storages", 0, 1), NUM_OPERATORS, "storage 0: producer 603, allowed: 0 to 602"),
        (("storages", 0, 2), True, "storage 0: last use True"),
        (("saves", 0, 0), 9999, "save 0: storage 9999"),
        (("saves", 0, 1), -1, "save 0: layer -1, allowed: 0 to 3"),
        (("saves", 0, 2), NUM_OPERATORS, "save 0: operator 603"),
        (("events", 0, 1), 4, "event 0: index 4, allowed: 0 to 3"),
        (("events", 1, 1), 10**6, "event 1: index 1000000"),
        (("events", 1, 2), NUM_OPERATORS + 1, "event 1: operators before 604, allowed: 0 to 603"),
    ],
)
def test_a_damaged_index_is_named(text, path, value, message):
    data = json.loads(text)
    *parents, last = path
    place = data
    for step in parents:
        place = place[step]
    place[last] = value
    with pytest.raises(DataError, match=r"step\.json: the trace is damaged: ") as caught:
        load_trace(json.dumps(data), "step.json")
    assert message in str(caught.value)


def test_each_storage_is_saved(text):
    data = json.loads(text)
    data["storages"].append(data["storages"][-1])
    with pytest.raises(DataError, match=r"storages, and \d+ of them are saved"):
        load_trace(json.dumps(data), "step.json")
