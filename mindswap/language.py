"""Chinese messages and reports: `MINDSWAP_LANG=zh`, or the locale.

Texts are written in English, and translated where they are printed: line by line in `print_text`, and cell by cell in
tables, before their columns are aligned. The catalogue `data/locale/zh.po` has gettext's format; its entries are made
from the sources by `tools/messages.py`. An f-string is a template with placeholders `{0}`, `{1}`; what a placeholder
stands for is translated, too. Nothing of this is loaded for English, and JSON is never translated.
"""

import functools
import json
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "MINDSWAP_LANG"
# Set for child processes of a command in Chinese, which print its progress.
INHERITED = "MINDSWAP_CHINESE_TEXTS"
# The first that is set decides, as in gettext.
LOCALE_VARIABLES = (VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG")
CATALOGUE = Path(__file__).parent / "data" / "locale" / "zh.po"
CELL = "cell"  # context of texts that are translated in tables only: single words
HELP = "help"  # context of what `--help` prints
PATTERN = "pattern"  # context of texts that the sources put together from parts, such as `{0} layers`
LABEL = "label"  # context of words before a colon at the start of a line, such as `fix`
# Longer lines are data of the user, not messages.
MAX_LINE = 2000
# Texts whose translation is kept; a line has a few hundred parts at most.
MAX_MATCHES = 4096
# A template with fewer letters, such as `layer {0}`, only matches if its parts are numbers, names, or in the catalogue.
# One that begins with a placeholder, such as `{0} layers of {1}`, needs more: it matches the end of any longer text.
MIN_LETTERS, MIN_LETTERS_AFTER_PLACEHOLDER = 7, 14
_ENTRY = re.compile(r'(?:msgctxt "(\w+)"\n)?msgid (".*")\nmsgstr (".*")')
_PLACEHOLDER = re.compile(r"\{(\d+)\}")
_COLUMNS = re.compile(r"( {2,})")
_LABEL = re.compile(r"(\w+): +(.*)")
# A number or a name, as in `{0} layers`: no blanks, no punctuation at the end.
_VALUE = re.compile(r"\d[\d ,.%x+-]*|[\[{(].*[\])}]|[\w.\\/:'\"+*=~\[\]-]*[\w'\"*%\]]")
# Words that are left of an English sentence, of which only parts are known.
_ENGLISH = re.compile(r"(?<![\w.\\'/])[a-z]{2,} [a-z]{2,}(?![\w.\\'/])")
# Seconds before a line of progress.
_SECONDS = re.compile(r"\[ *\d+ s\] +")
# A key of a YAML file, as in `optimizer: False`.
_KEY = re.compile(r"[\w.\[\]]+")
# Between two Chinese characters there is no blank.
_CJK_BLANK = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])")


@dataclass(frozen=True, eq=False)
class Template:
    """A text with placeholders.

    Attributes:
        pattern: matches the English text; a group for each placeholder.
        anchor: the longest part between placeholders; a text without it does not match.
        num_letters: letters outside of placeholders.
        is_certain: whether it has enough of them, and text between its placeholders, to match whatever these are.
        translation: the text in Chinese, with the same placeholders.
    """

    pattern: re.Pattern[str]
    anchor: str
    num_letters: int
    is_certain: bool
    translation: str

    def fill(self, parts: Sequence[str]) -> str:
        """Return the translation with these parts in place of the placeholders."""
        return _PLACEHOLDER.sub(lambda placeholder: parts[int(placeholder[1])], self.translation)


class Catalogue:
    """Translations of texts."""

    def __init__(self, text: str):
        entries = list(read_entries(text))
        self.cells = {english: chinese for context, english, chinese in entries if context == CELL}
        self.labels = {english: chinese for context, english, chinese in entries if context == LABEL}
        self.helps = {english: chinese for context, english, chinese in entries if context == HELP}
        # A text of the sources that equals its translation is not shown, or is a name.
        texts = {
            english: chinese
            for context, english, chinese in entries
            if context == PATTERN or (context is None and chinese not in ("", english))
        }
        self.exact = {english: chinese for english, chinese in texts.items() if not _PLACEHOLDER.search(english)}
        templates = [_template(*each) for each in texts.items() if each[0] not in self.exact]
        # Something is appended to a text that ends with a colon.
        templates += [_template(f"{a} {{0}}", f"{b}{{0}}") for a, b in self.exact.items() if a.endswith(":")]
        self.templates = sorted(templates, key=lambda template: -template.num_letters)
        # Parts of a line are matched by many templates: without it the time grows exponentially with the clauses.
        self._match = functools.lru_cache(MAX_MATCHES)(self._match_anew)

    def translate_line(self, line: str) -> str:
        """Return a line in Chinese; parts that are not in the catalogue stay as they are.

        Columns, which are two blanks or more apart, keep their places.
        """
        text = line.strip(" ")
        if not text or len(line) > MAX_LINE:
            return line
        indent = line[: len(line) - len(line.lstrip(" "))]
        if seconds := _SECONDS.match(text):
            return indent + seconds[0] + self.translate_line(text[seconds.end() :])
        return indent + (self._translate_label(text) or self._translate_columns(text))

    def _translate_label(self, text: str) -> str | None:
        """Translate a line such as `fix:     use O1`; None if it is no such line."""
        match = _LABEL.fullmatch(text)
        if match is None or match[1] not in self.labels or self._match(text) is not None:
            return None
        label = f"{self.labels[match[1]]}："
        return label + " " * (match.start(2) - display_width(label)) + self._translate(match[2])

    def _translate_columns(self, text: str) -> str:
        translated = self._match(text)
        if translated is not None:
            return _join_chinese(translated)
        parts, excess = _COLUMNS.split(text), 0  # columns of a terminal that the translation takes more
        for index, part in enumerate(parts):
            if index % 2:
                num_blanks = max(2, len(part) - excess)
                parts[index] = " " * num_blanks
                excess += num_blanks - len(part)
            else:
                parts[index] = self._translate(part)
                excess += display_width(parts[index]) - display_width(part)
        return "".join(parts)

    def translate_cell(self, cell: str) -> str:
        """Return a cell of a table in Chinese, with its indentation."""
        text = cell.strip(" ")
        return cell.replace(text, self.cells.get(text) or self._translate(text)) if text else cell

    def _translate(self, text: str) -> str:
        """Return a text in Chinese, or as it is if nothing matches."""
        translated = self._match(text)
        if translated is None:
            translated = self._translate_parts(text)
        return translated if translated == text else _join_chinese(translated)

    def _match_anew(self, text: str) -> str | None:
        """Return the translation of a text that is an entry, or matches a template; None without one."""
        if text in self.exact:
            return self.exact[text]
        for template in self.templates:
            match = template.pattern.fullmatch(text) if template.anchor in text else None
            # Columns are translated one by one: no placeholder stands for two, or for the blanks between them.
            if match is None or any("  " in part or part != part.strip() for part in match.groups()):
                continue
            parts = match.groups()
            translated = [self._translate(part) for part in parts]
            if template.is_certain or all(map(_is_known, parts, translated)):
                return template.fill(translated)
        return None

    def _translate_parts(self, text: str) -> str:
        """Translate the parts of a text that punctuation separates, if one of them is known."""
        for separator, chinese in (("; ", "；"), (": ", "："), (", ", "，")):
            # Not within [1, 32, 4096], nor in or before the braces of YAML: `mindswap: {swap_engine: mindswap}`.
            outside = re.escape(separator) + r"(?!\{)(?![^\[\]]*\])(?![^{}]*\})"
            first, *others = re.split(outside, text, maxsplit=int(separator == ": "))
            if others:
                head = first if separator == ": " and _KEY.fullmatch(first) else self._translate(first)
                made = [head, *(self._continue(separator, chinese, part) for part in others)]
                if made != [first, *(chinese + part for part in others)]:
                    return "".join(made)
        for separator, chinese in ((" and ", " 与 "), (" or ", " 或 ")):
            parts = text.split(separator)
            made = list(map(self._translate, parts)) if len(parts) > 1 else parts
            if made != parts and all(map(_is_known, parts, made)):
                return chinese.join(made)
        return text

    def _continue(self, separator: str, chinese: str, part: str) -> str:
        """Translate a part with the separator before it: some texts begin with one, such as `; read as {0}`."""
        translated = self._match(separator + part)
        return chinese + self._translate(part) if translated is None else translated


def read_entries(text: str) -> Iterator[tuple[str | None, str, str]]:
    """Return context, English and Chinese of the entries of a catalogue; "" is not translated yet."""
    for context, english, chinese in _ENTRY.findall(text):
        if english != '""':
            yield context or None, json.loads(english), json.loads(chinese)


def _join_chinese(text: str) -> str:
    return _CJK_BLANK.sub("", text)


def _is_known(part: str, translated: str) -> bool:
    """Return whether a part of a text is a name, a number or a known text, and not some other sentence."""
    if part == translated:
        return _VALUE.fullmatch(part) is not None
    return ": " not in part and not _ENGLISH.search(translated)


def _template(english: str, chinese: str) -> Template:
    parts = _PLACEHOLDER.split(english)[::2]
    pattern = "(.*?)".join(map(re.escape, parts))
    num_letters = sum(character.isalpha() for part in parts for character in part)
    # Of placeholders that one blank separates it is not known where the text of the first one ends.
    is_separated = " " not in parts[1:-1]
    is_certain = is_separated and num_letters >= (MIN_LETTERS if parts[0] else MIN_LETTERS_AFTER_PLACEHOLDER)
    return Template(re.compile(pattern), max(parts, key=len), num_letters, is_certain, chinese)


def display_width(text: str) -> int:
    """Return the columns of a terminal that a text takes; a Chinese character takes two."""
    return len(text) + sum(unicodedata.east_asian_width(character) in "WF" for character in text if character > "\x7f")


def wants_chinese(environ: Mapping[str, str]) -> bool:
    """Return whether `MINDSWAP_LANG`, or else the locale, is Chinese."""
    value = next((environ[name] for name in LOCALE_VARIABLES if environ.get(name)), "")
    return value.lower().startswith(("zh", "chinese"))


@functools.cache
def _load_catalogue() -> Catalogue:
    return Catalogue(CATALOGUE.read_text("utf-8"))


def _catalogue() -> Catalogue | None:
    """Return the catalogue if the texts of this process are Chinese; None for English."""
    return _load_catalogue() if INHERITED in os.environ else None


def set_language(environ: Mapping[str, str]) -> None:
    """Choose the language of the texts of this command, and of its child processes."""
    os.environ.pop(INHERITED, None)
    if wants_chinese(environ):
        os.environ[INHERITED] = "1"


def translate(text: str) -> str:
    """Return a text of one or more lines in the chosen language."""
    catalogue = _catalogue()
    return text if catalogue is None else "\n".join(map(catalogue.translate_line, text.split("\n")))


def translate_cell(text: str) -> str:
    """Return the text of a cell in the chosen language."""
    catalogue = _catalogue()
    return text if catalogue is None else catalogue.translate_cell(text)


def translate_help(text: str) -> str:
    """Return a text of `--help` in the chosen language; one that is not in the catalogue stays as it is."""
    catalogue = _catalogue()
    return text if catalogue is None else catalogue.helps.get(text) or text
