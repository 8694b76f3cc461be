import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.errors import GraphError
from mindswap.features import check
from tests.builders import trees
from tests.cpu_time import cpu_ratio
from tests.schema import answer_of
from tests.strength import examples

ROOT = Path(__file__).parents[3]
CASE_4 = ROOT / "configs" / "llama2_7b" / "case4_swap_and_recompute.yaml"
GOOD = "{model: {model_config: {num_layers: 4}}, swap_config: {swap: True, default_prefetch: 10}}"


@pytest.fixture
def write(tmp_path):
    def write_file(content):
        path = tmp_path / "x.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write_file


@pytest.fixture
def run(capsys):
    def run_check(*arguments):
        code = cli.main(["check", *arguments])
        captured = capsys.readouterr()
        assert "a bug" not in captured.err and "Traceback" not in captured.err, captured.err
        return code, captured.out

    return run_check


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """As on a machine without MindFormers, unless a test says otherwise."""
    monkeypatch.setattr(check, "has_mindformers", lambda: False)
    monkeypatch.delenv("ENABLE_LAZY_INLINE_NO_PIPELINE", raising=False)


def test_the_fourth_case_of_the_specification(run):
    code, out = run(str(CASE_4))
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "no problems; read as MindFormers 1.9 (graph mode)"
    assert [line for line in lines if line.startswith("  layer")] == ["  layer 0", "  layers 1-2", "  layer 3"]


def test_errors_come_with_place_and_exit_code_1(run, write):
    path = write("swap_config:\n  swap: True\n  default_prefetch: 0\n")
    code, out = run(path)
    assert code == 1
    assert out.startswith(f"{path}:3:21: error: swap_config.default_prefetch: 0 is out of range [bad-prefetch]\n")
    assert "policy:" not in out


def test_json(run, write):
    code, out = run(write(GOOD), "--json")
    data = answer_of(out)
    assert code == 0 and data["ok"] is True and data["problems"] == []
    assert data["policy"]["swap_config"] == {"swap": True, "default_prefetch": 10}
    assert [group["layers"] for group in data["layers"]] == [[0, 1, 2, 3]]

    code, out = run(write("swap_config: {swap: True, op_swap: 3}"), "--json")
    data = answer_of(out)
    assert code == 1 and data["ok"] is False and data["policy"] is None and data["layers"] == []
    assert [(p["line"], p["column"], p["rule"], p["level"]) for p in data["problems"]] == [
        (1, 36, "wrong-type", "error")
    ]


def test_the_number_of_layers_can_be_given(run, write):
    text = "swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: [5]}]}"
    assert run(write(text), "--num-layers", "6")[0] == 0
    assert run(write(text), "--num-layers", "5")[0] == 1


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "99999999"])
def test_a_number_of_layers_that_is_none(run, write, value):
    assert run(write(GOOD), "--num-layers", value)[0] == 1


def test_an_unknown_model_is_said_so_with_what_to_do(run, write):
    code, out = run(write(GOOD))
    assert code == 0
    note = [line for line in out.splitlines() if line.startswith("note:")]
    assert len(note) == 1 and "operator names were not checked" in note[0] and "MindFormers is installed" in note[0]


def test_without_a_number_of_layers_it_is_said_so(run, write):
    assert "use --num-layers" in run(write("swap_config: {swap: True}"))[1]


def test_swap_off_needs_no_note(run, write):
    code, out = run(write("seed: 1"))
    assert (code, out) == (
        0,
        "no problems; read as MindFormers 1.9 (graph mode)\n\n"
        "policy: swap is off; MindFormers runs as it does without mindswap\n",
    )


def test_the_real_network_is_asked_where_no_table_has_the_model(run, write, monkeypatch):
    monkeypatch.setattr(check, "has_mindformers", lambda: True)
    monkeypatch.setattr(check, "read_real_trees", lambda path, num_layers: trees(num_layers))
    assert "operators of the test model" in run(write(GOOD))[1]
    assert "to check them: leave out --table" in run(write(GOOD), "--table")[1]
    assert "operators of table llama" in run(str(CASE_4))[1]
    assert "operators of the test model" in run(str(CASE_4), "--network")[1]


def test_uses_come_from_the_table_where_the_network_has_none(run, monkeypatch):
    monkeypatch.setattr(check, "has_mindformers", lambda: True)
    seen = []
    real = check.check_document

    def spy(document, num_layers=None, model=None, environ=None, **options):
        seen.append(model)
        return real(document, num_layers, model, environ, **options)

    monkeypatch.setattr(check, "check_document", lambda *args, **options: spy(*args, **options))
    monkeypatch.setattr(check, "read_real_trees", lambda path, num_layers: trees(num_layers))
    run(str(CASE_4), "--network")
    assert seen[-1].source == "the test model" and seen[-1].uses


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (GraphError("no such model\nsecond line"), "no such model"),
        (ImportError("torn"), "torn"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_a_network_that_cannot_be_built_falls_back_to_the_table(run, monkeypatch, error, reason):
    def fail(path, num_layers):
        raise error

    monkeypatch.setattr(check, "has_mindformers", lambda: True)
    monkeypatch.setattr(check, "read_real_trees", fail)
    code, out = run(str(CASE_4), "--network")
    assert code == 0
    notes = [line for line in out.splitlines() if line.startswith("note:")]
    assert notes[0] == f"note: the real network could not be built ({reason})" and "second line" not in out
    assert "checked against table llama" in notes[1]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff\xfe",
        "a: 1".encode("utf-16"),
        b"\t",
        b"a: &a [*a]",
        b"[" * 10_000,
        b'swap_config: {swap: True, op_swap: [{op_name: "\\x1b[31m", backward_prefetch: 1, layers: [0]}]}',
        b'swap_config: {swap: True, "\\ud800": 1}',
        b"swap_config: {swap: True, ? [a] : 1}",
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_broken_file_is_a_message(run, write, content, options):
    code, out = run(write(content), *options)
    assert code == 1
    assert "\x1b" not in out


def test_what_is_no_file(run, tmp_path):
    for path in (str(tmp_path), str(tmp_path / "none.yaml"), ""):
        code, out = run(path)
        assert code == 1 and "[yaml-file]" in out


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("environ", "stream", "has_colour"),
    [({}, Terminal(), True), ({"NO_COLOR": "1"}, Terminal(), False), ({}, io.StringIO(), False)],
)
def test_colour_only_on_a_terminal(write, monkeypatch, environ, stream, has_colour):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stream)
    assert cli.main(["check", write("swap_config: {swap: 3}")]) == 1
    assert ("\033[" in stream.getvalue()) is has_colour


def start(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, **options)


def test_a_terminal_that_knows_only_ascii(write):
    path = write("swap_config: {swap: True, größe: 1}")
    done = start("-m", "mindswap", "check", path, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 1 and "gr\\xf6\\xdfe: no such key" in done.stdout
    assert "bug" not in done.stderr


def test_nothing_heavy_is_imported():
    program = """
import sys, mindswap.cli
mindswap.cli.main(sys.argv[1:])
print([name for name in ("mindspore", "mindformers") if name in sys.modules])
"""
    done = start("-c", program, "check", "--table", str(CASE_4))
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.long
@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("swap_config:\n  swap: True\n", "  k{}: 1\n"),
        ("swap_config:\n  swap: True\n", "  default_prefetch: {}\n"),
        ("swap_config: {swap: True}\nmindswap:\n", "  k{}: 1\n"),
        ("swap_config:\n  swap: True\n  op_swap:\n", "    - {}\n"),
    ],
)
def test_work_grows_with_the_file_and_output_does_not(tmp_path, run, section, line):
    """Thousands of problems in one section; before, what they cost grew with their square, or megabytes came out."""
    many = examples(2000, 5000)
    path = tmp_path / "x.yaml"
    text = "context: {mode: 0}\nmodel: {model_config: {num_layers: 4}}\n"

    def check(num_lines):
        path.write_text(text + section + "".join(map(line.format, range(num_lines))))
        return run(str(path))

    code, out = check(many)
    assert code == 1 and len(out) < 120_000
    shown = re.search(r"\.\.\. 100 of (\d+) problems are shown", out)
    counts = [int(count) for count in re.findall(r"\b(\d+) (?:error|warning)s?\b", out.splitlines()[-1])]
    assert all(many - 100 <= count < many + 100 for count in (int(shown[1]), sum(counts)))
    assert cpu_ratio(lambda: check(many), lambda: check(many // 10)) < 30  # of a square: 100


def test_control_characters_never_reach_the_terminal(tmp_path, capsys):
    path = tmp_path / "c\x1b[31m.yaml"
    path.write_text('swap_config: {swap: True, "\\e[31m\\a": 1, op_swap: "\\x9b"}')
    for arguments in (["check"], ["explain"], ["convert", "--to", "1.9"], ["check", "--\x1b[31m"]):
        code = cli.main([*arguments, str(path)])
        captured = capsys.readouterr()
        assert code == 1 and not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", captured.out + captured.err), arguments


def test_several_files_and_standard_input(run, tmp_path, monkeypatch):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GOOD)
    bad.write_text("swap_config: {swap: 3}")
    code, out = run(str(good), str(bad))
    assert code == 1
    assert out.startswith(f"== {good}\n") and f"\n\n== {bad}\n{bad}:1:21: error: " in out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"swap_config: {swap: 3}")))
    code, out = run("-")
    assert code == 1 and out.startswith("standard input:1:21: error: ")
    assert cli.main(["check", "--json", str(good), str(bad)]) == 1


@pytest.mark.parametrize(
    ("name", "near"), [("overlapp", "overlap"), ("recompute-win", "recompute-wins"), ("bogus", "")]
)
def test_a_rule_to_ignore_must_exist(capsys, tmp_path, name, near):
    path = tmp_path / "x.yaml"
    path.write_text("seed: 1")
    assert cli.main(["check", "--ignore", "overlap", "--ignore", name, str(path)]) == 1
    out, error = capsys.readouterr()
    assert out == "" and f"--ignore {name}: there is no such rule" in error and "--ignore overlap:" not in error
    assert (f"write {near}" if near else "docs/rules.md") in error


BOTH = {
    "1.9": "trainer: {}\nswap_config: {swap: True}\nswap: {enable: True, layer_swap: [{layers: ['0-1']}]}\n",
    "2.x": "training: {}\nparallelism: {}\nrecompute: {mode: full}\nrecompute_config: {recompute: True}\n",
}


@pytest.mark.parametrize("version", BOTH)
def test_sections_of_both_versions_get_one_answer_from_check_and_convert(capsys, tmp_path, version):
    path = tmp_path / "x.yaml"
    path.write_text(BOTH[version] + "model: {num_hidden_layers: 4, model_config: {num_layers: 4}}\n")
    fixes = set()
    for command in (["check"], ["convert", "--to", "1.9"], ["convert", "--to", "2.x"]):
        assert cli.main([*command, str(path)]) == 1
        said = "".join(capsys.readouterr())
        fixes |= {line.strip() for line in said.splitlines() if "convert --to" in line}
    (fix,) = fixes
    assert f"mindswap convert --to {version} {path}" in fix and "; or, if that is what you mean, delete" in fix
