"""The documentation site: it builds, has every page in both languages, and each link on it leads somewhere."""

import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from mindswap.cli import COMMANDS

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r'(?:href|src)="([^"]+)"')
ID = re.compile(r'\bid="([^"]+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs_static_i18n")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # a warning, of a page that is in no menu for one, ends it too
    return folder


def test_every_page_is_there(site):
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    chinese = {Path("zh", str(page).replace(".zh.md", ".html")) for page in pages if page.name.endswith(".zh.md")}
    english = {page.with_suffix(".html") for page in pages if not page.name.endswith(".zh.md")}
    extra = {Path("overview.html"), Path("zh/overview.html"), Path("contributing.html")}
    assert chinese | english | extra <= {path.relative_to(site) for path in site.rglob("*.html")}


def test_no_link_is_broken(site):
    ids = {path: set(ID.findall(path.read_text("utf-8"))) for path in site.rglob("*.html")}
    broken = []
    for path in site.rglob("*.html"):
        for link in map(unescape, LINK.findall(path.read_text("utf-8"))):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment) if target.suffix == ".html" else ""
            if not target.exists() or (anchor and anchor not in ids[target]):
                broken.append((path.name, link))
    assert broken == []


def test_tables_can_be_filtered(site):
    for page in ("models.html", "zh/models.html"):
        text = (site / page).read_text("utf-8")
        assert 'tables.js"' in text and 'site.css"' in text and text.count("<tr>") > 30
    assert (site / "tables.js").stat().st_size and (site / "site.css").stat().st_size


def test_both_languages_can_be_searched(site):
    index = (site / "search" / "search_index.json").read_text("utf-8")
    assert '"lang":["en","zh"]' in index.replace(" ", "")
    assert "plan.html" in index and "zh/plan.html" in index


def test_each_page_leads_to_the_same_one_in_the_other_language(site):
    pages = {path.relative_to(site).as_posix(): path.read_text("utf-8") for path in site.rglob("*.html")}
    switch = re.compile(r'<a href="([^"]+)" hreflang="(\w+)" class="md-select__link">')
    in_chinese = "../zh/internals/planner.html"
    assert switch.findall(pages["internals/planner.html"]) == [("planner.html", "en"), (in_chinese, "zh")]
    assert "激活" in pages["zh/internals/planner.html"] and "激活" not in pages["internals/planner.html"]
    languages = {name: "zh" if name.startswith("zh/") else "en" for name in pages if name != "404.html"}
    assert [name for name in languages if f'<html lang="{languages[name]}"' not in pages[name]] == []


def test_chinese_sentences_have_no_spaces_at_line_breaks(site):
    """A browser shows a line break between two Chinese characters as a space."""
    paragraph = re.compile(r"<(p|li)>(.*?)</\1>", re.DOTALL)
    pages = {path.name: path.read_text("utf-8") for path in (site / "zh").rglob("*.html")}
    broken = [name for name, text in pages.items() for _, words in paragraph.findall(text)
              if re.search(r"[\u4e00-\u9fff，。；：]\n[\u4e00-\u9fff（]", words)]  # fmt: skip
    assert len(pages) > 25 and broken == []


def test_the_menu_of_chinese_pages_is_in_chinese(site):
    menu = re.compile(r'<span class="md-ellipsis">\s*([^<]*?)\s*<', re.DOTALL)
    titles = set(menu.findall((site / "zh/plan.html").read_text("utf-8")))
    assert {"指南", "训练之前", "plan"} <= titles
    names = {*COMMANDS, "mindswap", "README", "MindFormers 2.x", "English"}
    assert [title for title in titles if title and title not in names and not re.search("[\u4e00-\u9fff]", title)] == []


@pytest.fixture
def start_browser():
    """Where playwright and Chromium are (`pip install playwright`, Debian's chromium)."""
    playwright = pytest.importorskip("playwright.sync_api")
    browser_path = shutil.which("chromium")
    if browser_path is None:
        pytest.skip("no chromium")

    @contextmanager
    def start():
        with playwright.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
            yield browser
            browser.close()

    return start


# Columns of the tables in outputs of commands that are beyond the right edge of their box.
CUT_OUTPUTS = """() => [...document.querySelectorAll(".md-typeset pre > code")].filter(code => {
  const rules = [...code.textContent.matchAll(/^ *-{3,}(?:  -{3,})+ *$/gm)].map(rule => rule[0].length);
  if (!rules.length) return false;
  const text = document.createElement("span");
  text.textContent = "0".repeat(Math.max(...rules));
  code.append(text);
  const right = text.getBoundingClientRect().right;
  text.remove();
  return right > code.getBoundingClientRect().right;
}).length"""


def test_no_column_of_an_output_is_cut_off_on_a_desktop(site, start_browser):
    with start_browser() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        cut = {}
        for path in site.rglob("*.html"):
            page.goto(f"file://{path}")
            page.wait_for_timeout(100)  # docs/tables.js
            if count := page.evaluate(CUT_OUTPUTS):
                cut[path.name] = count
    assert cut == {}


def test_no_page_is_wider_than_a_phone(site, start_browser):
    """In light and dark."""
    wide = {}
    with start_browser() as browser:
        for scheme, colours in (("light", "default"), ("dark", "slate")):
            # A page of its own for each: the site remembers what it began with.
            page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
            for path in site.rglob("*.html"):
                page.goto(f"file://{path}")
                if path.name != "404.html":  # its links begin at the root of a server
                    page.wait_for_function(f"document.body.dataset.mdColorScheme == '{colours}'")
                width = page.evaluate("document.documentElement.scrollWidth")
                missing = page.evaluate(
                    "[...document.images].filter(i => i.src.startsWith('file') && !i.naturalWidth).length"
                )
                if width > 390 or missing:
                    wide[scheme, path.name] = width, missing
    assert wide == {}
