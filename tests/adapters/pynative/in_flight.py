"""Trains a network whose passes overlap, as the micro-batches of a pipeline stage do, with and without swap.

    python -m tests.adapters.pynative.in_flight REQUEST.json RESULT.json

For MindSpore 2.10, whose tensors have `backward`. The result has, for each order of the passes, what differs without
swap and the report.
"""

import sys
from contextlib import nullcontext
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from mindswap.adapters.pynative.hyper_parallel_stand_in.autograd import enable_mindspore_backward_compat
from mindswap.adapters.pynative.recompute_whole import recomputing_whole_blocks
from mindswap.adapters.pynative.swap import PipelineSwap
from mindswap.adapters.pynative.trainer_dry_run import answer_request
from mindswap.pynative.schedule import Distance, Unit

WIDTH, NUM_LAYERS, NUM_STEPS = 16, 3, 2
FORWARD, BACKWARD, EVALUATION, OTHER_SHAPE = "F", "B", "E", "O"
RECOMPUTED = "1F1B, recomputed"
# Passes of a step; an evaluation has no backward.
ORDERS = {
    "1F1B, first of 2 stages": [("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("F", 3), ("B", 2), ("B", 3)],
    "last in, first out": [*(("F", i) for i in range(4)), *(("B", i) for i in (3, 2, 1, 0))],
    "with evaluations": [("F", 0), ("E", 9), ("F", 1), ("B", 0), ("E", 8), ("B", 1), ("F", 2), ("B", 2)],
    RECOMPUTED: [("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("F", 3), ("B", 2), ("B", 3)],
    "another shape": [("F", 0), ("O", 1), ("B", 0), ("F", 2), ("B", 1), ("F", 3), ("B", 2), ("B", 3)],
}


class Gated(nn.Cell):
    """A product with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.act = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, WIDTH), nn.GELU()

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        """Multiply two projections of the input."""
        return self.up(x) * self.act(self.gate(x))


class Layer(nn.Cell):
    """A gated feed-forward; with `is_recomputed` backward computes the gated part again."""

    def __init__(self) -> None:
        super().__init__()
        self.gated, self.down = Gated(), nn.Dense(WIDTH, WIDTH)
        self.is_recomputed = False

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        """Add to the input."""
        gated = ms.recompute(self.gated, x, use_reentrant=False) if self.is_recomputed else self.gated(x)
        return x + self.down(gated)


class Network(nn.Cell):
    """Layers; the outputs of the first and of the last are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(NUM_LAYERS)])

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        """Return a loss."""
        first = x = self.layers[0](x)
        x = self.layers[1](x)
        return ((self.layers[2](x) + first) ** 2).mean()


def run(order: list[tuple[str, int]], swapped: bool, recomputed: bool) -> tuple[list[np.ndarray], Any]:
    """Return losses, gradients and weights of all steps, and the report."""
    values = np.random.default_rng(7)
    network = Network()
    for layer in network.layers:
        layer.is_recomputed = recomputed
    for weight in network.get_parameters():
        weight.set_data(ms.Tensor(values.normal(0, 0.3, weight.shape).astype(np.float32)))
    network.set_train(True)
    weights = network.trainable_params()
    distance = Distance(1, Unit.LAYERS, moves_last_layers=True)
    swap = None
    if swapped:
        swap = PipelineSwap(
            network,
            list(network.layers),
            lambda trace: dict.fromkeys(range(len(trace.storages)), distance),
            poison=True,
            watch_all=True,
        )
    found: list[np.ndarray] = []
    for _ in range(NUM_STEPS):
        losses: dict[int, ms.Tensor] = {}
        for kind, index in order:
            if kind == BACKWARD:
                losses.pop(index).backward()
                continue
            batch = ms.Tensor(values.normal(size=(5 if kind == OTHER_SHAPE else 4, WIDTH)).astype(np.float32))
            # Without swap MindSpore would leave tensors behind that the swap of the other run waits for.
            with recomputing_whole_blocks() if not swapped else nullcontext():
                loss = network(batch)
            found.append(loss.asnumpy().copy())
            if kind != EVALUATION:
                losses[index] = loss
        for weight in weights:
            found.append(weight.grad.asnumpy().copy())
            weight.set_data(ms.Tensor(weight.asnumpy() - 0.1 * weight.grad.asnumpy()))
            weight.grad = None
    found += [weight.asnumpy().copy() for weight in network.get_parameters()]
    return found, swap.finish().to_json() if swap else None


def attack() -> dict[str, Any]:
    """Return for each order: whether all arrays are equal, and the report."""
    ms.set_device("CPU")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    enable_mindspore_backward_compat()
    return {name: _compare(order, name == RECOMPUTED) for name, order in ORDERS.items()}


def _compare(order: list[tuple[str, int]], recomputed: bool) -> list[Any]:
    plain, _ = run(order, False, recomputed)
    swapped, report = run(order, True, recomputed)
    is_equal = len(plain) == len(swapped) and all(
        a.tobytes() == b.tobytes() for a, b in zip(plain, swapped, strict=True)
    )
    return [is_equal, report]


if __name__ == "__main__":
    sys.exit(answer_request(attack, sys.argv[1:]))
