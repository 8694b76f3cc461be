"""A step that breaks off in the last layer; behind it two steps, which run without swap, and forward passes alone."""

import mindspore as ms

import mindswap
from mindswap.policy.model import ALL_LAYERS, LayerSwap, Policy
from tests.adapters.pynative.networks import Network, are_equal, batch, gradients


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    network, inputs = Network(has_norm=False), batch()
    step = gradients(network)
    expected = step(inputs)
    mindswap.apply(network, Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, 2),)))
    swap = mindswap.running_swap(network)
    step(inputs)
    step(inputs)
    construct = network.layers[2].construct

    def broken(x):
        raise RuntimeError("by the test")

    network.layers[2].construct = broken
    try:
        step(inputs)
    except RuntimeError:
        is_on_host = swap.copies.host_bytes > 0
    network.layers[2].construct = construct
    are_right = [are_equal(step(inputs), expected) for _ in range(2)]
    on_host = []
    for requires_grad in (network.requires_grad, False):
        network.set_grad(requires_grad)
        network(inputs)
        on_host.append(swap.copies.host_bytes)
    are_right.append(are_equal(step(inputs), expected))
    print(f"on the host {is_on_host}, then {on_host}, equal {are_right}, left {swap.copies.host_bytes}")


if __name__ == "__main__":
    main()
