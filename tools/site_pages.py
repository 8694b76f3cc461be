"""Hooks of mkdocs (mkdocs.yml): README and CONTRIBUTING as pages, and the files that pages link outside of docs/.

Pages are also read on GitHub and Gitee, so their links stay as they are there and are rewritten for the site only.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Files at the top level, and the pages that the site makes of them.
PAGES = {"README.md": "overview.md", "README_CN.md": "overview.zh.md", "CONTRIBUTING.md": "contributing.md"}
SOURCES = {page: source for source, page in PAGES.items()}
# The text and the target of a link or a picture; targets with a scheme and within the page are left alone.
LINK = re.compile(r"(?<!`)(\[[^\]\n]*\]|\[!\[[^\]\n]*\]\([^)\n]*\)\])\((?!\w+:|#)([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
# A line break with a Chinese character or punctuation on both sides.
BREAK = re.compile(r"(?<=[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef])\n *(?=[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef])")
FOLDER = "files"  # of the site, for what is no page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, and every file outside of it that a page links."""
    for page in SOURCES:
        files.append(File(page, config.docs_dir, config.site_dir, config.use_directory_urls))
    outside = set()
    for path in (*map(ROOT.joinpath, PAGES), *ROOT.glob("docs/**/*.md")):
        folder = path.parent.relative_to(ROOT).as_posix()
        for match in LINK.finditer(path.read_text(encoding="utf-8")):
            target = posixpath.normpath(posixpath.join(folder, match[2]))
            if not target.startswith("docs/") and target not in PAGES and (ROOT / target).is_file():
                outside.add(target)
    for target in sorted(outside):
        files.append(File.generated(config, f"{FOLDER}/{target}.txt", abs_src_path=str(ROOT / target)))
    return files


def on_page_read_source(page: Page, config: MkDocsConfig) -> str | None:
    """Return the text of a page that is not in docs/."""
    source = SOURCES.get(page.file.src_uri)
    return (ROOT / source).read_text(encoding="utf-8") if source else None


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with its links as they are on the site."""
    source = SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    if source.endswith((".zh.md", "_CN.md")):
        markdown = join_chinese_lines(markdown)
    return LINK.sub(lambda match: _rewrite_link(match, source, page.file.src_uri), markdown)


def join_chinese_lines(markdown: str) -> str:
    """Return Chinese text without line breaks between characters, which a browser would show as spaces."""
    parts = FENCE.split(markdown)
    return "".join(part if FENCE.fullmatch(part) else BREAK.sub("", part) for part in parts)


def _english(path: str) -> str:
    return path.replace("_CN.md", ".md").replace(".zh.md", ".md")


def _rewrite_link(match: re.Match[str], source: str, page: str) -> str:
    text, path, anchor = match[1], match[2], match[3] or ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if target != source and _english(target) == _english(source):
        return text[1:-1]  # the same page in the other language: the header of the site leads there
    if target in PAGES:
        target = PAGES[target]
    elif target.startswith("docs/"):
        target = target.removeprefix("docs/")
    elif (ROOT / target).is_file():
        target, anchor = f"{FOLDER}/{target}.txt", ""
    else:
        return text[1:-1]  # a folder, which the site does not have
    return f"{text}({posixpath.relpath(target, posixpath.dirname(page) or '.')}{anchor})"
