"""`mindswap calibrate`, on profiles written by hand in the real formats."""

import pytest

from mindswap import cli
from mindswap.simulator.cost.calibration_file import load_measured
from mindswap.simulator.cost.device_file import load_device
from tests.schema import answer_of
from tests.simulator.cost.profiles import (
    SUMMARY_COLUMNS,
    TORCH_COLUMNS,
    collective,
    copy,
    kernel,
    new_copy,
    on,
    summary,
    write_csv,
    write_json,
    write_profile,
)

KERNELS = [
    *[kernel("MatMulV2", "40", "FLOAT16 1000,1000; FLOAT16 1000,1000", "FLOAT16 1000,1000")] * 3,
    *[kernel("Mul", "24", "FLOAT16 1000,1000; FLOAT16 1000,1000", "FLOAT16 1000,1000", **on("AI_VECTOR_CORE"))] * 3,
]
# 2, 3 and 4 MB to the host: 20 us and 10 GB/s.
COPIES = [copy(0, 220, 2 * 10**6), copy(1000, 320, 3 * 10**6), copy(2000, 420, 4 * 10**6)]
STEPS = [{"Step": "1", "Computing": "192", "Communication(Not Overlapped)": "48", "Free": "760"}]


@pytest.fixture
def run(capsys, tmp_path):
    def run_command_line(*arguments):
        code = cli.main(["calibrate", *map(str, arguments)])
        captured = capsys.readouterr()
        assert "a bug" not in captured.err, captured.err
        return code, captured.out, captured.err

    return run_command_line


def row(out, first):
    return [line.split() for line in out.splitlines() if line.split()[:1] == [first]]


def test_a_device_file_comes_out(run, tmp_path):
    write_profile(tmp_path / "profile", KERNELS, COPIES, STEPS)
    file = tmp_path / "device.yaml"
    code, out, err = run(tmp_path / "profile", "-o", file, "--device", "generic")
    assert (code, err) == (0, "")
    for text in (
        "2 operators measured: 6 of 6 kernels, 100 % of their 192 us",
        "1 step of 1.00 ms on average: computing 19 %, communication not overlapped 5 %, free 76 %",
        "d2h: t = 20.0 us + size / 10.0 GB/s; off by 0.0 % for the middle copy, 0.0 % at most",
        "h2d, h2d_latency stay: no copies in this direction",
        f"written: {file}",
    ):
        assert text in out
    assert row(out, "d2h") == [["d2h", "10.0", "GB/s", "10.0", "GB/s", "3", "0.0", "%"]]
    device = load_device(file)
    assert device.offload.latency_ns == 20_000
    assert device.compute_permille == load_device("generic").compute_permille
    assert sorted(load_measured(file).values()) == [24_000, 40_000]


def test_the_same_figures_from_torch_npu_and_from_msprof(run, tmp_path):
    new = [new_copy(0, 220, 2 * 10**6), new_copy(1000, 320, 3 * 10**6), new_copy(2000, 420, 4 * 10**6)]
    write_profile(tmp_path / "ms", KERNELS, COPIES, STEPS)
    write_profile(tmp_path / "pt", KERNELS, new, STEPS, rank="rank0_ascend_pt", columns=TORCH_COLUMNS)
    msprof = tmp_path / "cann" / "PROF_1" / "mindstudio_profiler_output"
    write_csv(msprof / "op_summary_20260101.csv", SUMMARY_COLUMNS, [summary(entry) for entry in KERNELS])
    write_json(msprof / "msprof_20260101.json", new)
    found = []
    for name in ("ms", "pt", "cann"):
        code, out, _ = run(tmp_path / name, "-o", tmp_path / f"{name}.yaml", "--device", "generic", "--json")
        assert code == 0
        found.append(answer_of(out)["figures"])
    assert found[0] == found[1] == found[2]


def test_json(run, tmp_path):
    output = write_profile(tmp_path / "profile", KERNELS, COPIES, STEPS)
    entries = {f"hcom_allGather__1_{index}@9": collective(1, HCCS=(100, 2)) for index in range(3)}
    write_json(output / "communication.json", {"step1": {"p2p": {}, "collective": entries}})
    code, out, _ = run(tmp_path / "profile", "-o", tmp_path / "d.yaml", "--device", "generic", "--json")
    data = answer_of(out)
    assert code == 0
    assert (data["mean_step_ns"], data["num_covered"], data["covered_ns"]) == (10**6, 6, 192_000)
    figures = {figure["name"]: figure for figure in data["figures"]}
    assert figures["d2h_latency"] == {
        "name": "d2h_latency", "before": 0, "fitted": 20_000, "num_samples": 3, "residual_permille": 0,
        "objection": "", "is_accepted": True,
    }  # fmt: skip
    assert figures["collective_fraction"]["fitted"] == 500  # 50 of 100 GB/s
    assert data["links"]["d2h"]["bandwidth_bytes_per_s"] == 10**10
    assert data["others_ns"] == {}


def test_a_profile_that_shows_nothing_is_not_written(run, tmp_path):
    write_profile(tmp_path / "profile", [])
    code, out, err = run(tmp_path / "profile", "-o", tmp_path / "device.yaml", "--device", "generic")
    assert (code, (tmp_path / "device.yaml").exists()) == (1, False)
    assert "0 operators measured: 0 of 0 kernels" in out
    assert "this profile shows no figure of the device" in err and "profiler level 2" in err


def test_nothing_is_replaced_unasked(run, tmp_path):
    write_profile(tmp_path / "profile", KERNELS)
    file = tmp_path / "device.yaml"
    file.write_text("mine")
    code, _, error = run(tmp_path / "profile", "-o", file, "--device", "generic")
    assert (code, file.read_text()) == (1, "mine")
    assert "already exists" in error and "--overwrite" in error
    assert run(tmp_path / "profile", "-o", file, "--overwrite", "--device", "generic")[0] == 0
    assert load_device(file).title == load_device("generic").title


def test_no_profile_and_no_device(run, tmp_path):
    code, _, error = run(tmp_path, "-o", tmp_path / "device.yaml")
    assert code == 1 and "op_summary_*.csv below it" in error
    code, _, error = run(tmp_path, "-o", tmp_path / "device.yaml", "--device", "atlas")
    assert code == 1 and "device 'atlas': no such device" in error
    assert not (tmp_path / "device.yaml").exists()


@pytest.mark.parametrize("name", ["trace_view.json", "communication.json", "step_trace_time.csv", "kernel_details.csv"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00\x01", b"{" * 1000, b'[{"name": 3, "ph": "X"', b"a,b\n1"])
def test_a_broken_file_beside_a_good_one_is_no_bug(run, tmp_path, name, content):
    output = write_profile(tmp_path / "profile", KERNELS)
    (output / name).write_bytes(content)
    code, _, error = run(tmp_path / "profile", "-o", tmp_path / "device.yaml", "--device", "generic")
    assert code == 1 and f"{name}: " in error and "\n    fix:     " in error


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace(",", ";"), "no column Type, Duration(us)"),
        (lambda text: "sep=,\r\n" + text, "no column Type, Duration(us)"),
        (lambda text: text.replace("Duration(us)", "Duration(ms)"), "no column Duration(us)"),
        (lambda text: text.replace(",40,", ',"40,5",'), "kernel_details.csv:2: '40,5' is no time or size"),
    ],
)
def test_a_table_that_a_spreadsheet_wrote_has_a_fix(run, tmp_path, change, said):
    file = write_profile(tmp_path / "profile", KERNELS) / "kernel_details.csv"
    file.write_text(change(file.read_text()), newline="")
    code, _, error = run(tmp_path / "profile", "-o", tmp_path / "device.yaml", "--device", "generic")
    assert code == 1 and said in error and "leave its files as they are" in error


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_any_ends_of_lines_will_do(run, tmp_path, ending):
    file = write_profile(tmp_path / "profile", KERNELS, COPIES) / "kernel_details.csv"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\r\n", ending.encode()))
    assert run(tmp_path / "profile", "-o", tmp_path / "device.yaml", "--device", "generic")[0] == 0


def test_the_name_of_a_card_is_no_device_and_none_is_guessed(run, tmp_path):
    write_profile(tmp_path / "profile", KERNELS)
    code, _, error = run(tmp_path / "profile", "-o", tmp_path / "device.yaml", "--device", "910B")
    assert code == 1 and "device '910B': no such device\n    known: a3_die, atlas_800_9000, atlas_800i_a2_32g" in error


def test_help_has_examples(capsys):
    assert cli.main(["calibrate", "--help"]) == 0
    out = capsys.readouterr().out
    assert "examples:\n  mindswap calibrate ./profile -o device.yaml" in out
    assert "level 1 has no sizes of copies" in out
