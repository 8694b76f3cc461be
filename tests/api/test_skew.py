"""How uneven tokens go to experts, as the command line says it."""

import pytest

from mindswap.api.compiled import read_skew
from mindswap.errors import GraphError


def test_a_skew_in_thousandths():
    assert [read_skew(text) for text in (None, "1", "1.5")] == [1000, 1000, 1500]


@pytest.mark.parametrize("text", ["0.9", "two", "nan", "inf", "-1", "2000"])
def test_what_is_no_skew_is_refused_with_what_is_allowed(text):
    with pytest.raises(GraphError, match="allowed: a number from 1"):
        read_skew(text)
