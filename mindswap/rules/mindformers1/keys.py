"""Rules for keys and sections: missing, unknown, duplicate, of another version."""

from collections.abc import Iterator
from dataclasses import replace

from mindswap.config.findings import Finding, find_ignore_problems, rule
from mindswap.config.nodes import Document, DocumentNode, MappingEntry, key_text, show
from mindswap.config.problem import Level, Problem
from mindswap.policy.formats.megatron.options import find_pasted_options, is_option_key
from mindswap.policy.formats.mindformers1.read_parts import is_empty
from mindswap.policy.formats.mindformers1.schema import SECTION_OF_KEY
from mindswap.policy.formats.mindformers1.settings import MissingKey, PolicySettings, UnknownKey
from mindswap.policy.formats.mindformers2.tables import find_mixed_sections
from mindswap.policy.wording import closest_names
from mindswap.rules.context import Context

SECTIONS = ("swap_config", "recompute_config")
# The sections that mindswap reads.
READ_SECTIONS = (*SECTIONS, "context", "model", "parallel_config")
# Strings that mean True for a switch.
ON_WORDS = ("true", "on", "yes", "y", "1")
EXAMPLES = {"op_name": r"'attention\.flash_attention'", "backward_prefetch": "10", "layers": "True"}
# Section of MindFormers 2.x -> key that enables it, and the value of that key for "off".
SWITCHES_OF_2X = {"swap": ("enable", False), "recompute": ("mode", "None"), "recompute_comm": ("enable", False)}


@rule(Level.ERROR)
def missing_key(context: Context) -> Iterator[Finding]:
    """An entry of layer_swap or op_swap lacks a key.

    PASS: op_swap: [{op_name: attention, backward_prefetch: 20, layers: [0]}]
    FAIL (which operator?): op_swap: [{backward_prefetch: 20, layers: [0]}]
    """
    renamed = {id(missing) for missing in _renamed_keys(context.settings).values()}
    for missing in context.settings.parse_issues.missing_keys:
        if id(missing) not in renamed:  # else `unknown_key` reports it with the misspelled key
            fix = f"add {missing.key}: {EXAMPLES[missing.key]}"
            yield Finding(missing.node.location, f"{missing.path}: '{missing.key}' is missing", fix=fix)


@rule(Level.ERROR)
def unknown_key(context: Context) -> Iterator[Finding]:
    """An unknown key in swap_config, in one of its entries, or in recompute_config.

    Also a misspelled `swap_config` or `recompute_config` at the top level, if it enables anything, and swap settings
    elsewhere: MindFormers accepts any key there and ignores it. A key that is True where `swap` is missing
    (`swpa: True`) is an error, although swap is off then. Options of Megatron-LM are named with the command that
    converts them.

    PASS: swap_config: {swap: True, default_prefetch: 10}
    FAIL: swap_config: {swap: True, default_prefech: 10}
    """
    document, parse_issues = context.document, context.settings.parse_issues
    renamed = _renamed_keys(context.settings)
    pasted = _pasted_options(context)
    yield from (replace(finding, level=level) for finding, level in pasted)
    for unknown in parse_issues.unknown_keys:
        if is_option_key(unknown.entry.key):
            continue  # an option of Megatron-LM, reported above
        missing_key = renamed.get(id(unknown))
        # MindFormers refuses unknown keys of the section itself (tools/register/template.py).
        is_refused = unknown.path.count(".") == 1
        level = context.refusal_level if is_refused else context.swap_error_level
        if missing_key is not None:
            message = f"{unknown.path}: no such key; '{missing_key.key}' is missing"
            fix = f"rename it: {missing_key.key}: {show(unknown.entry.value)}"
        elif is_misspelled_switch(document, unknown):
            message = f"{unknown.path}: no such key; 'swap' is missing, so swap would be off"
            fix, level = "rename it: swap: True", Level.ERROR
        else:
            message = f"{unknown.path}: no such key"
            fix = unknown.fix(SECTION_OF_KEY)
        yield Finding(unknown.entry.location, message, ", ".join(unknown.allowed_keys), fix, level)
    for entry in document.root.unique_entries() if document.root is not None else ():
        if entry.key in SECTIONS:
            continue
        suggestion = closest_names(key_text(entry.key), SECTIONS, min_similarity=0.82)
        if suggestion and document.get(suggestion[0]) is None:
            message = f"{key_text(entry.key)}: this key is not used by anything"
            entry_level = None if _enables_anything(entry.value) else Level.WARNING
            yield Finding(entry.location, message, fix=f"write '{suggestion[0]}'", level=entry_level)
        else:
            yield from _misplaced(context, entry)


def is_misspelled_switch(document: Document, unknown: UnknownKey) -> bool:
    """Return whether a key of swap_config switches swap on under another name: `swpa: True`, `enable: True`."""
    value, is_in_section = unknown.entry.value.value, unknown.path.startswith("swap_config.")
    is_on = value is True or str(value).strip().lower() in ON_WORDS
    return is_in_section and not unknown.is_in_entry and is_on and document.get("swap_config", "swap") is None


def _pasted_options(context: Context) -> Iterator[tuple[Finding, Level]]:
    """Yield findings about options of Megatron-LM in sections of mindswap or at the top level, with their levels.

    With swap off, `stage-recompute` reports those in recompute_config.
    """
    document, is_on = context.document, context.settings.is_swap_enabled
    for section in ("", *SECTIONS):
        if section == "recompute_config" and not is_on:
            continue
        node = document.get(section) if section else document.root
        finding = find_pasted_options(node.unique_entries() if node is not None else (), section, document.file)
        if finding is not None:
            yield finding, context.swap_error_level if section else Level.WARNING


def _enables_anything(section: DocumentNode) -> bool:
    """Return whether a section, perhaps under a misspelled name, enables swap or recompute."""
    if section.entry("swap") is not None:
        return any(entry.key == "swap" and entry.value.value is True for entry in section.entries or ())
    return any(not is_empty(entry.value) for entry in section.entries or ())


def _renamed_keys(settings: PolicySettings) -> dict[int, MissingKey]:
    """Map unknown keys of entries (by `id`) to a missing required key of the same entry with a similar name."""
    missing = {(key.path, key.key): key for key in settings.parse_issues.missing_keys}
    renamed: dict[int, MissingKey] = {}
    for unknown in settings.parse_issues.unknown_keys:
        parent, name = unknown.path.rpartition(".")[0], str(unknown.entry.key).lower()
        for required in unknown.allowed_keys:
            is_part = len(name) > 2 and (name in required or required in name)
            is_similar = is_part or bool(closest_names(name, [required], min_similarity=0.75))
            if is_similar and (parent, required) in missing:
                renamed[id(unknown)] = missing.pop((parent, required))
                break
    return renamed


def _misplaced(context: Context, entry: MappingEntry) -> Iterator[Finding]:
    """Yield findings about swap_config or recompute_config below another key, or under another name."""
    name = key_text(entry.key)
    for section in SECTIONS:
        below = entry.value.entry(section)
        if below is not None and context.document.get(section) is None:
            fix = f"move '{section}' to the top level"
            level = None if section == "swap_config" and _enables_anything(below.value) else Level.WARNING
            yield Finding(below.location, f"{name}.{section}: is not used here", fix=fix, level=level)
    switch = entry.value.get("swap")
    # `optimizer` may have a key `swap`, too.
    is_about_swap = "swap" in name.lower() or any(entry.value.entry(key) for key in ("layer_swap", "op_swap"))
    is_switch = switch is not None and isinstance(switch.value, bool)
    if context.document.get("swap_config") is None and is_about_swap and is_switch:
        message = f"{name}: is not used; it has keys of swap_config"
        level = None if _enables_anything(entry.value) else Level.WARNING
        yield Finding(entry.location, message, fix="write 'swap_config:'", level=level)


@rule(Level.ERROR)
def duplicate_key(context: Context) -> Iterator[Finding]:
    """A key is written twice in one mapping; YAML readers silently take the last one.

    An error where it concerns swap, and where it switches swap off; a warning elsewhere and while swap is off, since
    MindFormers runs.

    PASS: swap_config: {swap: True}
    FAIL: swap_config: {swap: True, swap: False}
    """
    root = context.document.root
    sections = [entry.value for entry in (root.entries or () if root is not None else ()) if entry.key == "swap_config"]
    is_dropped = not context.settings.is_swap_enabled and any(_enables_anything(section) for section in sections)
    for duplicate in context.document.duplicates:
        level = context.swap_error_level if duplicate.section in READ_SECTIONS else Level.WARNING
        if duplicate.path in ("swap_config", "swap_config.swap") and is_dropped:
            level = Level.ERROR
        yield Finding(duplicate.location, duplicate.message, "each key once", "delete one of them", level)


@rule(Level.ERROR)
def section_of_2x(context: Context) -> Iterator[Finding]:
    """`swap`, `recompute` or `recompute_comm` of MindFormers 2.x in a file of MindFormers 1.9: nothing reads it.

    An error if the section enables anything, a warning if it is switched off.

    PASS: swap_config: {swap: True}
    FAIL: swap: {enable: True, layer_swap: [{layers: ['0-2']}]}
    """
    double = find_mixed_sections(context.document)
    for name, (switch, off) in SWITCHES_OF_2X.items():
        entry = context.document.entry(name)
        if entry is not None and any(entry.value.get(key) is not None for key in (switch, "layer_swap", "op_swap")):
            node = entry.value.get(switch)
            level = None if node is not None and node.value != off else Level.WARNING
            message = f"{name}: a section of MindFormers 2.x; MindFormers 1.9 does not read it, so it has no effect"
            allowed = "swap_config, recompute_config (2.x files have `training` and `parallelism`, and no `trainer`)"
            fix = double.fix if double is not None else f"mindswap convert --to 1.9 {context.document.file}"
            yield Finding(entry.location, message, allowed, fix, level)


@rule(Level.ERROR)
def bad_ignore(context: Context) -> Iterator[Problem]:
    """`mindswap: {ignore: ...}` is not a list of rules, or names a rule that does not exist.

    Warnings of the named rules are counted and not shown; errors stay. `mindswap check --ignore RULE` does the same for
    one call.

    PASS: mindswap: {ignore: [overlap, recompute-wins]}
    FAIL: mindswap: {ignore: [overlapp]}
    """
    from mindswap.rules.mindformers1 import find_rules

    yield from find_ignore_problems(context.document, find_rules())
