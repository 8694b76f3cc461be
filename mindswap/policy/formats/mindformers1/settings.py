"""Swap and recompute settings of a configuration as located statements.

`read.read_settings` makes them, `read.build_policy` builds the policy from them, and the rules check them.
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

# Values that could not be parsed, for configurations of MindFormers 1.x and 2.x.


@dataclass(frozen=True, eq=False)
class InvalidValue:
    """A value that its key does not accept."""

    path: str  # key path
    node: DocumentNode
    expect: Enum  # kind of value that is accepted

    @property
    def message(self) -> str:
        """Message of a problem."""
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
    """A required key that an entry lacks."""

    path: str
    node: DocumentNode
    key: str


@dataclass(eq=False)
class ParseIssues:
    """Collects values and keys that a parser could not read."""

    invalid_values: list[InvalidValue] = field(default_factory=list)
    unknown_keys: list[UnknownKey] = field(default_factory=list)
    missing_keys: list[MissingKey] = field(default_factory=list)
    # (key path, list) of lists that can only be counts per pipeline stage
    stage_counts: list[tuple[str, DocumentNode]] = field(default_factory=list)

    def section(self, node: DocumentNode, path: str, mapping: Enum, small: Enum) -> DocumentNode | None:
        """Return a section if it can be parsed; None, with an issue, if it is not a mapping or too large."""
        if node.entries is not None and not is_too_large(node):
            return node
        self.add_invalid_value(path, node, mapping if node.entries is None else small)
        return None

    @property
    def simple_invalid_values(self) -> list[InvalidValue]:
        """Invalid values without look-alike characters, which a separate rule reports."""
        return [invalid for invalid in self.invalid_values if not WIDE.search(str(invalid.node.value))]

    def invalid_values_of(self, expect: Enum) -> list[InvalidValue]:
        """Return the invalid values of keys that accept one kind of value."""
        return [invalid for invalid in self.simple_invalid_values if invalid.expect is expect]

    def add_invalid_value(self, path: str, node: DocumentNode, expect: Enum) -> None:
        """Record an invalid value."""
        self.invalid_values.append(InvalidValue(path, node, expect))

    def check_keys(
        self,
        node: DocumentNode,
        path: str,
        allowed_keys: tuple[str, ...],
        is_entry: bool = False,
        optional_keys: tuple[str, ...] = (),
    ) -> None:
        """Record the unknown keys of a mapping, and for an entry of a list also its missing keys."""
        known_keys = (*allowed_keys, *optional_keys)
        for entry in node.unique_entries():
            if entry.key not in known_keys:
                self.unknown_keys.append(UnknownKey(f"{path}.{key_text(entry.key)}", entry, known_keys, is_entry))
        if is_entry:
            self.missing_keys += [MissingKey(path, node, key) for key in allowed_keys if node.entry(key) is None]


@dataclass(frozen=True)
class LayerRef:
    """One layer index with its location."""

    index: int
    location: Location


@dataclass(frozen=True)
class Statement:
    """One entry of the configuration: operators to swap or recompute in some layers."""

    option: str  # option of the entry, e.g. `op_swap`
    path: str  # key path of the entry, e.g. `swap_config.op_swap[1]`
    location: Location  # start of the entry
    pattern: str | None  # pattern of the operators; None for full layers; "" if no valid pattern is given
    pattern_path: str  # key path of the pattern
    pattern_location: Location  # location of the pattern; for full layers, start of the entry
    layers: Layers  # the layers that could be parsed
    layers_path: str  # key path of the layers
    layer_refs: tuple[LayerRef, ...] = ()  # each index with its location; empty for `True`
    num_prefetch_ops: int | None = None  # prefetch distance in operators; None for recompute, or if invalid
    prefetch_location: Location | None = None  # location of the prefetch distance
    is_default: bool = False  # the pattern is a default, not written by the user


@dataclass(frozen=True, eq=False)
class PolicySettings:
    """Parsed settings of a configuration."""

    # value of `swap_config.swap`; also True for an invalid value that does not look like "off", so that the rest is
    # checked
    is_swap_enabled: bool
    use_legacy: bool
    num_layers: int | None  # layers of the model; None if not known
    pipeline: Pipeline  # distribution of layers over stages
    default_prefetch: int | None = None  # prefetch distance of the default strategy; None if it does not apply
    # statements of layer_swap and op_swap in file order, including those of the default strategy
    swap: tuple[Statement, ...] = ()
    recompute: tuple[Statement, ...] = ()  # statements of `recompute` and the select options
    flags: tuple[tuple[str, bool], ...] = ()
    parse_issues: ParseIssues = field(default_factory=ParseIssues)  # invalid values and keys

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Return all statements, those of swap first."""
        return self.swap + self.recompute

    def of(self, option: str) -> tuple[Statement, ...]:
        """Return the statements of one option."""
        return tuple(statement for statement in self.statements if statement.option == option)
