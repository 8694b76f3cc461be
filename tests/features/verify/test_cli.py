"""`mindswap verify`: what it prints and its exit code; the faults it finds are in test_verify_faults.py."""

import json
import re
import shutil
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.graph.analysis.swap_effect import IdleReason
from tests import forked
from tests.runtime.logs.samples import STATISTICS
from tests.schema import answer_of

ROOT = Path(__file__).resolve().parents[3]
CPU_CASES = ROOT / "configs" / "llama2_7b" / "cpu"


@pytest.fixture
def verify(capsys, tmp_path):
    def run(text, *options):
        path = tmp_path / "x.yaml"
        path.write_text(text)
        code = cli.main(["verify", str(path), *options])
        captured = capsys.readouterr()
        assert "a bug" not in captured.err and "Traceback" not in captured.err, captured.err
        return code, captured.out, captured.err.replace(str(path), "x.yaml")

    return run


# Nothing is compiled here.


def test_with_swap_off_there_is_nothing_to_verify(verify):
    assert verify("seed: 0\n") == (0, "swap is off: nothing to verify in the graph\n", "")
    code, out, _ = verify("swap_config: {swap: False}\n", "--json")
    assert (code, answer_of(out)["ok"], answer_of(out)["layers"]) == (0, True, [])


def test_problems_of_the_file_come_with_their_places(verify):
    code, out, error = verify("swap_config:\n  swap: True\n  default_prefetch: 0\n")
    assert (code, out) == (1, "")
    assert error.startswith("x.yaml:3:21: error: swap_config.default_prefetch: 0 is out of range [bad-prefetch]\n")


def test_what_is_no_yaml_is_refused_with_its_place(verify):
    code, out, error = verify("model: [1, 2\n")
    assert (code, out) == (1, "")
    assert error.startswith("x.yaml:1:8: error: ") and "[yaml-syntax]" in error


def test_a_missing_file_is_refused(capsys, tmp_path):
    assert cli.main(["verify", str(tmp_path / "no.yaml")]) == 1
    assert "the file does not exist" in capsys.readouterr().err


# For real.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's folder with two cases in it."""
    folder = tmp_path_factory.mktemp("verify")
    for name in ("case2_layer_swap", "case4_swap_and_recompute"):
        shutil.copy(CPU_CASES / f"{name}.yaml", folder)
    return folder


def run_in(folder, *arguments):
    """The network without swap is one for all cases here, and is compiled once: it is in the cache."""
    command = ["-m", "mindswap", "verify", *arguments]
    return forked.run(command, cwd=folder, timeout=1800)


@pytest.fixture(scope="module")
def text(folder):
    return run_in(folder, "case2_layer_swap.yaml")


@pytest.fixture(scope="module")
def report(folder):
    return run_in(folder, "--json", "case4_swap_and_recompute.yaml")


@pytest.mark.mindspore
def test_equal_layers_are_in_one_row_with_every_operator_below(text):
    """Worked out in tests/adapters/test_cases.py: 17 operators of a layer, 833 KiB of float32.

    A tensor of (2, 64, 64) has 32 KiB. Attention keeps 5 of those and 2 x 4 x 64 x 64 probabilities (128 KiB);
    feed_forward one, and 4 of (2, 64, 192) with 96 KiB; the norms 2, the sums 2, and twice 2 x 64 values (0.5 KiB).
    """
    assert (text.returncode, text.stderr) == (0, "")
    assert 5 * 32 + 128 + 32 + 4 * 96 + 4 * 32 + 2 * 0.5 == 833
    rows = [line.split() for line in text.stdout.splitlines() if line.startswith("layers ")]
    assert rows[1][:6] == ["layers", "0,", "3", "17", "833.0", "KiB"]
    assert rows[2][:4] == ["layers", "1-2", "0", "0.0"]
    swapped = [line.strip() for line in text.stdout.splitlines() if line.startswith("    swapped ")]
    assert len(swapped) == 17
    assert "swapped attention.flash_attention Softmax: 128.0 KiB float32[2, 4, 64, 64], prefetch 20" in swapped
    assert "the compiled graph follows the policy: 34 MoveTo pairs, 1.6 MiB swapped" in text.stdout


@pytest.mark.mindspore
def test_json_has_every_pair(report):
    data = answer_of(report.stdout)
    assert report.returncode == 0 and data["ok"] is True
    layers = data["layers"]
    assert [(layer["layer"], layer["num_pairs"]) for layer in layers] == [(0, 6), (1, 11), (2, 11), (3, 6)]
    for layer in layers:
        assert layer["swapped_bytes"] == sum(pair["size_bytes"] for pair in layer["pairs"])
        assert layer["kept_bytes"] == layer["kept_before_bytes"] - layer["swapped_bytes"]
        assert (layer["num_recomputed_ops"] > 0) == (layer["layer"] in (0, 3))
    assert {pair["num_prefetch_ops"] for pair in layers[1]["pairs"]} == {20, 15}
    assert layers[3]["pairs"][0] == {
        "operator": "attention.wq Reshape",
        "num_prefetch_ops": 10,
        "size_bytes": 32 * 1024,
        "shape": [128, 64],
        "dtype": "float32",
    }


@pytest.mark.mindspore
def test_brief_says_the_same_but_for_what_is_kept_without_swap(folder, report):
    brief = run_in(folder, "--brief", "--json", "case4_swap_and_recompute.yaml")
    assert (brief.returncode, brief.stderr) == (0, "")
    full = answer_of(report.stdout)
    assert answer_of(brief.stdout) == {**full, "layers": [{**one, "kept_before_bytes": None} for one in full["layers"]]}
    text = run_in(folder, "--brief", "case2_layer_swap.yaml")
    rows = [line.split() for line in text.stdout.splitlines() if line.startswith("layers ")]
    assert rows[1][:7] == ["layers", "0,", "3", "17", "833.0", "KiB", "-"]


@pytest.mark.mindspore
@pytest.mark.parametrize("brief", [[], ["--brief"]])
@pytest.mark.parametrize(("name", "code"), [("attention.reshape", 0), ("attention.wo.reshape", 1)])
def test_of_two_reshapes_in_a_row_the_first_is_the_name_of_what_is_copied(tmp_path, name, code, brief):
    """Heads are merged by the one, and flattened for `wo` by the other: the compiler leaves one reshape.

    Where something is not as asked, a brief answer says all that any other says.
    """
    text = (CPU_CASES / "case3_op_swap.yaml").read_text()
    start = text.index("  op_swap:")
    entry = f"  op_swap:\n    - {{op_name: '{re.escape(name)}', backward_prefetch: 5, layers: True}}\n"
    (tmp_path / "x.yaml").write_text(text[:start] + entry)
    run = run_in(tmp_path, "--json", *brief, "x.yaml")
    assert (run.returncode, run.stderr) == (code, "")
    for found in json.loads(run.stdout)["layers"]:
        assert found["swapped_bytes"] == (1 - code) * 32 * 1024
        if brief and code == 0:
            assert found["kept_before_bytes"] is None
        else:
            assert found["kept_before_bytes"] - found["kept_bytes"] == found["swapped_bytes"]
        assert found["unasked"] == found["wrong_prefetch"] == []
        reasons = [entry["reason"] for entry in found["without_effect"]]
        assert reasons == [IdleReason.MERGED_AWAY.value] * code


@pytest.mark.mindspore
def test_nothing_is_left_in_the_folder_of_the_user(folder, text, report):
    assert sorted(path.name for path in folder.iterdir()) == ["case2_layer_swap.yaml", "case4_swap_and_recompute.yaml"]


@pytest.mark.mindspore
def test_the_measured_peak_stands_beside_the_simulated_one(tmp_path):
    """The logs hold only statistics: their lines are missed, and the memory is compared all the same."""
    (tmp_path / "worker_0.log").write_text(STATISTICS.format(used=900, actual=1000))
    config = str(CPU_CASES / "case1_default_swap.yaml")
    simulated = run_json("simulate", config)["peak_bytes"]
    compared = run_json("verify", config, "--log", str(tmp_path))["logs"]
    assert compared["predicted_peak_bytes"] == simulated > 0
    assert compared["memory"][0]["difference_bytes"] == (900 << 20) - simulated


def run_json(command: str, config: str, *options: str) -> dict:
    """What a command prints for machines, in a process of its own."""
    words = ["-m", "mindswap", command, "--json", config, *options]
    return json.loads(forked.run(words).stdout)
