"""Rules for keys and sections of 2.x files: missing, unknown, duplicate, of another version, without effect."""

from collections.abc import Iterable, Iterator

from mindswap.config.findings import Finding
from mindswap.config.nodes import MappingEntry, key_text
from mindswap.config.problem import Level
from mindswap.policy.formats.mindformers2.settings import SECTION_KEYS, SECTION_OF_KEY_2X
from mindswap.policy.formats.mindformers2.tables import find_mixed_sections
from mindswap.policy.wording import closest_names
from mindswap.rules.context import Context2x, rule

# Keys of each section other than its switch, without `exclude_op`, which a separate rule checks.
MEANING = {
    "swap": ("layer_swap", "op_swap"),
    "recompute": ("full_recompute_layer", "select_module"),
    "recompute_comm": ("select_module",),
}


@rule(Level.ERROR)
def missing_key(context: Context2x) -> Iterator[Finding]:
    """An entry of `layer_swap` needs `layers`, one of `op_swap` needs `op_name` and `layers`.

    PASS: op_swap: [{op_name: mlp, layers: [0]}]
    FAIL: op_swap: [{op_name: mlp}]
    """
    for missing in context.settings.parse_issues.missing_keys:
        example = "layers: ['0-2']" if missing.key == "layers" else "op_name: mlp"
        yield Finding(missing.node.location, f"{missing.path}: '{missing.key}' is missing", fix=f"add '{example}'")


@rule(Level.ERROR)
def missing_target(context: Context2x) -> Iterator[Finding]:
    """A mode or switch needs a key that is missing or empty: upstream refuses that.

    `mode: full` needs `full_recompute_layer`, `mode: select` needs `select_module`, `recompute_comm.enable` its
    `select_module`.

    PASS: recompute: {mode: full, full_recompute_layer: [0]}
    FAIL: recompute: {mode: full}
    """
    mode = context.settings.mode
    requirements = []
    if mode in ("full", "select"):
        key = "full_recompute_layer" if mode == "full" else "select_module"
        requirements.append(("recompute", "mode", key, f"mode is {mode}"))
    if context.settings.is_comm_enabled:
        requirements.append(("recompute_comm", "enable", "select_module", "enable is True"))
    for section, switch, key, reason in requirements:
        node, switch_node = context.document.get(section, key), context.document.get(section, switch)
        if switch_node is not None and (node is None or not (node.items or node.entries or node.value)):
            message = f"{section}.{key}: missing or empty, but {reason}"
            example = "['0-3']" if key == "full_recompute_layer" else "{mlp: ['0-3']}"
            yield Finding(switch_node.location, message, fix=f"add '{key}: {example}'")


@rule(Level.ERROR)
def unknown_key(context: Context2x) -> Iterator[Finding]:
    """A key in `swap`, `recompute` or `recompute_comm` that upstream does not know, or a section under another name.

    Upstream refuses the first. The second silently has no effect, since any section is allowed at the top
    level. It is recognized by its name or by its keys; below another key, by its keys.

    PASS: swap: {enable: True, default_prefetch: 1}
    FAIL: swap: {enable: True, default_prefech: 1}
    """
    for unknown in context.settings.parse_issues.unknown_keys:
        if not unknown.is_in_entry:
            name = key_text(unknown.entry.key)
            fix = "write 'enable'" if name in ("swap", "enabled") else unknown.fix(SECTION_OF_KEY_2X)
            yield Finding(unknown.entry.location, f"{unknown.path}: no such key", ", ".join(unknown.allowed_keys), fix)
    root = context.document.root
    missing = [name for name in SECTION_KEYS if context.document.get(name) is None]
    for entry in root.unique_entries() if root is not None else ():
        name = key_text(entry.key)
        if name in SECTION_KEYS:
            continue
        suggestions = [
            *(n for n in closest_names(name, SECTION_KEYS, min_similarity=0.82) if n in missing),
            *_alike(entry, missing),
        ]
        if suggestions:
            message = f"{name}: nothing reads this section"
            yield Finding(entry.location, message, ", ".join(SECTION_KEYS), f"write '{suggestions[0]}'")
            continue
        for below in entry.value.entries or ():
            for section in _alike(below, missing)[:1]:
                message = f"{name}.{key_text(below.key)}: nothing reads this section here"
                yield Finding(below.location, message, fix=f"move it to the top level, as '{section}'")


def _alike(entry: MappingEntry, sections: Iterable[str]) -> list[str]:
    """Return the sections that share characteristic keys with a mapping, those with most shared keys first."""
    keys = {nested.key for nested in entry.value.entries or ()}
    similar = [section for section in sections if not keys.isdisjoint(MEANING[section])]
    return sorted(similar, key=lambda section: -len(keys.intersection(SECTION_KEYS[section])))


@rule(Level.WARNING)
def ignored_key(context: Context2x) -> Iterator[Finding]:
    """A key in an entry of `layer_swap` or `op_swap` that upstream ignores, such as `backward_prefetch` of 1.9.

    One distance holds for all entries: `swap.default_prefetch`, in layers.

    PASS: swap: {enable: True, default_prefetch: 2, layer_swap: [{layers: [0]}]}
    FAIL: swap: {enable: True, layer_swap: [{layers: [0], backward_prefetch: 20}]}
    """
    for unknown in context.settings.parse_issues.unknown_keys:
        if unknown.is_in_entry:
            name = key_text(unknown.entry.key)
            fix = unknown.fix(SECTION_OF_KEY_2X, min_similarity=0.75)
            if name in ("backward_prefetch", "prefetch"):
                fix = "delete it, and set swap.default_prefetch (in layers, for all entries)"
            message = f"{unknown.path}: this key is not used by anything"
            yield Finding(unknown.entry.location, message, ", ".join(unknown.allowed_keys), fix)


@rule(Level.ERROR)
def duplicate_key(context: Context2x) -> Iterator[Finding]:
    """A key is written twice; YAML readers silently take the last one.

    PASS: swap: {enable: True}
    FAIL: swap: {enable: True, enable: False}
    """
    for duplicate in context.document.duplicates:
        # An error in sections that mindswap reads.
        level = None if duplicate.section in (*SECTION_KEYS, "model", "parallelism") else Level.WARNING
        yield Finding(duplicate.location, duplicate.message, "each key once", "delete one of them", level)


@rule(Level.ERROR)
def section_of_graph_mode(context: Context2x) -> Iterator[Finding]:
    """`swap_config` or `recompute_config` of MindFormers 1.9 in a 2.x file: silently ignored.

    PASS: swap: {enable: True, layer_swap: [{layers: ['0-2']}]}
    FAIL: swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: [0, 1, 2]}]}
    """
    double = find_mixed_sections(context.document)
    for name in ("swap_config", "recompute_config"):
        entry = context.document.entry(name)
        if entry is not None:
            message = f"{name}: a section of MindFormers 1.9; MindFormers 2.x does not read it, so it has no effect"
            fix = double.fix if double is not None else f"mindswap convert --to 2.x {context.document.file}"
            yield Finding(entry.location, message, "swap, recompute, recompute_comm", fix)


@rule(Level.WARNING)
def section_off(context: Context2x) -> Iterator[Finding]:
    """A section has settings without effect, because it is switched off. Upstream then checks only its keys.

    PASS: swap: {enable: False}
    FAIL: swap: {enable: False, layer_swap: [{layers: [0]}]}
    """
    settings = context.settings
    is_off = {"swap": not settings.is_swap_enabled, "recompute": settings.mode == "None"}
    is_off["recompute_comm"] = not settings.is_comm_enabled
    for name, keys in MEANING.items():
        entries = [context.document.entry(name, key) for key in keys] if is_off[name] else []
        entry_without_effect = next((entry for entry in entries if entry is not None and not entry.value.is_null), None)
        if entry_without_effect is not None:
            switch = "mode is None" if name == "recompute" else "enable is not True"
            fix = "set mode: full or select" if name == "recompute" else "enable: True"
            message = f"{name}.{entry_without_effect.key}: has no effect, because {switch}"
            yield Finding(entry_without_effect.location, message, fix=f"{fix}, or delete it")


@rule(Level.WARNING)
def exclude_without_recompute(context: Context2x) -> Iterator[Finding]:
    """`exclude_op` has no effect, because `mode` is None. Upstream warns only if `recompute_comm` is enabled.

    PASS: recompute: {mode: full, full_recompute_layer: [0], exclude_op: {mlp: [0]}}
    FAIL: recompute: {mode: None, exclude_op: {mlp: [0]}}
    """
    entry = context.document.entry("recompute", "exclude_op")
    if context.settings.mode == "None" and entry is not None and (entry.value.entries or entry.value.items):
        message = "recompute.exclude_op: has no effect, because mode is None"
        yield Finding(entry.location, message, fix="delete it, or set mode: full or select")


@rule(Level.WARNING)
def select_with_full(context: Context2x) -> Iterator[Finding]:
    """`select_module` has no effect with `mode: full`; not even its layers are checked.

    PASS: recompute: {mode: select, full_recompute_layer: [0], select_module: {mlp: [1]}}
    FAIL: recompute: {mode: full, full_recompute_layer: [0], select_module: {mlp: [1]}}
    """
    entry = context.document.entry("recompute", "select_module")
    if context.settings.mode == "full" and entry is not None and entry.value.entries:
        message = "recompute.select_module: has no effect with mode: full"
        fix = "write 'mode: select': full_recompute_layer acts there, too"
        yield Finding(entry.location, message, fix=fix)
