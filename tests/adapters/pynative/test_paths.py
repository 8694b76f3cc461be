"""Names that operators of a layer get while it runs."""

import pytest

pytestmark = pytest.mark.mindspore


@pytest.fixture
def layer():
    """A layer that runs, with two ReLU of its own and one Tanh under two names."""
    from mindspore import nn, ops

    cell = nn.Cell()
    cell.first, cell.second, cell.inner = ops.ReLU(), ops.ReLU(), ops.Tanh()
    cell.outer = cell.inner
    return cell


@pytest.fixture
def paths(layer):
    from mindswap.adapters.pynative.paths import CallPaths

    paths = CallPaths([layer])
    paths.begin_layer(0)
    return paths


def test_a_primitive_that_is_shown_has_its_own_name(paths, layer):
    assert paths.of_operator("ReLU", layer.second, True) == (("second",), [])
    assert paths.of_operator("ReLU", layer.first, True) == (("first",), [])


def test_one_that_is_not_shown_may_be_any_of_its_kind(paths):
    assert paths.of_operator("ReLU", None, True) == (("first",), ["second"])


def test_one_of_another_owner_is_named_as_what_the_layer_holds(paths):
    from mindspore import ops

    assert paths.of_operator("ReLU", ops.ReLU(), True) == (("first",), ["second"])
    assert paths.of_operator("Exp", ops.Exp(), True) == (("Exp",), [])


@pytest.mark.parametrize("is_shown", [True, False])
def test_calls_of_one_primitive_take_turns_at_its_names(paths, layer, is_shown):
    found = [paths.of_operator("Tanh", layer.inner if is_shown else None, True) for _ in range(3)]
    assert found == [(("inner",), []), (("outer",), []), (("inner",), [])]
