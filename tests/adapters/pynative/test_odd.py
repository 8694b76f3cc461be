"""Structures of inputs and outputs of layers, shared cells, copies of a network, threads, faults, `remove` anywhere."""

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mindswap
from mindswap.errors import ApplyError
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpSwap, Policy
from tests import forked
from tests.strength import examples

pytestmark = pytest.mark.mindspore

ROOT = Path(__file__).parents[3]
SWAP_ALL = Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, 2),))
OUTPUT_BYTES = 4 * 16 * 4  # of `up`, `gate`, `act` and `mul`: (4, 16) float32


@pytest.fixture(scope="module")
def odd():
    """The module that imports MindSpore."""
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    from tests.adapters.pynative import odd

    return odd


def start(network, policy=SWAP_ALL):
    mindswap.apply(network, policy, layers="layers")
    swap = mindswap.running_swap(network)
    swap.poison = swap.watch_all = True
    return swap


def gradients(network, inputs):
    from tests.adapters.pynative.networks import gradients

    return gradients(network)(inputs)


def are_equal(one, other):
    from tests.adapters.pynative.networks import are_equal

    return are_equal(one, other)


def train(network, inputs, policy=SWAP_ALL, num_passes=3, held_bytes=0):
    """The swap of a training, ended, and the results of its last pass."""
    swap = start(network, policy)
    for _ in range(num_passes):
        results = gradients(network, inputs)
    report = swap.finish()
    swap.remove()
    assert report.is_as_predicted and report.num_passes == num_passes - 1
    assert held_bytes is None or report.held_bytes == held_bytes
    return swap, results


STRUCTURES = (
    "tensor", "None first", "integers first", "no gradient first", "input first", "used auxiliary", "list", "dict",
    "nested", "named tuple", "dataclass", "scalars", "object", "function",
)  # fmt: skip


@pytest.mark.parametrize(
    ("output", "given"),
    [
        *((name, "positional") for name in STRUCTURES),
        *(("tensor", way) for way in ("keyword", "list", "dict", "object")),
    ],
)
def test_any_structure_of_outputs_and_inputs(odd, output, given):
    assert set(odd.OUTPUTS) == set(STRUCTURES)
    network, inputs = odd.fill(odd.Network([odd.Layer(output, given) for _ in range(3)])), odd.batch(0)
    expected = gradients(network, inputs)
    swap, results = train(network, inputs)
    assert are_equal(results, expected)
    assert swap.totals.offloaded_bytes == swap.totals.prefetched_bytes
    moved = {swap.trace.saves[index].layer_index for index in range(len(swap.trace.saves))
             if swap.trace.saves[index].storage in swap.schedule.moved}  # fmt: skip
    assert moved >= {0, 1} and swap.totals.offloaded_bytes >= 2 * 4 * OUTPUT_BYTES


def test_a_layer_through_which_no_gradient_goes_is_no_obstacle(odd):
    import mindspore as ms

    class Stopped(odd.Layer):
        def construct(self, x):
            return ms.ops.stop_gradient(super().construct(x))

    network, inputs = odd.fill(odd.Network([odd.Layer(), Stopped(), odd.Layer()])), odd.batch(0)
    expected = gradients(network, inputs)
    swap, results = train(network, inputs)
    assert are_equal(results, expected) and swap.totals.offloaded_bytes > 0


@pytest.mark.parametrize("layers", [(0,), (1, 2), (0, 3)])
def test_a_cell_that_is_several_layers_swaps_in_each_call_as_its_layer_says(odd, layers):
    """As ALBERT has it: one cell four times, here between others."""
    shared = odd.Layer()
    network, inputs = odd.fill(odd.Network([shared, odd.Layer(), shared, shared])), odd.batch(0)
    expected = gradients(network, inputs)
    swap, results = train(network, inputs, Policy(is_swap_enabled=True, op_swap=(OpSwap("mul", Layers(layers), 1),)))
    assert are_equal(results, expected)
    producers = [swap.trace.operators[swap.trace.storages[index].producer] for index in swap.schedule.moved]
    assert [(producer.layer_index, producer.path) for producer in producers] == [(index, ("mul",)) for index in layers]
    assert swap.totals.offloaded_bytes == len(layers) * OUTPUT_BYTES


def test_a_recomputed_cell_that_is_several_layers(odd):
    shared = odd.Layer()
    network, inputs = odd.fill(odd.Network([shared, odd.Layer(), shared])), odd.batch(0)
    shared.recompute()
    expected = gradients(network, inputs)
    policy = Policy(is_swap_enabled=True, layer_recompute=Layers((0, 2)), layer_swap=(LayerSwap(Layers((1,)), 1),))
    swap, results = train(network, inputs, policy, held_bytes=None)  # recompute holds its input
    assert are_equal(results, expected) and swap.totals.offloaded_bytes > 0


def test_cells_and_primitives_that_a_layer_holds_twice_are_told_by_the_number_of_the_call(odd):
    network, inputs = odd.fill(odd.Network([odd.Layer(has_two_names=True) for _ in range(2)])), odd.batch(0)
    expected = gradients(network, inputs)
    names = (OpSwap("mul_again", Layers((0,)), 1), OpSwap("act_again", Layers((1,)), 1))
    swap, results = train(network, inputs, Policy(is_swap_enabled=True, op_swap=names))
    assert are_equal(results, expected)
    producers = [swap.trace.operators[swap.trace.storages[index].producer] for index in swap.schedule.moved]
    assert [(producer.layer_index, producer.path[0]) for producer in producers] == [(0, "mul_again"), (1, "act_again")]
    assert swap.totals.offloaded_bytes == 2 * OUTPUT_BYTES


def test_a_cell_that_two_layers_hold_at_different_places(odd):
    network, inputs = odd.fill(odd.Network([odd.Layer() for _ in range(2)])), odd.batch(0)
    network.layers[1].up = network.layers[0].gate
    expected = gradients(network, inputs)
    policy = Policy(is_swap_enabled=True, op_swap=(OpSwap("up", Layers((1,)), 1),))
    swap, results = train(network, inputs, policy)
    assert are_equal(results, expected)
    producers = [swap.trace.operators[swap.trace.storages[index].producer] for index in swap.schedule.moved]
    assert {(producer.layer_index, producer.path[0]) for producer in producers} == {(1, "up")}


def test_recompute_of_one_of_the_layers_that_share_a_cell_is_refused_by_name(odd):
    shared = odd.Layer()
    network = odd.Network([shared, odd.Layer(), shared])
    with pytest.raises(ApplyError, match=r"layer 0: .* is also layer 2: (.|\n)*fix: .*all layers that share a cell"):
        mindswap.apply(network, Policy(is_swap_enabled=True, layer_recompute=Layers((0,))), layers="layers")
    assert mindswap.running_swap(network) is None


def idle_hooks(network):
    from mindswap.adapters.pynative.hooks import Hook

    tables = [table for _, cell in network.cells_and_names()
              for table in (cell._lazy_forward_pre_hook, cell._lazy_forward_hook) if table]  # fmt: skip
    return [hook for table in tables for hook in table.values() if isinstance(hook, Hook)]


@pytest.mark.parametrize("num_before", [0, 1, 2])
def test_a_copy_of_a_network_trains_without_swap_or_with_one_of_its_own(odd, num_before, tmp_path):
    """As for an exponential moving average; the recorded pass has hooks on every cell."""
    import mindspore as ms

    network, inputs = odd.fill(odd.Network([odd.Layer() for _ in range(3)])), odd.batch(0)
    expected = gradients(network, inputs)
    swap = start(network)
    for _ in range(num_before):
        gradients(network, inputs)
    twin = copy.deepcopy(network)
    ms.save_checkpoint(network, str(tmp_path / "network.ckpt"))
    assert list(ms.load_checkpoint(str(tmp_path / "network.ckpt"))) == list(twin.parameters_dict())
    assert mindswap.running_swap(twin) is None
    assert all(cell._saved_tensors_pack_hook is None for _, cell in twin.cells_and_names())
    for _ in range(3):
        assert are_equal(gradients(network, inputs), expected) and are_equal(gradients(twin, inputs), expected)
    assert swap.report.num_passes == num_before + 2  # those of the copy are not its own
    other, results = train(twin, inputs)
    assert are_equal(results, expected) and other.totals == swap.totals and other.totals.offloaded_bytes > 0
    assert idle_hooks(twin) == []
    for _, cell in twin.cells_and_names():  # with the number of its hook, another one would be called as that was
        assert not cell._forward_pre_hook_with_kwargs and not cell._forward_hook_with_kwargs
    with pytest.raises(ApplyError, match="runs on this network already"):
        mindswap.apply(network, SWAP_ALL, layers="layers")
    swap.remove()


def test_passes_of_several_threads(odd):
    """One after the other: recorded in a thread that ends, in one that goes on, swapped in others."""
    from mindspore.utils.ms_dispatch import _DispatchGuardStack

    network, inputs = odd.fill(odd.Network([odd.Layer() for _ in range(3)])), odd.batch(0)
    expected, small = gradients(network, inputs), gradients(network, inputs[:2])
    swap = start(network)
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        order = (first, second, first, second, None)
        for pool in (*order, *order):
            for shape, wanted in ((inputs[:2], small), (inputs, expected)) if pool is second else ((inputs, expected),):
                work = pool.submit(gradients, network, shape).result if pool else lambda: gradients(network, inputs)
                assert are_equal(work(), wanted)
        assert first.submit(_DispatchGuardStack.depth).result() == _DispatchGuardStack.depth() == 0
    report = swap.finish()
    swap.remove()
    assert report.num_passes > 0 and report.num_passes == report.num_as_predicted and report.left_bytes == 0


@pytest.mark.parametrize(
    ("other", "is_same"),
    [("trains", True), ("trains", False), ("evaluates", True), ("evaluates", False), ("trains without swap", False)],
)
def test_two_threads_at_the_same_time_are_refused_and_no_number_is_wrong(other, is_same):
    """In a process of its own, as MindSpore keeps a function that broke off while it was differentiated."""
    ran = forked.run(["-m", "tests.adapters.pynative.two_threads", other, str(int(is_same))], cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["wrong"] == 0 and found["after"] and found["refused"] > 0
    assert all("two threads ran a network" in line and "fix:     a lock" in line for line in found["messages"])


REMOVALS = ("removed behind forward", "removed in backward", "removed in forward", "removed by a hook")


@pytest.mark.parametrize(
    ("kind", "is_begun_anew"), [*((kind, False) for kind in REMOVALS), *((kind, True) for kind in REMOVALS[:-1])]
)
def test_a_swap_is_removed_at_any_point_of_a_step_and_may_begin_anew_there(odd, kind, is_begun_anew, monkeypatch):
    training = odd.Training(3, False)
    training.network, training.policy, training.with_swap = (
        odd.fill(odd.Network([odd.Layer() for _ in range(3)])),
        SWAP_ALL,
        True,
    )
    network, inputs = training.network, odd.batch(0)
    expected = gradients(network, inputs)
    monkeypatch.setattr(training, "_again", lambda net: (training.end(net), is_begun_anew and training.swap(net)))
    for num_before in (0, 1, 2):
        training.swap(network)
        for _ in range(num_before):
            assert are_equal(gradients(network, inputs), expected)
        loss, found = getattr(training, "do_" + kind.replace(" ", "_"))(network, inputs, 1)
        assert are_equal([loss.asnumpy(), *(each.asnumpy() for each in found)], expected)
        assert (mindswap.running_swap(network) is not None) == is_begun_anew
        for _ in range(3 if is_begun_anew else 0):
            assert are_equal(gradients(network, inputs), expected)
        training.end(network)
        if is_begun_anew:
            assert training.reports[-1].num_passes > 0 and training.reports[-1].is_as_predicted
    left = idle_hooks(network)  # after a removal by a hook some are there, and do nothing, until the next swap begins
    assert left == [] or (kind == REMOVALS[-1] and not any(hook.function for hook in left))


def test_apply_by_a_hook_is_refused(odd):
    """MindSpore iterates over the hooks of the cell, and none can be added meanwhile."""
    network, inputs = odd.fill(odd.Network([odd.Layer()])), odd.batch(0)
    handle = network.layers[0].register_forward_pre_hook(lambda *_: start(network))
    with pytest.raises(ApplyError, match=r"by a hook(.|\n)*fix: "):
        network(inputs)
    handle.remove()
    assert mindswap.running_swap(network) is None and idle_hooks(network) == []
    assert train(network, inputs)[0].totals.offloaded_bytes > 0


def test_a_layer_with_hooks_of_its_own_on_saved_tensors_keeps_them(odd, caplog):
    network, inputs = odd.fill(odd.Network([odd.Layer() for _ in range(3)])), odd.batch(0)
    expected, seen = gradients(network, inputs), []
    network.layers[1].register_saved_tensors_hooks(lambda t: seen.append(t.shape) or t.asnumpy(), odd.ms.Tensor)
    swap, results = train(network, inputs)
    assert are_equal(results, expected) and seen and "layers [1] have `register_saved_tensors_hooks`" in caplog.text
    assert {swap.trace.saves[index].layer_index for index in range(len(swap.trace.saves))} == {0, 2}
    assert network.layers[1]._saved_tensors_pack_hook is not None and swap.totals.offloaded_bytes > 0


def test_a_step_behind_any_exception_swaps(odd):
    """In a process of its own, as MindSpore keeps a function that broke off while it was differentiated."""
    ran = forked.run(["-m", "tests.adapters.pynative.broken_step"], cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-3000:]
    rows = json.loads(ran.stdout.splitlines()[-1])
    assert [row["kind"] for row in rows] == [
        "fault in forward", "interrupt", "fault behind forward", "fault in backward", "fault elsewhere",
    ]  # fmt: skip
    for row in rows:
        assert row["is_equal"] and row["num_passes"] == row["num_as_predicted"] == row["num_expected"], row
        assert row["offloaded_bytes"] > 0 and row["left_bytes"] == 0 and row["num_deviations"] == 0, row


def test_trainings_made_at_random_in_which_all_of_this_happens():
    number = examples(3, 300)
    ran = forked.run(["-m", "tests.adapters.pynative.odd", "1", str(number)], cwd=ROOT, timeout=7200)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["wrong"] == [] and len(found["equal"]) > 0.2 * number
    assert found["moved_bytes"] > 0 and found["left_bytes"] == 0
