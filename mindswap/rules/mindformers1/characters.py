"""Rule for look-alikes of YAML characters: full-width punctuation, typographic quotes, other spaces."""

from collections.abc import Collection, Iterator

from mindswap.config.characters import WideCharacter, name_character
from mindswap.config.findings import Finding, rule
from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.problem import Level
from mindswap.rules.context import Context

# Sections whose values are only names, numbers and lists.
SECTIONS = ("swap_config", "recompute_config", "mindswap")


@rule(Level.ERROR)
def wide_character(context: Context) -> Iterator[Finding]:
    """A key or value has a character that looks like YAML and is text to it: `，`, `：`, `‘’`, `　`, `２`.

    An error in `swap_config`, `recompute_config` and `mindswap`, and for their keys at the top level. A warning
    elsewhere, for keys, and for values that would be a number, a bool, a list or a text in quotes without it.

    PASS: swap_config: {swap: True, layer_swap: [{backward_prefetch: 20, layers: [0]}]}
    FAIL: swap_config: {swap: True, layer_swap: [{backward_prefetch: ２０, layers: [0]}]}
    """
    is_off = context.document.value("swap_config", "swap") is False
    yield from find_wide_characters(context.document, SECTIONS, Level.WARNING if is_off else Level.ERROR)


def find_wide_characters(document: Document, sections: Collection[str], level: Level) -> Iterator[Finding]:
    """Yield a finding for each key or value with a look-alike character.

    Args:
        document: the configuration.
        sections: sections in which every key and value is reported.
        level: level of findings in these sections.
    """
    for wide in document.wide:
        is_exclusive = wide.section in sections or (
            wide.is_key and wide.ascii_text.strip() in (*sections, "swap", "enable")
        )
        if not is_exclusive and not wide.is_key and not _is_syntax(wide):
            continue
        message = f"{wide.path}: YAML reads the character {name_character(wide.character)} as text"
        yield Finding(
            wide.location,
            message,
            fix=f"write {wide.ascii_text.strip()}",
            level=level if is_exclusive else Level.WARNING,
        )


def _is_syntax(wide: WideCharacter) -> bool:
    """Return whether the value with ASCII characters would be a number, a bool, a list or a quoted text."""
    read = parse_document(f"value: {wide.ascii_text}", "")
    return not read.problems and read.value("value") != wide.ascii_text.strip()
