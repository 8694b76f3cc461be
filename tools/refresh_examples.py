"""Runs the examples `$ mindswap ...` of the pages again and writes what they print now, in both languages.

    python tools/refresh_examples.py [PAGE ...]

Needs MindFormers. Lines left out (`...`) stay left out: a line is found again by its words, whatever its numbers.
Figures in sentences and pictures are not touched: read the page afterwards.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = "..."
PROGRESS = re.compile(r"mindswap: .*, \d+ s so far")


def words_of(line: str) -> str:
    """A line without its numbers, their units and its spaces."""
    return re.sub(r"[\s\-+]|\d[\d.]*\s*(?:[KMGT]i?B\b|[num]?s\b)?", "", line)


def refresh(shown: list[str], printed: list[str]) -> list[str]:
    """What a page should show.

    Args:
        shown: what it shows now.
        printed: the whole output.

    Raises:
        ValueError: a line that is shown is not printed any more.
    """
    if LEFT_OUT not in shown:
        return printed
    result, position = [], 0
    for line in shown:
        if line == LEFT_OUT:
            result.append(line)
            continue
        found = [index for index in range(position, len(printed)) if words_of(printed[index]) == words_of(line)]
        if not found:
            raise ValueError(f"not printed any more: {line}")
        result.append(printed[found[0]])
        position = found[0] + 1
    return result


def refresh_page(page: Path) -> None:
    """One page, and the same page in Chinese."""
    pages = [page, page.with_name(f"{page.stem}_CN.md")]
    texts = [path.read_text("utf-8") for path in pages]
    for block in re.findall(r"^```console\n\$ (.*?)^```", texts[0], re.MULTILINE | re.DOTALL):
        command, *shown = block.splitlines()
        words = [sys.executable, "-m", *shlex.split(command)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        printed = [line for line in (done.stdout + done.stderr).splitlines() if not PROGRESS.fullmatch(line)]
        try:
            new = "\n".join([command, *refresh(shown, printed), ""])
        except ValueError as error:  # the others are refreshed all the same
            print(f"{page.name}: LEFT  {command}: {error}")
            continue
        print(f"{page.name}: {'same' if new == block else 'NEW '}  {command}")
        texts = [text.replace(block, new) for text in texts]
    for path, text in zip(pages, texts, strict=True):
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    english = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    for name in sys.argv[1:] or [path for path in english if path.with_name(f"{path.stem}_CN.md").exists()]:
        refresh_page(Path(name).resolve())
