"""Convert patterns between MindFormers 1.9 and 2.x, and replace sections of a YAML text.

Source: `mindformers/models/llama` of mindformers 1.9.0, `mindformers/pynative/transformers` of 2.1.0.
"""

import re
from dataclasses import dataclass
from typing import Any

import yaml

from mindswap.config.edit import COMMENT_MARK, after_line, apply_edits, comment_block_start, line_start, newline_at
from mindswap.config.parse import parse_document
from mindswap.config.problem import Level, Location, Problem, find_errors
from mindswap.config.render import block_lines
from mindswap.errors import PolicyError
from mindswap.files import package_data
from mindswap.policy.cell_tree import CellNode, PatternError, is_within, match_pattern
from mindswap.policy.formats.mindformers2.tables import is_below

# Cell of the legacy models -> cell of 2.x, longest first.
LEGACY_CELLS: dict[str, str] = package_data("pynative/legacy_cells.yaml")
_PLAIN = re.compile(r"\w+")
# A dot that matches any character: in 2.x it also matches the dot between levels.
_ANY_CHARACTER = re.compile(r"(?<!\\)\.(?![^\[]*\])")
_CROSSING = re.compile(r"(?<!\\)\.[*+{]")
_FLASH_ATTENTION = r"self_attention\.core_attention"
_CELLS_2X = frozenset(
    {name.rpartition(".")[2] for name in LEGACY_CELLS.values()} | {"q_layernorm", "k_layernorm", "core_attention"}
)
# Legacy cells that only some models have; names of 2.x are not converted to them.
_RARE_CELLS = {"attention.infer_attention", "attention.w_qkv", "attention.w", "feed_forward.w_gate_hidden"}


@dataclass(frozen=True)
class LayerNames:
    """Names in a layer of both versions; None if no table has the model."""

    layer_1_9: CellNode | None = None  # cell tree of the layer in 1.9
    paths_2x: frozenset[str] | None = None  # paths of the layer in 2.x
    cells_2x: frozenset[str] = frozenset()  # paths that are cells


def to_2x_path(path: str) -> str:
    """Convert a dotted path of MindFormers 1.9 to the names of 2.x; unknown names are unchanged."""
    for old, new in LEGACY_CELLS.items():
        if is_within(path, old):
            return new + path[len(old) :]
    return path


def patterns_to_2x(pattern: str, names: LayerNames, lost: list[str]) -> list[str]:
    """Convert a pattern of 1.9 to patterns of 2.x.

    If the names of both layers are known, the result lists the matched paths; else names are replaced in the pattern.

    Args:
        pattern: the pattern of 1.9.
        names: names in a layer of both versions.
        lost: list to which losses are appended, in words.
    """
    parts = pattern.split(r"\.")
    if parts[0] == ".*" and parts[-1] == "flash_attention":
        return [_FLASH_ATTENTION]
    if names.layer_1_9 is None or names.paths_2x is None:
        return _rename_parts(pattern, parts, lost)
    try:
        matched_paths = [match.name for match in match_pattern(pattern, names.layer_1_9)]
    except PatternError as error:
        lost.append(str(error))
        return []
    renamed = dict.fromkeys(to_2x_path(path) for path in matched_paths)
    missing = [path for path in renamed if path not in names.paths_2x]
    if missing:
        missing_names = ", ".join(f"'{path}'" for path in missing)
        lost.append(f"'{pattern}': a layer of 2.x has no {missing_names}: left out")
    kept = [
        path for path in renamed if path in names.paths_2x and not any(is_below(path, ancestor) for ancestor in renamed)
    ]
    operators = [path for path in kept if path not in names.cells_2x]
    if operators:
        lost.append(_shifted(pattern, operators))
    unmatched_cells = set(_cells(names.layer_1_9)).difference(_RARE_CELLS, matched_paths)
    for path in kept:
        legacy_cells = [old for old, new in LEGACY_CELLS.items() if new == path and old in unmatched_cells]
        if legacy_cells:
            lost.append(f"'{pattern}': became '{path}', which does the work of {', '.join(legacy_cells)}, too")
    return [path.replace(".", r"\.") for path in kept]


def _cells(layer: CellNode) -> list[str]:
    return [".".join(path) for path, node in layer.walk() if not node.is_primitive]


def _rename_parts(pattern: str, parts: list[str], lost: list[str]) -> list[str]:
    num_plain = next((i for i, part in enumerate(parts) if not _PLAIN.fullmatch(part)), len(parts))
    renamed = to_2x_path(".".join(parts[:num_plain])).split(".") if num_plain else []
    regex_parts = [_ANY_CHARACTER.sub("[^.]", part) for part in parts[num_plain:]]
    new = r"\.".join([*renamed, *regex_parts])
    if num_plain < len(parts):
        lost.append(f"'{pattern}': names in a regular expression are not converted; look at '{new}'")
    elif len(renamed) > 1 and renamed[-1] not in _CELLS_2X:
        lost.append(_shifted(pattern, [new]))
    return [new]


def _shifted(pattern: str, new: list[str]) -> str:
    names = "', '".join(new)
    return f"'{pattern}': in 1.9 the output of an operator, in 2.x ('{names}') what it saves, mostly its inputs"


def pattern_to_1_9(path: str, use_legacy: bool, lost: list[str]) -> list[str]:
    """Convert a dotted path of 2.x, or a pattern if the model is not known, to patterns of 1.9."""
    if _CROSSING.search(path):
        lost.append(f"'{path}': crosses levels, which 1.9 cannot express; name the cells one by one")
        return []
    parts = re.split(r"\\?\.", path) if "[" not in path else path.split(r"\.")
    plain = ".".join(parts)
    if len(parts) > 1 and parts[-1] not in _CELLS_2X and "[" not in path:
        lost.append(f"'{path}': one operator; 1.9 swaps or recomputes its output, not its saved tensors")
    if not use_legacy:
        return [r"\.".join(parts)]
    legacy_paths = [old for old, new in LEGACY_CELLS.items() if plain == new and not old.startswith("self_attention")]
    legacy_paths = [old for old in legacy_paths if old not in _RARE_CELLS]
    if not legacy_paths:
        parent = next((n for n in sorted(set(LEGACY_CELLS.values()), key=len)[::-1] if plain.startswith(n + ".")), None)
        if parent is None:
            lost.append(f"'{path}': has no other name in the legacy models; look at it") if len(parts) > 1 else None
            return [r"\.".join(parts)]
        legacy_parents = [old for old, new in LEGACY_CELLS.items() if new == parent and old not in _RARE_CELLS]
        legacy_paths = [old + plain[len(parent) :] for old in legacy_parents if not old.startswith("self_attention")]
    return [old.replace(".", r"\.") for old in legacy_paths]


# Edit a user's YAML text: replace top-level sections and keep every comment.

_COMMENT = re.compile(r"#[^\r\n]*")
_STEP = 2


def replace_sections(
    text: str, old: tuple[str, ...], new: dict[str, dict[str, Any]], comment: tuple[str, ...], file: str
) -> str:
    """Replace sections of a text; comments in the old sections are moved above the new ones.

    Args:
        text: a YAML file with its line breaks.
        old: top-level sections to remove; missing ones are skipped.
        new: sections to insert, as plain data.
        comment: lines to put above them, without `#`.
        file: name for messages.

    Raises:
        PolicyError: if the file cannot be edited in its form, or the result has other data than expected.
    """
    before = parse_document(text, file)
    root = before.span
    if root is None or root.is_flow or before.root is None:
        raise _refusal(file, "the sections cannot be replaced: the file is not written as `key:` in lines of their own")
    spans = [(key.start, max(key.end, value.end)) for key, value in root.entries if key.text in old]
    places = [
        (comment_block_start(text, line_start(text, start), root.column), after_line(text, end)) for start, end in spans
    ]
    kept = [c for start, end in places for c in _comments(text[start:end]) if not c.startswith(COMMENT_MARK)]
    block = [*kept, *(f"{COMMENT_MARK} {line}" for line in comment)]
    block += [line for name, value in new.items() for line in block_lines({name: value}, root.column, _STEP)]
    edits = [(start, end, "") for start, end in places]
    if edits:
        first, end, _ = edits[0]
        edits[0] = (first, end, "".join(line + newline_at(text, first) for line in block))
    result = apply_edits(text, edits)
    after = parse_document(result, file)
    expected = {**{key: value for key, value in before.data().items() if key not in old}, **new}
    if find_errors(after.problems) or after.data() != expected:
        raise _refusal(
            file, "the sections cannot be replaced: an anchor in them is used elsewhere, or a key appears twice"
        )
    return result


def _comments(section: str) -> list[str]:
    """Return the comments of a piece of YAML; a `#` inside a string is not a comment."""
    comments, position = [], 0
    for token in yaml.scan(section):
        comments += _COMMENT.findall(section[position : token.start_mark.index])
        position = max(position, token.end_mark.index)
    return comments + _COMMENT.findall(section[position:])


def _refusal(file: str, message: str) -> PolicyError:
    fix = "write each section as `key:` with its values below, and no anchors across sections"
    return PolicyError([Problem(Location(file), "convert", Level.ERROR, message, fix=fix)])
