"""The switch of MindSpore for whole blocks is as before after forward, whatever happens in it."""

import gc
import importlib

import pytest

from mindswap.policy.model import ALL_LAYERS, LayerSwap, Policy

pytestmark = pytest.mark.mindspore

SWAP_ALL = Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, 2),))


@pytest.fixture
def networks():
    """The module that imports MindSpore; the switch is as MindSpore sets it."""
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    from tests.adapters.pynative import networks

    assert switch() is None
    return networks


def switch():
    module = importlib.import_module("mindspore.common.recompute")  # the package has a function of this name
    return module._enable_recompute_early_stop


def swapped(networks, seen):
    """A network with swap, which notes the switch in forward."""
    import mindswap

    network = networks.Network()
    mindswap.apply(network, SWAP_ALL, layers="layers")
    network.layers[0].register_forward_hook(lambda cell, inputs, output: seen.append(switch()))
    return network


def fail(cell, inputs, output):
    raise RuntimeError("by the test")


def test_networks_that_end_in_the_order_in_which_they_began(networks):
    from mindswap.adapters.pynative.recompute_whole import WholeBlocks

    blocks, first, second = WholeBlocks(), networks.Network(), networks.Network()
    blocks.begin(first)
    blocks.begin(second)
    blocks.end(first)
    assert switch() is False
    blocks.end(second)
    blocks.end(second)
    assert switch() is None
    blocks.begin(first)
    del first
    gc.collect()
    assert switch() is None


@pytest.mark.parametrize("ending", ["next step", "remove"])
def test_an_error_in_forward(networks, ending):
    import mindswap

    seen, inputs = [], networks.batch()
    network = swapped(networks, seen)
    handle = network.layers[1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="by the test"):
        network(inputs)
    assert seen == [False] and switch() is False
    handle.remove()
    if ending == "next step":
        network(inputs)
        assert seen == [False, False] and switch() is None
    mindswap.running_swap(network).remove()
    assert switch() is None


def test_an_error_before_forward_begins(networks):
    import mindswap

    network = swapped(networks, [])
    watch = mindswap.running_swap(network).watch
    prepare, watch.before_pass = watch.before_pass, lambda: fail(None, None, None)
    with pytest.raises(RuntimeError, match="by the test"):
        network(networks.batch())
    assert switch() is None
    watch.before_pass = prepare
    network(networks.batch())
    assert switch() is None
    mindswap.running_swap(network).remove()
