"""`mindswap.capture_step`: any MindSpore network is simulated and planned."""

from itertools import count
from types import SimpleNamespace

import pytest

import mindswap
from mindswap import Layers, OpSwap, Policy
from mindswap.errors import ApplyError, DataError, GraphError, MindswapError, PlanError
from mindswap.planner.solver.search import Stop
from tests.strength import examples

pytestmark = pytest.mark.mindspore

ROWS, WIDTH, NUM_LAYERS = 1024, 64, 3
# Of one layer in float32: `up` and GeLU keep 4 x WIDTH numbers per row each.
WIDE_BYTES = ROWS * 4 * WIDTH * 4


@pytest.fixture(scope="module")
def cells():
    import mindspore as ms
    from mindspore import Tensor, nn, ops

    class Block(nn.Cell):
        def __init__(self):
            super().__init__()
            self.up = nn.Dense(WIDTH, 4 * WIDTH)
            self.gelu = ops.GeLU()
            self.down = nn.Dense(4 * WIDTH, WIDTH)

        def construct(self, x):
            return x + self.down(self.gelu(self.up(x)))

    class Network(nn.Cell):
        """`+` in a block and the list in the stem tell the compiler nothing of the layer."""

        def __init__(self):
            super().__init__()
            self.stem = nn.SequentialCell([nn.Dense(WIDTH, WIDTH), nn.ReLU()])
            self.stages = nn.CellList([Block() for _ in range(NUM_LAYERS)])
            self.loss = ops.ReduceMean()

        def construct(self, x):
            x = self.stem(x)
            for block in self.stages:
                x = block(x)
            return self.loss(x)

    inputs = Tensor(shape=(ROWS, WIDTH), dtype=ms.float32, init=ms.common.initializer.Zero())
    return SimpleNamespace(network=Network, inputs=[inputs])


@pytest.fixture(scope="module")
def step(cells):
    return mindswap.capture_step(cells.network(), cells.inputs, layers="stages", device="generic")


def test_every_operator_is_in_its_layer(step):
    graph = step.model.captured.graph
    adds = [(node.op, node.layer_index) for node in graph.forward if node.op in ("Add", "GeLU")]
    assert adds == [("GeLU", 0), ("Add", 0), ("GeLU", 1), ("Add", 1), ("GeLU", 2), ("Add", 2)]
    assert [node.layer_index for node in graph.forward if node.op == "ReLU"] == [None]


def test_settings_are_those_of_the_network(step):
    settings = step.model.settings
    assert (settings.batch_size, settings.seq_length, settings.compute_dtype) == (ROWS, 1, "float32")
    # Weight and bias of the stem and of two products in each layer, float32.
    num_weights = WIDTH * WIDTH + WIDTH + NUM_LAYERS * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH)
    assert sum(parameter.size_bytes for parameter in step.model.weights.parameters[0]) == 4 * num_weights


def test_a_swap_moves_what_it_names(step):
    """GeLU of layer 0 is 1 MiB: at 10 GB/s 104857 ns out, then as long back; all operators together take less."""
    plain = step.simulate()
    run = step.simulate(Policy(op_swap=[OpSwap("gelu", Layers(0), 1)]))
    assert plain.simulated.timeline.step_time_ns < 2 * WIDE_BYTES // 10 < run.simulated.timeline.step_time_ns
    assert run.policy.op_swap == (OpSwap("gelu", Layers(0), 1),)
    assert "simulated step of network" in str(run)


def test_a_run_is_written_for_a_browser_and_for_perfetto(step, tmp_path):
    run = step.simulate()
    run.save_html(tmp_path / "step.html")
    run.save_trace(tmp_path / "step.json")
    assert "<html" in (tmp_path / "step.html").read_text("utf-8")
    assert '"traceEvents"' in (tmp_path / "step.json").read_text("utf-8")


def test_a_plan_fits_and_is_read_back(step, tmp_path):
    """By day of the first 300 simulations: the search makes thousands."""
    simulations = count(1)

    def progress():
        if next(simulations) > examples(300, 10**6):
            raise Stop

    budget = step.simulate().peak_bytes - WIDE_BYTES
    plan = step.plan(memory=budget, progress=progress)
    assert plan.fits and plan.peak_bytes <= budget
    assert plan.run().peak_bytes == plan.peak_bytes
    plan.save(tmp_path / "planned.yaml")
    assert mindswap.load_policy(tmp_path / "planned.yaml") == plan.policy
    assert str(plan).startswith("plan for ")
    with pytest.raises(DataError, match="already exists"):
        plan.save(tmp_path / "planned.yaml")


def test_what_does_not_fit_is_not_written(step, tmp_path):
    plan = step.plan(memory="1KiB")
    assert not plan.fits
    with pytest.raises(PlanError, match="nothing fits"):
        plan.save(tmp_path / "planned.yaml")
    with pytest.raises(PlanError, match="memory: "):
        step.plan(memory="much")


def test_the_network_is_left_as_it_was(cells):
    network = cells.network()
    mindswap.capture_step(network, cells.inputs, layers="stages")
    primitive = network.stages[0].gelu
    assert "mindswap_path" not in primitive.attrs
    assert not getattr(network, "_cell_init_args", "")
    mindswap.apply(network, Policy(op_swap=[OpSwap("gelu", Layers(0), 1)]), layers="stages")
    with pytest.raises(GraphError, match="layer 0: gelu has offload set"):
        mindswap.capture_step(network, cells.inputs, layers="stages")


def test_a_wrong_list_of_layers_is_refused(cells):
    with pytest.raises(ApplyError, match="layers='blocks': Network has no cell 'blocks'"):
        mindswap.capture_step(cells.network(), cells.inputs, layers="blocks")
    with pytest.raises(ApplyError, match="no list of layers in Network"):
        mindswap.capture_step(cells.network(), cells.inputs)


def test_memory_is_text_or_bytes(cells):
    """As `docs/python.md` says."""
    for memory in ("2GiB", 2 * 2**30):
        step = mindswap.capture_step(cells.network(), cells.inputs, layers="stages", device="generic", memory=memory)
        assert step.device.usable_memory_bytes == 2 * 2**30


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cells, step: step.simulate(5), "policy: 5\n    allowed: Policy"),
        (lambda cells, step: step.plan(memory=1.5), "memory: 1.5\n    allowed: int"),
        (lambda cells, step: step.plan(memory=0), "memory: 0 bytes\n    allowed: 1 or more"),
        (lambda cells, step: step.simulate().save_html(5), "5 is not a file name"),
        (lambda cells, step: step.simulate().save_trace("a\0b"), "is not a file name"),
        (lambda cells, step: mindswap.load_step(None), "None is not a file name"),
        (lambda cells, step: mindswap.verify(5), "5 is not a file name"),
        (lambda cells, step: mindswap.apply(cells.network(), None, layers="stages"), "policy: None"),
        (lambda cells, step: mindswap.apply("net", Policy()), "network: 'net'\n    allowed: Cell"),
        (lambda cells, step: mindswap.capture("net", cells.inputs), "network: 'net'\n    allowed: Cell"),
        (lambda cells, step: mindswap.capture(cells.network(), 5), "inputs: 5\n    allowed: list or tuple"),
    ],
)  # fmt: skip
def test_what_is_no_such_argument_is_refused(cells, step, call, message):
    with pytest.raises(MindswapError, match=message):
        call(cells, step)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"network": 5}, "network: 5\n    allowed: Cell"),
        ({"layers": 5}, "layers: 5\n    allowed: str"),
        ({"inputs": None}, "inputs: None\n    allowed: list or tuple"),
        ({"num_micro_batches": 0}, "num_micro_batches: 0\n    allowed: 1 or more"),
        ({"num_micro_batches": 1.5}, "num_micro_batches: 1.5\n    allowed: int"),
        ({"optimizer": None}, "optimizer: None\n    allowed: str"),
    ],
)
def test_a_capture_of_no_such_argument_is_refused(cells, wrong, message):
    given = {"network": cells.network(), "inputs": cells.inputs, "layers": "stages", **wrong}
    with pytest.raises(MindswapError, match=message):
        mindswap.capture_step(**given)
