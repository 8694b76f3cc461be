"""Hooks of mkdocs (mkdocs.yml): README and CONTRIBUTING as pages, and the files that pages link outside of docs/.

Pages are read on GitHub and Gitee as well, so their links stay as they are there; here they are turned.
Each page has its language and a switch to the other one.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "README_CN.md": "index_CN.md", "CONTRIBUTING.md": "contributing.md"}
# The text and the target of a link or a picture; targets with a scheme and within the page are left alone.
LINK = re.compile(r"(?<!`)(\[[^\]\n]*\]|\[!\[[^\]\n]*\]\([^)\n]*\)\])\((?!\w+:|#)([^)\s#]*)(#[^)\s]*)?\)")
LANGUAGES = {"": ("en", "English"), "_CN": ("zh", "中文")}  # by the end of the page's name
FOLDER = "files"  # of the site, for what is no page


def on_files(files: Files, config):
    """Adds the pages that are not in docs/, and every file outside of it that a page links."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    outside = set()
    for path in (*map(ROOT.joinpath, PAGES), *sorted(ROOT.glob("docs/**/*.md"))):
        folder = path.parent.relative_to(ROOT).as_posix()
        for match in LINK.finditer(path.read_text(encoding="utf-8")):
            target = posixpath.normpath(posixpath.join(folder, match[2]))
            if not target.startswith("docs/") and target not in PAGES and (ROOT / target).is_file():
                outside.add(target)
    for target in sorted(outside):
        files.append(File.generated(config, f"{FOLDER}/{target}.txt", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    """The page with its links as they are on the site."""
    here = posixpath.dirname(page.file.src_uri)
    folder = "" if page.file.src_uri in PAGES.values() else posixpath.join("docs", here)
    return LINK.sub(lambda match: _turned(match, folder, here), markdown)


def on_page_context(context, page, config, nav):
    """The words of the theme in the language of the page, and a switch to the same page in the other language."""
    stem = page.file.src_uri.removesuffix(".md").removesuffix("_CN")
    urls = {one.file.src_uri: one.url for one in nav.pages}
    found = [(*language, urls.get(f"{stem}{end}.md")) for end, language in LANGUAGES.items()]
    config.theme["language"] = "zh" if page.file.src_uri.endswith("_CN.md") else "en"
    switch = [{"lang": lang, "name": name, "link": url} for lang, name, url in found if url]
    config.extra["alternate"] = switch if len(switch) > 1 else []
    return context


def _turned(match: re.Match, folder: str, here: str) -> str:
    text, path, anchor = match[1], match[2], match[3] or ""
    target = posixpath.normpath(posixpath.join(folder, path))
    if target in PAGES:
        target = PAGES[target]
    elif target.startswith("docs/"):
        target = target.removeprefix("docs/")
    elif (ROOT / target).is_file():
        target, anchor = f"{FOLDER}/{target}.txt", ""
    else:
        return text[1:-1]  # a folder, which the site does not have
    return f"{text}({posixpath.relpath(target, here or '.')}{anchor})"
