"""Parse the parts that several options share: lists of layers, patterns of operators, lists of entries."""

from dataclasses import dataclass, field
from typing import NamedTuple

from mindswap.config.nodes import DocumentNode, key_text
from mindswap.config.pipeline_layout import Pipeline, is_stage_counts
from mindswap.config.problem import Location
from mindswap.policy.formats.mindformers1.schema import (
    MAX_NUM_LAYERS,
    MINDSWAP_KEYS,
    RANGE,
    RECOMPUTE_FLAGS,
    RECOMPUTE_KEYS,
    SELECT_OPTIONS,
    Expect,
    default_operators,
    is_index,
    is_pattern,
)
from mindswap.policy.formats.mindformers1.settings import LayerRef, ParseIssues, Statement
from mindswap.policy.model import ALL_LAYERS, NO_LAYERS, Layers


class LocatedLayers(NamedTuple):
    """Parsed layers, and the location of each index."""

    layers: Layers
    refs: tuple[LayerRef, ...] = ()


class LocatedPattern(NamedTuple):
    """Pattern of an entry with its key path and location, as in `Statement`."""

    pattern: str | None  # None for full layers
    path: str
    location: Location


@dataclass(frozen=True)
class Parts:
    """Parser of the shared parts; `parse_issues` collects invalid values."""

    num_layers: int | None  # layers of the model; None if not known
    parse_issues: ParseIssues = field(default_factory=ParseIssues)

    def section(self, node: DocumentNode | None, path: str) -> DocumentNode | None:
        """Return a section if it is not empty and can be parsed; else None."""
        if node is None or is_empty(node):
            return None
        return self.parse_issues.section(node, path, Expect.MAPPING, Expect.SMALL_SECTION)

    def entries(self, node: DocumentNode, path: str, expect: Expect) -> list[tuple[str, DocumentNode]]:
        """Return the mappings of a list, or a single mapping in place of a list, each with its key path."""
        if node.entries is not None:
            return [(path, node)] if node.entries else []
        if node.items is None:
            self.parse_issues.add_invalid_value(path, node, expect)
            return []
        entries = [(f"{path}[{index}]", item) for index, item in enumerate(node.items)]
        for entry_path, entry in entries:
            if entry.entries is None:
                self.parse_issues.add_invalid_value(entry_path, entry, Expect.MAPPING)
        return [(entry_path, entry) for entry_path, entry in entries if entry.entries is not None]

    def patterns(self, node: DocumentNode, path: str) -> list[LocatedPattern]:
        """Return the patterns of a value: one pattern, or a list of patterns."""
        items = node.items or ()
        located_items = [(f"{path}[{index}]", item) for index, item in enumerate(items)] or [(path, node)]
        patterns: list[LocatedPattern] = []
        for item_path, item in located_items:
            if is_pattern(item):
                patterns.append(LocatedPattern(str(item.value), item_path, item.location))
            else:
                self.parse_issues.add_invalid_value(item_path, item, Expect.PATTERN)
        return patterns

    def layers(self, node: DocumentNode, path: str, expect: Expect = Expect.LAYERS) -> LocatedLayers:
        """Parse layers: a bool, a range, or a list of indices and ranges."""
        if isinstance(node.value, bool):
            return LocatedLayers(ALL_LAYERS if node.value else NO_LAYERS)
        if node.items is not None:
            refs = []
            for index, item in enumerate(node.items):
                indices = _layer_refs(item)
                if indices is None:
                    self.parse_issues.add_invalid_value(f"{path}[{index}]", item, Expect.LAYER_INDEX)
                else:
                    refs += indices
        else:
            refs = (_layer_refs(node) if isinstance(node.value, str) else None) or []
            if not refs:
                self.parse_issues.add_invalid_value(path, node, expect)
        limit = self.num_layers or MAX_NUM_LAYERS
        return LocatedLayers(Layers(ref.index for ref in refs if 0 <= ref.index < limit), tuple(refs))


def is_empty(node: DocumentNode | None) -> bool:
    """Return whether MindFormers treats a value as missing: no node, null, {}, [], "", 0, False."""
    return node is None or not (node.items or node.entries or node.value)


def is_range(node: DocumentNode) -> bool:
    """Return whether a value is a range of layers such as `0-3`."""
    return isinstance(node.value, str) and RANGE.fullmatch(node.value) is not None


def _layer_refs(node: DocumentNode) -> list[LayerRef] | None:
    """Return the indices of one list element; None if it is neither an index nor a range."""
    if is_index(node):
        return [LayerRef(node.value, node.location)]
    parts = RANGE.fullmatch(node.value) if isinstance(node.value, str) else None
    if parts is None:
        return None
    first, last = int(parts[1]), int(parts[2])
    if first > last:
        return None
    # A single index that is too large is enough to refuse a range, so the rest is not expanded.
    return [LayerRef(index, node.location) for index in range(first, min(last, max(first, MAX_NUM_LAYERS)) + 1)]


@dataclass(eq=False)
class RecomputeReader:
    """Parser of `recompute_config` and the recompute options of `mindswap`; `parts` collects invalid values."""

    parts: Parts
    pipeline: Pipeline
    use_legacy: bool
    statements: list[Statement] = field(default_factory=list)
    flags: list[tuple[str, bool]] = field(default_factory=list)

    def read_section(self, node: DocumentNode | None) -> None:
        """Parse `recompute_config`."""
        section = self.parts.section(node, "recompute_config")
        if section is None:
            return
        self.parts.parse_issues.check_keys(section, "recompute_config", RECOMPUTE_KEYS)
        for entry in section.unique_entries():
            path = f"recompute_config.{key_text(entry.key)}"
            if entry.key == "recompute":
                layers = self._layers(entry.value, path, Expect.RECOMPUTE)
                self._add("recompute", path, entry.value, LocatedPattern(None, path, entry.value.location), layers)
            elif entry.key in SELECT_OPTIONS:
                self._read_select(str(entry.key), entry.value, path)
            elif entry.key in RECOMPUTE_FLAGS:
                if isinstance(entry.value.value, bool):
                    self.flags.append((str(entry.key), entry.value.value))
                else:
                    self.parts.parse_issues.add_invalid_value(path, entry.value, Expect.BOOL)

    def read_mindswap_section(self, node: DocumentNode | None) -> None:
        """Parse `mindswap`, the section of this package."""
        section = self.parts.section(node, "mindswap")
        if section is None:
            return
        self.parts.parse_issues.check_keys(section, "mindswap", MINDSWAP_KEYS)
        stand_ins = section.get("cpu_stand_ins")
        if stand_ins is not None and not stand_ins.is_null and not isinstance(stand_ins.value, bool):
            self.parts.parse_issues.add_invalid_value("mindswap.cpu_stand_ins", stand_ins, Expect.BOOL)
        output = section.get("output_recompute")
        if output is not None and not output.is_null:
            path = "mindswap.output_recompute"
            pattern = LocatedPattern(None, path, output.location)
            self._add("output_recompute", path, output, pattern, self.parts.layers(output, path), keeps_empty=True)

    def _read_select(self, option: str, node: DocumentNode, path: str) -> None:
        if node.entries is not None:
            for named in node.unique_entries():
                name_path = f"{path}['{key_text(named.key)}']"
                layers = self._layers(named.value, name_path, Expect.RECOMPUTE)
                for pattern in self.parts.patterns(DocumentNode(named.location, named.key), name_path):
                    self._add(option, name_path, named.value, pattern, layers)
        elif node.items and any(isinstance(item.value, str) and not is_range(item) for item in node.items):
            for pattern in self.parts.patterns(node, path):
                self._add(option, pattern.path, node, pattern, LocatedLayers(ALL_LAYERS))
        else:
            layers = self._layers(node, path, Expect.SELECT)
            for name in default_operators(option, self.use_legacy):
                self._add(option, path, node, LocatedPattern(name, path, node.location), layers, is_default=True)

    def _add(
        self,
        option: str,
        path: str,
        node: DocumentNode,
        located_pattern: LocatedPattern,
        located_layers: LocatedLayers,
        is_default: bool = False,
        keeps_empty: bool = False,
    ) -> None:
        if located_layers.layers or located_layers.refs or keeps_empty:
            statement = Statement(
                option=option,
                path=path,
                location=node.location,
                pattern=located_pattern.pattern,
                pattern_path=located_pattern.path,
                pattern_location=located_pattern.location,
                layers=located_layers.layers,
                layers_path=path,
                layer_refs=located_layers.refs,
                is_default=is_default,
            )
            self.statements.append(statement)

    def _layers(self, node: DocumentNode, path: str, expect: Expect) -> LocatedLayers:
        if is_stage_counts(node, self.pipeline, self.parts.num_layers):
            self.parts.parse_issues.stage_counts.append((path, node))
            return LocatedLayers(NO_LAYERS)
        return self.parts.layers(node, path, expect)
