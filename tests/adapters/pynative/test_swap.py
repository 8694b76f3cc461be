"""Swap in PyNative mode moves memory for real: gradients stay the same bit for bit, every byte is accounted for."""

import gc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mindswap
from mindswap.errors import ApplyError
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpSwap, Policy
from tests.strength import examples

pytestmark = pytest.mark.mindspore


@pytest.fixture(scope="module")
def parts():
    """The modules that import MindSpore."""
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    from mindswap.adapters.pynative import copies, executor, swap
    from tests.adapters.pynative import networks

    class Parts:
        pass

    Parts.copies, Parts.executor, Parts.swap, Parts.networks = copies, executor, swap, networks
    return Parts


def decisions_of(policy, layers):
    from mindswap.adapters.graph.apply import read_tree
    from mindswap.policy.resolve import resolve_layer

    return [resolve_layer(policy, index, read_tree(layer)) for index, layer in enumerate(layers)]


def run(parts, network, policy, inputs, num_passes=3, **options):
    """Train passes under a policy; gives the swap and the results of the last pass."""
    step = parts.networks.gradients(network)
    swap = parts.swap.Swap(
        network, list(network.layers), decisions_of(policy, network.layers), poison=True, watch_all=True, **options
    )
    for _ in range(num_passes):
        results = step(inputs)
    return swap, results


SWAP_ALL = Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, 2),))


def test_all_activations_of_all_layers_move_and_nothing_changes(parts):
    network, inputs = parts.networks.Network(), parts.networks.batch()
    expected = parts.networks.gradients(network)(inputs)
    swap, results = run(parts, network, SWAP_ALL, inputs)
    swap.remove()
    assert parts.networks.are_equal(results, expected)
    assert swap.executor.num_passes == 2 and swap.executor.num_deviations == 0
    assert swap.totals.offloaded_bytes == swap.totals.prefetched_bytes > 0
    assert swap.totals == swap.predicted
    assert swap.totals.device_bytes[-1] == 0 and swap.copies.host_bytes == 0


def step_before(parts, network, inputs):
    from mindswap.adapters.pynative.record import record

    step = parts.networks.gradients(network)
    return record(network, list(network.layers), lambda: step(inputs))


def test_with_a_step_that_was_recorded_before_the_first_pass_swaps(parts):
    network, inputs = parts.networks.Network(), parts.networks.batch()
    expected = parts.networks.gradients(network)(inputs)
    trace = step_before(parts, network, inputs)
    swap, results = run(parts, network, SWAP_ALL, inputs, num_passes=1, trace=trace)
    swap.remove()
    assert parts.networks.are_equal(results, expected)
    assert (swap.report.num_passes, swap.report.num_as_predicted, swap.report.num_recorded) == (1, 1, 0)
    assert swap.totals.offloaded_bytes > 0


def test_a_first_step_that_is_not_the_recorded_one_frees_nothing_and_is_recorded_next(parts):
    network, inputs = parts.networks.Network(), parts.networks.batch()
    trace = step_before(parts, network, inputs)
    other = type(inputs)(inputs.asnumpy()[:-1])
    expected = parts.networks.gradients(network)(other)
    swap, results = run(parts, network, SWAP_ALL, other, num_passes=1, trace=trace)
    assert parts.networks.are_equal(results, expected)
    assert swap.report.num_passes == 0 and swap.executor.num_deviations == 1
    assert swap.copies.host_bytes == 0 and not swap.copies._free  # not even a copy was begun
    step = parts.networks.gradients(network)
    for _ in range(2):
        results = step(other)
    swap.remove()
    assert parts.networks.are_equal(results, expected)
    assert (swap.report.num_passes, swap.report.num_recorded, swap.report.num_deviations) == (1, 1, 1)


def test_the_bytes_of_a_named_operator_are_those_of_its_output(parts):
    """mul gives (4, 16) float32 = 256 bytes in each of layers 0 and 2."""
    network, inputs = parts.networks.Network(), parts.networks.batch()
    policy = Policy(is_swap_enabled=True, op_swap=(OpSwap(r"feed_forward\.mul", Layers((0, 2)), 1),))
    swap, _ = run(parts, network, policy, inputs)
    swap.remove()
    assert swap.totals.offloaded_bytes == 2 * 4 * 16 * 4
    producers = [swap.trace.operators[swap.trace.storages[index].producer] for index in swap.schedule.moved]
    assert [(producer.layer_index, producer.path) for producer in producers] == [
        (0, ("feed_forward", "mul")),
        (2, ("feed_forward", "mul")),
    ]


def test_less_is_on_the_device_at_the_peak(parts):
    network, inputs = parts.networks.Network(num_layers=6), parts.networks.batch()
    nothing = Policy(is_swap_enabled=True, op_swap=())
    kept, _ = run(parts, network, nothing, inputs)
    kept.remove()
    moved, _ = run(parts, network, SWAP_ALL, inputs)
    moved.remove()
    assert kept.totals.offloaded_bytes == 0
    assert moved.totals.peak_device_bytes < 0.5 * kept.totals.peak_device_bytes


@pytest.mark.parametrize("count", [1, 2])
def test_distances_in_layers(parts, count):
    """The last `count` layers stay; each of the others moves all that it saves and may."""
    network, inputs = parts.networks.Network(num_layers=4), parts.networks.batch()
    expected = parts.networks.gradients(network)(inputs)
    policy = Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, count),))
    swap, results = run(parts, network, policy, inputs, unit=parts.swap.Unit.LAYERS)
    swap.remove()
    assert parts.networks.are_equal(results, expected)
    trace = swap.trace
    layers = {save.layer_index for save in trace.saves if save.storage in swap.schedule.moved}
    assert layers == set(range(4 - count))
    assert swap.totals == swap.predicted


def test_weights_and_inputs_stay(parts):
    network, inputs = parts.networks.Network(), parts.networks.batch()
    swap, _ = run(parts, network, SWAP_ALL, inputs)
    swap.remove()
    protections = [storage.protection for storage in swap.trace.storages]
    assert protections.count("weight") == 3 * 3  # norm gamma, w1, w2 of each layer are read by backward
    assert "input" in protections
    assert not [index for index in swap.schedule.moved if protections[index]]


def test_what_other_code_holds_stays_and_the_report_says_so(parts):
    """The gate of a layer is (4, 16) float32, 256 bytes; the user's hook keeps those of layer 0."""
    network, inputs = parts.networks.Network(), parts.networks.batch()
    kept = []
    network.layers[0].feed_forward.act.register_forward_hook(lambda cell, inputs, output: kept.append(output))
    policy = Policy(is_swap_enabled=True, op_swap=(OpSwap(r"feed_forward\.act", Layers((0, 2)), 1),))
    swap, _ = run(parts, network, policy, inputs)
    swap.remove()
    producers = [swap.trace.operators[swap.trace.storages[index].producer] for index in swap.schedule.moved]
    assert {producer.layer_index for producer in producers} == {2}
    assert swap.report.held_bytes == 256 and swap.report.num_passes == 2


def test_three_micro_batches(parts):
    network = parts.networks.Network()
    batches = [parts.networks.batch(seed=seed) for seed in (1, 2, 3)]
    step = parts.networks.gradients(network)
    expected = [step(inputs) for inputs in batches]
    swap, _ = run(parts, network, SWAP_ALL, batches[0], num_passes=1)
    results = [step(inputs) for inputs in batches]
    swap.remove()
    assert all(parts.networks.are_equal(*pair) for pair in zip(results, expected, strict=True))
    assert swap.executor.num_passes == 3


@pytest.mark.parametrize("in_layers", [False, True])
def test_three_micro_batches_with_one_backward_pass(parts, in_layers):
    """Gradient accumulation: the layers run forward three times, then backward three times."""
    network, inputs = parts.networks.Network(), parts.networks.batch(6)
    whole = parts.networks.Accumulated(network, 3)
    step = parts.networks.gradients(whole)
    expected = step(inputs)
    unit = parts.swap.Unit.LAYERS if in_layers else parts.swap.Unit.OPERATORS
    swap = parts.swap.Swap(network, list(network.layers), decisions_of(SWAP_ALL, network.layers), unit, poison=True)
    single = parts.networks.batch(2)
    for _ in range(3):
        assert parts.networks.are_equal(step(inputs), expected)
    assert swap.executor.num_passes == 2 and swap.executor.num_deviations == 0
    assert swap.totals == swap.predicted and swap.totals.offloaded_bytes > 0
    assert swap.totals.device_bytes[-1] == 0 and swap.copies.host_bytes == 0
    assert not swap.report.is_audited  # only layers that swap are seen
    assert network(single).asnumpy() is not None  # an evaluation between two steps
    assert parts.networks.are_equal(step(inputs), expected) and swap.executor.num_passes == 3
    swap.remove()


def test_micro_batches_of_another_number_are_recorded_anew(parts):
    network, inputs = parts.networks.Network(), parts.networks.batch(6)
    steps = [parts.networks.gradients(parts.networks.Accumulated(network, count)) for count in (1, 3)]
    expected = [step(inputs) for step in steps]
    swap, _ = run(parts, network, SWAP_ALL, inputs)
    for which in (1, 1, 1, 1, 0, 0, 0, 0):
        assert parts.networks.are_equal(steps[which](inputs), expected[which])
    assert swap.executor.num_passes >= 1 and swap.totals == swap.predicted
    assert swap.copies.host_bytes == 0
    swap.remove()


def test_another_shape_runs_without_swap_and_is_recorded_anew(parts, caplog):
    network = parts.networks.Network()
    small, large = parts.networks.batch(2), parts.networks.batch(4)
    step = parts.networks.gradients(network)
    expected = {id(inputs): step(inputs) for inputs in (small, large)}
    swap, _ = run(parts, network, SWAP_ALL, large)
    for inputs in (small, small, small, large):
        assert parts.networks.are_equal(step(inputs), expected[id(inputs)])
        assert swap.copies.host_bytes == 0
    swap.remove()
    assert "is not the one that was recorded" in caplog.text
    assert swap.executor.num_deviations == 1


def test_an_evaluation_between_two_steps(parts):
    network, inputs = parts.networks.Network(), parts.networks.batch()
    step = parts.networks.gradients(network)
    expected = step(inputs)
    swap, _ = run(parts, network, SWAP_ALL, inputs)
    assert network(inputs).asnumpy() == expected[0]
    assert parts.networks.are_equal(step(inputs), expected)
    swap.remove()
    assert swap.executor.num_passes == 3 and swap.executor.num_deviations == 0


def test_an_exception_in_backward_loses_nothing(parts):
    network, inputs = parts.networks.Network(has_norm=False), parts.networks.batch()
    step = parts.networks.gradients(network)
    expected = step(inputs)
    swap, _ = run(parts, network, SWAP_ALL, inputs)
    is_broken = True

    def raise_once(gradient):
        if is_broken:
            raise RuntimeError("by the test")

    handle = network.layers[0].register_forward_hook(
        lambda cell, inputs, output: output.register_hook(raise_once) and None
    )
    with pytest.raises(RuntimeError, match="by the test"):
        step(inputs)
    assert swap.copies.host_bytes > 0
    is_broken = False
    assert parts.networks.are_equal(step(inputs), expected)
    handle.remove()
    swap.remove()
    assert swap.copies.host_bytes == 0 and swap.executor.num_passes == 3


def test_remove_leaves_no_hook(parts):
    network, inputs = parts.networks.Network(), parts.networks.batch()
    swap, _ = run(parts, network, SWAP_ALL, inputs)
    swap.remove()
    assert mindswap.running_swap(network) is None
    cells = [network, *network.layers]
    assert not any(cell._forward_pre_hook or cell._forward_hook or cell._saved_tensors_pack_hook for cell in cells)


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_network_that_nobody_holds_takes_its_swap_along(parts, is_removed):
    """Also where nobody ended the swap."""
    network = parts.networks.Network()
    swap, results = run(parts, network, SWAP_ALL, parts.networks.batch())
    if is_removed:
        swap.remove()
    left = weakref.ref(network), weakref.ref(swap), weakref.ref(swap.executor), weakref.ref(swap.copies)
    del network, swap, results
    gc.collect()
    assert [each() for each in left] == [None] * 4


def test_apply_begins_a_swap_in_pynative_mode(parts):
    network, inputs = parts.networks.Network(), parts.networks.batch()
    step = parts.networks.gradients(network)
    expected = step(inputs)
    mindswap.apply(network, SWAP_ALL)
    swap = mindswap.running_swap(network)
    step(inputs)
    assert parts.networks.are_equal(step(inputs), expected)
    assert swap.totals.offloaded_bytes > 0
    with pytest.raises(ApplyError, match="runs on this network already"):
        mindswap.apply(network, SWAP_ALL)
    swap.remove()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Policy(is_swap_enabled=True, op_swap=(OpSwap("mlp", ALL_LAYERS, 1),)), "op_swap names no operator .* 'mlp'"),
        (Policy(is_swap_enabled=True, layer_swap=(LayerSwap(Layers((3,)), 1),)), r"layers 0 to 2, .* names \[3\]"),
    ],
)
def test_apply_refuses_what_the_network_does_not_have(parts, policy, message):
    network = parts.networks.Network()
    with pytest.raises(ApplyError, match=message):
        mindswap.apply(network, policy)
    assert mindswap.running_swap(network) is None
    assert not any(cell._forward_pre_hook or cell._forward_hook for cell in [network, *network.layers])


def test_gradients_twice_of_one_forward_pass_and_gradients_of_gradients(parts):
    """MindSpore 2.9.0 runs forward again for each backward pass, whether `GradOperation` or the function of `vjp` is
    called twice; a second derivative has more saves, which is another step."""
    import mindspore as ms

    network, inputs = parts.networks.Network(has_norm=False), parts.networks.batch()
    weights = ms.ParameterTuple(network.trainable_params())

    def twice():
        network.set_grad(True)
        network(inputs)
        gradient = ms.ops.GradOperation(get_by_list=True)(network, weights)
        found = [gradient(inputs) for _ in range(2)]
        network.set_grad(False)
        _, pull_back = ms.vjp(network, inputs, weights=weights)
        found += [pull_back(ms.Tensor(1.0, ms.float32))[1] for _ in range(2)]
        found.append((ms.grad(lambda x: ms.grad(network)(x).sum())(inputs),))
        return [gradient.asnumpy() for gradients in found for gradient in gradients]

    expected = twice()
    swap, _ = run(parts, network, SWAP_ALL, inputs)
    before = swap.report.num_passes
    for _ in range(2):
        assert parts.networks.are_equal(twice(), expected)
        assert swap.copies.host_bytes == 0
    assert swap.report.num_passes >= before + 4
    swap.remove()


@pytest.mark.parametrize("num_passes", [0, 3])
def test_a_training_that_ends_behind_a_forward_pass_leaves_nothing_on_the_host(parts, num_passes):
    """Without a pass before, that one is recorded, and nothing has moved."""
    network, inputs = parts.networks.Network(), parts.networks.batch()
    decisions = decisions_of(SWAP_ALL, network.layers)
    swap, step = parts.swap.Swap(network, list(network.layers), decisions), parts.networks.gradients(network)
    for _ in range(num_passes):
        step(inputs)
    network.set_grad(True)
    network(inputs)
    network.set_grad(False)
    assert (swap.executor is not None and swap.executor.is_unfinished) == (num_passes > 0)
    report = swap.finish()
    assert (report.left_bytes, report.num_passes) == (0, max(num_passes - 1, 0))
    swap.remove()


def test_a_recomputed_layer_saves_in_backward_what_stays(parts):
    network, inputs = parts.networks.Network(), parts.networks.batch()
    expected = parts.networks.gradients(network)(inputs)
    network.layers[1].recompute()
    policy = Policy(is_swap_enabled=True, layer_recompute=Layers((1,)), layer_swap=(LayerSwap(Layers((0, 2)), 1),))
    swap, results = run(parts, network, policy, inputs)
    swap.remove()
    assert parts.networks.are_equal(results, expected)
    assert {swap.trace.saves[index].layer_index for index in swap.schedule.moved} <= {0, 2}
    assert swap.executor.num_passes == 2 and swap.totals == swap.predicted


def test_the_results_depend_on_what_comes_back(parts, monkeypatch):
    """The checks above can fail: memory that comes back with other bytes changes the gradients."""
    network, inputs = parts.networks.Network(), parts.networks.batch()
    expected = parts.networks.gradients(network)(inputs)
    copies = parts.copies.ThreadCopies()
    monkeypatch.setattr(copies, "prefetch", lambda copy, storage, poison: setattr(copy, "storage", storage))
    swap, results = run(parts, network, SWAP_ALL, inputs, copies=copies)
    swap.remove()
    assert not parts.networks.are_equal(results, expected)


PATTERNS = ("norm", "feed_forward", r"feed_forward\.mul", r"feed_forward\.w1", r"feed_forward\.act", "add", ".*")
layers = st.sets(st.integers(0, 2), min_size=1).map(lambda found: Layers(tuple(sorted(found))))
policies = st.builds(
    lambda swaps, whole: Policy(is_swap_enabled=True, op_swap=tuple(swaps), layer_swap=tuple(whole)),
    st.lists(st.builds(OpSwap, st.sampled_from(PATTERNS), layers, st.integers(1, 12)), max_size=3),
    st.lists(st.builds(LayerSwap, layers, st.integers(1, 12)), max_size=1),
)


@pytest.fixture(scope="module")
def recorded(parts):
    """A network, one step of it, its results, its trace."""
    from mindswap.adapters.pynative.record import record

    network, inputs = parts.networks.Network(), parts.networks.batch()
    gradients = parts.networks.gradients(network)

    def step():
        return gradients(inputs)

    return network, step, step(), record(network, list(network.layers), step)


def test_two_recordings_of_a_step_are_equal(parts, recorded):
    """Addresses are used again and differ from step to step; what is told by them must not."""
    from mindswap.adapters.pynative.record import record

    network, step, _, trace = recorded
    assert all(record(network, list(network.layers), step) == trace for _ in range(5))


def test_asking_for_addresses_after_the_step_records_the_same(recorded):
    from mindswap.adapters.pynative.deferred_record import record_deferred
    from mindswap.adapters.pynative.record import record

    network, step, _, trace = recorded
    deferred = record_deferred(network, list(network.layers), step)
    assert deferred == record(network, list(network.layers), step, with_values=True)
    assert len(deferred.operators) == len(trace.operators) and all(each.inputs for each in deferred.operators[:3])


def test_lists_that_the_network_clears_are_recorded_as_they_were(parts):
    """A layer may read its inputs until it ends, also those in a list that is empty when the step has ended."""
    from mindspore import mint, nn

    from mindswap.adapters.pynative.deferred_record import record_deferred
    from mindswap.adapters.pynative.record import record

    class Layer(nn.Cell):
        def construct(self, x, scales):
            return mint.tanh(mint.mul(x, scales[0]))

    class Network(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(parts.networks.WIDTH, parts.networks.WIDTH)
            self.layer = Layer()

        def construct(self, x):
            scales = [mint.tanh(self.dense(x))]
            outputs = self.layer(self.dense(x), scales)
            scales.clear()
            return mint.square(outputs).sum()

    network, inputs = Network(), parts.networks.batch()
    gradients = parts.networks.gradients(network)
    deferred = record_deferred(network, [network.layer], lambda: gradients(inputs))
    assert deferred == record(network, [network.layer], lambda: gradients(inputs), with_values=True)


def test_a_second_backward_pass_finds_everything_on_the_device(parts, recorded):
    """No call of MindSpore 2.9.0 reads a save again behind the pass; a later one that does gets the tensor whole."""
    import numpy as np

    from mindswap.adapters.pynative.hooks import Watch
    from mindswap.pynative.schedule import find_distances, make_schedule

    network, step, _, trace = recorded
    schedule = make_schedule(trace, find_distances(trace, decisions_of(SWAP_ALL, network.layers)), range(3))
    executor, kept = parts.executor.Executor(trace, schedule, parts.copies.ThreadCopies(), poison=True), []
    save = executor.save
    executor.save = lambda tensor, layer_index: kept.append(save(tensor, layer_index)) or kept[-1]
    watch = Watch(network, list(network.layers), executor, schedule.hooked_layers)
    step()
    watch.remove()
    assert executor.num_passes == 1 and executor.totals.offloaded_bytes > 0
    tensors = [executor.read(one) for one in kept]
    assert [tensor.untyped_storage().size() for tensor in tensors] == [
        trace.storages[save.storage].size_bytes for save in trace.saves
    ]
    assert all(np.isfinite(tensor.asnumpy()).all() for tensor in tensors)  # memory that was taken was filled with NaN
    assert executor.num_deviations == 1 and executor.has_deviated and executor.copies.host_bytes == 0


@settings(max_examples=examples(50, 200))
@given(policy=policies, in_layers=st.booleans())
def test_any_policy_gives_the_same_gradients_and_the_predicted_bytes(parts, recorded, policy, in_layers):
    from mindswap.adapters.pynative.hooks import Watch
    from mindswap.pynative.ledger import predict
    from mindswap.pynative.schedule import find_distances, make_schedule

    network, step, expected, trace = recorded
    unit = parts.swap.Unit.LAYERS if in_layers else parts.swap.Unit.OPERATORS
    schedule = make_schedule(trace, find_distances(trace, decisions_of(policy, network.layers), unit), range(3))
    executor = parts.executor.Executor(trace, schedule, parts.copies.ThreadCopies(), poison=True)
    differences = []
    act = executor._run_actions

    def audited_act():
        act()
        booked, seen = executor.device_bytes
        if executor.num_passes == 0 and booked != seen:
            differences.append((booked, seen))

    executor._run_actions = audited_act
    watch = Watch(network, list(network.layers), executor, schedule.hooked_layers)
    try:
        results = step()
    finally:
        watch.remove()
    assert parts.networks.are_equal(results, expected)
    assert differences == []  # the ledger against the sizes that MindSpore gives, behind every event
    assert executor.num_passes == 1
    assert executor.totals == predict(trace, schedule)
    assert executor.totals.offloaded_bytes == executor.totals.prefetched_bytes
    assert executor.copies.host_bytes == 0
