import pytest

from mindswap.graph.lifetime import Peak
from mindswap.graph.memory import LayerMemory, OperatorMemory
from mindswap.graph.model import Node, TensorType
from mindswap.report import plots
from mindswap.report.memory import LayerMemoryReport
from mindswap.report.simulation.bars import MEMORY_STYLES
from mindswap.simulator.program import MemoryKind

pytest.importorskip("matplotlib")

MIB = 2**20
OPERATORS = (
    OperatorMemory("attention.wq.matmul", "MatMul", kept_bytes=3 * MIB),
    OperatorMemory("attention.wk.matmul", "MatMul", swapped_bytes=2 * MIB),
    OperatorMemory("feed_forward.mul", "Mul", recomputed_bytes=4 * MIB),
    OperatorMemory("add", "Add"),
)
LOSS = OperatorMemory("loss.log_softmax", "LogSoftmax", kept_bytes=1000 * MIB)
REPORT = LayerMemoryReport(
    (LayerMemory(0, OPERATORS), LayerMemory(1, OPERATORS[:1]), LayerMemory(None, (LOSS,))),
    Peak(1, Node("n", "Mul", None, "", "scope", (), (TensorType((1,), "Float32", 4),), {}), True),
    (),
)


@pytest.fixture
def drawn(monkeypatch):
    """What would be written; a call gives the panels of a picture."""
    figures = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: figures.append(figure))

    def draw(by):
        plots.plot_memory(REPORT, "x.png", "case", by)
        return figures[-1].axes

    return draw


@pytest.mark.parametrize(
    ("by", "labels"),
    [
        # Smallest first, as the axis goes up; `add` has nothing and no bar.
        ("operator", ["attention.wk.matmul", "attention.wq.matmul", "feed_forward.mul"]),
        ("cell", ["attention.wk", "attention.wq", "feed_forward"]),
        ("layer", ["all operators"]),
    ],
)
def test_rows_follow_by(drawn, by, labels):
    assert [label.get_text() for label in drawn(by)[0].get_yticklabels()] == labels


def test_layers_have_one_scale_and_the_loss_its_own(drawn):
    first, second, outside = (panel.get_xlim() for panel in drawn("operator"))
    assert first == second
    assert first == pytest.approx((0, 4 * plots.ROOM))  # 4 MiB is the longest bar of a layer
    assert outside == pytest.approx((0, 1000 * plots.ROOM))


def test_colours_are_those_of_simulate_and_bars_have_their_size(drawn):
    panel = drawn("operator")[0]
    from matplotlib.colors import to_hex

    colours = [to_hex(bars[0].get_facecolor()) for bars in panel.containers]
    kinds = (MemoryKind.KEPT, MemoryKind.OFFLOADING, MemoryKind.RECOMPUTED)
    assert colours == [MEMORY_STYLES[kind].light for kind in kinds]
    assert [text.get_text() for text in panel.texts] == ["2.0 MiB", "3.0 MiB", "4.0 MiB"]


def test_the_legend_names_what_is_in_the_picture_whatever_panel_it_is_in(monkeypatch):
    figures = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: figures.append(figure))
    swapped, loss = LayerMemory(0, (OPERATORS[1],)), LayerMemory(None, (LOSS,))
    for layers in ((swapped, loss), (swapped,)):
        plots.plot_memory(LayerMemoryReport(layers, REPORT.peak, ()), "x.png", "case")
    named = [[text.get_text() for text in figure.axes[0].get_legend().get_texts()] for figure in figures]
    assert named == [["kept on device", "swapped"], ["swapped"]]
