import pytest

from mindswap.config.problem import Level
from mindswap.config.step import read_device_memory
from tests.builders import check, document, found

TEXT = "{context: {max_device_memory: %s}, swap_config: {swap: True}%s}"


@pytest.mark.parametrize(("text", "size_bytes"), [('"58GB"', 58 * 2**30), ("0.5GB", 2**29), ("3.5GB", 7 * 2**29)])
def test_gb_is_gib_as_in_mindspore(text, size_bytes):
    limit = read_device_memory(document(TEXT % (text, "")))
    assert (limit.size_bytes, limit.source) == (size_bytes, "context.max_device_memory, x.yaml:1:31")
    assert found(TEXT % (text, "")) == []


@pytest.mark.parametrize("text", ["58", '"58 GB"', "58GiB", "0GB", "05GB", "1e1GB", "[1]", "True"])
def test_what_mindspore_refuses_is_an_error(text):
    assert found(TEXT % (text, "")) == [(1, 31, "max-device-memory")]
    assert read_device_memory(document(TEXT % (text, ""))) is None


def test_with_swap_off_it_is_a_warning():
    (problem,) = check("{context: {max_device_memory: 58}}").problems
    assert problem.level is Level.WARNING and problem.allowed == 'a string such as "58GB"; GB is GiB there'


def test_a_budget_above_it_is_a_warning():
    """30 GB are 30 GiB; a plan for 40 GiB would run out of memory."""
    assert found(TEXT % ("30GB", ", mindswap: {memory: 30GiB}")) == []
    (problem,) = check(TEXT % ("30GB", ", mindswap: {memory: 40GiB}")).problems
    assert (problem.level, problem.fix) == (
        Level.WARNING,
        'context.max_device_memory: "40GB", or memory: 30.0 GiB and mindswap plan again',
    )
    assert problem.message == (
        "mindswap.memory: '40GiB' is more than the 30.0 GiB of context.max_device_memory (x.yaml:1:31)"
    )
