"""Networks made at random that read, write and hold activations outside of their layers, with and without swap."""

import copy
import random
import resource
import sys
import tempfile
import threading
from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import mindswap
from mindswap import Layers, LayerSwap, OpSwap, Policy
from tests.adapters.pynative.networks import are_equal

WIDTH, NUM_STEPS = 16, 4
NAMES = ("norm", "up", "down", "gate", "mul", "act", ".*")


class Layer(nn.Cell):
    """A gated feed-forward that leaves one of its activations where others can reach it."""

    def __init__(self, leak):
        super().__init__()
        self.norm = nn.LayerNorm((WIDTH,))
        self.up, self.gate = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(WIDTH, 2 * WIDTH)
        self.down, self.act, self.mul, self.add = nn.Dense(2 * WIDTH, WIDTH), nn.GELU(), ops.Mul(), ops.Add()
        self.leak = leak

    def construct(self, x):
        h = self.norm(x)
        up = self.up(h)
        act = self.act(self.gate(h))
        both = self.mul(up, act)
        self.__dict__["left"] = {"norm": h, "up": up, "act": act, "mul": both, "view": both.reshape(-1)}[self.leak]
        return self.add(x, self.down(both))


def _operator(tensor, total):
    return total + ops.tanh(tensor).sum() * 1e-3


def _skip(tensor, total):
    return total + tensor.mean() * 1e-2


def _asnumpy(tensor, total):
    return total * float(1 + 1e-3 * np.abs(tensor.asnumpy()).mean())


def _item(tensor, total):
    return total * (1 + 1e-3 * tensor.reshape(-1)[3].item())


def _printed(tensor, total):
    return total * (1 + 1e-6 * len(str(tensor)) + 1e-6 * (sum(map(ord, str(tensor))) % 97))


def _index(tensor, total):
    return total + tensor[0].sum() * 1e-3


def _deep_copy(tensor, total):
    return total * float(1 + 1e-3 * np.abs(copy.deepcopy(tensor).asnumpy()).mean())


def _host_copy(tensor, total):
    return total * float(1 + 1e-3 * np.array(tensor).max())


def _logged(tensor, total):
    float(ops.norm(tensor).asnumpy())
    return total


def _view(tensor, total):
    return total + ops.square(tensor.reshape(-1)[1:].reshape(-1)).sum() * 1e-4


def _other_thread(tensor, total):
    """Reads while the next operators run, and is waited for."""
    found = []
    thread = threading.Thread(target=lambda: found.append(float(np.abs(tensor.asnumpy()).sum())))
    thread.start()
    total = total * 1.01
    thread.join()
    return total * (1 + 1e-4 * found[0])


def _checkpoint(tensor, total):
    """What is written to a file is what is read from it."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/left.ckpt"
        ms.save_checkpoint([{"name": "left", "data": ms.Tensor(tensor)}], path)
        return total * (1 + 1e-3 * float(np.abs(ms.load_checkpoint(path)["left"].asnumpy()).mean()))


def _gradient_hook(tensor, total):
    """Reads it in backward, before anything of a layer has run there."""
    total = total * 1.0
    total.register_hook(lambda gradient: gradient * float(1 + 1e-3 * np.abs(tensor.asnumpy()).mean()))
    return total


def _write_array(tensor, total):
    """What MindSpore does not count as a change in place; backward reads it."""
    tensor.asnumpy()[..., 0] *= 0.5
    return total


def _write_in_backward(tensor, total):
    """Before anything of a layer has run there."""
    total = total * 1.0
    total.register_hook(lambda gradient: _write_array(tensor, gradient))
    return total


USES = (
    _operator, _skip, _asnumpy, _item, _printed, _index, _deep_copy, _host_copy, _logged, _view, _other_thread,
    _checkpoint, _gradient_hook, _write_array, _write_in_backward,
)  # fmt: skip
# What the user's code holds on to until the next step.
HOLDS = (
    lambda tensor: None, lambda tensor: tensor, lambda tensor: tensor.reshape(-1)[1:], lambda tensor: tensor.asnumpy(),
    lambda tensor: tensor.untyped_storage(), lambda tensor: ms.Parameter(tensor, name="held"),
    lambda tensor: ms.mint.empty((0,)).set_(tensor.untyped_storage(), 0, (8,), (1,)),
)  # fmt: skip


class Network(nn.Cell):
    """Uses what layers left behind, in some steps, in some way."""

    def __init__(self, rng):
        super().__init__()
        num_layers = rng.randint(2, 4)
        self.head, self.first = nn.Dense(WIDTH, 5), nn.Dense(8, WIDTH)
        self.layers = nn.CellList([Layer(rng.choice(("norm", "up", "act", "mul", "view"))) for _ in range(num_layers)])
        # step, layer, how, of its output or of what it left, behind which layer, what is held of it
        self.uses = [
            (rng.choice((range(NUM_STEPS), (rng.randrange(NUM_STEPS),))), layer := rng.randrange(num_layers),
             rng.choice(USES), rng.random() < 0.5, rng.randrange(layer, num_layers), rng.choice(HOLDS))
            for _ in range(rng.randint(1, 4))
        ]  # fmt: skip
        self.step = 0
        self.seen = []  # means of what a layer gave, by a hook of the user's
        if rng.random() < 0.3:
            self.layers[rng.randrange(num_layers)].register_forward_hook(self.look)
        self.keeps_left = rng.random() < 0.3  # what layers left is there until they run again, so it never moves

    def look(self, cell, inputs, output):
        """Every second step."""
        if self.step % 2:
            self.seen.append(float(np.abs((output[0] if isinstance(output, tuple) else output).asnumpy()).mean()))

    def construct(self, x):
        x = self.first(x)
        self.__dict__["held"] = []
        outputs, total, tensor = [], x.mean() * 1e-3, None
        for at, layer in enumerate(self.layers):
            x = layer(x)
            outputs.append(x)
            for steps, index, use, is_output, behind, hold in self.uses:
                if self.step in steps and at == behind:
                    tensor = outputs[index] if is_output else self.layers[index].__dict__["left"]
                    self.held.append(hold(tensor))
                    total = use(tensor, total)
        for layer in self.layers if not self.keeps_left else ():
            layer.__dict__.pop("left", None)
        del outputs, tensor
        return total + ops.square(self.head(x)).mean()


def random_policy(rng, num_layers):
    """Of a layer swap, of names, of both."""

    def layers():
        return Layers(tuple(sorted(rng.sample(range(num_layers), rng.randint(1, num_layers)))))

    whole = (LayerSwap(layers(), rng.choice((1, 3, 10, 30))),) if rng.random() < 0.6 else ()
    number = rng.randint(0 if whole else 1, 3)
    names = tuple(OpSwap(rng.choice(NAMES), layers(), rng.choice((1, 2, 5, 20, 60))) for _ in range(number))
    return Policy(is_swap_enabled=True, layer_swap=whole, op_swap=names)


def train(seed, with_swap):
    """Losses, gradients and weights of each step, and the report of the swap."""
    rng = random.Random(seed)
    network = Network(rng)
    policy = random_policy(rng, len(network.layers))
    values = np.random.default_rng(seed)
    for parameter in network.get_parameters():
        parameter.set_data(ms.Tensor(values.normal(0, 0.3, parameter.shape).astype(np.float32)))
    swap = None
    if with_swap:
        mindswap.apply(network, policy, layers="layers")
        swap = mindswap.running_swap(network)
        swap.poison = True
    optimizer = nn.SGD(network.trainable_params(), 1e-2, momentum=0.9)
    gradient = ms.value_and_grad(network, None, network.trainable_params())
    found = []
    for step in range(NUM_STEPS):
        network.step = step
        loss, gradients = gradient(ms.Tensor(values.normal(size=(2, 6, 8)).astype(np.float32)))
        found += [loss.asnumpy().copy(), *(each.asnumpy().copy() for each in gradients)]
        optimizer(gradients)
    found.append(np.array(network.seen))
    found += [parameter.asnumpy().copy() for parameter in network.get_parameters()]
    report = swap.finish() if swap else None
    if swap:
        swap.remove()
    return found, report


@dataclass
class Attack:
    """Seeds by what the swap of their network did."""

    equal: list[int] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)  # another number, or one that is not finite, with or without swap
    idle: list[int] = field(default_factory=list)  # nothing was moved: it proves nothing
    num_brought_back: int = 0  # networks with a pass that went on without swap
    moved_bytes: int = 0


def attack(seeds, say=lambda line: None) -> Attack:
    """Train the networks of these seeds without and with swap."""
    found = Attack()
    for seed in seeds:
        plain, _ = train(seed, False)
        swapped, report = train(seed, True)
        # The first runs of an operator may round otherwise (see `are_equal_but_for_rounding`): then once more.
        same = are_equal(plain, swapped) or are_equal(train(seed, False)[0], swapped)
        same &= all(np.isfinite(each).all() for each in swapped)
        group = found.wrong if not same else found.equal if report.offloaded_bytes else found.idle
        group.append(seed)
        found.num_brought_back += report.num_deviations > 0
        found.moved_bytes += report.offloaded_bytes
        say(f"{seed}: {'equal' if same else 'WRONG'}, {report.offloaded_bytes} bytes moved")
    return found


if __name__ == "__main__":
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    first, number = int(sys.argv[1]), int(sys.argv[2])
    found = attack(range(first, first + number), lambda line: print(line, file=sys.stderr, flush=True))
    print(
        f"{len(found.equal)} networks equal bit for bit, wrong: {found.wrong}, nothing moved: {found.idle}; "
        f"{found.num_brought_back} brought back; {found.moved_bytes} bytes moved; "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB of memory"
    )
    sys.exit(bool(found.wrong))
