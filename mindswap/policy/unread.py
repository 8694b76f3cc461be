"""What could not be read of a configuration, of MindFormers 1.x or 2.x, with its place."""

from dataclasses import dataclass, field
from enum import Enum

from mindswap.config.nodes import DocumentNode, MappingEntry, key_text
from mindswap.policy.words import closest_names


@dataclass(frozen=True, eq=False)
class InvalidValue:
    """A value that does not fit its place; `expect` says what does."""

    path: str
    node: DocumentNode
    expect: Enum


@dataclass(frozen=True, eq=False)
class UnknownKey:
    """A key that nothing reads; `known` are those that may stand there, in a section or in an entry of a list in it."""

    path: str
    entry: MappingEntry
    known: tuple[str, ...]
    is_in_entry: bool

    def fix(self, max_distance: int = 4) -> str:
        """The key that is meant, if one is that near."""
        closest = closest_names(key_text(self.entry.key), self.known, max_distance=max_distance)
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

    misfits: list[InvalidValue] = field(default_factory=list)
    unknown_keys: list[UnknownKey] = field(default_factory=list)
    missing_keys: list[MissingKey] = field(default_factory=list)

    def misfit(self, path: str, node: DocumentNode, expect: Enum) -> None:
        """Keep a value that does not fit."""
        self.misfits.append(InvalidValue(path, node, expect))

    def check_keys(self, node: DocumentNode, path: str, known: tuple[str, ...], is_entry: bool = False) -> None:
        """Keep the keys of a mapping that are not known; of an entry of a list the missing ones, too."""
        for entry in node.unique_entries():
            if entry.key not in known:
                self.unknown_keys.append(UnknownKey(f"{path}.{key_text(entry.key)}", entry, known, is_entry))
        if is_entry:
            self.missing_keys += [MissingKey(path, node, key) for key in known if node.entry(key) is None]
