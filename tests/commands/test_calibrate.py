"""`mindswap calibrate`, on a profile written by hand in the real format."""

import json

import pytest

from mindswap import cli
from mindswap.cost.calibration_file import load_measured
from mindswap.cost.device_file import load_device
from tests.cost.profiles import copy, kernel, write_profile

KERNELS = [
    kernel("MatMulV2", "40", "FLOAT16 1000,1000; FLOAT16 1000,1000", "FLOAT16 1000,1000"),
    kernel("Mul", "24", "FLOAT16 1000,1000; FLOAT16 1000,1000", "FLOAT16 1000,1000"),
]
# 1, 2 and 4 MB to the host: 20 us and 10 GB/s.
COPIES = [copy(0, 120, 10**6), copy(1000, 220, 2 * 10**6), copy(2000, 420, 4 * 10**6)]
STEPS = [{"Step": "1", "Computing": "900", "Communication(Not Overlapped)": "50", "Free": "50"}]


@pytest.fixture
def run(capsys, tmp_path):
    def run_command_line(*arguments):
        code = cli.main(["calibrate", *map(str, arguments)])
        captured = capsys.readouterr()
        assert "a bug" not in captured.err, captured.err
        return code, captured.out, captured.err

    return run_command_line


def test_a_device_file_comes_out(run, tmp_path):
    write_profile(tmp_path / "profile", KERNELS, COPIES, STEPS)
    file = tmp_path / "device.yaml"
    code, out, _ = run(tmp_path / "profile", "-o", file, "--device", "generic")
    assert code == 0
    for text in (
        "2 operators measured: 2 of 2 kernels, 100 % of their 64.0 us",
        "1 steps of 1.00 ms on average",
        "d2h: t = 20.0 us + size / 10.0 GB/s; off by 0.0 % for the middle copy, 0.0 % at most",
        "roofline with these figures: +0.0 % of the measured time in total, off by 0.0 % for the middle operator",
        "note: h2d: fewer than three copies",
        f"written: {file}",
    ):
        assert text in out
    assert [line.split() for line in out.splitlines() if line.startswith("compute_fraction")] == [
        ["compute_fraction", "1.000", "0.500", "1", "kernels"]
    ]
    device = load_device(file)
    assert (device.compute_permille, device.memory_permille, device.offload.latency_ns) == (500, 250, 20_000)
    assert sorted(load_measured(file).values()) == [24_000, 40_000]


def test_json(run, tmp_path):
    write_profile(tmp_path / "profile", KERNELS, COPIES, STEPS)
    code, out, _ = run(tmp_path / "profile", "-o", tmp_path / "d.yaml", "--device", "generic", "--json")
    data = json.loads(out)
    assert code == 0
    assert (data["mean_step_ns"], data["num_covered"], data["covered_ns"]) == (10**6, 2, 64_000)
    assert data["changes"][0] == {"name": "compute_fraction", "before": 1000, "after": 500, "basis": "1 kernels"}
    assert data["links"]["d2h"]["bandwidth_bytes_per_s"] == 10**10


def test_nothing_is_replaced_unasked(run, tmp_path):
    write_profile(tmp_path / "profile", KERNELS)
    file = tmp_path / "device.yaml"
    file.write_text("mine")
    code, _, error = run(tmp_path / "profile", "-o", file)
    assert (code, file.read_text()) == (1, "mine")
    assert "already there" in error and "--overwrite" in error
    assert run(tmp_path / "profile", "-o", file, "--overwrite")[0] == 0
    assert load_device(file).title == "Atlas 800T A2, Ascend 910B (313T)"


def test_no_profile_and_no_device(run, tmp_path):
    code, _, error = run(tmp_path, "-o", tmp_path / "device.yaml")
    assert code == 1 and "kernel_details.csv below it" in error
    code, _, error = run(tmp_path, "-o", tmp_path / "device.yaml", "--device", "atlas")
    assert code == 1 and "device 'atlas': no such device" in error
    assert not (tmp_path / "device.yaml").exists()


def test_a_profile_without_kernels_keeps_every_figure(run, tmp_path):
    write_profile(tmp_path / "profile", [])
    code, out, _ = run(tmp_path / "profile", "-o", tmp_path / "device.yaml", "--device", "generic")
    assert code == 0 and "0 operators measured: 0 of 0 kernels" in out
    generic = load_device("generic")
    again = load_device(tmp_path / "device.yaml")
    assert (again.compute_permille, again.offload, again.sources) == (
        generic.compute_permille,
        generic.offload,
        generic.sources,
    )


def test_help_has_examples(capsys):
    assert cli.main(["calibrate", "--help"]) == 0
    assert "examples:\n  mindswap calibrate ./profile -o device.yaml" in capsys.readouterr().out
