"""A network that swaps in one thread while another thread runs a network; prints as JSON what came of it."""

import json
import sys
import threading

import mindspore as ms

import mindswap
from mindswap import LayerSwap, Policy
from mindswap.errors import ApplyError
from mindswap.policy.model import ALL_LAYERS
from tests.adapters.pynative.networks import are_equal_but_for_rounding, gradients
from tests.adapters.pynative.odd import Layer, Network, batch, fill

NUM_STEPS = 12


class Side:
    """A network and what its thread did."""

    def __init__(self, network, is_swapped):
        self.network, self.is_swapped = network, is_swapped
        self.num_wrong, self.messages = 0, []

    def run(self, step, expected):
        """One step, or evaluation; MindSpore itself breaks off, too, when threads meet."""
        try:
            found = step(self.network)(batch(0))
        except ApplyError as error:
            self.messages.append(str(error))
        except RuntimeError:
            pass
        else:
            self.num_wrong += not are_equal_but_for_rounding(found, expected)


def evaluation(network):
    """A function of inputs that gives the loss."""
    return lambda inputs: [network(inputs).asnumpy()]


def main(other, is_same):
    """Both threads begin each of their steps together."""
    networks = [fill(Network([Layer() for _ in range(3)])) for _ in range(1 if is_same else 2)]
    trained = [each.copy() for each in gradients(networks[0])(batch(0))]
    policy = Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, 2),))
    for network in networks if other == "trains" else networks[:1]:
        mindswap.apply(network, policy, layers="layers")
        for _ in range(2):
            assert are_equal_but_for_rounding(gradients(network)(batch(0)), trained)
    sides = [Side(networks[0], True), Side(networks[-1], other == "trains" or is_same)]
    steps = [(gradients, trained), (evaluation, trained[:1]) if other == "evaluates" else (gradients, trained)]
    barrier = threading.Barrier(2)

    def work(side, step, expected):
        for _ in range(NUM_STEPS):
            barrier.wait()
            side.run(step, expected)

    threads = [threading.Thread(target=work, args=(side, *step)) for side, step in zip(sides, steps, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = Side(networks[0], True)
    after.run(gradients, trained)
    messages = [line for side in sides for line in side.messages]
    print(json.dumps({
        "wrong": sum(side.num_wrong for side in sides if side.is_swapped), "refused": len(messages),
        "messages": sorted(set(messages)), "after": after.num_wrong == 0,
    }))  # fmt: skip


if __name__ == "__main__":
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    main(sys.argv[1], sys.argv[2] == "1")
