import pytest

from mindswap.policy.mindformers_2x.settings import indices_of, parse_spec
from tests.builders import document


def spec(text):
    return parse_spec(document(f"x: {text}").get("x"), "x")


@pytest.mark.parametrize(
    "text,first,last", [("5", 5, 5), ("'5'", 5, 5), ("0-19", 0, 19), ("' 3 '", 3, 3), ("7-2", 7, 2)]
)
def test_a_layer_or_a_range(text, first, last):
    assert (spec(text).first, spec(text).last) == (first, last)


@pytest.mark.parametrize("text", ["True", "-1", "1.0", "'1 - 3'", "[1]", "null", "a", "1234567890123456"])
def test_what_upstream_refuses(text):
    assert spec(text) is None


def test_layers_of_the_model_only():
    assert indices_of([spec("2-9"), spec("0"), spec("3")], 4) == (0, 2, 3)
