"""Trains a network under 12 policies and prints, for each, what was predicted and what happened.

    python -m tests.adapters.pynative.judged small|CONFIG NUM_STEPS

What happened is seen by itself: calls of copies in their order, the sizes that MindSpore gives, gradients bit for bit.
Six policies run without recompute, six with the second layer (of Qwen3 a norm in it) recomputed; steps have 1, 2 and 3
micro-batches in turn.
"""

import json
import sys
from itertools import cycle

import mindspore as ms
import numpy as np
from mindspore import nn

from mindswap.adapters.graph.apply import read_tree
from mindswap.adapters.graph.mindspore import find_layers
from mindswap.adapters.pynative.copies import ThreadCopies
from mindswap.adapters.pynative.executor import Executor
from mindswap.adapters.pynative.hooks import Watch
from mindswap.adapters.pynative.record import record
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpSwap, Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.pynative.ledger import predict
from mindswap.pynative.schedule import ActionKind, Unit, find_distances, make_schedule

COPIED = (ActionKind.OFFLOAD, ActionKind.PREFETCH, ActionKind.WAIT)


class SeenCopies(ThreadCopies):
    """Copies that write down each call, with the size that the storage had then."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.num_released = 0  # each as soon as no local variable holds it: at which event is not said before

    def offload(self, storage, size_bytes):
        copy = super().offload(storage, size_bytes)
        self.calls.append(("offload", storage.size()))
        return copy

    def release(self, copy):
        self.num_released += 1
        super().release(copy)
        assert copy.storage is None

    def prefetch(self, copy, storage, poison=False):
        super().prefetch(copy, storage, poison)
        self.calls.append(("prefetch", copy.storage.size()))

    def wait(self, copy):
        self.calls.append(("wait", copy.storage.size()))
        super().wait(copy)


def policies(cells):
    """Six for the names of two cells of a layer, with the unit of their distances."""
    one, other = cells
    return [
        ((LayerSwap(ALL_LAYERS, 1),), (), Unit.OPERATORS),
        ((LayerSwap(Layers((0,)), 30),), (), Unit.OPERATORS),
        ((), (OpSwap(one, ALL_LAYERS, 10),), Unit.OPERATORS),
        ((), (OpSwap(one, Layers((0,)), 3), OpSwap(other, ALL_LAYERS, 60)), Unit.OPERATORS),
        ((LayerSwap(ALL_LAYERS, 1),), (), Unit.LAYERS),
        ((LayerSwap(Layers((0, 1)), 5),), (OpSwap(other, Layers((1,)), 20),), Unit.OPERATORS),
    ]


def build(name):
    """A network, its batches, two cells of its layers."""
    values = np.random.default_rng(0)
    if name == "small":
        from tests.adapters.pynative.networks import Network, batch

        return Network(), [(batch(seed=seed),) for seed in (1, 2, 3)], ("norm", "feed_forward")
    from mindformers.wrapper.wrapper import DataOrderWrapperCell

    from mindswap.adapters.graph.build import build_network, example_inputs
    from mindswap.adapters.pynative.cpu_cells import replace_cpu_cells
    from mindswap.adapters.pynative.trace_config import fill_inputs

    is_qwen3 = "qwen3" in name
    if is_qwen3:
        replace_cpu_cells()
    network, config = build_network(name, Policy(is_swap_enabled=True))
    for weight in network.get_parameters():
        weight.set_data(ms.Tensor(values.normal(0, 0.05, weight.shape).astype(np.float32)).astype(weight.dtype))
    inputs = example_inputs(config)
    batches = [tuple(fill_inputs(inputs, values).values()) for _ in range(3)]
    cells = ("self_attention", "mlp") if is_qwen3 else ("attention", "feed_forward")
    return DataOrderWrapperCell(list(inputs), network), batches, cells


def train(network, weights, batches, num_steps):
    """Losses and sums of gradients of some steps, as bytes; weights are as before afterwards."""
    before = [weight.value().copy() for weight in weights]
    optimizer = nn.Adam(weights, learning_rate=1e-3) if num_steps > 1 else None
    step = ms.value_and_grad(network, None, weights)
    results = []
    for index in range(num_steps):
        total = None
        for inputs in batches[: 1 + index % 3] if num_steps > 1 else batches:
            loss, gradients = step(*inputs)
            losses = loss if isinstance(loss, tuple) else (loss,)
            results += [part.asnumpy().tobytes() for part in losses]
            total = gradients if total is None else tuple(a + b for a, b in zip(total, gradients, strict=True))
        results += [gradient.asnumpy().tobytes() for gradient in total]
        if optimizer is not None:
            optimizer(total)
    for weight, value in zip(weights, before, strict=True):
        weight.set_data(value)
    return results


def judge(network, layers, weights, batches, given, num_steps, trace, expected):
    """One row: a policy, predicted and executed."""
    layer_swap, op_swap, unit = given
    policy = Policy(is_swap_enabled=True, layer_swap=layer_swap, op_swap=op_swap)
    decisions = [resolve_layer(policy, index, read_tree(layer)) for index, layer in enumerate(layers)]
    schedule = make_schedule(trace, find_distances(trace, decisions, unit), range(len(layers)))
    predicted = predict(trace, schedule)
    order = [
        (action.kind.name.lower(), trace.storages[action.storage].size_bytes)
        for actions in schedule.actions for action in actions if action.kind in COPIED
    ]  # fmt: skip
    copies, seen = SeenCopies(), []
    executor = Executor(trace, schedule, copies, poison=True, on_pass=seen.append)
    watch = Watch(network, layers, executor, schedule.hooked_layers)
    try:
        is_equal = train(network, weights, batches, num_steps) == expected
    finally:
        watch.remove()
    return {
        "is_equal": is_equal,
        "num_passes": len(seen),
        "is_order_equal": copies.calls == order * len(seen) and copies.num_released == len(schedule.moved) * len(seen),
        "peaks": sorted({totals.peak_device_bytes for totals in seen}),
        "predicted_peak": predicted.peak_device_bytes,
        "is_all_equal": all(totals == predicted for totals in seen),
        "out": predicted.offloaded_bytes,
        "back": sum(size for kind, size in copies.calls if kind == "prefetch") // max(len(seen), 1),
        "left": copies.host_bytes + seen[-1].device_bytes[-1],
    }


def main(name, num_steps):
    """Print the rows."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    network, batches, cells = build(name)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network.set_train(True)
    layers = list(find_layers(network))
    weights = ms.ParameterTuple(network.trainable_params())
    step = ms.value_and_grad(network, None, weights)
    rows = []
    for with_recompute in (False, True):
        if with_recompute:
            # A layer of Qwen3 gives None among its outputs, which MindSpore's recompute loses.
            (layers[1].pre_mlp_layernorm if "qwen3" in name else layers[1]).recompute()
        expected = {}
        trace = record(network, layers, lambda: step(*batches[0]))
        for given, num_batches in zip(policies(cells), cycle((1, 2, 3)), strict=False):
            few = batches[:num_batches] if num_steps == 1 else batches
            key = len(few)
            if key not in expected:
                expected[key] = train(network, weights, few, num_steps)
            rows.append(judge(network, layers, weights, few, given, num_steps, trace, expected[key]))
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
