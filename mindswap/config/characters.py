"""Look-alikes of YAML characters that YAML reads as text: full-width punctuation, typographic quotes, other spaces."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mindswap.config.problem import Location

# Full-width forms of ASCII are this far from it (Unicode block Halfwidth and Fullwidth Forms).
_FULL_WIDTH_OFFSET = 0xFEE0
# Look-alike -> the YAML character.
ASCII_OF = {
    **{chr(code + _FULL_WIDTH_OFFSET): chr(code) for code in range(0x21, 0x7F)},
    **dict.fromkeys("\u3000\u00a0\u2002\u2003\u2009\u202f", " "),
    **dict.fromkeys("\u200b\ufeff", ""),
    **dict.fromkeys("\u2018\u2019", "'"),
    **dict.fromkeys("\u201c\u201d", '"'),
    **dict.fromkeys("\u2013\u2014\u2212", "-"),
    "\u3001": ",",
    "\u3002": ".",
    "\u3010": "[",
    "\u3011": "]",
}
WIDE = re.compile("[" + re.escape("".join(ASCII_OF)) + "]")


@dataclass(frozen=True)
class WideCharacter:
    """A key or value with a look-alike character."""

    path: str  # key path of the value, or of the key
    location: Location  # of the first look-alike
    character: str  # the first look-alike
    text: str  # the key or value as written
    is_key: bool

    @property
    def section(self) -> str:
        """The top-level key that contains it, or itself."""
        return self.path.partition(".")[0].partition("[")[0]

    @property
    def ascii_text(self) -> str:
        """The key or value with look-alikes replaced."""
        return to_ascii(self.text)


def to_ascii(text: str) -> str:
    """Replace each look-alike by its ASCII character."""
    return WIDE.sub(lambda match: ASCII_OF[match[0]], text)


def name_character(character: str) -> str:
    """Describe a character: `'，' (U+FF0C, FULLWIDTH COMMA)`."""
    shown = f"'{character}' " if character.isprintable() and not character.isspace() else ""
    return f"{shown}(U+{ord(character):04X}, {unicodedata.name(character, 'no name')})"


class LocatedCharacter(NamedTuple):
    """A look-alike in a text; line and column count from 1."""

    line: int
    column: int
    character: str


def find_wide(lines: list[str], first: int, last: int) -> Iterator[LocatedCharacter]:
    """Yield each look-alike outside of quotes and comments.

    Args:
        lines: lines of the text.
        first: index of the first line to search, from 0.
        last: index of the last line to search, from 0.
    """
    for number in range(max(first, 0), min(last + 1, len(lines))):
        code = re.sub(r"'[^']*'|\"[^\"]*\"|(?:^|(?<=\s))#.*", lambda match: "x" * len(match[0]), lines[number])
        for match in WIDE.finditer(code):
            yield LocatedCharacter(number + 1, match.start() + 1, match[0])
