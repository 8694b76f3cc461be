"""What the executor costs per saved tensor, and the trace per operator, in PyNative mode on a CPU.

    python benchmarks/pynative_cost.py

The time of a step says nothing: MindSpore hands operators to threads that wait busily (`sched_yield`: ten thousands of
switches in ten steps), more of them than a small machine has cores, so a step takes ten times as long in one run as in
the next, with and without swap. Therefore operators run one by one here (`launch_blocking`), and what is timed are the
calls of an observer: CPU time of the main thread. Every step makes the same calls. What disturbs a call makes it
longer, so of each the shortest over all steps counts; hooks that do nothing are the cost of the clock, and taken off.
What a call waits for (the queue of kernels, a copy) is not in it.

Copies are timed by themselves: CPU time of the thread that makes them, the shortest of some, host memory used before.

Exit code 1 if a layer that moves nothing has a hook for saved tensors, or tells of one.
"""

import contextlib
import gc
import resource
import sys
import time
from collections import Counter
from itertools import pairwise
from typing import ClassVar

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from mindswap.adapters.graph.apply import read_tree
from mindswap.adapters.pynative.copies import ThreadCopies
from mindswap.adapters.pynative.dispatch import recording
from mindswap.adapters.pynative.executor import Executor
from mindswap.adapters.pynative.hooks import Watch
from mindswap.adapters.pynative.record import Recorder, record
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.pynative.schedule import find_distances, make_schedule
from mindswap.report.tables import format_table
from mindswap.units import format_bytes

NUM_LAYERS, ROUNDS_S, NUM_COPIES = 8, 25, 15
COPY_BYTES = (4 << 10, 256 << 10, 4 << 20, 32 << 20)


class Layer(nn.Cell):
    """Two products with an activation between."""

    def __init__(self):
        super().__init__()
        self.w1, self.act, self.w2 = nn.Dense(32, 64), nn.SiLU(), nn.Dense(64, 32)
        self.add = ops.Add()

    def construct(self, x):
        """Return x plus two products of it."""
        return self.add(x, self.w2(self.act(self.w1(x))))


class Network(nn.Cell):
    """Layers and a loss."""

    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(NUM_LAYERS)])

    def construct(self, x):
        """Return the loss."""
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).sum()


class Counted(Executor):
    """An executor that counts of which layers it is told."""

    told: ClassVar[Counter[int]] = Counter()

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

    def between_operators(self):
        """See `Observer`."""

    def save(self, tensor, layer_index):
        """See `Observer`."""
        return tensor

    def read(self, kept):
        """See `Observer`."""
        return kept


class Timed:
    """An observer that notes how long another one takes: CPU time of each of its calls, in ns."""

    CALLS = ("begin", "end_forward", "pass_boundary", "save", "read", "begin_operator", "end_operator")

    def __init__(self, observer):
        self.observer = observer
        self.calls: list[int] = []
        for name in self.CALLS:
            if hasattr(observer, name):
                setattr(self, name, self._timed(getattr(observer, name)))

    def __getattr__(self, name):
        return getattr(self.observer, name)

    def _timed(self, call):
        def run(*args):
            begin = time.thread_time_ns()
            result = call(*args)
            self.calls.append(time.thread_time_ns() - begin)
            return result

        return run


def main() -> int:
    """Print the tables."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    ms.runtime.launch_blocking()
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
        "hooks that do nothing": (Nothing(), range(NUM_LAYERS)),
        "executor, moving nothing": (Executor(trace, nothing, ThreadCopies()), range(NUM_LAYERS)),
        "executor, one layer": (Counted(trace, one, ThreadCopies()), one.hooked_layers),
        "executor, every layer": (Executor(trace, whole, ThreadCopies()), range(NUM_LAYERS)),
        "recording": (Recorder(network, layers), range(NUM_LAYERS)),
    }
    hooked: dict[str, int] = {}
    step_calls: dict[str, list[list[int]]] = {name: [] for name in observers}
    gc.disable()
    end = time.monotonic() + ROUNDS_S
    while time.monotonic() < end or len(step_calls["recording"]) < 5:
        for name, (observer, chosen) in observers.items():
            timed = Timed(observer)
            watch = Watch(network, layers, timed, chosen)
            hooked[name] = sum(layer._saved_tensors_pack_hook is not None for layer in layers)
            is_recording = isinstance(observer, Recorder)
            with recording(timed) if is_recording else contextlib.nullcontext():
                step()
            watch.remove()
            step_calls[name].append(timed.calls)
        gc.collect()
    shortest = {name: [min(call) for call in zip(*steps, strict=True)] for name, steps in step_calls.items()}
    clock_ns = sum(shortest["hooks that do nothing"]) / len(shortest["hooks that do nothing"])
    cost_us = {name: (sum(calls) - clock_ns * len(calls)) / 1000 for name, calls in shortest.items()}
    rows = []
    for name, us in cost_us.items():
        saves = sum(save.layer_index in observers[name][1] for save in trace.saves)
        count, unit = (len(trace.operators), "operator") if name == "recording" else (saves, "saved tensor")
        rows.append([name, str(hooked[name]), str(len(shortest[name])), f"{us:.0f}", f"{us / count:.1f} us per {unit}"])
    print(format_table(("", "layers hooked", "calls", "us per step", "that is"), rows))
    moving_us = (cost_us["executor, every layer"] - cost_us["executor, moving nothing"]) / len(whole.moved)
    print(f"\na tensor that moves costs {moving_us:.1f} us more than one that stays")
    print(f"{len(step_calls['recording'])} steps each; {NUM_LAYERS} layers, {len(trace.saves)} saves of which ", end="")
    print(f"{len(whole.moved)} storages move, {len(trace.operators)} operators; the clock takes {clock_ns:.0f} ns\n")
    print(
        format_table(
            ("copy of", "to the host", "back", "page faults back", "plain copy"), [copy_row(n) for n in COPY_BYTES]
        )
    )
    untold = {layer: count for layer, count in Counted.told.items() if layer not in one.hooked_layers}
    hooked_text = ", ".join(map(str, one.hooked_layers))
    print(f"\none layer swaps: layers {hooked_text} are hooked, told of in others: {len(untold)}")
    # Layer 0, and layer 1, which saves what layer 0 hands on.
    return 0 if hooked["executor, one layer"] == len(one.hooked_layers) <= 2 and not untold else 1


def copy_row(size: int) -> list[str]:
    """One size: the copies of a storage there and back, and one between two arrays that are warm."""
    copies = ThreadCopies()
    storage = ms.Tensor(np.ones(size, np.uint8)).untyped_storage()
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)

    def now_ns():
        return copies._pool.submit(time.thread_time_ns).result()

    durations_ns, faults = [], []
    for _ in range(NUM_COPIES):
        moments = [now_ns()]
        copy = copies.offload(storage, size)
        moments.append(now_ns())
        copies.release(copy)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        copies.prefetch(copy, ms.mint.empty((size,), dtype=ms.uint8).untyped_storage())
        moments.append(now_ns())
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        copies.wait(copy)
        copies._pool.submit(np.copyto, target, source)
        moments.append(now_ns())
        durations_ns.append([end - begin for begin, end in pairwise(moments)])
    there, back, plain = (
        f"{ns / 1000:.0f} us, {size / ns:.1f} GB/s" for ns in map(min, zip(*durations_ns, strict=True))
    )
    return [format_bytes(size), there, back, str(sorted(faults)[len(faults) // 2]), plain]


def schedule_for(trace, layers, chosen):
    """The schedule that moves all of some layers."""
    policy = Policy(is_swap_enabled=True, layer_swap=(LayerSwap(chosen, 2),))
    return make_schedule(
        trace, find_distances(trace, [resolve_layer(policy, i, read_tree(cell)) for i, cell in enumerate(layers)])
    )


if __name__ == "__main__":
    sys.exit(main())
