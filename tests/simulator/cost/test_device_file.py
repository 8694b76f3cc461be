"""Device files: what comes with mindswap, strict reading, figures set by the user."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from mindswap.config.parse import parse_file
from mindswap.errors import CostError
from mindswap.features.step import require_dtype
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE, FOLDER, list_devices, load_device
from mindswap.simulator.cost.hardware import FIGURES, with_fragments, without_fragments
from tests.builders import document

GENERIC_TEXT = (FOLDER / "generic.yaml").read_text()


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "device.yaml"
    path.write_text(text)
    return path


def changed(tmp_path: Path, key: str, line: str) -> Path:
    """The generic device with another line for a key; "" drops it."""
    lines = [line if old.startswith(f"{key}:") else old for old in GENERIC_TEXT.splitlines()]
    return written(tmp_path, "\n".join(lines))


def wrong(path: Path, **overrides: str) -> list[str]:
    """What the reader says about a file, line by line, without the folder."""
    with pytest.raises(CostError) as caught:
        load_device(path, overrides)
    return str(caught.value).replace(str(path), path.name).splitlines()


def test_the_default_device_has_the_published_figures():
    device = load_device()
    assert device.name == DEFAULT_DEVICE == "atlas_800t_a2"
    assert device.peak_flops == {
        "float16": 313_000_000_000_000,
        "bfloat16": 294_900_000_000_000,
        "float32": 83_000_000_000_000,
    }
    assert device.memory_bandwidth_bytes_per_s == int(1.6 * 2**40)
    assert (device.compute_permille, device.weight_gradient_permille, device.num_matrix_cores) == (830, 700, 20)
    assert (device.attention_permille, device.attention_grad_permille) == (287, 382)
    assert (device.memory_permille, device.cache_bytes) == (720, 192 * 2**20)
    assert device.cache_bandwidth_bytes_per_s == 2_200 * 10**9
    assert (device.vector_rates["norm"], device.vector_rates["activation_grad"]) == (180 * 10**9, 103 * 10**9)
    assert (device.intranode.efficiency_permille, device.internode.efficiency_permille) == (627, 970)
    assert device.op_latency_ns == {"matrix": 5000, "vector": 2000, "communication": 10000}
    assert (device.memory_bytes, device.usable_memory_bytes) == (int(Decimal("60.96") * 2**30), 59392 * 2**20)
    assert (device.offload.bandwidth_bytes_per_s, device.prefetch.bandwidth_bytes_per_s) == (20 * 10**9, 23 * 10**9)


@pytest.mark.parametrize("name", list_devices())
def test_every_figure_of_every_device_has_a_source(name):
    device = load_device(name)
    assert set(device.sources) == set(FIGURES)
    assert all(len(source) > 5 for source in device.sources.values())


@pytest.mark.parametrize("name", list_devices())
def test_every_key_of_the_files_has_its_unit(name):
    root = parse_file(str(FOLDER / f"{name}.yaml")).root
    units = ("_tflops", "_gflops", "_fraction", "_per_s", "_us", "_gib", "_mib", "_b")
    keys = [
        str(entry.key)
        for entry in root.entries
        if not str(entry.key).startswith(("num_", "title", "margin", "fragments"))
    ]
    assert [key for key in keys if not key.endswith(units)] == []


def test_a_cache_has_a_bandwidth(tmp_path):
    lines = wrong(changed(tmp_path, "cache_size_mib", "cache_size_mib: {value: 1, source: here}"))
    assert lines == ["cache_bandwidth: 0 goes only with a cache_size of 0"]


def test_rates_have_their_unit():
    device = load_device("generic", {"norm_rate": "180Gelements/s", "softmax_rate": "1.5 Melements/s"})
    assert (device.vector_rates["norm"], device.vector_rates["softmax"]) == (180 * 10**9, 1_500_000)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(CostError, match="did you mean atlas_800t_a2") as caught:
        load_device("atlas_800_a2")
    assert all(name in str(caught.value) for name in list_devices())


def test_a_name_that_is_far_from_all_has_no_hint():
    for name in ("foo", "adir"):
        with pytest.raises(CostError, match=f"^device '{name}': no such device\n    known: "):
            load_device(name)


def test_a_configuration_is_no_device_file(tmp_path):
    (tmp_path / "x.yaml").write_text("seed: 0\nmodel: {}\n")
    assert len(wrong(tmp_path / "x.yaml")) == 2  # the message, and what is allowed
    assert wrong(tmp_path / "x.yaml")[0] == "x.yaml:1:1: this is no device file"


def test_a_missing_file_is_an_error(tmp_path):
    assert wrong(tmp_path / "none.yaml")[0] == "none.yaml: the file does not exist"


def test_everything_wrong_is_listed_at_once(tmp_path):
    text = GENERIC_TEXT.replace("d2h_gb_per_s", "d2h_gbps").replace("value: 32,", "value: -1,")
    lines = wrong(written(tmp_path, text))
    assert any("d2h_gbps: no such key, or no such unit" in line and "d2h_gb_per_s" in line for line in lines)
    assert any("missing: " in line and "d2h_gb_per_s" in line for line in lines)
    assert any("device_memory_gib: -1: must be more than 0" in line for line in lines)
    assert any("usable_memory_gib: -1: must be more than 0" in line for line in lines)
    assert len(lines) == 4


def test_the_place_of_a_wrong_figure_is_named(tmp_path):
    # Line 1 is a comment, line 2 the title, line 3 the first figure; its value begins in column 32.
    path = changed(tmp_path, "matrix_float16_tflops", "matrix_float16_tflops: {value: fast, source: x}")
    assert wrong(path) == ["device.yaml:3:32: matrix_float16_tflops: 'fast' is no number"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("h2d_gb_per_s: 10", "write {value: NUMBER"),
        ("h2d_gb_per_s: {value: 10}", "write {value: NUMBER"),
        ("h2d_gb_per_s: {value: 10, source: x, unit: GB}", "write {value: NUMBER"),
        ("h2d_gb_per_s: {value: True, source: x}", "True is no number"),
        ("h2d_gb_per_s: {value: .inf, source: x}", "no number"),
        ("h2d_gb_per_s: {value: 0, source: x}", "must be more than 0"),
        ("", "missing: "),
    ],
)
def test_a_wrong_figure(tmp_path, line, said):
    lines = wrong(changed(tmp_path, "h2d_gb_per_s", line))
    assert len(lines) == 1
    assert said in lines[0]


def test_a_figure_may_be_in_another_unit_but_only_once(tmp_path):
    line = "h2d_gib_per_s: {value: 1, source: x}"
    assert load_device(changed(tmp_path, "h2d_gb_per_s", line)).prefetch.bandwidth_bytes_per_s == 2**30
    twice = f"{line}\nh2d_mb_per_s: {{value: 1, source: x}}"
    assert "h2d is given twice" in wrong(changed(tmp_path, "h2d_gb_per_s", twice))[0]


def test_fractions_are_at_most_one(tmp_path):
    path = changed(tmp_path, "compute_fraction", "compute_fraction: {value: 1.1, source: x}")
    assert "must be at most 1" in wrong(path)[0]
    path = changed(tmp_path, "compute_fraction", "compute_fraction: {value: 1.001, source: x}")
    assert "must be at most 1" in wrong(path)[0]
    path = changed(tmp_path, "compute_fraction", "compute_fraction: {value: 1, source: x}")
    assert load_device(path).compute_permille == 1000


def test_a_title_is_a_text_and_no_other_text_is_a_title(tmp_path):
    assert "title: no such key" in wrong(changed(tmp_path, "title", "title: 5"))[0]
    assert "name: no such key" in wrong(changed(tmp_path, "title", "title: a\nname: b"))[0]


def test_a_pool_leaves_fragments_if_it_takes_more_than_is_used():
    device = load_device("generic")
    assert [replace(device, fragments_permille=n).leaves_fragments for n in (0, 1)] == [False, True]


def test_counts_are_whole(tmp_path):
    path = changed(tmp_path, "num_cards_per_node", "num_cards_per_node: {value: 7.5, source: x}")
    assert "no whole number" in wrong(path)[0]


def test_the_user_replaces_figures():
    device = load_device(
        "generic", {"memory": "16GiB", "d2h": "20GB/s", "compute_fraction": "0.5", "d2h_latency": "1ms"}
    )
    assert device.usable_memory_bytes == 16 * 2**30
    assert (device.offload.bandwidth_bytes_per_s, device.offload.latency_ns) == (20 * 10**9, 10**6)
    assert device.compute_permille == 500
    assert device.sources["d2h"] == device.sources["usable_memory"] == "set by the user"
    assert device.sources["h2d"] != "set by the user"


def test_wrong_figures_of_the_user_are_listed_at_once():
    with pytest.raises(CostError) as caught:
        load_device("generic", {"memory": "16", "d2h": "20Gb/s", "d3h": "1GB/s", "memory_bandwidth_fraction": "none"})
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["memory", "d2h", "d3h", "memory_bandwidth_fraction"]
    assert "such as 16" not in lines[0] and "such as 54GiB" in lines[0]


def test_a_budget_larger_than_the_device_is_refused():
    with pytest.raises(CostError, match="more than"):
        load_device("generic", {"memory": "33GiB"})


def test_what_a_pool_that_maps_no_pages_loses_to_fragments():
    """60 permille: 1000 bytes that are used take 1060; of 1060 and 1061 bytes 1000 can be used, of 1059 only 999."""
    device = replace(load_device("generic"), fragments_permille=60)
    assert device.leaves_fragments and not replace(device, fragments_permille=0).leaves_fragments
    assert (with_fragments(device, 1000), with_fragments(device, 1001)) == (1060, 1062)
    assert [without_fragments(device, size) for size in (1059, 1060, 1061)] == [999, 1000, 1000]
    assert all(without_fragments(device, with_fragments(device, size)) == size for size in range(500))


def test_cards_of_32_gb_offer_less_than_32_gib():
    for name in ("atlas_800i_a2_32g", "atlas_800_9000"):
        device = load_device(name)
        assert 29 * 2**30 <= device.usable_memory_bytes < device.memory_bytes < 32 * 2**30
    assert not load_device("atlas_800i_a2_32g").leaves_fragments  # 910B maps pages
    assert load_device("atlas_800_9000").leaves_fragments  # 910A does not
    assert load_device("atlas_800_9000").peak_flops["bfloat16"] == 0


def test_a_file_in_bfloat16_cannot_train_on_cards_without_it():
    text = "{model: {model_config: {compute_dtype: bfloat16}}}"
    device = load_device("atlas_800_9000")
    with pytest.raises(CostError, match=r"^x.yaml:1:40: model.model_config.compute_dtype: bfloat16 is not"):
        require_dtype(device, "bfloat16", document(text))
    require_dtype(device, "float16", document(text))
    require_dtype(load_device(), "bfloat16", document(text))
