"""Replacements of operators on a CPU compute what the operators do, or refuse; in a process of its own."""

import subprocess
import sys

import pytest

from tests.features.dryrun.test_trainer_on_backend import has_mindformers_2x

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.mindformers2,
    pytest.mark.skipif(not has_mindformers_2x(), reason="make test-2x runs it where MindFormers 2.x is"),
]

# They replace functions of MindSpore for good, hence the process.
PROGRAM = """
from types import SimpleNamespace
from mindswap.adapters.pynative.trainer_entry import prepare_device
prepare_device("CPU", has_cpu_stand_ins=True)
import mindspore as ms
import numpy as np
from mindformers.pynative.layers.flash_attention import FlashAttention
from mindspore import mint, ops
from mindswap.errors import LaunchError

def refused(function, *arguments):
    try:
        function(*arguments)
    except LaunchError as error:
        return str(error)
    return "computed"

ODD = 2**24 + 1  # float32 has no such number
full = mint.full((2,), ODD, dtype=ms.int64)
assert full.asnumpy().tolist() == [ODD, ODD], full
assert mint.full((1,), ODD).dtype == ms.int64
filled = mint.zeros((2,), dtype=ms.int64)
assert filled.fill_(ODD).asnumpy().tolist() == [ODD, ODD], filled
assert mint.tril(mint.full(size=(2, 2), fill_value=ODD, dtype=ms.int64)).asnumpy().tolist() == [[ODD, 0], [ODD, ODD]]
half = mint.ones((2, 2), dtype=ms.bfloat16)
assert half.dtype == mint.triu(half, diagonal=1).dtype == mint.zeros_like(half).dtype == ms.bfloat16
assert ops.cast(mint.triu(half, diagonal=1), ms.float32).asnumpy().tolist() == [[0, 1], [0, 0]]
assert mint.full((), float("-inf"), dtype=ms.float32).asnumpy() == -np.inf

assert mint.zeros(size=(2, 3)).shape == mint.ones(size=[2, 3]).shape == (2, 3)
assert mint.zeros(3).shape == (3,) and mint.zeros(3).dtype == ms.float32
assert mint.ones_like(input=filled, dtype=ms.bool_).asnumpy().tolist() == [True, True]
assert mint.arange(end=3).asnumpy().tolist() == mint.arange(3).asnumpy().tolist() == [0, 1, 2]
assert mint.arange(start=1, end=6, step=2, dtype=ms.int32).asnumpy().tolist() == [1, 3, 5]
assert (mint.arange(3).dtype, mint.arange(0.0, 1.0, 0.5).dtype) == (ms.int64, ms.float32)

table = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
index = ms.Tensor([1, 1, 0], ms.int32)
assert np.array_equal(mint.index_select(ms.Tensor(table), 0, index).asnumpy(), table[[1, 1, 0]])
assert refused(mint.index_select, ms.Tensor(table), 1, index).startswith("mint.index_select with dim 1: ")
rows, column = ms.Tensor(table[0]), ms.Tensor([[3], [0], [1]], ms.int32)
assert mint.gather(rows, 1, column).asnumpy().tolist() == [[3], [4], [9]]
assert refused(mint.gather, rows, 0, column).startswith("mint.gather with dim 0, ")
added = mint.scatter_add(mint.zeros((3, 4)), 1, column, ms.Tensor([[1.0], [2.0], [3.0]]))
assert added.asnumpy().tolist() == [[0, 0, 0, 1], [2, 0, 0, 0], [0, 3, 0, 0]]
assert refused(mint.scatter_add, rows, 0, column, rows).startswith("mint.scatter_add with dim 0, ")

sizes = SimpleNamespace(head_num=1, scalar_value=0.5)  # what the function reads of a FlashAttention
heads = ms.Tensor(np.ones((3, 1, 1, 2), np.float32))
message = refused(FlashAttention.construct, sizes, heads, heads, heads, None)
assert message.startswith("FlashAttention without attention_mask: ")
value = ms.Tensor(np.array([1.0, 3.0, 5.0], np.float32).reshape(3, 1, 1, 1))
mask = mint.triu(mint.ones((3, 3), dtype=ms.uint8), diagonal=1)
assert FlashAttention.construct(sizes, heads, heads, value, mask).asnumpy().ravel().tolist() == [1, 2, 3]
print("all are as they should be")
"""


def test_they_compute_what_the_operators_do_or_refuse_by_name():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert "all are as they should be" in ended.stdout, ended.stderr[-3000:]
