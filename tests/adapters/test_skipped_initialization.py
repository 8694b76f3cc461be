"""Initial values of parameters in a dry run: nobody reads them, and large ones take a fifth of its time."""

import pytest

from tests import forked

pytestmark = pytest.mark.mindspore

CODE = """
import numpy as np
import mindspore as ms
from mindspore.common.initializer import Initializer, initializer
from mindswap.adapters import training_entry

asked = []
training_entry._skip_initialization()
for name, shape in (("one", [4, 4]), ("normal", [1024, 1024])):
    tensor = initializer(name, shape, ms.float32)
    kind = type(tensor.init)
    fill = kind._initialize
    kind._initialize = lambda self, array, fill=fill: (asked.append(array.shape), fill(self, array))
    array = tensor.init_data().asnumpy()
    assert array.shape == tuple(shape)
    if name == "one":
        assert np.all(array == 1)
assert asked == [(4, 4)], asked
print("small parameters only")
"""


def test_large_parameters_stay_as_they_are_allocated():
    done = forked.run(["-c", CODE])
    assert "small parameters only" in done.stdout, done.stderr
