"""What a shared library asks for and offers, read from its ELF file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_DYNAMIC, _DYNSYM = 6, 11  # types of sections
_NEEDED = 1  # tag of a dynamic entry
_SECTION = np.dtype(
    {
        "names": ["name", "type", "flags", "addr", "offset", "size", "link", "info", "align", "entry"],
        "formats": ["<u4", "<u4", "<u8", "<u8", "<u8", "<u8", "<u4", "<u4", "<u8", "<u8"],
    }
)
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)


@dataclass(frozen=True)
class Library:
    """The dynamic symbols of a shared library."""

    defined: frozenset[str]
    undefined: frozenset[str]
    needed: tuple[str, ...]  # names of the libraries that it is linked against


def read_library(path: Path) -> Library:
    """Read a 64-bit little-endian library: x86-64 and aarch64 are.

    Raises:
        ValueError: it is none.
    """
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path}: not a 64-bit little-endian ELF file")
    sections = np.frombuffer(
        data, _SECTION, int.from_bytes(data[60:62], "little"), int.from_bytes(data[40:48], "little")
    )
    defined: set[str] = set()
    undefined: set[str] = set()
    needed = []
    for section in sections:
        if section["type"] not in (_DYNAMIC, _DYNSYM):
            continue
        texts = sections[section["link"]]
        names = data[texts["offset"] : texts["offset"] + texts["size"]]
        place = int(section["offset"])
        if section["type"] == _DYNAMIC:
            entries = np.frombuffer(data, "<u8", int(section["size"]) // 8, place).reshape(-1, 2)
            needed += [_text(names, int(value)) for tag, value in entries if tag == _NEEDED]
        else:
            symbols = np.frombuffer(data, _SYMBOL, int(section["size"]) // _SYMBOL.itemsize, place)
            for name, place_in in zip(symbols["name"].tolist(), symbols["section"].tolist(), strict=True):
                (defined if place_in else undefined).add(_text(names, name))
    return Library(frozenset(defined), frozenset(undefined - {""}), tuple(needed))


def find_texts(path: Path, pattern: re.Pattern[bytes]) -> Iterator[str]:
    """Texts between zero bytes that match as a whole: names that are looked up while running."""
    for match in pattern.finditer(path.read_bytes()):
        yield match[1].decode()


def _text(names: bytes, place: int) -> str:
    return names[place : names.index(b"\0", place)].decode("utf-8", "replace")


def cpp_path(mangled: str) -> list[str]:
    """Names of a C++ symbol from the outside in (ge, Operator, GetName), a constructor twice; [] for a C symbol."""
    match = re.match(r"_ZNK?|_ZTVN|_ZTIN", mangled)
    position = match.end() if match else len(mangled)
    names: list[str] = []
    while number := re.match(r"\d+", mangled[position:]):
        start = position + number.end()
        position = start + int(number[0])
        names.append(mangled[start:position])
    if names and re.match(r"C[12]", mangled[position:]):
        names.append(names[-1])
    return names
