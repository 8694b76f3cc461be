"""The cells and primitives of one transformer layer as plain data.

An adapter makes the tree from a real network, or it is read from a table of the package
(`data/families/`); matching and the rules need nothing else.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import regex

from mindswap.errors import MindswapError
from mindswap.files import DATA, package_data


@dataclass(frozen=True)
class CellNode:
    """One cell or primitive."""

    name: str  # attribute name in its parent; "" for the layer itself
    type_name: str  # class name, e.g. `LLamaAttention`, or primitive name, e.g. `MatMul`
    is_primitive: bool = False  # True for a primitive (it has no children)
    children: tuple["CellNode", ...] = ()  # child cells and primitives in order of definition
    # False if the model calls only methods of the cell (`attention.cal_attn` of TeleChat2), if known: MindSpore
    # recomputes what `construct` of the cell runs, which is nothing in this case
    is_called: bool = True
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = (self.name, self.type_name, self.is_primitive, self.children, self.is_called)
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        """Return the precomputed hash: trees are cache keys that the planner looks up thousands of times."""
        return self._hash

    def walk(self, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], "CellNode"]]:
        """Yield all descendants with their paths relative to this node, parents first."""
        for child in self.children:
            path = (*prefix, child.name)
            yield path, child
            yield from child.walk(path)

    def primitives_by_cell_and_type(self) -> Mapping[tuple[str, str], Sequence[tuple[str, ...]]]:
        """Map (cell path, type) to the paths of such primitives in order of definition, usually one."""
        return _primitives_by_cell_and_type(self)


@functools.lru_cache(maxsize=64)  # the planner calls it thousands of times for few trees
def _primitives_by_cell_and_type(layer: CellNode) -> Mapping[tuple[str, str], Sequence[tuple[str, ...]]]:
    paths_by_cell: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for path, node in layer.walk():
        if node.is_primitive:
            paths_by_cell.setdefault((".".join(path[:-1]), node.type_name), []).append(path)
    return paths_by_cell


@dataclass(frozen=True)
class LayerTrees:
    """The layers of a model."""

    layers: tuple[CellNode, ...]  # one tree per layer; equal layers may be the same object
    # path of a primitive (`attention.wq.matmul`) -> paths of the primitives of the same layer that read its output in
    # forward; from a compiled graph, empty if not known
    uses: dict[str, tuple[str, ...]]
    source: str  # origin of the trees, for messages ("the real network", "table llama ...")
    # the layer for multi-token prediction, which has the index of the last layer; None without one
    mtp_layer: CellNode | None = None


# Matching of operator patterns in the tree of a layer.
#
# As in MindFormers, a pattern is split at `\.`. Each part is a regular expression that must match the full name on one
# level: the last part that of a cell or primitive, the others those of cells.

SEPARATOR = r"\."
MAX_PATTERN_CHARS = 1000
# Compiling nested groups with repeats takes twice as long for each level.
MAX_NESTED_GROUPS = 10
# Time limit of a match. Matching a part with a name takes microseconds; longer means catastrophic backtracking.
PART_TIMEOUT_S = 0.2


class PatternError(MindswapError):
    """A pattern is not a valid regular expression, or matching it exceeds the time limit."""

    def __init__(self, pattern: str, reason: str):
        self.pattern = pattern
        self.reason = reason  # message of the regex compiler
        super().__init__(f"'{pattern}': {reason}")


@dataclass(frozen=True)
class Match:
    """A cell or primitive that a pattern matches."""

    path: tuple[str, ...]  # attribute names from the layer down, e.g. `("attention", "flash_attention")`
    node: CellNode

    @property
    def name(self) -> str:
        """Return the path as MindFormers writes it, joined by dots."""
        return ".".join(self.path)


def split_pattern(pattern: str) -> tuple[str, ...]:
    r"""Split a pattern into its parts, one per level: `("a", "b")` for `a\.b`."""
    return tuple(pattern.split(SEPARATOR))


def exact_pattern(path: str) -> str:
    """Return the pattern that matches exactly one path."""
    return SEPARATOR.join(regex.escape(part) for part in path.split("."))


@functools.lru_cache(maxsize=4096)
def is_within(path: str, cell: str) -> bool:
    """Return whether a dotted path is that of a cell or inside it; "" is the layer, which contains all paths."""
    return not cell or path == cell or path.startswith(f"{cell}.")


def compile_part(part: str) -> regex.Pattern:
    """Compile one part of a pattern.

    Raises:
        PatternError: if it is too long or no regular expression.
    """
    if len(part) > MAX_PATTERN_CHARS:
        raise PatternError(part[:40] + "...", f"longer than {MAX_PATTERN_CHARS} characters")
    if _group_depth(part) > MAX_NESTED_GROUPS:
        raise PatternError(part[:40] + "...", f"more than {MAX_NESTED_GROUPS} nested groups")
    try:
        return regex.compile(part)
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        raise PatternError(part, str(error) or type(error).__name__) from None


def _group_depth(part: str) -> int:
    """Return the nesting depth of parentheses; those in character classes count as well."""
    signs = ({"(": 1, ")": -1}.get(token, 0) for token in regex.findall(r"\\.|.", part, regex.DOTALL))
    return max(itertools.accumulate(signs), default=0)


@functools.lru_cache(maxsize=65536)
def is_match(part: str, name: str) -> bool:
    """Return whether a part of a pattern matches a full name.

    Raises:
        PatternError: if it is not a regular expression, or backtracks without end.
    """
    try:
        return compile_part(part).fullmatch(name, timeout=PART_TIMEOUT_S) is not None
    except TimeoutError:
        raise PatternError(part, f"takes longer than {PART_TIMEOUT_S} s on the name '{name}'") from None


@functools.lru_cache(maxsize=4096)
def match_pattern(pattern: str, layer: CellNode) -> tuple[Match, ...]:
    """Return the cells and primitives of `layer` that `pattern` (an `op_name`) matches, in order of definition.

    Raises:
        PatternError: if a part is not a regular expression, or backtracks without end.
    """
    parts = split_pattern(pattern)
    for part in parts:
        compile_part(part)
    return tuple(_match_parts(parts, layer, ()))


def _match_parts(parts: Sequence[str], node: CellNode, path: tuple[str, ...]) -> Iterator[Match]:
    for child in node.children:
        if not is_match(parts[0], child.name):
            continue
        child_path = (*path, child.name)
        if len(parts) == 1:
            yield Match(child_path, child)
        elif not child.is_primitive:
            yield from _match_parts(parts[1:], child, child_path)


# Trees of known model families, from tables that were generated with MindFormers, for use where it is not installed (a
# login node) or building the network takes too long.


def load_layer_trees(model_section: dict[str, Any], num_layers: int) -> LayerTrees | None:
    """Look up the layers of a model by the `model` section of its configuration; None if no table has it."""
    names = _architecture_names(model_section)
    model_config = _mapping(model_section.get("model_config"))
    for table in _tables():
        if names.isdisjoint(table["architectures"]):
            continue
        settings = table["defaults"] | {key: model_config[key] for key in table["defaults"] if key in model_config}
        for key, (threshold, default) in table.get("switches", {}).items():
            settings[key] = _number(model_config.get(key, default)) >= threshold
        for variant in table["variants"]:
            if all(settings.get(key) == value for key, value in variant["when"].items()):
                versions = " ".join(f"{name} {version}" for name, version in table["generated_with"].items())
                common = table["uses"] | variant["uses"]  # of all variants, and of this one
                uses = {path: tuple(users.split()) for path, users in sorted(common.items())}
                key, default = table.get("dense", ("", 0))
                num_dense = min(_number(model_config.get(key, default)), num_layers)
                dense = (_tree(table["cells"], variant["dense_tree"]),) * num_dense if num_dense else ()
                layers = (*dense, *(_tree(table["cells"], variant["tree"]),) * (num_layers - num_dense))
                source = f"table {table['family']} ({versions})"
                return LayerTrees(layers, uses, source, _read_mtp_layer(table, model_config, layers))
    return None


def _read_mtp_layer(table: dict[str, Any], config: dict[str, Any], layers: tuple[CellNode, ...]) -> CellNode | None:
    """Return the layer for multi-token prediction, which wraps a layer like the last one; None without one."""
    if "prediction" not in table or not layers:
        return None
    keys, default, tree = (table["prediction"][name] for name in ("keys", "default", "tree"))
    if not next((_number(config[key]) for key in keys if key in config), default):
        return None
    around = _tree(table["cells"], tree)
    name, last = table["prediction"]["layer"], layers[-1]
    inner = (
        CellNode(child.name, last.type_name, children=last.children) if child.name == name else child
        for child in around.children
    )
    return CellNode("", around.type_name, children=tuple(inner))


@functools.cache
def _tables() -> tuple[dict[str, Any], ...]:
    return tuple(package_data(f"families/{file.name}") for file in sorted((DATA / "families").glob("*.json")))


def _tree(cells: dict[str, str], kind: str, name: str = "") -> CellNode:
    """Build the tree of a cell from a table of cell variants.

    In `norm:RmsNorm attention=LLamaAttention/2`, `:` precedes the type of a primitive and `=` the variant of a cell;
    `/2` numbers the variants of a class.
    """
    parts = (regex.split("([:=])", child) for child in cells[kind].split())
    children = (
        _tree(cells, of, child) if sign == "=" else CellNode(child, of, is_primitive=True) for child, sign, of in parts
    )
    return CellNode(name, kind.partition("/")[0], children=tuple(children))


def _architecture_names(model_section: dict[str, Any]) -> set[str]:
    """Return all names of the model: legacy `arch.type`, newer `architectures`, `model_type`."""
    model_config = _mapping(model_section.get("model_config"))
    names = [_mapping(model_section.get("arch")).get("type"), model_config.get("model_type")]
    architectures = model_config.get("architectures")
    names += architectures if isinstance(architectures, list) else [architectures]
    return {name for name in names if isinstance(name, str)}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
