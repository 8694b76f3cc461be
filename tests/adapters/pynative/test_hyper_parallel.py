"""The engine of MindFormers 2.x on a network. What needs `hyper_parallel` is skipped where it is not installed."""

import sys

import pytest

from mindswap.errors import ApplyError
from mindswap.policy.model import Layers, LayerSwap, OpSwap, Policy
from mindswap.pynative.hyper_parallel import UpstreamCalls
from mindswap.pynative.schedule import Unit

pytestmark = pytest.mark.mindspore
MODULE = "hyper_parallel.core.activation_checkpoint"
LAYER_0 = Policy(layer_swap=[LayerSwap(Layers(0), 1)])


@pytest.fixture(scope="module")
def networks():
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE)
    from tests.adapters.pynative import networks

    return networks


def engine():
    from mindswap.adapters.pynative.hyper_parallel import HyperParallel

    return HyperParallel()


def installed():
    """The engine, where it is installed: `PYTHONPATH` may name a folder that has it."""
    try:
        return engine()
    except ApplyError as error:
        pytest.skip(str(error).splitlines()[0])


def test_without_hyper_parallel_the_error_names_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "hyper_parallel"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hyper_parallel", None)  # as Python says it: there is no such module
    with pytest.raises(ApplyError, match=r"cannot be imported(.|\n)*hyper-parallel 1\.0(.|\n)*not on PyPI"):
        engine()


@pytest.fixture
def release(tmp_path, monkeypatch):
    """Make a release of `hyper_parallel` with such names and nothing in them."""

    def imported():
        return [name for name in sys.modules if name.split(".")[0] == "hyper_parallel"]

    def make(*names):
        folder = tmp_path.joinpath(*MODULE.split("."))
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f"{' = '.join(names)} = object\n")
        for name in imported():
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(tmp_path)

    yield make
    for name in imported():
        del sys.modules[name]


def test_a_release_without_the_swap_for_mindspore_is_named(release):
    """That of March 2026 has `SwapManager` and no `swap_wrapper`."""
    release("SwapManager", "CheckpointPolicy")
    with pytest.raises(
        ApplyError, match=r"activation_checkpoint.__init__\.py has no swap_wrapper\n.*hyper-parallel 1\.0"
    ):
        engine()


def test_a_network_takes_one_swap(networks, release, monkeypatch):
    """A swap of either engine counts; on a CPU the engine is refused before that."""
    import mindspore as ms
    from mindspore import nn

    import mindswap

    release("SwapManager", "CheckpointPolicy", "swap_wrapper")
    fresh, swapped, wrapped = (networks.Network(2) for _ in range(3))
    mindswap.apply(swapped, LAYER_0, with_lazy_inline=False)
    wrapped.layers[1].norm = nn.Identity()
    wrapped.layers[1].norm._swap_group_name = "group 0"  # as `SwapManager` names the cells that it pairs
    copies = engine()
    with monkeypatch.context() as on_device:
        on_device.setattr(ms, "get_context", lambda name: "Ascend")
        copies.check(fresh)
        for network in (swapped, wrapped):
            with pytest.raises(ApplyError, match=r"a swap runs on this network already\n.*just built"):
                copies.check(network)
    mindswap.running_swap(swapped).remove()


def test_a_cell_is_replaced_wherever_it_is_held(networks):
    from mindspore import nn

    from mindswap.adapters.pynative import hyper_parallel as upstream

    network, new_layer, new_norm = networks.Network(2), nn.Identity(), nn.Identity()
    kept = network.layers[0]
    upstream._replace(network, network.layers[1], new_layer)
    upstream._replace(network, upstream.resolve_path(kept, ("norm",)), new_norm)
    assert list(network.layers) == [kept, new_layer] and kept.norm is new_norm


def test_what_a_layer_is_given_beside_its_hidden_state_stays(networks):
    import mindspore as ms

    from mindswap.adapters.pynative.hyper_parallel import _KeepInputs

    hidden, mask, cos, sin, own = (ms.Tensor([[1.0, 2.0], [3.0, float(i)]]) for i in range(5))
    keep = _KeepInputs("stays", "goes")
    keep.record_inputs(None, (hidden, mask, None), {"rotary": (cos, [sin]), "is_first": True})
    assert [keep(tensor) for tensor in (hidden, mask, cos, sin, own)] == ["goes", "stays", "stays", "stays", "goes"]


def test_graph_mode_takes_neither_unit_nor_copies(networks):
    import mindspore as ms

    import mindswap

    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(ApplyError, match=r"for PyNative mode.*\n.*PYNATIVE_MODE"):
            mindswap.apply(networks.Network(2), LAYER_0, unit=Unit.LAYERS)
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_distances_in_layers_reach_the_executor(networks):
    import mindswap

    network = networks.Network(2)
    mindswap.apply(network, LAYER_0, with_lazy_inline=False, unit=Unit.LAYERS)
    assert mindswap.running_swap(network).unit is Unit.LAYERS
    mindswap.running_swap(network).remove()


def test_what_hyper_parallel_cannot_do_leaves_the_network_alone(networks):
    import mindswap

    copies, network = installed(), networks.Network(2)
    before = [id(cell) for _, cell in network.cells_and_names()]
    with pytest.raises(ApplyError, match=r"add is a single operator"):
        mindswap.apply(network, Policy(op_swap=[OpSwap("add", Layers(0), 1)]), unit=Unit.LAYERS, copies=copies)
    with pytest.raises(ApplyError, match=r"moves nothing on a CPU"):
        mindswap.apply(network, LAYER_0, unit=Unit.LAYERS, copies=copies)
    assert [id(cell) for _, cell in network.cells_and_names()] == before


def test_wrappers_of_hyper_parallel_leave_the_names_of_weights(networks):
    copies, network = installed(), networks.Network(3)
    names = [name for name, _ in network.parameters_and_names()]
    calls = UpstreamCalls(wraps=((0, ()), (1, ("feed_forward",))), pairs=((0, 1), (1, 2)))
    copies.wrap(network, list(network.layers), calls)
    assert [name for name, _ in network.parameters_and_names()] == names
    assert type(network.layers[0]).__name__ == type(network.layers[1].feed_forward).__name__ == "SwapWrapper"
    with pytest.raises(ApplyError, match=r"CPU"):
        copies.check(network)
