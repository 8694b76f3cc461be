"""Sizes of the data types of MindIR."""

import numpy as np
import pytest

from mindswap.graph.model import BYTES_PER_ELEMENT


@pytest.mark.parametrize(("dtype", "size_bytes"), BYTES_PER_ELEMENT.items())
def test_bytes_of_an_element_are_those_of_numpy(dtype, size_bytes):
    """NumPy has no bfloat16, which has 16 bits."""
    assert size_bytes == np.dtype("uint16" if dtype == "bfloat16" else dtype).itemsize
