"""Paths in the layers of 2.x models, from tables, because MindFormers 2.x cannot be installed next to 1.9."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from mindswap.config.nodes import Document
from mindswap.config.problem import Level, Location, Problem
from mindswap.errors import PolicyError
from mindswap.files import DATA, package_data
from mindswap.policy.cell_tree import PART_TIMEOUT_S, PatternError, compile_part

# Matching of patterns of MindFormers 2.x: a pattern must match a full dotted path of a layer.
#
# As in `_expand_select_module` of mindformers/pynative/distributed/activation_checkpoint.py (2.1.0). So `.` is any
# character and `.*` crosses levels, unlike in graph mode.


@dataclass(frozen=True)
class LayerPaths:
    """Paths in one layer that a pattern can match."""

    cells: frozenset[str]  # dotted paths of cells
    callables: frozenset[str]  # dotted paths of callables: primitives, functions, methods
    order: tuple[str, ...]  # all paths in upstream's order


@functools.lru_cache(maxsize=4096)
def match_paths(pattern: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths that a pattern matches, in order.

    Raises:
        PatternError: if it is not a regular expression, or matching exceeds the time limit.
    """
    compiled = compile_part(pattern)
    try:
        return tuple(path for path in paths if compiled.fullmatch(path, timeout=PART_TIMEOUT_S) is not None)
    except TimeoutError:
        raise PatternError(pattern, f"takes longer than {PART_TIMEOUT_S} s on one name") from None


def is_below(path: str, parent: str) -> bool:
    """Return whether a path is below another one."""
    return path.startswith(parent + ".")


@dataclass(frozen=True)
class Model:
    """The layers of a model."""

    layers: tuple[LayerPaths, ...]  # paths in each layer
    source: str  # origin of the paths, for messages


def load_model(document: Document, num_layers: int | None, num_mtp_layers: int = 0) -> Model | None:
    """Return the layers of the model of a configuration; None if no table has it, or with multi-token prediction."""
    node = document.get("model", "model_type")
    if num_layers is None or num_mtp_layers or node is None:
        return None
    for table in _tables():
        if node.value in table.model_types:
            return Model((table.layer,) * num_layers, f"table {table.family} (mindformers 2.1.0, PyNative)")
    return None


def dense_layer() -> LayerPaths:
    """Return the layer of models without experts and latent attention: `TransformerLayer` of 2.x, as in Qwen3."""
    return next(table.layer for table in _tables() if table.family == "qwen3")


def paths_from_outline(outline: dict[str, Any]) -> LayerPaths:
    """Return the paths in a nested outline of one layer, with `calls`, `methods` and `cells` of each cell."""
    paths = tuple(_walk(outline, ""))
    cells = frozenset(path for path, is_cell in paths if is_cell)
    return LayerPaths(cells, frozenset(path for path, _ in paths) - cells, tuple(path for path, _ in paths))


def _walk(outline: dict[str, Any], prefix: str) -> Iterator[tuple[str, bool]]:
    """Yield paths and whether each is a cell, in upstream's order (`_get_single_layer_whitelist`).

    The order is callables, methods, then each cell followed by its content.
    """
    for name in (*outline.get("calls", ()), *outline.get("methods", ())):
        yield prefix + name, False
    for name, below in outline.get("cells", {}).items():
        yield prefix + name, True
        yield from _walk(below, f"{prefix}{name}.")


class _Table(NamedTuple):
    family: str
    model_types: list[str]
    layer: LayerPaths


@cache
def _tables() -> tuple[_Table, ...]:
    tables = (package_data(f"pynative/{file.name}") for file in sorted((DATA / "pynative").glob("*.json")))
    return tuple(_Table(table["family"], table["model_types"], paths_from_outline(table["layer"])) for table in tables)


# Format of a configuration: MindFormers 1.9 (graph mode) or MindFormers 2.x (PyNative).

RULE = "form-2x"
DOUBLE_RULE = "sections-of-both"


class ConfigFormat(Enum):
    """Format of a configuration; the value is its description."""

    GRAPH = "MindFormers 1.9 (graph mode)"
    PYNATIVE = "MindFormers 2.x (PyNative)"

    @property
    def version(self) -> str:
        """The version in options and `--json`: `1.9` or `2.x`."""
        return self.value.split()[1]


def find_format(document: Document) -> ConfigFormat:
    """Return the format of a configuration; 2.x has `training` and `parallelism`, and not `trainer` or `runner_config`.

    Source: `TrainConfig` in mindformers/pynative/config/config.py of the mindformers 2.1.0 wheel.
    """
    has_new = all(document.get(key) is not None for key in ("training", "parallelism"))
    has_old = any(document.get(key) is not None for key in ("trainer", "runner_config"))
    return ConfigFormat.PYNATIVE if has_new and not has_old else ConfigFormat.GRAPH


SECTIONS_1_9 = ("swap_config", "recompute_config")
SECTIONS_2X = ("swap", "recompute", "recompute_comm")


def find_mixed_sections(document: Document) -> Problem | None:
    """Return a problem if a file has swap, or recompute, sections of both versions; None otherwise.

    Its location is the first section that the version of the file does not read. A section of 2.x counts only if it is
    a mapping, because other top-level keys may have its name.
    """
    is_graph = find_format(document) is ConfigFormat.GRAPH
    new = [name for name in SECTIONS_2X if (node := document.get(name)) is not None and node.entries]
    old = [name for name in SECTIONS_1_9 if document.get(name) is not None]
    # `swap_config` corresponds to `swap`, and `recompute_config` to `recompute` and `recompute_comm`.
    pairs = [(section, name) for section in old for name in new if name.startswith(section.removesuffix("_config"))]
    if not pairs:
        return None
    old, new = (list(dict.fromkeys(names)) for names in zip(*pairs, strict=True))
    read, unread = (old, new) if is_graph else (new, old)
    read_form, unread_form = (
        (ConfigFormat.GRAPH, ConfigFormat.PYNATIVE) if is_graph else (ConfigFormat.PYNATIVE, ConfigFormat.GRAPH)
    )
    entry = document.entry(unread[0])
    if entry is None:
        raise AssertionError("a section without its entry")
    read_text, unread_text = " and ".join(read), " and ".join(unread)
    message = f"{unread[0]}: a section of {unread_form.value} in a file that also has {read_text} of {read_form.value}"
    fix = (
        f"delete {unread_text}; or, if that is what you mean, delete {read_text}, then mindswap convert --to "
        f"{read_form.version} {document.file}"
    )
    return Problem(entry.location, DOUBLE_RULE, Level.ERROR, message, f"sections of one version: {read_text}", fix)


def wrong_form_problem(document: Document) -> Problem | None:
    """Return a problem for a command that reads files of 1.9 only; None for such a file."""
    if find_format(document) is ConfigFormat.GRAPH:
        return None
    entry = document.entry("training")
    location = entry.location if entry is not None else Location(document.file)
    readers = "`check`, `explain`, `convert`, `dryrun`, `trace` and `plan`"
    message = f"this is a configuration of {ConfigFormat.PYNATIVE.value}, which only {readers} read so far"
    allowed = f"a configuration of {ConfigFormat.GRAPH.value}, with `trainer` or `runner_config`"
    fix = "use these, plan with --trace; for the rest a 1.9 configuration of the same model"
    return Problem(location, RULE, Level.ERROR, message, allowed, fix)


def refuse_pynative(document: Document) -> None:
    """Raise PolicyError if a file is of MindFormers 2.x, for a command that reads files of 1.9 only."""
    problem = wrong_form_problem(document)
    if problem is not None:
        raise PolicyError([problem])
