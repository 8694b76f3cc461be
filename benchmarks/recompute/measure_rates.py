"""Rates of this machine, as JSON: what MindSpore's operators reach on CPU, by the same shapes as the training has.

python measure_rates.py BATCH SEQ HIDDEN INTERMEDIATE
"""

import json
import statistics
import sys
import time

import mindspore as ms
import numpy as np
from mindspore import nn, ops

NUM_OPS = 20
NUM_RUNS = 9


class Products(nn.Cell):
    """A chain of the two products of a feed-forward."""

    def construct(self, x, up, down):
        """Shapes (rows, hidden), (hidden, intermediate), (intermediate, hidden)."""
        for _ in range(NUM_OPS // 2):
            x = ops.matmul(ops.matmul(x, up), down)
        return x


class Additions(nn.Cell):
    """A chain of element-wise operators; each reads two tensors and writes one."""

    def construct(self, x, y):
        """Two of the same shape."""
        for _ in range(NUM_OPS):
            x = ops.add(x, y)
        return x


def seconds_per_op(cell, *inputs):
    """Median over the runs; the first compiles."""
    cell(*inputs).asnumpy()
    times = []
    for _ in range(NUM_RUNS):
        started = time.perf_counter()
        cell(*inputs).asnumpy()
        times.append((time.perf_counter() - started) / NUM_OPS)
    return statistics.median(times)


def zeros(*shape):
    """A float32 tensor."""
    return ms.Tensor(np.zeros(shape, np.float32))


def main():
    """Measure and print."""
    batch, seq, hidden, intermediate = map(int, sys.argv[1:])
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    rows = batch * seq
    product_s = seconds_per_op(
        Products(), zeros(rows, hidden), zeros(hidden, intermediate), zeros(intermediate, hidden)
    )
    large_s = seconds_per_op(Additions(), zeros(rows, seq), zeros(rows, seq))
    small_s = seconds_per_op(Additions(), zeros(1), zeros(1))
    rates = {
        "matrix_flops_per_s": 2 * rows * hidden * intermediate / (product_s - small_s),
        "memory_bytes_per_s": 3 * 4 * rows * seq / (large_s - small_s),
        "op_latency_s": small_s,
    }
    print(json.dumps(rates))


main()
