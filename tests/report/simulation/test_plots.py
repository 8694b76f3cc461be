from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from mindswap.errors import DataError
from mindswap.report import tradeoff_plots
from mindswap.report.simulation import plots
from mindswap.report.simulation.bars import BarKind, Bars
from mindswap.report.simulation.plots import plot_simulation
from mindswap.report.tradeoff_plots import TradeOff, plot_tradeoffs
from tests.report.simulated import GIB, MS, large_program, pipeline_report, report_of, small_report

pytest.importorskip("matplotlib")

POINTS = [
    TradeOff("none", 880 * MS, 71 * GIB),
    TradeOff("full-recompute", 1150 * MS, 31 * GIB),
    TradeOff("select-recompute", 960 * MS, 48 * GIB),
    TradeOff("default-swap", 965 * MS, 48 * GIB),
    TradeOff("planned.yaml", 961 * MS, 48 * GIB),
]


@pytest.fixture
def svg_text(monkeypatch):
    """SVG with words as words, not as outlines."""
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")


def test_narrow_bars_of_each_kind_have_their_share_of_the_picture():
    """4 ns backward, 1 ns recompute, a thousand times, in 777 pixels: 80 and 20 % of them."""
    num, step_ns = 2000, 5 * 1000
    kinds = np.resize([BarKind.BACKWARD, BarKind.RECOMPUTE], num)
    starts = np.repeat(np.arange(num // 2) * 5, 2) + np.resize([0, 4], num)
    ends = np.append(starts[1:], step_ns)  # backward 4 ns, recompute 1 ns
    zero = np.zeros(num, np.int64)
    bars = Bars(**dict.fromkeys(Bars.__dataclass_fields__, zero) | {"kind": kinds, "start_ns": starts, "end_ns": ends})
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.77, 1), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axis = figure.add_axes((0, 0, 1, 1))
    report = SimpleNamespace(step_time_ns=step_ns, timeline=SimpleNamespace(step_time_ns=step_ns))
    plots._draw_streams(axis, report, [("stage 0", bars)], 1, numbers=False)
    axis.set_xlim(0, step_ns)
    canvas.draw()
    row = np.asarray(canvas.buffer_rgba())[50, :, :3]
    is_grey = (row == [0x8C, 0x96, 0xA3]).all(axis=1)
    is_green = (row == [0x2F, 0x9E, 0x77]).all(axis=1)
    assert 0.15 < is_grey.mean() < 0.25 and 0.75 < is_green.mean() < 0.85


def test_png_of_a_step(tmp_path):
    plot_simulation(small_report(), tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_says_simulated_with_device_budget_and_peak(tmp_path, svg_text):
    plot_simulation(small_report(), tmp_path / "step.svg")
    text = (tmp_path / "step.svg").read_text()
    for words in ("small.yaml: simulated step", "Atlas 800T A2: copy out (D2H) 20.0 GB/s", "budget 5.0 GiB",
                  "peak 4.1 GiB", "ffn Mul, layer 0", "waits for a copy in", "optimizer state"):  # fmt: skip
        assert words in text, words
    assert "cards in a node" not in text  # not a main figure


def test_a_pipeline_has_a_row_per_stage(tmp_path, svg_text):
    plot_simulation(pipeline_report(), tmp_path / "all.svg")
    text = (tmp_path / "all.svg").read_text()
    assert ">stage 0<" in text and ">stage 1<" in text and "memory of stage 0" in text


def test_many_layers_and_stages_are_drawn(tmp_path):
    plot_simulation(report_of(large_program(1, 1, 80, 40)), tmp_path / "layers.png")
    plot_simulation(report_of(large_program(16, 8, 2, 10)), tmp_path / "stages.png")
    assert (tmp_path / "layers.png").exists() and (tmp_path / "stages.png").exists()


@pytest.mark.parametrize("name", ["step.xyz", "no/step.png"])
def test_a_file_that_cannot_be_written(tmp_path, name):
    with pytest.raises(DataError, match="cannot write"):
        plot_simulation(small_report(), tmp_path / name)


@pytest.fixture
def figures(monkeypatch):
    """Figures instead of files."""
    kept = []
    monkeypatch.setattr(tradeoff_plots, "save_figure", lambda figure, path, dpi: kept.append(figure))
    return kept


def name_boxes(figure) -> dict:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    (axis,) = figure.axes
    names = {point.name for point in POINTS}
    return {t.get_text(): tradeoff_plots._text_box(t, renderer) for t in axis.texts if t.get_text() in names}


def test_names_of_configurations_do_not_overlap(tmp_path, figures):
    plot_tradeoffs(POINTS, tmp_path / "c.png", title="llama", caption="device", budget_bytes=54 * GIB)
    boxes = name_boxes(figures[0])
    assert len(boxes) == len(POINTS)
    assert not [pair for pair in combinations(boxes, 2) if boxes[pair[0]].overlaps(boxes[pair[1]])]


def test_names_keep_off_the_curve(tmp_path, figures):
    curve = [TradeOff("", (870 + 300 // step) * MS, (30 + 3 * step) * GIB) for step in range(1, 12)]
    plot_tradeoffs(POINTS, tmp_path / "p.png", curve=curve, title="llama", caption="device", budget_bytes=54 * GIB)
    (axis,) = figures[0].axes
    marks = [axis.transData.transform((p.peak_bytes / GIB, p.step_time_ns / MS)) for p in curve]
    assert not [name for name, box in name_boxes(figures[0]).items() if any(box.contains(x, y) for x, y in marks)]


def test_where_no_policy_can_be_is_filled(tmp_path, figures):
    curve = [TradeOff("", 900 * MS, 40 * GIB), TradeOff("", 880 * MS, 71 * GIB)]
    bound = [TradeOff("", 950 * MS, 30 * GIB), TradeOff("", 880 * MS, 50 * GIB)]
    plot_tradeoffs(POINTS, tmp_path / "p.png", curve=curve, title="llama", caption="device", bound=bound)
    (axis,) = figures[0].axes
    (area,) = [one for one in axis.collections if one.get_label() == "no policy can be here"]
    (outline,) = area.get_paths()
    inside = [(27, 1000), (29, 1150), (35, 870), (60, 870)]  # GiB, ms
    outside = [(31, 960), (40, 925), (60, 890)]
    assert [outline.contains_point(point) for point in inside + outside] == [True] * 4 + [False] * 3


def test_a_bound_below_all_that_is_shown_is_not_in_the_legend(tmp_path, figures):
    curve = [TradeOff("", 900 * MS, 40 * GIB), TradeOff("", 880 * MS, 71 * GIB)]
    for least_bytes in (1 * GIB, 39 * GIB):
        bound = [TradeOff("", 100 * MS, least_bytes)]
        plot_tradeoffs([], tmp_path / "p.png", curve=curve, title="llama", caption="device", bound=bound)
    named = [[text.get_text() for text in figure.axes[0].get_legend().get_texts()] for figure in figures]
    assert named == [["plans"], ["no policy can be here", "plans"]]


@pytest.mark.filterwarnings("error")  # matplotlib warns of a limit of 0
def test_step_times_that_differ_much_are_drawn_on_a_logarithmic_scale(tmp_path, figures):
    for slowest in (2, 3, 30):
        curve = [TradeOff("", slowest * 900 * MS, 20 * GIB), TradeOff("", 900 * MS, 40 * GIB)]
        plot_tradeoffs([], tmp_path / "p.png", curve=curve, title="llama", caption="device")
    assert [figure.axes[0].get_yscale() for figure in figures] == ["linear", "log", "log"]
    labels = [figure.axes[0].get_ylabel() for figure in figures]
    assert labels == ["step time (ms)", "step time (s), log scale", "step time (s), log scale"]
    # 0.9 s and 27 s: 0.14 of their distance below and above.
    assert figures[2].axes[0].get_ylim() == pytest.approx((0.9 / 30**0.14, 27 * 30**0.14))


def test_one_configuration_without_a_budget(tmp_path, svg_text):
    plot_tradeoffs(POINTS[:1], tmp_path / "c.svg", title="llama", caption="Atlas 800T A2")
    text = (tmp_path / "c.svg").read_text()
    assert "llama: simulated" in text and "Simulated, no device was used. Atlas 800T A2" in text


def test_seconds_for_long_steps(tmp_path, svg_text):
    plot_tradeoffs([TradeOff("a", 7000 * MS, GIB)], tmp_path / "c.svg", title="llama", caption="")
    assert "step time (s)" in (tmp_path / "c.svg").read_text()
