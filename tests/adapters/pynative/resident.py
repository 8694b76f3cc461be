"""A training step of eight layers with 16 MiB each, in a process of its own: how much memory it has behind forward.

    python -m tests.adapters.pynative.resident NUM_SWAPPED_LAYERS

Prints RssAnon in bytes as the kernel counts it, when forward is over. MindSpore keeps what it once took, so the first
step must swap: it follows a trace that was recorded with few numbers, and has the sizes of many.
"""

import sys
from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from mindswap.adapters.pynative.copies import ThreadCopies
from mindswap.adapters.pynative.executor import Executor
from mindswap.adapters.pynative.hooks import Watch
from mindswap.adapters.pynative.record import record
from mindswap.pynative.schedule import Distance, make_schedule

NUM_LAYERS, NUM_FLOATS, NUM_RECORDED = 8, 4 * 2**20, 16


class Layer(nn.Cell):
    """Backward needs the output of `tanh`, 16 MiB."""

    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(1.0, ms.float32))
        self.mul, self.tanh = ops.Mul(), ops.Tanh()

    def construct(self, x):
        return self.tanh(self.mul(x, self.weight))


class Network(nn.Cell):
    """Reads what the kernel says when the loss is there."""

    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(NUM_LAYERS)])
        self.resident_bytes = 0

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        loss = ops.ReduceSum()(x)
        loss.asnumpy()
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        (anonymous,) = (line for line in lines if line.startswith("RssAnon"))
        self.resident_bytes = int(anonymous.split()[1]) * 1024
        return loss


def main(num_swapped):
    """One step, of which the first layers swap."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    network = Network()
    layers, step = list(network.layers), ms.value_and_grad(network, None, network.trainable_params())
    few = record(network, layers, lambda: step(ms.Tensor(np.full(NUM_RECORDED, 0.5, np.float32))))
    factor = NUM_FLOATS // NUM_RECORDED
    trace = replace(
        few,
        storages=tuple(
            replace(one, size_bytes=one.size_bytes * factor) if one.size_bytes == 4 * NUM_RECORDED else one
            for one in few.storages
        ),
        saves=tuple(replace(one, shape=(NUM_FLOATS,)) if one.shape == (NUM_RECORDED,) else one for one in few.saves),
    )
    moved = {
        index: Distance(1)
        for index, storage in enumerate(trace.storages)
        if storage.producer is not None and trace.operators[storage.producer].layer_index < num_swapped
    }
    executor = Executor(trace, make_schedule(trace, moved), ThreadCopies())
    Watch(network, layers, executor, executor.schedule.hooked_layers)
    step(ms.Tensor(np.full(NUM_FLOATS, 0.5, np.float32)))
    assert executor.num_passes == 1 and len(executor.schedule.moved) == num_swapped
    print(network.resident_bytes)


if __name__ == "__main__":
    main(int(sys.argv[1]))
