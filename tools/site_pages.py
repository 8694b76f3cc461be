"""Hooks of mkdocs (mkdocs.yml): README and CONTRIBUTING as pages, and the files that pages link outside of docs/.

Pages are read on GitHub and Gitee as well, so their links stay as they are there; here they are turned.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "README_CN.md": "index_CN.md", "CONTRIBUTING.md": "contributing.md"}
# The text and the target of a link or a picture; targets with a scheme and within the page are left alone.
LINK = re.compile(r"(?<!`)(\[[^\]\n]*\]|\[!\[[^\]\n]*\]\([^)\n]*\)\])\((?!\w+:|#)([^)\s#]*)(#[^)\s]*)?\)")
FOLDER = "files"  # of the site, for what is no page


def on_files(files: Files, config):
    """Adds the pages that are not in docs/, and every file outside of it that a page links."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    sources = [(ROOT / name, "") for name in PAGES] + [(path, "docs") for path in sorted((ROOT / "docs").glob("*.md"))]
    outside = set()
    for path, folder in sources:
        for match in LINK.finditer(path.read_text(encoding="utf-8")):
            target = posixpath.normpath(posixpath.join(folder, match[2]))
            if not target.startswith("docs/") and target not in PAGES and (ROOT / target).is_file():
                outside.add(target)
    for target in sorted(outside):
        files.append(File.generated(config, f"{FOLDER}/{target}.txt", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    """The page with its links as they are on the site."""
    folder = "" if page.file.src_uri in PAGES.values() else "docs"
    return LINK.sub(lambda match: _turned(match, folder), markdown)


def _turned(match: re.Match, folder: str) -> str:
    text, path, anchor = match[1], match[2], match[3] or ""
    target = posixpath.normpath(posixpath.join(folder, path))
    if target in PAGES:
        return f"{text}({PAGES[target]}{anchor})"
    if target.startswith("docs/"):
        return f"{text}({target.removeprefix('docs/')}{anchor})"
    if (ROOT / target).is_file():
        return f"{text}({FOLDER}/{target}.txt)"
    return text[1:-1]  # a folder, which the site does not have
