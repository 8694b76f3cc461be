"""What the executor costs per saved tensor, and the trace per operator, in PyNative mode on a CPU.

    python benchmarks/pynative_cost.py

CPU time of the main thread, least of several rounds that take turns. All are held against hooks that do nothing, as
MindSpore switches its pipelines off while there are any; where some layers have none, its threads wait busily, which
counts, too. A release waits for the queue of kernels. Figures of a busy machine are worth little. Exit code 1 if layers
that save nothing that moves have a hook for saved tensors.
"""

import sys
import time

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from mindswap.adapters.apply import read_tree
from mindswap.adapters.pynative.copies import ThreadCopies
from mindswap.adapters.pynative.executor import Executor
from mindswap.adapters.pynative.record import Recorder, record, recording
from mindswap.adapters.pynative.watch import Watch
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.pynative.decide import decide
from mindswap.pynative.schedule import make_schedule
from mindswap.report.tables import format_table

NUM_LAYERS, NUM_ROUNDS = 16, 12


class Layer(nn.Cell):
    """Two products with an activation between."""

    def __init__(self):
        super().__init__()
        self.w1, self.act, self.w2 = nn.Dense(32, 64), nn.SiLU(), nn.Dense(64, 32)
        self.add = ops.Add()

    def construct(self, x):
        return self.add(x, self.w2(self.act(self.w1(x))))


class Network(nn.Cell):
    """Layers and a loss."""

    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(NUM_LAYERS)])

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).sum()


class Nothing:
    """An observer that is told and does nothing."""

    def begin(self, inputs):
        """See `Observer`."""

    def end_forward(self, outputs):
        """See `Observer`."""

    def pass_boundary(self, kind, layer_index, tensors=()):
        """See `Observer`."""

    def save(self, tensor, layer_index):
        """See `Observer`."""
        return tensor

    def read(self, kept):
        """See `Observer`."""
        return kept


def main() -> int:
    """Print the table."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    network = Network()
    layers, inputs = list(network.layers), ms.Tensor(np.ones((8, 32), np.float32))
    gradients = ms.value_and_grad(network, None, network.trainable_params())

    def step():
        loss, found = gradients(inputs)
        loss.asnumpy(), found[0].asnumpy()

    trace = record(network, layers, step)
    whole, one = (schedule_for(trace, layers, chosen) for chosen in (ALL_LAYERS, Layers((0,))))
    nothing = make_schedule(trace, {}, range(NUM_LAYERS))
    observers = {
        "hooks that do nothing": (Nothing(), None),
        "executor, moving nothing": (
            Executor(trace, nothing, ThreadCopies()),
            None,
        ),
        "executor, one layer": (Executor(trace, one, ThreadCopies()), one.hooked_layers),
        "executor, every layer": (Executor(trace, whole, ThreadCopies()), None),
        "recording": (Recorder(network, layers), None),
    }
    least = dict.fromkeys(observers, float("inf"))
    hooked = {}
    for _ in range(NUM_ROUNDS):
        for name, (observer, chosen) in observers.items():
            watch = Watch(network, layers, observer, chosen)
            hooked[name] = sum(layer._saved_tensors_pack_hook is not None for layer in layers)
            if isinstance(observer, Recorder):
                with recording(observer, layers):
                    least[name] = min(least[name], timed(step))
            else:
                least[name] = min(least[name], timed(step))
            watch.remove()
    base, num_saves, num_operators = least["hooks that do nothing"], len(trace.saves), len(trace.operators)
    rows = [
        (name, str(hooked[name]), f"{us:.0f}", f"{(us - base) / num_saves:.1f}", f"{(us - base) / num_operators:.1f}")
        for name, us in least.items()
    ]
    print(format_table(("", "layers hooked", "us per step", "more per saved tensor, us", "per operator, us"), rows))
    print(f"\n{NUM_LAYERS} layers, {num_saves} saved tensors, {num_operators} operators; {NUM_ROUNDS} rounds")
    return 0 if hooked["executor, one layer"] <= 2 else 1  # layer 0, and layer 1, which saves what it hands on


def schedule_for(trace, layers, chosen):
    """The schedule that moves all of some layers."""
    policy = Policy(is_swap_enabled=True, layer_swap=(LayerSwap(chosen, 2),))
    return make_schedule(
        trace, decide(trace, [resolve_layer(policy, i, read_tree(cell)) for i, cell in enumerate(layers)])
    )


def timed(step) -> float:
    """CPU time of the main thread, in us."""
    begin = time.thread_time_ns()
    step()
    return (time.thread_time_ns() - begin) / 1000


if __name__ == "__main__":
    sys.exit(main())
