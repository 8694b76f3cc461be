"""Trainings of which one step breaks off by an exception; prints what the steps before and behind it did, as JSON."""

import contextlib
import json

import mindspore as ms

import mindswap
from mindswap.policy.model import ALL_LAYERS, LayerSwap, Policy
from tests.adapters.pynative import odd
from tests.adapters.pynative.networks import are_equal, gradients

POLICY = Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, 2),))
KINDS = ("fault in forward", "interrupt", "fault behind forward", "fault in backward", "fault elsewhere")


def run(kind):
    """One recorded step, two that swap, the broken one, an evaluation, two more."""
    training = odd.Training(0, False)
    network, inputs = odd.fill(odd.Network([odd.Layer() for _ in range(3)])), odd.batch(0)
    step = gradients(network)
    expected = step(inputs)
    mindswap.apply(network, POLICY, layers="layers")
    swap = mindswap.running_swap(network)
    swap.poison = swap.watch_all = True
    is_equal = all(are_equal(step(inputs), expected) for _ in range(3))
    with contextlib.suppress(odd.FaultError, KeyboardInterrupt, RuntimeError):
        training.results = []
        getattr(training, "do_" + kind.replace(" ", "_"))(network, inputs, 1)
    is_equal &= network(inputs).asnumpy() == expected[0]
    is_equal &= all(are_equal(step(inputs), expected) for _ in range(2))
    report = swap.finish()
    swap.remove()
    return {
        "kind": kind,
        "is_equal": bool(is_equal),
        "num_expected": 5 if kind == "fault elsewhere" else 4,
        "num_passes": report.num_passes,
        "num_as_predicted": report.num_as_predicted,
        "num_deviations": report.num_deviations,
        "offloaded_bytes": report.offloaded_bytes,
        "left_bytes": report.left_bytes + swap.copies.host_bytes,
    }


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    print(json.dumps([run(kind) for kind in KINDS]))


if __name__ == "__main__":
    main()
