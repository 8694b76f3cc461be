"""Device files that are written and read back; measured durations in them."""

from dataclasses import replace

import pytest

from mindswap.errors import CostError
from mindswap.graph.analysis.work import count_work
from mindswap.simulator.cost.calibration_file import format_device_file, load_measured
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.device_file import list_devices, load_device
from mindswap.simulator.cost.hardware import figure_values, with_figures
from mindswap.simulator.profile.profile import measure
from tests.simulator.cost.builders import GENERIC, device, matmul, mul, operator, tensor


@pytest.mark.parametrize("name", list_devices())
def test_a_written_device_reads_back_the_same(tmp_path, name):
    before = load_device(name)
    path = tmp_path / f"{name}.yaml"
    path.write_text(format_device_file(before, {"based_on": name}, ()))
    assert load_device(path) == before
    assert load_measured(path) == {}


def test_odd_figures_and_sources_read_back_the_same(tmp_path):
    link = replace(GENERIC.offload, bandwidth_bytes_per_s=10_588_235_293, latency_ns=17)
    before = device(name="device", offload=link, sources={**GENERIC.sources, "d2h": 'a "table"'})
    path = tmp_path / "device.yaml"
    path.write_text(format_device_file(before, {}, ()))
    assert load_device(path) == before
    assert figure_values(load_device(path))["d2h"] == 10_588_235_293


def test_a_file_without_measured_durations_has_none(tmp_path):
    path = tmp_path / "device.yaml"
    text = format_device_file(GENERIC, {}, ())
    for without in (text.replace("measured:\n  []\n", ""), text.replace("measured:\n  []\n", "measured:\n")):
        assert without != text
        path.write_text(without)
        assert load_measured(path) == {}


def test_a_duration_may_be_nothing_and_texts_are_written_as_they_are(tmp_path):
    path = tmp_path / "device.yaml"
    text = format_device_file(replace(GENERIC, title="表"), {}, measure([mul(0)]), comment="made by hand")
    assert text.startswith('# made by hand\ntitle: "表"\n')
    assert format_device_file(GENERIC, {}, ()).startswith("title: ")
    path.write_text(text, encoding="utf-8")
    assert list(load_measured(path).values()) == [0]


def test_measured_durations_are_found_again(tmp_path):
    path = tmp_path / "device.yaml"
    path.write_text(format_device_file(GENERIC, {}, measure([matmul(40_000), mul(24_000)])))
    square = tensor(1000, 1000)
    node = operator("MatMul", square)
    table = CostTable(load_device(path), load_measured(path))
    assert table.operator_ns(node, count_work("MatMul", (square, square), (square,))) == 40_000


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{op: Mul}", "write {op, inputs, outputs, duration_ns, count}"),
        ("{op: Mul, inputs: [half 3x4], outputs: [], duration_ns: 1, count: 1}", "'half 3x4' is no tensor"),
        ("{op: Mul, inputs: [float16 3*4], outputs: [], duration_ns: 1, count: 1}", "'float16 3*4' is no tensor"),
        ("{op: Mul, inputs: [float16 3xa], outputs: [], duration_ns: 1, count: 1}", "'float16 3xa' is no tensor"),
        ("{op: Mul, inputs: [], outputs: [], duration_ns: fast, count: 1}", "duration_ns a whole number"),
        ("{op: Mul, inputs: [], outputs: [], duration_ns: -1, count: 1}", "duration_ns a whole number"),
    ],
)
def test_a_broken_entry_has_its_line(tmp_path, entry, said):
    path = tmp_path / "device.yaml"
    path.write_text(format_device_file(GENERIC, {}, ()).replace("  []", f"- {entry}"))
    line = path.read_text().splitlines().index(f"- {entry}") + 1
    with pytest.raises(CostError, match=f"device.yaml:{line}:3: measured: ") as caught:
        load_measured(path)
    assert said in str(caught.value)


def test_other_figures_and_nothing_else():
    after = with_figures(GENERIC, {"d2h": 10**9, "compute_fraction": 500}, {"d2h": "measured"})
    assert (after.offload.bandwidth_bytes_per_s, after.compute_permille) == (10**9, 500)
    assert (after.offload.latency_ns, after.prefetch) == (GENERIC.offload.latency_ns, GENERIC.prefetch)
    assert (after.sources["d2h"], after.sources["h2d"]) == ("measured", GENERIC.sources["h2d"])
    assert with_figures(GENERIC, {}, {}) == GENERIC


def test_of_many_broken_entries_twenty_are_said(tmp_path):
    path = tmp_path / "device.yaml"
    path.write_text(format_device_file(GENERIC, {}, ()).replace("  []", "\n".join(["- {op: Mul}"] * 30)))
    with pytest.raises(CostError) as caught:
        load_measured(path)
    assert len(str(caught.value).splitlines()) == 20
