import pytest

from mindswap.errors import DataError
from mindswap.features.inspect import plots as inspect_plots
from mindswap.features.inspect.report import LayerMemoryReport
from mindswap.graph.analysis.liveness import Peak
from mindswap.graph.analysis.saved_tensors import LayerMemory, OperatorMemory
from mindswap.graph.model import Node, TensorType
from mindswap.planner.problem import Compared
from mindswap.report import plots
from mindswap.report.plots import plot_tradeoffs
from mindswap.report.timeline_bars import MEMORY_STYLES
from mindswap.simulator.program import MemoryKind
from tests.report.simulated import GIB, MS

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
def figures(monkeypatch):
    """Figures instead of files."""
    kept = []
    for module in (plots, inspect_plots):
        monkeypatch.setattr(module, "save_figure", lambda figure, path: kept.append(figure))
    return kept


@pytest.fixture
def drawn(figures):
    """Gives the panels of a picture."""

    def draw(by):
        inspect_plots.plot_memory(REPORT, "x.png", "case", by)
        return figures[-1].axes

    return draw


def legend(owner) -> list[str]:
    return [text.get_text() for text in owner.get_texts()]


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
    assert first == pytest.approx((0, 4 * inspect_plots.RELATIVE_WIDTH))  # 4 MiB is the longest bar of a layer
    assert outside == pytest.approx((0, 1000 * inspect_plots.RELATIVE_WIDTH))


def test_colours_are_those_of_simulate_and_bars_have_their_size(drawn):
    panel = drawn("operator")[0]
    from matplotlib.colors import to_hex

    colours = [to_hex(bars[0].get_facecolor()) for bars in panel.containers]
    kinds = (MemoryKind.KEPT, MemoryKind.OFFLOADING, MemoryKind.RECOMPUTED)
    assert colours == [MEMORY_STYLES[kind].light for kind in kinds]
    assert [text.get_text() for text in panel.texts] == ["2.0 MiB", "3.0 MiB", "4.0 MiB"]


def test_the_legend_names_what_is_in_the_picture_whatever_panel_it_is_in(figures):
    swapped, loss = LayerMemory(0, (OPERATORS[1],)), LayerMemory(None, (LOSS,))
    for layers in ((swapped, loss), (swapped,)):
        inspect_plots.plot_memory(LayerMemoryReport(layers, REPORT.peak, ()), "x.png", "case")
    named = [legend(figure.axes[0].get_legend()) for figure in figures]
    assert named == [["kept on device", "swapped"], ["swapped"]]


def tried(name, step_time_ns, peak_bytes):
    return Compared(name, step_time_ns, peak_bytes, True)


POINTS = [
    tried("none", 880 * MS, 71 * GIB),
    tried("full-recompute", 1150 * MS, 31 * GIB),
    tried("select-recompute", 960 * MS, 48 * GIB),
    tried("default-swap", 965 * MS, 48 * GIB),
    tried("planned.yaml", 961 * MS, 31 * GIB),
    tried("the same", 961 * MS, 31 * GIB),
]


def test_each_configuration_has_a_mark_of_its_own_and_the_colour_of_its_verdict(figures):
    """71 GiB are over the budget; 960 ms and 31 GiB are each the least of those that fit; equal ones are one."""
    plot_tradeoffs(POINTS, "c.png", title="llama", caption="device", budget_bytes=54 * GIB)
    (axis,) = figures[0].axes
    assert legend(figures[0].legends[0]) == [
        "none", "full-recompute", "select-recompute", "default-swap", "planned.yaml\nthe same",
        "budget 54.0 GiB, red: does not fit",
    ]  # fmt: skip
    marks = axis.lines[:5]
    assert len({mark.get_marker() for mark in marks}) == 5
    over, best, other = plots.BUDGET.light, plots.BEST, plots.OTHER
    assert [mark.get_color() for mark in marks] == [over, other, best, other, best]


def test_where_no_policy_can_be_is_filled(figures):
    curve = [tried("", 900 * MS, 40 * GIB), tried("", 880 * MS, 71 * GIB)]
    bound = [(30 * GIB, 950 * MS), (50 * GIB, 880 * MS)]
    points = [tried("least", 961 * MS, 31 * GIB), tried("slowest", 1150 * MS, 31 * GIB)]
    plot_tradeoffs(points, "p.png", curve=curve, title="llama", caption="device", bound=bound)
    (axis,) = figures[0].axes
    (area,) = [one for one in axis.collections if one.get_label() == "no policy can be here"]
    (outline,) = area.get_paths()
    inside = [(27, 1000), (29, 1150), (35, 870), (60, 870)]  # GiB, ms
    outside = [(31, 960), (40, 925), (60, 890)]
    assert [outline.contains_point(point) for point in inside + outside] == [True] * 4 + [False] * 3


def test_a_bound_below_all_that_is_shown_is_not_in_the_legend(figures):
    curve = [tried("", 900 * MS, 40 * GIB), tried("", 880 * MS, 71 * GIB)]
    for least_bytes in (1 * GIB, 39 * GIB):
        bound = [(least_bytes, 100 * MS)]
        plot_tradeoffs([], "p.png", curve=curve, title="llama", caption="device", bound=bound)
    assert [legend(figure.legends[0]) for figure in figures] == [["plans"], ["no policy can be here", "plans"]]


@pytest.mark.filterwarnings("error")  # matplotlib warns of a limit of 0
def test_step_times_that_differ_much_are_drawn_on_a_logarithmic_scale(figures):
    for slowest in (2, 3, 30):
        curve = [tried("", slowest * 900 * MS, 20 * GIB), tried("", 900 * MS, 40 * GIB)]
        plot_tradeoffs([], "p.png", curve=curve, title="llama", caption="device")
    assert [figure.axes[0].get_yscale() for figure in figures] == ["linear", "log", "log"]
    labels = [figure.axes[0].get_ylabel() for figure in figures]
    assert labels == ["step time (ms)", "step time (s), log scale", "step time (s), log scale"]
    # 0.9 s and 27 s: 0.14 of their distance below and above.
    assert figures[2].axes[0].get_ylim() == pytest.approx((0.9 / 30**0.14, 27 * 30**0.14))


def test_what_is_far_slower_than_every_plan_is_named_and_not_drawn(figures):
    curve = [tried("", 900 * MS, 20 * GIB), tried("", 800 * MS, 40 * GIB)]
    settings = [tried("swap everything", 1801 * MS, 19 * GIB), tried("full recompute", 1800 * MS, 19 * GIB)]
    plot_tradeoffs(settings, "p.png", curve=curve, title="llama", caption="device")
    assert legend(figures[0].legends[0]) == ["plans", "full recompute"]
    assert "device. Not drawn: swap everything, 1.80 s, 19.0 GiB" in figures[0].get_supxlabel()


def test_a_long_caption_is_all_in_the_picture(figures):
    caption = (
        "Atlas 800T A2, Ascend 910B (313T), with figures of a device that somebody gave by hand, one by one, twice"
    )
    plot_tradeoffs(POINTS, "c.png", title="llama", caption=caption, budget_bytes=54 * GIB)
    figure = figures[0]
    figure.draw_without_rendering()
    for text in (figure._supxlabel, *figure.legends[0].get_texts(), figure.axes[0].xaxis.label):
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, text
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, text


def test_names_of_any_length_leave_the_axes_most_of_the_picture_and_cover_nothing(figures):
    names = [
        "recompute, inputs swapped",
        "recompute, inputs and norms swapped",
        "a file of which the name has many words",
    ]
    points = [tried(name, 900 * MS, 40 * GIB) for name in names]
    plot_tradeoffs(points, "c.png", title="step time against peak memory of a model", caption="device")
    figure = figures[0]
    figure.draw_without_rendering()
    axis, title, legend_ = figure.axes[0].get_window_extent(), figure._suptitle.get_window_extent(), figure.legends[0]
    assert axis.width > 0.5 * figure.bbox.width
    boxes = [text.get_window_extent() for text in legend_.get_texts()]
    assert not any(box.overlaps(other) for box in boxes for other in (axis, title))


def test_a_picture_says_that_it_is_simulated_and_carries_its_words(tmp_path):
    plot_tradeoffs([tried("a", 7000 * MS, GIB)], tmp_path / "c.png", title="llama", caption="Atlas 800T A2")
    text = (tmp_path / "c.png").read_bytes().decode("latin-1")
    for words in ("llama: simulated", "Simulated, no device was used. Atlas 800T A2", "step time (s)"):
        assert words in text, words


def test_a_picture_of_an_unknown_kind(tmp_path):
    with pytest.raises(DataError, match="cannot write"):
        plot_tradeoffs(POINTS, tmp_path / "step.xyz", title="llama", caption="")
