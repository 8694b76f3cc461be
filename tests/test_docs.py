"""The documentation says what the program does: examples run, links lead somewhere, pages are current."""

import importlib.util
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from mindswap.cli import COMMANDS
from mindswap.version import __version__
from tests import forked
from tests.strength import is_nightly

ROOT = Path(__file__).parents[1]


def load_tool():
    spec = importlib.util.spec_from_file_location("docs", ROOT / "tools" / "docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = load_tool()
# Pages in English, each beside the same in Chinese.
ENGLISH = (
    "README.md", *(page for page in TOOL.PAGES_IN_DOCS if ".zh." not in page and page not in TOOL.DEVELOPER_PAGES),
)  # fmt: skip
PAGES = (*ENGLISH, *map(TOOL.chinese, ENGLISH))
# Commands that compile a network.
COMPILING = ("verify", "inspect", "simulate", "compare", "plan", "dryrun")
LEFT_OUT = "...\n"
# Only nightly: they take minutes.
NIGHTLY = ("$ mindswap plan benchmarks/models/llama2_7b.yaml --sweep", "$ mindswap dryrun")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def consoles(compiles: bool) -> list[str]:
    """The examples `$ mindswap COMMAND ...` with their output."""
    found = [block for page in ENGLISH for block in blocks(page, "console")]
    return [block for block in found if (block.split()[2] in COMPILING) == compiles]


def run_fresh(words: list, cwd: Path) -> subprocess.CompletedProcess:
    """In a Python of its own, where nothing of MindSpore is."""
    return subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True)


@cache
def printed_by(command: str, run) -> str:
    """What a command of an example prints; two pages may show the same one, each its own lines."""
    result = run(["-m", "mindswap", *shlex.split(command)[2:]], cwd=ROOT)
    return result.stdout + result.stderr


def run_console(block: str, run=run_fresh) -> None:
    """A line `...` stands for any lines."""
    command, _, output = block.partition("\n")
    printed = printed_by(command, run)
    if LEFT_OUT not in output:
        assert printed == output
        return
    parts = [re.escape(part) for part in re.split(r"^\.\.\.\n", output, flags=re.MULTILINE)]
    assert re.fullmatch("(?:.*\n)*?".join(parts), printed), printed


@pytest.mark.parametrize("block", consoles(compiles=False), ids=lambda block: block.partition("\n")[0])
def test_an_example_prints_what_the_page_says(block):
    run_console(block)


@pytest.mark.mindspore
@pytest.mark.parametrize(
    "block",
    [block for block in consoles(compiles=True) if is_nightly() or not block.startswith(NIGHTLY)],
    ids=lambda block: block.partition("\n")[0],
)
def test_an_example_that_compiles_prints_what_the_page_says(block):
    run_console(block, forked.run)


def run_python(example: str, folder: Path, run=forked.run) -> subprocess.CompletedProcess:
    """An example as a script in an empty folder, in which the configurations are found."""
    (folder / "configs").symlink_to(ROOT / "configs")
    script = folder / "example.py"
    script.write_text(example)
    result = run([script], cwd=folder)
    assert result.returncode == 0, result.stderr
    return result


def test_the_python_example_of_a_policy_runs(tmp_path):
    run_python(blocks("docs/python.md", "python")[0], tmp_path, run_fresh)


@pytest.mark.mindspore
def test_the_python_example_of_a_network_logs_what_the_page_says(tmp_path):
    page = (ROOT / "docs/python.md").read_text("utf-8")
    example, output = re.search(
        r"^```python\n((?:(?!^```).)*)^```\n\n```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    ).groups()
    assert example == blocks("docs/python.md", "python")[1]
    assert output in run_python(example, tmp_path, run_fresh).stderr


@pytest.mark.mindspore
def test_the_python_example_of_a_file_runs(tmp_path):
    run_python(blocks("docs/python.md", "python")[2], tmp_path)


@pytest.mark.mindspore
def test_the_notebook_shows_what_it_shows_when_run():
    nbformat = pytest.importorskip("nbformat")
    assert TOOL.shown_by(TOOL.run_notebook()) == TOOL.shown_by(nbformat.read(TOOL.NOTEBOOK, as_version=4))


def test_a_line_that_is_not_printed_any_more_is_replaced_by_one_like_it(capsys):
    shown = ["waits:", "...", "  9.0 ms  offload (D2H) of w1.silu, layers 1-2", "layers 0-1, 3"]
    printed = [
        "waits:",
        "  8 ms  prefetch (H2D) of mul",
        "  8.0 ms  offload (D2H) of w3.mul, layer 1",
        "layers 0, 2, 4-5",
    ]
    assert TOOL.refresh(shown, printed) == ["waits:", "...", *printed[2:]]
    assert "in its place:           8.0 ms  offload (D2H) of w3.mul, layer 1" in capsys.readouterr().out
    with pytest.raises(ValueError, match="not printed any more: step time"):
        TOOL.refresh(["step time", "..."], printed)


def test_the_page_of_plan_shows_the_end_of_the_planned_file():
    planned = TOOL.PLANNED.read_text("utf-8")
    for path in TOOL.both("docs/plan.md"):
        part = TOOL.PLANNED_PART.search(path.read_text("utf-8"))[0]
        assert len(part.splitlines()) > 5 and planned.endswith(part)


@pytest.mark.parametrize("page", ENGLISH)
def test_both_languages_have_the_same_examples(page):
    """But for the comments of commands, which are translated."""
    for language in ("bash", "console", "python", "text", "yaml"):
        english, chinese = blocks(page, language), blocks(TOOL.chinese(page), language)
        if language == "bash":
            english, chinese = ([re.sub(r"\s+# .*", "", block) for block in each] for each in (english, chinese))
        assert english == chinese


@pytest.mark.parametrize("page", PAGES)
def test_no_page_has_markers_of_a_merge(page):
    lines = (ROOT / page).read_text("utf-8").splitlines()
    assert not [line for line in lines if line.startswith(("<<<<<<<", ">>>>>>>"))]


@pytest.mark.parametrize("page", [*PAGES, *TOOL.DEVELOPER_PAGES])
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text("utf-8"))
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_headings(page):
    here = ROOT / page
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", here.read_text("utf-8"))
    assert [link for link in links if link[1] not in anchors(here.parent / link[0] if link[0] else here)] == []


@pytest.mark.parametrize("readme", ["README.md", "README_CN.md"])
def test_every_command_is_in_the_table_of_the_readme(readme):
    rows = re.findall(r"^\|.*\|$", (ROOT / readme).read_text("utf-8"), re.MULTILINE)
    assert [name for name in COMMANDS if not any(f"`mindswap {name}" in row or f"`{name}" in row for row in rows)] == []


def test_the_page_of_the_rules_is_current():
    command = [sys.executable, ROOT / "tools" / "make_rule_docs.py", "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_every_picture_is_made_of_an_example():
    assert sorted(path.name for path in ROOT.glob("docs/*.png")) == sorted(TOOL.PICTURES)


@pytest.mark.parametrize("name", TOOL.PICTURES)
def test_a_picture_is_of_the_example_as_the_page_has_it(name):
    """Fails where the figures of a page were made again and the picture was not: `make docs`."""
    assert TOOL.chunks((ROOT / "docs" / name).read_bytes())["Example"] == TOOL.fingerprint(name)


@pytest.mark.parametrize(("path", "words", "value"), TOOL.sentences(), ids=lambda value: str(value).rpartition("/")[2])
def test_a_figure_in_a_sentence_is_that_of_the_example(path, words, value):
    assert TOOL.figure(words, path.read_text("utf-8")).group(1) == value


@pytest.mark.mindspore
def test_a_picture_says_what_is_drawn_today(tmp_path):
    name = "inspect_case4.png"
    command = TOOL.example(*TOOL.PICTURES[name]).splitlines()[0]
    forked.run(["-m", "mindswap", *shlex.split(command)[1:], "--plot", tmp_path / name], cwd=ROOT)
    drawn, shown = (TOOL.chunks((folder / name).read_bytes()) for folder in (tmp_path, ROOT / "docs"))
    assert drawn["Description"] == shown["Description"]


def test_a_picture_carries_texts():
    empty = b"\x89PNG\r\n\x1a\n" + bytes.fromhex("0000000049454e44ae426082")
    assert TOOL.chunks(TOOL.stamped(empty, "of today")) == {"Example": "of today"}


def test_the_last_number_of_a_sentence_is_its_figure():
    assert TOOL.figure("takes # of # s", "it takes 5.1 of 23 s today").span(1) == (16, 18)
    with pytest.raises(ValueError, match="not found: takes # h"):
        TOOL.figure("takes # h", "it takes 5 s")


def test_the_citation_has_the_version_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE).group(1) == __version__
