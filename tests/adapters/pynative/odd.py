"""Networks made at random whose layers return odd structures and share cells, and trainings in which things happen.

    python -m tests.adapters.pynative.odd FIRST_SEED NUM_SEEDS

Each is trained without and with swap; prints the seeds whose losses, gradients and weights are equal bit for bit, and
those where they are not.
"""

import contextlib
import copy
import json
import random
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import mindswap
from mindswap import Layers, LayerSwap, OpSwap, Policy
from tests.adapters.pynative.networks import are_equal

WIDTH, NUM_STEPS = 8, 6
Pair = namedtuple("Pair", "aux hidden")


@dataclass
class Output:
    """What Hugging Face calls a ModelOutput."""

    hidden: object
    aux: object = None


class Bag:
    """An object that nobody can look into."""

    def __init__(self, hidden):
        self.hidden = hidden


# How a layer returns its hidden state `y` (and `x`, its input), and how the network finds it there.
OUTPUTS = {
    "tensor": (lambda x, y: y, lambda out: out),
    "None first": (lambda x, y: (None, y), lambda out: out[1]),
    "integers first": (lambda x, y: (ops.argmax(y, -1), y), lambda out: out[1]),
    "no gradient first": (lambda x, y: (ops.stop_gradient(y).mean(), y), lambda out: out[1]),
    "input first": (lambda x, y: (x, y), lambda out: out[1]),
    "used auxiliary": (lambda x, y: (y.mean(), y), lambda out: out[1] + out[0]),
    "list": (lambda x, y: [y], lambda out: out[0]),
    "dict": (lambda x, y: {"hidden": y}, lambda out: out["hidden"]),
    "nested": (lambda x, y: {"all": [None, (x, {"hidden": y})]}, lambda out: out["all"][1][1]["hidden"]),
    "named tuple": (lambda x, y: Pair(y.mean(), y), lambda out: out.hidden),
    "dataclass": (lambda x, y: Output(y), lambda out: out.hidden),
    "scalars": (lambda x, y: (1.5, "text", True, y), lambda out: out[3]),
    "object": (lambda x, y: Bag(y), lambda out: out.hidden),
    "function": (lambda x, y: lambda: y, lambda out: out()),
}
# How the network hands it its input, and how the layer finds it there.
INPUTS = {
    "positional": (lambda layer, x: layer(x), lambda x: x),
    "keyword": (lambda layer, x: layer(x=x), lambda x: x),
    "list": (lambda layer, x: layer([x, None]), lambda x: x[0]),
    "dict": (lambda layer, x: layer(x={"x": x}), lambda x: x["x"]),
    "object": (lambda layer, x: layer(Bag(x)), lambda x: x.hidden),
}


class Layer(nn.Cell):
    """A gated feed-forward; `act` may be called twice under one name or two."""

    def __init__(self, output="tensor", given="positional", has_two_names=False):
        super().__init__()
        self.up, self.gate, self.down = (
            nn.Dense(WIDTH, 2 * WIDTH),
            nn.Dense(WIDTH, 2 * WIDTH),
            nn.Dense(2 * WIDTH, WIDTH),
        )
        self.act, self.mul, self.add = nn.SiLU(), ops.Mul(), ops.Add()
        if has_two_names:
            self.act_again, self.mul_again = self.act, self.mul
        self.has_two_names = has_two_names
        self.output, self.given = output, given
        self.fault = None  # called in the middle of forward

    def construct(self, x):
        x = INPUTS[self.given][1](x)
        y = self.mul(self.up(x), self.act(self.gate(x)))
        if self.has_two_names:
            y = self.mul_again(y, self.act_again(y))
        if self.fault is not None:
            self.fault()
        return OUTPUTS[self.output][0](x, self.add(x, self.down(y)))


class Network(nn.Cell):
    """Layers, some of which may be the same cell."""

    def __init__(self, layers):
        super().__init__()
        self.first, self.head = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, 3)
        self.layers = nn.CellList(layers)

    def construct(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = OUTPUTS[layer.output][1](INPUTS[layer.given][0](layer, x))
        return ops.square(self.head(x)).mean()


def fill(network, seed=0):
    """Weights at random, the same for the same seed."""
    values = np.random.default_rng(seed)
    for weight in network.get_parameters():
        weight.set_data(ms.Tensor(values.normal(0, 0.2, weight.shape).astype(np.float32)))
    return network


def batch(seed):
    """Inputs of one step."""
    return ms.Tensor(np.random.default_rng(100 + seed).normal(size=(4, WIDTH)).astype(np.float32))


def random_network(rng):
    """Any output and input of each layer; of all cells some are shared."""
    number = rng.randint(1, 4)
    pool = [
        Layer(rng.choice((*OUTPUTS, "tensor")), rng.choice((*INPUTS, "positional")), rng.random() < 0.3)
        for _ in range(number)
    ]
    if rng.random() < 0.3:
        for layer in pool[1:]:
            layer.up = pool[0].up
    if rng.random() < 0.2:
        pool[0].gate = pool[0].up
    layers = [rng.choice(pool) for _ in range(number + rng.randint(0, 2))] if rng.random() < 0.5 else pool
    if rng.random() < 0.15 and layers[0].output == "tensor" and layers[0].given == "positional":
        layers[0].recompute()
    return fill(Network(layers), rng.randrange(100))


def random_policy(rng, num_layers):
    """Of a layer swap, of names, of both."""

    def layers():
        return Layers(tuple(sorted(rng.sample(range(num_layers), rng.randint(1, num_layers)))))

    of_layers = (LayerSwap(layers(), rng.choice((1, 3, 10, 30))),) if rng.random() < 0.6 else ()
    names = ("up", "down", "gate", "act", "mul", "add", ".*")
    number = rng.randint(0 if of_layers else 1, 2)
    of_names = tuple(OpSwap(rng.choice(names), layers(), rng.choice((1, 2, 5, 20))) for _ in range(number))
    return Policy(is_swap_enabled=True, layer_swap=of_layers, op_swap=of_names)


class FaultError(Exception):
    """Raised on purpose."""


def raise_fault(kind=FaultError):
    """An exception in any place."""
    raise kind("by the test")


class Training:
    """A training in which a seed decides what happens in each step."""

    def __init__(self, seed, with_swap):
        self.rng = random.Random(seed)
        self.network = random_network(self.rng)
        self.policy = random_policy(self.rng, len(self.network.layers))
        self.with_swap = with_swap
        self.networks = [self.network]
        self.results = []
        self.reports = []
        self.swap(self.network)

    def swap(self, network):
        """Begin a swap, where this training has one."""
        if self.with_swap:
            mindswap.apply(network, self.policy, layers="layers")
            mindswap.running_swap(network).poison = True

    def end(self, network):
        """End it."""
        swap = mindswap.running_swap(network)
        if swap is not None:
            self.reports.append(swap.finish())
            swap.remove()
            assert swap.copies.host_bytes == 0

    def run(self):
        """All steps, some in threads of their own; none behind a fault, as MindSpore keeps its rest for each thread."""
        may_leave = True
        for step in range(NUM_STEPS):
            kind = self.rng.choice(KINDS if step else ("", *KINDS))
            place, other = self.rng.randrange(len(self.network.layers)), self.rng.random() < 0.5
            may_leave &= not kind.startswith(("fault", "interrupt"))
            is_thread = self.rng.random() < 0.3 and may_leave
            self.results.append(np.array(sum(map(ord, kind))))
            (_in_thread if is_thread else _here)(self.step, step, kind, place, other)
        for network in self.networks:
            self.end(network)
            self.results += [weight.asnumpy().copy() for weight in network.get_parameters()]
        return self

    def step(self, step, kind, place, other):
        """One step of each network."""
        if kind == "copy":
            self.networks.append(copy.deepcopy(self.network))
            if other:
                self.swap(self.networks[-1])
        for network in self.networks[-2:]:
            with_kind = kind if network is self.network or other else ""
            try:
                loss, gradients = getattr(self, "do_" + with_kind.replace(" ", "_"), self.do)(
                    network, batch(step), place
                )
            except (FaultError, KeyboardInterrupt, RuntimeError) as error:
                if not isinstance(error, KeyboardInterrupt) and "by the test" not in str(error):
                    raise
                self.results.append(np.array(-1.0))
                continue
            self.results += [loss.asnumpy().copy(), *(each.asnumpy().copy() for each in gradients)]
            for weight, gradient in zip(network.trainable_params(), gradients, strict=True):
                weight.set_data(weight.value() - 0.001 * gradient)

    def do(self, network, inputs, place):
        """A step as it should be."""
        return ms.value_and_grad(network, None, network.trainable_params())(inputs)

    def do_micro_batches(self, network, inputs, place):
        """Three forward passes, one backward pass."""
        weights = network.trainable_params()
        return ms.value_and_grad(lambda x: network(x) + network(x * 2) + network(x[:2]), None, weights)(inputs)

    def do_evaluation(self, network, inputs, place):
        """Forward alone, before the step."""
        self.results.append(network(inputs * 2).asnumpy().copy())
        return self.do(network, inputs, place)

    def do_other_shape(self, network, inputs, place):
        """Fewer rows."""
        return self.do(network, inputs[: 1 + place], place)

    def do_fault_elsewhere(self, network, inputs, place):
        """A function that has nothing to do with the network fails while it is differentiated."""
        weight = ms.Parameter(ms.Tensor(2.0, ms.float32), name="elsewhere")
        with contextlib.suppress(FaultError):
            ms.value_and_grad(lambda x: (x * weight).sum() + raise_fault(), None, [weight])(inputs)
        return self.do(network, inputs, place)

    def do_fault_in_forward(self, network, inputs, place):
        """In the middle of a layer."""
        return self._with_fault(network, inputs, place, FaultError)

    def do_interrupt(self, network, inputs, place):
        """Ctrl-C."""
        return self._with_fault(network, inputs, place, KeyboardInterrupt)

    def do_fault_behind_forward(self, network, inputs, place):
        """Forward of the network is over, that of the function is not."""
        weights = network.trainable_params()
        return ms.value_and_grad(lambda x: network(x) + raise_fault(), None, weights)(inputs)

    def do_fault_in_backward(self, network, inputs, place):
        """In a hook on a gradient."""
        return self._in_backward(network, inputs, place, raise_fault)

    def do_removed_behind_forward(self, network, inputs, place):
        """Backward belongs to a pass that nobody swaps any more."""
        weights = network.trainable_params()

        def forward(x):
            loss = network(x)
            self._again(network)
            return loss

        return ms.value_and_grad(forward, None, weights)(inputs)

    def do_removed_in_backward(self, network, inputs, place):
        """Some saved tensors were read."""
        return self._in_backward(network, inputs, place, lambda: self._again(network))

    def do_removed_in_forward(self, network, inputs, place):
        """In the middle of a layer."""
        network.layers[place].fault = lambda: self._again(network)
        try:
            return self.do(network, inputs, place)
        finally:
            network.layers[place].fault = None

    def do_removed_by_a_hook(self, network, inputs, place):
        """While MindSpore iterates over the hooks of the layer."""
        cell = network.layers[place]
        register = cell.register_forward_hook if len(inputs) % 2 else cell.register_forward_pre_hook
        handle = register(lambda *_: self.end(network))
        try:
            return self.do(network, inputs, place)
        finally:
            handle.remove()

    def _again(self, network):
        self.end(network)
        if len(self.results) % 2 == 0:
            self.swap(network)

    def _with_fault(self, network, inputs, place, kind):
        network.layers[place].fault = lambda: raise_fault(kind)
        try:
            return self.do(network, inputs, place)
        finally:
            network.layers[place].fault = None

    def _in_backward(self, network, inputs, place, function):
        def look(cell, args, kwargs):
            for value in (*args, *kwargs.values()):
                if isinstance(value, ms.Tensor):
                    value.register_hook(lambda gradient: function() and None)

        handle = network.layers[place].register_forward_pre_hook(look, with_kwargs=True)
        try:
            return self.do(network, inputs, place)
        finally:
            handle.remove()


KINDS = ("", "", "copy", *(name[3:].replace("_", " ") for name in vars(Training) if name.startswith("do_")))


def _here(function, *args):
    function(*args)


def _in_thread(function, *args):
    """In a thread of its own; what it raises is raised here."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function, *args).result()


def train(seed, with_swap):
    """The results of a training, and the reports of its swaps; an exception of MindSpore itself is a result."""
    try:
        training = Training(seed, with_swap).run()
    except Exception as error:
        if with_swap:
            raise
        return [str(error)], []
    return training.results, training.reports


@dataclass
class Attack:
    """Seeds by what the swap of their network did."""

    equal: list[int] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)  # nothing was moved: it proves nothing
    moved_bytes: int = 0
    left_bytes: int = 0


def attack(seeds, say=lambda line: None) -> Attack:
    """Train the networks of these seeds without and with swap."""
    found = Attack()
    for seed in seeds:
        plain, _ = train(seed, False)
        if isinstance(plain[0], str):
            say(f"{seed}: fails without swap, too: {plain[0].splitlines()[0]}")
            continue
        if not all(np.isfinite(each).all() for each in plain):
            say(f"{seed}: not finite without swap, either")
            continue
        try:
            swapped, reports = train(seed, True)
        except Exception as error:  # noqa: BLE001 whatever it is, it is counted
            found.wrong.append(seed)
            say(f"{seed}: {type(error).__name__}: {error}")
            continue
        same = are_equal(plain, swapped) or are_equal(train(seed, False)[0], swapped)
        moved = sum(report.offloaded_bytes for report in reports)
        (found.wrong if not same else found.equal if moved else found.idle).append(seed)
        found.moved_bytes += moved
        found.left_bytes += sum(report.left_bytes for report in reports)
        say(f"{seed}: {'equal' if same else 'WRONG'}, {moved} bytes moved")
    return found


if __name__ == "__main__":
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    first, number = int(sys.argv[1]), int(sys.argv[2])
    found = attack(range(first, first + number), lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(vars(found)))
    sys.exit(bool(found.wrong))
