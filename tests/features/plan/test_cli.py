"""`mindswap plan`: exit codes, text, what it writes; plans themselves are in tests/planner/test_planning.py."""

import re
import shutil
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.features.plan.dry_runs import PlanVerdict
from mindswap.units import format_bytes, format_time
from tests.schema import answer_of

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "configs" / "llama2_7b" / "cpu" / "case3_op_swap.yaml"


@pytest.fixture
def plan(capsys):
    def run(*options):
        code = cli.main(["plan", *map(str, options)])
        captured = capsys.readouterr()
        assert "a bug" not in captured.err and "Traceback" not in captured.err, captured.err
        return code, captured.out, captured.err

    return run


def test_help_ends_with_examples(plan):
    code, out, _ = plan("--help")
    assert code == 0
    assert "mindswap plan llama2_7b.yaml --memory 54GiB" in out.partition("examples:")[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--allow", "offload"), "--allow offload: write swap, recompute or swap,recompute"),
        (("--allow", ""), "--allow : write swap, recompute"),
        (("--allow", "swap,coupled"), "--allow swap,coupled: write swap, recompute"),
        (("--objective", "speed"), "invalid choice: 'speed'"),
        (("-o", "x.yaml", "--in-place"), "not allowed with argument"),
        (("-o", CONFIG), f"already exists: {CONFIG}"),
        (("--simple", "--objective", "memory"), "--simple: not with --objective memory"),
        (("--overwrite",), "--overwrite: no file is written without -o"),
        *(
            ((*option.split(), "no_folder/x"), "cannot write no_folder/x: there is no folder no_folder")
            for option in ("-o", "--html", "--plot", "--sweep --plot")
        ),
        *(
            (("--sweep", *words), f"--sweep makes many plans: choose one with --memory for {' '.join(words[:length])}")
            for words, length in [
                (("--in-place",), 1),
                (("-o", "x.yaml"), 1),
                (("--html", "x.html"), 1),
                (("--explain",), 1),
                (("--simple",), 1),
                (("--objective", "memory"), 2),
            ]
        ),
    ],
)
def test_wrong_options_are_refused_before_anything_is_compiled(plan, options, message):
    code, out, error = plan(CONFIG, *options)
    assert (code, out) == (1, "")
    assert message in error


@pytest.mark.mindspore
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--device", "gpu"), "device 'gpu': no such device; did you mean cpu?\n    known: a3_die, atlas_800_9000"),
        (("--device", "no.yaml"), "no.yaml: the file does not exist"),
        (("--memory", "4.6"), "write a number with its unit"),
        (("--memory", "65GiB"), "more than the"),
        (("--host-memory", "much"), "write a number with its unit"),
    ],
)
def test_wrong_devices_and_figures_are_refused(plan, options, message):
    code, out, error = plan(CONFIG, *options)
    assert (code, out) == (1, "")
    assert message in error


def test_a_read_only_configuration_stays(plan, tmp_path):
    path = tmp_path / "x.yaml"
    shutil.copy(CONFIG, path)
    path.chmod(0o444)
    code, _, error = plan(path, "--in-place")
    assert (code, error.partition("\n")[0]) == (1, f"mindswap: error: --in-place: {path} is read-only")
    assert path.read_text() == CONFIG.read_text()


def test_a_device_without_figures_is_refused(plan, tmp_path):
    (tmp_path / "x.yaml").write_text("title: x\n")
    code, out, error = plan(CONFIG, "--device", tmp_path / "x.yaml")
    assert (code, out) == (1, "")
    assert error.startswith(f"mindswap: error: {tmp_path / 'x.yaml'}:1:1: ")
    assert "missing: memory" in error


@pytest.mark.mindspore
def test_a_plan_is_written_checked_and_does_what_it_says(plan, tmp_path, capsys):
    target = tmp_path / "planned.yaml"
    code, out, _ = plan(CONFIG, "--device", "cpu", "--memory", "6MiB", "--explain", "-o", target)
    assert code == 0
    assert "all figures are simulated" in out
    assert "this plan" in out
    assert "verified: the compiled graph follows the plan" in out
    assert f"written: {target}; next: mindswap dryrun {target}" in out
    assert plan(CONFIG, "--device", "cpu", "--memory", "6MiB")[1].endswith("\nnext: -o FILE writes this plan\n")
    text = target.read_text()
    assert "# mindswap: plan for 6.0 MiB per card on" in text
    assert text.startswith(CONFIG.read_text()[:200])  # the user's comments
    assert cli.main(["check", str(target)]) == 0
    assert cli.main(["verify", str(target)]) == 0
    assert "the compiled graph follows the policy" in capsys.readouterr().out


@pytest.mark.mindspore
def test_a_plan_that_the_compiler_does_not_follow_is_not_written(plan, tmp_path, monkeypatch):
    """The compiler's answer is made up: no plan is known that it does not follow."""
    verdict = PlanVerdict(False, "the compiled graph does NOT follow the plan; one way: Cast")
    monkeypatch.setattr("mindswap.features.plan.batches_cli.verify_plan", lambda *_: verdict)
    options = (CONFIG, "--device", "cpu", "--memory", "6MiB", "-o", tmp_path / "planned.yaml")
    code, out, _ = plan(*options)
    assert code == 1 and verdict.text in out
    assert not (tmp_path / "planned.yaml").exists()
    assert plan(*options, "--no-verify")[0] == 0
    assert (tmp_path / "planned.yaml").exists()


@pytest.mark.mindspore
def test_one_plan_in_every_form(plan, tmp_path):
    """In the user's file, as JSON with its reasons, as a page that stands alone and replaces what is there."""
    path, page = tmp_path / "small.yaml", tmp_path / "page.html"
    shutil.copy(CONFIG, path)
    page.write_text("old")
    options = ("--in-place", "--json", "--explain", "--html", page)
    code, out, _ = plan(path, "--device", "cpu", "--memory", "6MiB", *options)
    data = answer_of(out)
    assert (code, data["simulated"], data["status"]) == (0, True, "feasible")
    assert data["peak_bytes"] <= 6 * 2**20
    assert data["step_time_ns"] >= data["lower_bound_ns"]
    assert any(line.startswith("keep ") for line in data["explanation"])
    assert path.read_text() != CONFIG.read_text()
    html = page.read_text("utf-8")
    assert "small, planned" in html and "simulated" in html
    assert not re.search(r"(src|href)=|https?://|@import|url\(", html)
    shown = " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())
    for figure in (format_time(data["step_time_ns"]), format_bytes(data["peak_bytes"])):
        assert figure in shown
    copied = re.search(r"([\d.]+ [KM]iB) pinned per card", shown)
    assert copied and copied[1] == format_bytes(data["host_bytes_per_node"])  # one card per node


@pytest.mark.mindspore
def test_a_budget_below_the_parameters_says_what_would_do(plan, tmp_path):
    files = [tmp_path / name for name in ("planned.yaml", "page.html")]
    options = (CONFIG, "--device", "cpu")
    code, out, _ = plan(*options, "--memory", "1MiB", "-o", files[0], "--html", files[1])
    assert code == 1
    assert "nothing fits; the smallest plan found needs" in out
    assert "weights, optimizer states, accumulated gradients" in out
    assert not any(path.exists() for path in files)
    enough = out.partition("fix: --memory ")[2].split()[0]
    assert plan(*options, "--memory", enough)[0] == 0


@pytest.mark.mindspore
def test_json_says_that_nothing_fits(plan):
    code, out, _ = plan(CONFIG, "--device", "cpu", "--memory", "1MiB", "--json")
    data = answer_of(out)
    assert (code, data["status"]) == (1, "infeasible")
    assert data["smallest_budget_bytes"] > data["budget_bytes"] == 2**20
    assert data["holders"][0]["name"] == "weights, optimizer states, accumulated gradients"


@pytest.mark.mindspore
def test_a_picture_of_no_known_kind_loses_no_curve(plan, tmp_path, monkeypatch):
    monkeypatch.setattr("mindswap.planner.sweep.NUM_BUDGETS", 4)
    code, out, error = plan(CONFIG, "--device", "cpu", "--allow", "recompute", "--sweep", "--plot", tmp_path / "x.xyz")
    assert code == 1
    assert "above lower bound" in out
    assert "Format 'xyz' is not supported" in error


@pytest.mark.mindspore
def test_a_picture_shows_the_file_and_the_plan(plan, tmp_path):
    picture = tmp_path / "plan.png"
    code, out, _ = plan(CONFIG, "--device", "cpu", "--simple", "--plot", picture)
    content = picture.read_bytes()
    assert code == 0 and content.startswith(b"\x89PNG")
    rows = dict(re.findall(r"^(your file|this plan) +([\d.]+ m?s) ", out, re.MULTILINE))  # of the table
    words = content[: content.index(b"IDAT")].decode("utf-8", "replace")
    for name in ("your file", "this plan"):
        assert f"{name}: {rows[name]}, peak " in words
    assert words.count(", fits") + words.count("does not fit") == 2 and "Simulated" in words


@pytest.mark.mindspore
def test_a_sweep_is_a_falling_curve(plan, tmp_path, monkeypatch):
    """Of four plans instead of twelve."""
    monkeypatch.setattr("mindswap.planner.sweep.NUM_BUDGETS", 4)
    picture = tmp_path / "pareto.png"
    code, out, _ = plan(CONFIG, "--device", "cpu", "--allow", "recompute", "--sweep", "--json", "--plot", picture)
    curve = answer_of(out)["plans"]
    assert code == 0
    assert len(curve) >= 2
    for less, more in pairwise(curve):
        assert less["peak_bytes"] < more["peak_bytes"]
        assert less["step_time_ns"] > more["step_time_ns"]
    assert picture.read_bytes().startswith(b"\x89PNG")
