"""`mindswap:` of a configuration: the device of a simulation."""

import pytest

from mindswap.policy.formats.mindformers1.schema import DEVICE_KEYS, MINDSWAP_KEYS
from mindswap.simulator.cost.device_file import CostSettings, list_devices, read_cost_settings
from mindswap.simulator.cost.hardware import OPTIONS
from tests.builders import document


def read(text: str) -> CostSettings:
    return read_cost_settings(document(text))


def found(text: str) -> list[tuple[int, int, str]]:
    return [(p.location.line, p.location.column, p.rule) for p in read(text).problems]


def test_no_section_says_nothing():
    assert read("model: {}") == read("mindswap:") == CostSettings()


def test_device_and_figures():
    settings = read("mindswap: {device: a3_die, memory: 54GiB, compute_fraction: 0.6, host_memory: 1.5 TB}")
    assert settings.device == "a3_die"
    assert settings.overrides == {"memory": "54GiB", "compute_fraction": "0.6", "host_memory": "1.5 TB"}
    assert settings.problems == ()


def test_a_calibration_is_a_device_file_beside_the_configuration():
    settings = read_cost_settings(document("mindswap: {calibration: mine.yaml}", "conf/x.yaml"))
    assert (settings.device, settings.is_calibration) == ("conf/mine.yaml", True)


def test_other_keys_of_the_section_are_left_alone():
    assert read("mindswap: {output_recompute: [0], device: generic}").problems == ()


def test_wrong_values_have_their_places():
    text = """
    mindswap:
      device: atlas
      memory: 54
      d2h: 20Gb/s
      h3d: 1GB/s
      contended_fraction: 1.5
      num_cards_per_node: [8]
    """
    assert found(text) == [
        (2, 11, "wrong-type"),
        (3, 11, "wrong-type"),
        (4, 8, "wrong-type"),
        (5, 3, "unknown-key"),
        (6, 23, "wrong-type"),
        (7, 23, "wrong-type"),
    ]
    assert read(text).overrides == {}
    problem = read(text).problems[0]
    assert problem.message == "mindswap.device: 'atlas' cannot be used here"
    assert all(name in problem.allowed for name in list_devices())
    assert read(text).problems[3].fix == "write 'h2d'"


@pytest.mark.parametrize("value", ["5", "[generic]", "' '", "''"])
def test_a_device_is_a_name_or_a_file(value):
    settings = read(f"mindswap: {{device: {value}}}")
    assert settings.device is None and [problem.rule for problem in settings.problems] == ["wrong-type"]


def test_a_section_that_is_none():
    assert found("mindswap: [1]") == [(1, 11, "wrong-type")]


def test_device_and_calibration_contradict_each_other():
    assert found("mindswap: {device: generic, calibration: mine.yaml}") == [(1, 42, "wrong-type")]


def test_every_figure_may_stand_in_the_section():
    assert set(DEVICE_KEYS) == {"device", "calibration", *OPTIONS}
    assert set(DEVICE_KEYS) < set(MINDSWAP_KEYS)


def test_a_size_without_a_unit_says_so():
    (problem,) = read_cost_settings(document("mindswap: {memory: 24}")).problems
    assert problem.message == "mindswap.memory: 24 has no unit" and "such as 54GiB" in problem.allowed
