"""Small networks that train in PyNative mode on a CPU."""

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

BATCH, WIDTH = 4, 8


class FeedForward(nn.Cell):
    """Two products with a gate between them; `h` is saved by two operators, and has a view."""

    def __init__(self):
        super().__init__()
        self.w1 = nn.Dense(WIDTH, 2 * WIDTH)
        self.w2 = nn.Dense(2 * WIDTH, WIDTH)
        self.mul = ops.Mul()
        self.act = nn.SiLU()

    def construct(self, x):
        h = self.w1(x)
        gate = self.act(h)
        return self.w2(self.mul(gate, h)) + mint.tanh(h.reshape((-1, WIDTH, 2))).sum(-1)


class Layer(nn.Cell):
    """A residual layer; its input is read by its first and by its last operator."""

    def __init__(self, has_norm):
        super().__init__()
        self.norm = nn.LayerNorm((WIDTH,)) if has_norm else nn.Identity()
        self.feed_forward = FeedForward()
        self.add = ops.Add()

    def construct(self, x):
        return self.add(x, self.feed_forward(self.norm(x)))


class Network(nn.Cell):
    """Layers, and a loss that is the sum of squares."""

    def __init__(self, num_layers=3, seed=0, has_norm=True):
        super().__init__()
        self.layers = nn.CellList([Layer(has_norm) for _ in range(num_layers)])
        values = np.random.default_rng(seed)
        for weight in self.trainable_params():
            weight.set_data(ms.Tensor(values.normal(0, 0.3, weight.shape).astype(np.float32)))

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return ops.square(x).sum()


class Accumulated(nn.Cell):
    """Several micro-batches with one backward pass, as `gradient_accumulation_steps` of MindFormers has them."""

    def __init__(self, network, num_shards):
        super().__init__(auto_prefix=False)
        self.network = network
        self.num_shards = num_shards

    def construct(self, x):
        parts = [self.network(part) for part in x.chunk(self.num_shards)]
        return sum(parts[1:], parts[0])


def batch(rows=BATCH, seed=1):
    """Inputs of shape (rows, WIDTH)."""
    return ms.Tensor(np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32))


def gradients(network):
    """A function of inputs that gives the loss and the gradients of all weights, as arrays."""
    function = ms.value_and_grad(network, None, network.trainable_params())

    def run(*inputs):
        loss, found = function(*inputs)
        return [loss.asnumpy(), *(gradient.asnumpy() for gradient in found)]

    return run


def are_equal(one, other):
    """Whether two lists of arrays are the same, bit for bit."""
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def are_equal_but_for_rounding(one, other):
    """Whether two lists of arrays are the same to 1e-6 of the largest value.

    On a loaded machine MindSpore without swap rounds the first runs of an operator otherwise, by 2e-7 of it; stale
    values are wrong by more than a thousand times that.
    """
    return len(one) == len(other) and all(
        np.isfinite(a).all() and np.allclose(a, b, rtol=0, atol=1e-6 * np.abs(b).max())
        for a, b in zip(one, other, strict=True)
    )
