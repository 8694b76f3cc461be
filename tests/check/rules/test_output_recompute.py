import pytest

from mindswap.check.check import check_shape
from tests.builders import document, found


def config(recompute, own, more=""):
    return f"{{swap_config: {{swap: True}}, recompute_config: {{recompute: {recompute}}}, mindswap: {{{own}}}{more}}}"


@pytest.mark.parametrize("recompute", ["True", "[0, 1, 2]", "'0-2'"])
def test_layers_that_are_recomputed_pass(recompute):
    problems = found(config(recompute, "output_recompute: [0, 1]"))
    assert {rule for *_, rule in problems} <= {"recompute-wins"}


def test_layers_that_are_not_recomputed():
    problems = found(config("[0, 1]", "output_recompute: [0, 2]"))
    assert (1, 97, "output-recompute") in problems


def test_every_layer_where_only_some_are_recomputed():
    assert (1, 97, "output-recompute") in found(config("[0, 1]", "output_recompute: True"))
    assert (1, 95, "output-recompute") not in found(config("True", "output_recompute: True"))


def test_the_newer_models_do_not_compile_with_it():
    problems = found(config("True", "output_recompute: [0]", ", use_legacy: False"), model=None, num_layers=4)
    assert (1, 95, "output-recompute") in problems


def test_layers_that_do_not_exist_and_keys_that_do_not():
    assert (1, 99, "layer-out-of-range") in found(config("True", "output_recompute: [0, 9]"))
    assert (1, 77, "unknown-key") in found(config("True", "output_recomputed: [0]"))
    assert (1, 95, "wrong-type") in found(config("True", "output_recompute: maybe"))


def test_it_is_written_and_read_back():
    policy = check_shape(document(config("True", "output_recompute: ['0-1']")), 4).policy
    assert policy.output_recompute.indices == (0, 1)
    assert policy.to_config()["mindswap"] == {"output_recompute": [0, 1]}
    assert check_shape(document(config("True", "cpu_stand_ins: True")), 4).policy.to_config().get("mindswap") is None


def test_with_swap_off_nothing_is_said():
    assert found("{swap_config: {swap: False}, mindswap: {output_recompute: [99], junk: 1}}") == []
