"""A swap never changes a number, whatever the user's code does with activations outside of their layers."""

import gc

import pytest

from tests.strength import examples

pytestmark = pytest.mark.mindspore


def test_networks_made_at_random_train_to_the_same_bits():
    import mindspore as ms

    from tests.adapters.pynative import attack

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    found = attack.attack(range(examples(8, 300)))
    assert found.wrong == [] and len(found.equal) > 0.9 * examples(8, 300)


def test_nothing_of_a_swap_outlives_its_training():
    """MindSpore keeps the backward hooks of the last step for good, so they hold nothing."""
    import mindspore as ms

    # MindFormers keeps the frames of who imports it first, by an exception of its own; not those of the training.
    import mindswap.adapters.network  # noqa: F401
    from mindswap.adapters.pynative.executor import Executor
    from tests.adapters.pynative import attack

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    gc.collect()
    before = {id(found) for found in gc.get_objects() if type(found) is Executor}
    attack.train(0, True)
    gc.collect()
    assert not [found for found in gc.get_objects() if type(found) is Executor and id(found) not in before]


def test_tables_that_layers_share_stay_and_change_nothing():
    """cos and sin are made once before the layers, and every layer saves them: no layer swap takes them along."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn, ops

    import mindswap
    from mindswap import LayerSwap, Policy
    from mindswap.policy.model import ALL_LAYERS

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

    class Layer(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense, self.cos_mul, self.sin_mul, self.add = nn.Dense(6, 6), ops.Mul(), ops.Mul(), ops.Add()

        def construct(self, x, cos, sin):
            y = self.dense(x)
            return self.add(x, self.add(self.cos_mul(y, cos), self.sin_mul(ops.tanh(y), sin)))

    class Network(nn.Cell):
        def __init__(self):
            super().__init__()
            self.layers = nn.CellList([Layer() for _ in range(3)])

        def construct(self, x, positions):
            cos, sin = ops.cos(positions), ops.sin(positions)
            for layer in self.layers:
                x = layer(x, cos, sin)
            return ops.square(x).mean()

    def run(is_swapped):
        rng = np.random.default_rng(3)
        network = Network()
        for parameter in network.get_parameters():
            parameter.set_data(ms.Tensor(rng.normal(0, 0.3, parameter.shape).astype(np.float32)))
        if is_swapped:
            mindswap.apply(
                network, Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, 1),)), layers="layers"
            )
            mindswap.running_swap(network).poison = True
        gradient = ms.value_and_grad(network, None, network.trainable_params())
        found = []
        for _ in range(4):
            loss, gradients = gradient(
                ms.Tensor(rng.normal(size=(2, 5, 6)).astype(np.float32)),
                ms.Tensor(np.float32(np.arange(30).reshape(5, 6))),
            )
            found += [loss.asnumpy().copy(), *(each.asnumpy().copy() for each in gradients)]
        return found, mindswap.running_swap(network)

    plain, _ = run(False)
    swapped, swap = run(True)
    assert all(np.array_equal(a, b) for a, b in zip(plain, swapped, strict=True))
    # (5, 6) is the shape of cos and sin alone; each is one storage that three layers save.
    tables = {save.storage for save in swap.trace.saves if save.shape == (5, 6)}
    assert len(tables) == 2 and [save.shape for save in swap.trace.saves].count((5, 6)) == 6
    assert swap.schedule.moved and not tables & set(swap.schedule.moved)
    assert swap.report.num_passes == 2 + 1 and swap.report.num_deviations == 0
