"""What the executor costs per saved tensor, and the trace per operator, in PyNative mode on a CPU.

    python benchmarks/pynative_cost.py

CPU time of the main thread. In each round every form runs once, in another order, and is held against hooks that do
nothing in the same round, as MindSpore switches its pipelines off while there are any; printed are medians of these
differences over all rounds, with the quarter of them below and above. Where some layers have no hooks, MindSpore's
threads wait busily, which counts, too. A release waits for the queue of kernels. Exit code 1 if a layer that moves
nothing has a hook for saved tensors, or tells of one.
"""

import contextlib
import gc
import random
import statistics
import sys
import time
from collections import Counter

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

NUM_LAYERS, NUM_ROUNDS = 8, 25


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


class Counted(Executor):
    """An executor that counts of which layers it is told."""

    told: Counter[int] = Counter()

    def save(self, tensor, layer_index):
        """See `Observer`."""
        self.told[layer_index] += 1
        return super().save(tensor, layer_index)


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
        "executor, moving nothing": (Executor(trace, nothing, ThreadCopies()), None),
        "executor, one layer": (Counted(trace, one, ThreadCopies()), one.hooked_layers),
        "executor, every layer": (Executor(trace, whole, ThreadCopies()), None),
        "recording": (Recorder(network, layers), None),
    }
    hooked: dict[str, int] = {}
    taken: dict[str, list[float]] = {name: [] for name in observers}
    order = list(observers)
    gc.disable()
    for _ in range(NUM_ROUNDS):
        random.shuffle(order)
        for name in order:
            observer, chosen = observers[name]
            watch = Watch(network, layers, observer, chosen)
            hooked[name] = sum(layer._saved_tensors_pack_hook is not None for layer in layers)
            is_recording = isinstance(observer, Recorder)
            with recording(observer, layers) if is_recording else contextlib.nullcontext():
                taken[name].append(timed(step))
            watch.remove()
        gc.collect()
    base = taken["hooks that do nothing"]
    counts = {"recording": (len(trace.operators), "operator")}
    rows = []
    for name, all_us in taken.items():
        count, unit = counts.get(name, (len(trace.saves), "saved tensor"))
        low, middle, high = statistics.quantiles([us - other for us, other in zip(all_us, base, strict=True)], n=4)
        more = f"{middle / count:.1f} ({low / count:.1f} to {high / count:.1f}) us per {unit}"
        ratio = statistics.median(us / other for us, other in zip(all_us, base, strict=True))
        rows.append((name, str(hooked[name]), f"{statistics.median(all_us):.0f}", f"{ratio:.2f}", more))
    print(format_table(("", "layers hooked", "us per step", "ratio", "more than hooks that do nothing"), rows))
    print(f"\n{NUM_ROUNDS} rounds; {NUM_LAYERS} layers, {len(trace.saves)} saves, {len(trace.operators)} operators")
    others = {layer: count for layer, count in Counted.told.items() if layer not in one.hooked_layers}
    print(
        f"one layer swaps: layers {', '.join(map(str, one.hooked_layers))} are hooked, told of in others: {len(others)}"
    )
    # Layer 0, and layer 1, which saves what layer 0 hands on.
    return 0 if hooked["executor, one layer"] == len(one.hooked_layers) <= 2 and not others else 1


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
