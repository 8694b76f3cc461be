"""Swap and recompute settings of a configuration, statement by statement, with places.

Made by `read`; `build` makes the Policy from it and the rules judge it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mindswap.config.characters import WIDE
from mindswap.config.nodes import DocumentNode, MappingEntry, key_text, show
from mindswap.config.pipeline_layout import Pipeline
from mindswap.config.problem import Location
from mindswap.policy.formats.mindformers1.schema import ENTRY_PREFIX, is_too_large
from mindswap.policy.model import Layers
from mindswap.policy.wording import closest_names

# What could not be read of a configuration, of MindFormers 1.x or 2.x, with its place.


@dataclass(frozen=True, eq=False)
class InvalidValue:
    """A value that does not fit its place; `expect` says what does."""

    path: str
    node: DocumentNode
    expect: Enum

    @property
    def message(self) -> str:
        """In words."""
        if self.expect.name == "SMALL_SECTION":
            return f"{self.path}: the section is too large"
        if self.node.value == "" or self.node.items == ():
            return f"{self.path}: {self.node.kind.replace('a ', 'the ')} is empty"
        return f"{self.path}: {show(self.node)} is {self.node.kind}"


@dataclass(frozen=True, eq=False)
class UnknownKey:
    """A key that is not in `allowed_keys`, in a section or in an entry of a list in it."""

    path: str
    entry: MappingEntry
    allowed_keys: tuple[str, ...]
    is_in_entry: bool

    def fix(self, section_of_key: Mapping[Any, str], min_similarity: float = 0.6) -> str:
        """Return the fix: the section that the key belongs to, else the most similar allowed key, else deletion.

        Args:
            section_of_key: section of each key of this version of MindFormers.
            min_similarity: minimum similarity of a suggested name, from 0 to 1 (difflib).
        """
        section = section_of_key.get(self.entry.key, "")
        if self.is_in_entry and section.startswith(ENTRY_PREFIX):
            return f"move the entry to {section.removeprefix(ENTRY_PREFIX)}"
        if section and not self.is_in_entry:
            return f"move it to {section}"
        closest = closest_names(key_text(self.entry.key), self.allowed_keys, min_similarity=min_similarity)
        return f"write '{closest[0]}'" if closest else "delete it"


@dataclass(frozen=True, eq=False)
class MissingKey:
    """A key that an entry needs."""

    path: str
    node: DocumentNode
    key: str


@dataclass(eq=False)
class ParseIssues:
    """Collects what a reader could not read."""

    invalid_values: list[InvalidValue] = field(default_factory=list)
    unknown_keys: list[UnknownKey] = field(default_factory=list)
    missing_keys: list[MissingKey] = field(default_factory=list)
    # key path and list, where it can only be meant as layers per pipeline stage
    stage_counts: list[tuple[str, DocumentNode]] = field(default_factory=list)

    def section(self, node: DocumentNode, path: str, mapping: Enum, small: Enum) -> DocumentNode | None:
        """A section that can be read; None where it is no mapping, or too large."""
        if node.entries is not None and not is_too_large(node):
            return node
        self.add_invalid_value(path, node, mapping if node.entries is None else small)
        return None

    @property
    def simple_invalid_values(self) -> list[InvalidValue]:
        """Values whose characters are those of YAML; the others have a rule of their own."""
        return [invalid for invalid in self.invalid_values if not WIDE.search(str(invalid.node.value))]

    def invalid_values_of(self, expect: Enum) -> list[InvalidValue]:
        """Values that stand where this is expected."""
        return [invalid for invalid in self.simple_invalid_values if invalid.expect is expect]

    def add_invalid_value(self, path: str, node: DocumentNode, expect: Enum) -> None:
        """Keep a value that does not fit."""
        self.invalid_values.append(InvalidValue(path, node, expect))

    def check_keys(self, node: DocumentNode, path: str, allowed_keys: tuple[str, ...], is_entry: bool = False) -> None:
        """Keep the keys of a mapping that are not known; of an entry of a list the missing ones, too."""
        for entry in node.unique_entries():
            if entry.key not in allowed_keys:
                self.unknown_keys.append(UnknownKey(f"{path}.{key_text(entry.key)}", entry, allowed_keys, is_entry))
        if is_entry:
            self.missing_keys += [MissingKey(path, node, key) for key in allowed_keys if node.entry(key) is None]


@dataclass(frozen=True)
class LayerRef:
    """One layer index as it is written."""

    index: int
    location: Location


@dataclass(frozen=True)
class Statement:
    """One entry of the configuration: which operators, in which layers."""

    option: str  # the option it belongs to, e.g. `op_swap`
    path: str  # key path of the entry, e.g. `swap_config.op_swap[1]`
    location: Location  # where the entry begins
    pattern: str | None  # the operators; None for whole layers; "" where the configuration has none that is usable
    pattern_path: str  # key path of the pattern
    pattern_location: Location  # where the pattern stands (for whole layers: where the entry begins)
    layers: Layers  # the layers; only those that could be read
    layers_path: str  # key path of the layers
    layer_refs: tuple[LayerRef, ...] = ()  # each index with its place; empty for `True`
    num_prefetch_ops: int | None = None  # prefetch distance; None for recomputation, or where it could not be read
    prefetch_location: Location | None = None  # where it stands
    is_default: bool = False  # the pattern is mindswap's, not the user's


@dataclass(frozen=True, eq=False)
class PolicySettings:
    """Everything the configuration says, and what could not be read of it."""

    # what `swap_config.swap` says; also True where its value is no bool and does not look like "off", so that the rest
    # is checked
    is_swap_enabled: bool
    use_legacy: bool
    num_layers: int | None  # layers of the model; None if not known
    pipeline: Pipeline  # how layers are spread over stages
    default_prefetch: int | None = None  # prefetch of the default strategy; None where it does not act
    # statements of layer_swap and op_swap, in file order (the default strategy included)
    swap: tuple[Statement, ...] = ()
    recompute: tuple[Statement, ...] = ()  # statements of `recompute` and the select options
    flags: tuple[tuple[str, bool], ...] = ()
    parse_issues: ParseIssues = field(default_factory=ParseIssues)  # what could not be read

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Return all statements, those of swap first."""
        return self.swap + self.recompute

    def of(self, option: str) -> tuple[Statement, ...]:
        """Return the statements of one option."""
        return tuple(statement for statement in self.statements if statement.option == option)
