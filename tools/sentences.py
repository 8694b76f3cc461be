"""Lengths of the sentences on the pages: average below 18 words, none above 35.

    python tools/sentences.py [PAGE ...]

Prints for each page the number of sentences, their average and their longest, and the sentences that are too long. Exit
code 1 if a page exceeds a limit. Counted is prose: paragraphs and entries of lists. Cells of tables are short and would
lower the average, so they count for the longest sentence only. Left out are code, headings, comments, and tables that
runs have written (between `<!-- x -->` and `<!-- end of x -->`).
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Pages whose sentences are counted by `tests/test_sentences.py`: all in English but for lists of terms.
PAGES = (
    "README.md",
    *sorted(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docs").rglob("*.md")
        if not path.name.endswith(".zh.md") and path.name != "glossary.md"
    ),
)
MAX_AVERAGE, MAX_WORDS = 18.0, 35
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"<!-- (\w+) -->.*?<!-- end of \1 -->", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]*`")
# A sentence ends at a full stop, a question mark, or a colon that ends its block; abbreviations do not end one.
END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[A-Z\[(*`\"0-9])")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|vs|approx|No)\.")
WORD = re.compile(r"[\w'’+%/.-]*\w[\w'’+%/.-]*")


class Lengths(NamedTuple):
    """Sentences of a page."""

    prose: list[str]  # of paragraphs and lists
    cells: list[str]  # of tables

    def average(self) -> float:
        """Return the average number of words of the prose; 0 without any."""
        counts = list(map(count_words, self.prose))
        return sum(counts) / len(counts) if counts else 0.0

    def longest(self) -> int:
        """Return the number of words of the longest sentence; 0 without any."""
        return max(map(count_words, (*self.prose, *self.cells)), default=0)

    def too_long(self) -> list[str]:
        """Return the sentences with more words than `MAX_WORDS`."""
        return [text for text in (*self.prose, *self.cells) if count_words(text) > MAX_WORDS]


def count_words(text: str) -> int:
    """Return the number of words of a sentence; code in it counts as one."""
    return len(WORD.findall(text))


def read_sentences(text: str) -> Lengths:
    """Return the sentences of a page in Markdown."""
    for pattern in (FENCE, GENERATED, COMMENT):
        text = pattern.sub("\n\n", text)
    prose, cells = _blocks(text)
    return Lengths(_split(prose), _split(cells))


def _split(blocks: list[str]) -> list[str]:
    sentences: list[str] = []
    for block in blocks:
        plain = ABBREVIATION.sub(r"\1", CODE.sub("CODE", LINK.sub(r"\1", block)))
        sentences += [" ".join(part.split()) for part in END.split(plain)]
    return [sentence for sentence in sentences if count_words(sentence) > 2]


def _blocks(text: str) -> tuple[list[str], list[str]]:
    """Return paragraphs and entries of lists, and the cells of tables."""
    blocks, cells, lines = [], [], [*text.splitlines(), ""]
    block: list[str] = []
    for line in lines:
        stripped = line.strip()
        starts = re.match(r"([-*+]|\d+\.)\s", stripped)
        if not stripped or stripped.startswith(("#", "|")) or starts:
            blocks.append(" ".join(block))
            block = []
        if stripped.startswith("|"):
            cells += [cell.strip() for cell in stripped.strip("|").split("|")]
        elif stripped and not stripped.startswith("#"):
            block.append(stripped[starts.end() :] if starts else stripped)
    return [block for block in blocks if block], [cell for cell in cells if cell]


def main(pages: list[str]) -> int:
    """Print the lengths of pages; 1 if one exceeds a limit."""
    is_good = True
    for page in pages:
        lengths = read_sentences((ROOT / page).read_text("utf-8"))
        long = lengths.too_long()
        is_good &= not long and lengths.average() < MAX_AVERAGE
        figures = (
            f"{len(lengths.prose)} sentences, {lengths.average():.1f} words on average, {lengths.longest()} at most"
        )
        print(f"{page}: {figures}")
        print("".join(f"    {count_words(text)}: {text}\n" for text in long), end="")
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PAGES)))
