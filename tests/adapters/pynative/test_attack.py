"""A swap never changes a number, whatever the user's code does with activations outside of their layers."""

import gc

import numpy as np
import pytest

from mindswap.errors import ApplyError
from mindswap.pynative.schedule import Unit
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
    import mindswap.adapters.graph.network  # noqa: F401
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
    assert are_equal_but_for_rounding(swapped, plain)
    # (5, 6) is the shape of cos and sin alone; each is one storage that three layers save.
    tables = {save.storage for save in swap.trace.saves if save.shape == (5, 6)}
    assert len(tables) == 2 and [save.shape for save in swap.trace.saves].count((5, 6)) == 6
    assert swap.schedule.moved and not tables & set(swap.schedule.moved)
    assert swap.report.num_passes == 2 + 1 and swap.report.num_deviations == 0


def are_equal_but_for_rounding(swapped, plain):
    from tests.adapters.pynative import networks

    return networks.are_equal_but_for_rounding(swapped, plain)


# How code can change an activation that it reaches. Where MindSpore itself would notice, or gives the tensor other
# memory, which its hooks show and autograd alone does not, training stops; else backward reads what was written.
WRITES = {
    "array": lambda t, x: t.asnumpy().__setitem__(..., 0.5),
    "storage": lambda t, x: t.untyped_storage().copy_(x.untyped_storage(), False),
    "assign": lambda t, x: __import__("mindspore").ops.assign(t, x),
    "assign_add": lambda t, x: __import__("mindspore").ops.assign_add(t, x),
    "scatter_update": lambda t, x: __import__("mindspore").ops.ScatterUpdate()(t, first_row(), x[:1]),
    "numpy": lambda t, x: np.asarray(t).__setitem__(0, 0.5),
    "dlpack": lambda t, x: __import__("mindspore").utils.dlpack.from_dlpack(t.to_dlpack()).copy_(x),
    "data of data": lambda t, x: t.data.copy_(x),
    "add_": lambda t, x: t.add_(x),
    "mul_": lambda t, x: t.mul_(2.0),
    "view": lambda t, x: t.reshape(-1).__setitem__(slice(2, 5), 0.5),
    "freed and filled again": lambda t, x: refill(t.untyped_storage(), x),
}
REFUSED = {
    "all items": lambda t, x: t.__setitem__(..., x),
    "one item": lambda t, x: t.__setitem__(0, 0.5),
    "by a mask": lambda t, x: t.__setitem__(t > 0, 0.5),
    "every second item": lambda t, x: t.__setitem__((0, slice(None, None, 2)), 0.5),
    "copy_": lambda t, x: t.copy_(x),
    "copy_ of a view": lambda t, x: t.view(-1).copy_(x.view(-1)),
    "copy_ of the same tensor": lambda t, x: __import__("mindspore").Tensor(t).copy_(x),
    "set_": lambda t, x: t.set_(x.untyped_storage(), 0, x.shape, x.stride()),
    "data": lambda t, x: setattr(t, "data", x),
    "assign_value": lambda t, x: t.assign_value(x),
    "freed": lambda t, x: t.untyped_storage().resize_(0),
    "larger": lambda t, x: t.untyped_storage().resize_(2 * t.untyped_storage().size()),
}


def first_row():
    """The index of a row, as a tensor."""
    return __import__("mindspore").Tensor([0])


def refill(storage, other):
    """As systems do that free memory by themselves."""
    size = storage.size()
    storage.resize_(0)
    storage.resize_(size)
    storage.copy_(other.untyped_storage(), False)


def train_with(write, is_swapped, is_dropped, write_inside=None, unit=Unit.OPERATORS):
    """Gradients of the last of three steps, with a change of what layer 0 left in it, and the report.

    The change is before the last layer, and with `write_inside` one is in layer 0, behind all that saves it.
    """
    import mindspore as ms

    import mindswap
    from mindswap import LayerSwap, Policy
    from mindswap.policy.model import ALL_LAYERS
    from tests.adapters.pynative import attack

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    rng = attack.random.Random(1)
    network = attack.Network(rng)
    network.uses, network.layers[0].leak, network.keeps_left = [], "act", True
    values = attack.np.random.default_rng(1)
    for parameter in network.get_parameters():
        parameter.set_data(ms.Tensor(values.normal(0, 0.3, parameter.shape).astype("float32")))
    if is_swapped:
        policy = Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, 1),))
        mindswap.apply(network, policy, layers="layers", unit=unit)
    swap, first, last = mindswap.running_swap(network), network.layers[0].__dict__, network.layers[-1]

    def changing(cell, inputs):
        if network.step == 2:
            write(first["left"], None if write_inside else first["left"] * 0.5)
        if is_dropped:
            first.pop("left")

    def changing_inside(cell, inputs):
        if network.step == 2 and write_inside:
            write_inside(first["left"])

    last.register_forward_pre_hook(changing)
    network.layers[0].down.register_forward_pre_hook(changing_inside)
    gradient = ms.value_and_grad(network, None, network.trainable_params())
    for step in range(3):
        network.step = step
        _, found = gradient(ms.Tensor(values.normal(size=(2, 6, 8)).astype("float32")))
    return [each.asnumpy().copy() for each in found], swap.finish() if swap else None


@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_backward_reads_what_was_written_into_a_saved_activation(write, is_dropped):
    """Whether it is let go of behind the change, or held until the step ends."""
    plain, _ = train_with(write, False, is_dropped)
    swapped, report = train_with(write, True, is_dropped)
    assert are_equal_but_for_rounding(swapped, plain)
    assert report.num_passes == 2 and report.offloaded_bytes > 0


@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.parametrize("write", REFUSED.values(), ids=REFUSED)
def test_a_change_that_hooks_would_hide_stops_the_training(write, is_dropped):
    with pytest.raises(ApplyError, match=r"changed in place.*\n    fix:     change a copy"):
        train_with(write, True, is_dropped)


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("is_dropped", [False, True])
def test_memory_that_is_gone_during_its_copy_or_when_it_begins_is_copied_when_it_is_back(is_dropped, unit):
    """As systems do that free memory by themselves. In layers a copy begins where its layer ends."""
    import mindspore as ms

    values = []

    def free(tensor):
        values.append(tensor.asnumpy().copy())
        tensor.untyped_storage().resize_(0)

    def fill(tensor, nothing):
        value = ms.Tensor(values.pop()) * 1
        value.asnumpy()  # a copy between storages does not wait for it
        tensor.untyped_storage().resize_(value.untyped_storage().size())
        tensor.untyped_storage().copy_(value.untyped_storage(), False)

    plain, _ = train_with(fill, False, is_dropped, free)
    swapped, report = train_with(fill, True, is_dropped, free, unit)
    assert are_equal_but_for_rounding(swapped, plain)
    assert report.num_passes == 2 and report.offloaded_bytes > 0


@pytest.mark.parametrize("hold", [lambda t: t, lambda t: t.reshape(-1)[1:], lambda t: t.asnumpy()])
def test_what_only_a_later_step_holds_stays_in_that_step_and_the_report_says_so(hold):
    """(2, 6, 32) float32 are 1536 bytes; the second pass that swaps holds them until it ends."""
    held = []
    plain, _ = train_with(lambda tensor, other: None, False, True)
    swapped, report = train_with(lambda tensor, other: held.append(hold(tensor)), True, True)
    assert are_equal_but_for_rounding(swapped, plain)
    assert (report.num_passes, report.num_as_predicted, report.held_bytes) == (2, 1, 2 * 6 * 32 * 4)
