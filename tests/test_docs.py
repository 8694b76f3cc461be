"""The documentation says what the program does: examples run, links lead somewhere, pages are current."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "README_CN.md", "CONTRIBUTING.md")
READMES = ("README.md", "README_CN.md")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def consoles(is_verify: bool) -> list[str]:
    """The examples `$ mindswap COMMAND ...` with their output."""
    return [block for block in blocks("README.md", "console") if block.startswith("$ mindswap verify ") == is_verify]


def run_console(block: str) -> None:
    command, _, output = block.partition("\n")
    words = shlex.split(command)[2:]
    result = subprocess.run([sys.executable, "-m", "mindswap", *words], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout + result.stderr == output


@pytest.mark.parametrize("block", consoles(is_verify=False), ids=lambda block: block.partition("\n")[0])
def test_an_example_of_the_readme_prints_what_it_says(block):
    run_console(block)


@pytest.mark.mindspore
@pytest.mark.parametrize("block", consoles(is_verify=True), ids=lambda block: block.partition("\n")[0])
def test_an_example_of_verify_prints_what_the_readme_says(block):
    run_console(block)


@pytest.mark.mindspore
def test_the_python_example_logs_what_the_readme_says(tmp_path):
    page = (ROOT / "README.md").read_text("utf-8")
    example, output = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL).groups()
    script = tmp_path / "example.py"
    script.write_text(example)
    result = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert output in result.stderr


def test_both_languages_have_the_same_examples():
    for language in ("bash", "console", "python", "text", "yaml"):
        assert blocks("README.md", language) == blocks("README_CN.md", language)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text("utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", READMES)
def test_links_within_a_page_lead_to_headings(page):
    text = (ROOT / page).read_text("utf-8")
    anchors = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


def test_the_page_of_the_rules_is_current():
    command = [sys.executable, ROOT / "tools" / "make_rule_docs.py", "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
