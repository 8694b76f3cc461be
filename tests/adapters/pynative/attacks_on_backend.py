"""Main program of a child process: attacks on the swap in a dry run of the Ascend backend, audited by device memory.

    python -m tests.adapters.pynative.attacks_on_backend REQUEST.json RESULT.json

The networks use activations outside of their layers, share cells and weights, and differ from step to step. Whenever
the executor drops storages, exactly their memory must be free at once: if other code, autograd or an operator that is
still queued could reach one of them, it would not be. Values do not exist in a dry run.
"""

import random
import sys
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import mindswap
from mindswap import LayerSwap, Policy
from mindswap.adapters.pynative.copies import PendingCopy, StreamCopies
from mindswap.adapters.pynative.executor import Executor
from mindswap.adapters.pynative.trainer_dry_run import answer_request
from mindswap.errors import ApplyError
from mindswap.policy.model import ALL_LAYERS
from tests.adapters.pynative import attack

WIDTH, LENGTH, NUM_STEPS = 64, 256, 4
ROUNDING_BYTES = 1024  # of a block of the pool: alignment and header


class AuditedCopies(StreamCopies):
    """Copies that note what is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released: list[int] = []
        self.num_released = 0
        self.unfreed: list[tuple[int, int]] = []  # bytes that were released together, and bytes that became free

    def release(self, copy: PendingCopy) -> None:
        """See `CopyEngine`."""
        self.released.append(copy.size_bytes)
        super().release(copy)


def allocated() -> int:
    ms.runtime.synchronize()
    return ms.runtime.memory_allocated()


def audit_releases() -> None:
    """Let each executor compare what it releases with what becomes free."""
    between_operators = Executor.between_operators

    def audited(self: Executor) -> None:
        copies = self.copies
        if not self._pending_release:
            between_operators(self)
            return
        before = allocated()
        between_operators(self)
        freed, released = before - allocated(), copies.released
        if released and not sum(released) <= freed <= sum(released) + ROUNDING_BYTES * len(released):
            copies.unfreed.append((sum(released), freed))
        copies.num_released += len(released)
        copies.released = []

    Executor.between_operators = audited


class Layer(nn.Cell):
    """A gated feed-forward with a weight that is viewed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((WIDTH,))
        self.up, self.gate, self.down = (nn.Dense(WIDTH, WIDTH) for _ in range(3))
        self.act, self.mul, self.add = nn.GELU(), ops.Mul(), ops.Add()
        self.scale = ms.Parameter(ms.mint.ones((WIDTH // 4, 4)), name="scale")
        self.is_aliased = False

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        h = self.norm(x)
        gate = self.act(self.gate(h))
        other = gate if self.is_aliased else gate + 0.0  # one storage or two
        self.__dict__["left"] = gate
        return self.add(x, self.down(self.mul(self.up(h), gate) * ops.tanh(other))) * self.scale.reshape(-1)


class Network(nn.Cell):
    """Does with its layers what an attack names, some of it from the third step on."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.step = name, 0
        self.layers = nn.CellList([Layer() for _ in range(3)])
        if name == "tied weights":
            for layer in list(self.layers)[1:]:
                layer.scale = self.layers[0].scale

    def _order(self) -> list[nn.Cell]:
        layers = list(self.layers)
        if self.name == "same layers twice":
            return layers * 2
        if self.name == "other order" and self.step % 2:
            return layers[::-1]
        if self.name == "layer left out" and self.step == 2:
            return layers[1:]
        return layers

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        outputs = []
        for index, layer in enumerate(self._order()):
            layer.is_aliased = self.name == "alias" and self.step >= 2
            x = layer(x)
            if self.name == "views across layers":
                x = ops.tanh(x).transpose(1, 0).transpose(1, 0) * x + ops.sigmoid(x.reshape(-1, 4)).reshape(x.shape)
            if self.name == "stopped gradient" and index == 1:
                x = ops.stop_gradient(x)
            if self.name in ("late skip", "logged outputs"):
                outputs.append(x)
        total = self._total(x, outputs)
        for layer in self.layers if self.name != "held leaks" else ():
            layer.__dict__.pop("left", None)
        return total

    def _total(self, x: ms.Tensor, outputs: list[ms.Tensor]) -> ms.Tensor:
        if self.name == "changed in place":
            x.mul_(1.5)
        total = ops.square(x).mean()
        if self.name == "late skip" and self.step >= 2:
            total = total + outputs[0].mean()
        if self.name == "late use of a leak" and self.step >= 2:
            total = total + self.layers[0].__dict__["left"].sum()
        if self.name == "logged outputs" and self.step % 3 == 2:
            total = total * (1 + sum(float(ops.norm(output).asnumpy()) for output in outputs) * 1e-6)
        return total


NAMES = (
    "plain", "late skip", "late use of a leak", "held leaks", "alias", "tied weights", "same layers twice",
    "views across layers", "stopped gradient", "layer left out", "other order", "another batch", "logged outputs",
    "changed in place",
)  # fmt: skip


def run_named(name: str) -> dict[str, Any]:
    """Train a network with swap, and return what was audited."""
    network = Network(name)
    batches = [(LENGTH * (2 if name == "another batch" and step == 2 else 1), WIDTH) for step in range(NUM_STEPS)]
    policy = Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, 3),))
    return run(network, policy, [ms.mint.ones(shape) for shape in batches])


def run(network: nn.Cell, policy: Policy, batches: list[ms.Tensor]) -> dict[str, Any]:
    """Train a network with swap; the first step is recorded."""
    copies = AuditedCopies()
    mindswap.apply(network, policy, layers="layers", copies=copies)
    swap = mindswap.running_swap(network)
    gradient = ms.value_and_grad(network, None, network.trainable_params())
    peaks, error = [], ""
    for step, batch in enumerate(batches):
        network.step = step
        before = allocated()
        ms.runtime.reset_peak_memory_stats()
        try:
            gradient(batch)
        except ApplyError as refused:
            error = str(refused)
            break
        ms.runtime.synchronize()
        peaks.append(ms.runtime.max_memory_allocated() - before)
    answer = {"peaks": peaks, "error": error, "unfreed": copies.unfreed, "num_released": copies.num_released}
    answer["report"] = swap.finish().to_json()
    swap.remove()
    return answer


def attack_all(num_random: int, names: list[str]) -> dict[str, Any]:
    """Return what each attack did, and what random networks of `attack` did."""
    ms.set_device("Ascend")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    audit_releases()
    answers: dict[str, Any] = {name: run_named(name) for name in names or NAMES}
    answers["random"] = [run_random(seed) for seed in range(num_random)]
    return answers


def run_random(seed: int) -> dict[str, Any]:
    """Train a random network of `attack` with swap."""
    rng = random.Random(seed)
    network = attack.Network(rng)
    policy = attack.random_policy(rng, len(network.layers))
    batch = np.random.default_rng(seed).normal(size=(2, 6, 8)).astype(np.float32)
    return run(network, policy, [ms.Tensor(batch) for _ in range(NUM_STEPS)])


if __name__ == "__main__":
    sys.exit(answer_request(attack_all, sys.argv[1:]))
