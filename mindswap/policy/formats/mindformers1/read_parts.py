"""Parts of the sections that several options have: lists of layers, names of operators, lists of entries."""

from dataclasses import dataclass, field

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

# Layers, and each index with its place.
ParsedLayers = tuple[Layers, tuple[LayerRef, ...]]


# Pattern of an entry, None for whole layers; its key path and its place: as a `Statement` has them.
Named = tuple[str | None, str, Location]


@dataclass(frozen=True)
class Parts:
    """Reads parts for a model of this many layers; `parse_issues` collects what does not fit."""

    num_layers: int | None
    parse_issues: ParseIssues = field(default_factory=ParseIssues)

    def section(self, node: DocumentNode | None, path: str) -> DocumentNode | None:
        """A section that says something and can be read; else None."""
        empty = node is None or is_empty(node)
        return (
            None
            if node is None or empty
            else self.parse_issues.section(node, path, Expect.MAPPING, Expect.SMALL_SECTION)
        )

    def entries(self, node: DocumentNode, path: str, expect: Expect) -> list[tuple[str, DocumentNode]]:
        """The mappings of a list, or the one mapping that stands in place of a list; each with its path."""
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

    def patterns(self, node: DocumentNode, path: str) -> list[Named]:
        """The operator names at a place."""
        items = node.items or ()
        located_items = [(f"{path}[{index}]", item) for index, item in enumerate(items)] or [(path, node)]
        patterns: list[Named] = []
        for item_path, item in located_items:
            if is_pattern(item):
                patterns.append((str(item.value), item_path, item.location))
            else:
                self.parse_issues.add_invalid_value(item_path, item, Expect.PATTERN)
        return patterns

    def layers(self, node: DocumentNode, path: str, expect: Expect = Expect.LAYERS) -> ParsedLayers:
        """The layers at a place, and each index with its place."""
        if isinstance(node.value, bool):
            return (ALL_LAYERS if node.value else NO_LAYERS), ()
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
        return Layers(ref.index for ref in refs if 0 <= ref.index < limit), tuple(refs)


def is_empty(node: DocumentNode | None) -> bool:
    """True for what MindFormers takes as "not there": missing, null, {}, [], "", 0, False."""
    return node is None or not (node.items or node.entries or node.value)


def is_range(node: DocumentNode) -> bool:
    """True for a text such as `0-3`."""
    return isinstance(node.value, str) and RANGE.fullmatch(node.value) is not None


def _layer_refs(node: DocumentNode) -> list[LayerRef] | None:
    """The indices that one list element stands for; None if it is neither an index nor a range."""
    if is_index(node):
        return [LayerRef(node.value, node.location)]
    parts = RANGE.fullmatch(node.value) if isinstance(node.value, str) else None
    if parts is None:
        return None
    first, last = int(parts[1]), int(parts[2])
    if first > last:
        return None
    # One index too large is enough to refuse a range; the rest of it need not be written out.
    return [LayerRef(index, node.location) for index in range(first, min(last, max(first, MAX_NUM_LAYERS)) + 1)]


# `recompute_config` and the recompute options of `mindswap` -> statements.


@dataclass(eq=False)
class RecomputeReader:
    """Reads what a configuration says about recompute; `parts` keeps what does not fit."""

    parts: Parts
    pipeline: Pipeline
    use_legacy: bool
    statements: list[Statement] = field(default_factory=list)
    flags: list[tuple[str, bool]] = field(default_factory=list)

    def read_section(self, node: DocumentNode | None) -> None:
        """Read `recompute_config`."""
        section = self.parts.section(node, "recompute_config")
        if section is None:
            return
        self.parts.parse_issues.check_keys(section, "recompute_config", RECOMPUTE_KEYS)
        for entry in section.unique_entries():
            path = f"recompute_config.{key_text(entry.key)}"
            if entry.key == "recompute":
                full_layer, layers = (
                    (None, path, entry.value.location),
                    self._layers(entry.value, path, Expect.RECOMPUTE),
                )
                self._add("recompute", path, entry.value, full_layer, layers)
            elif entry.key in SELECT_OPTIONS:
                self._read_select(str(entry.key), entry.value, path)
            elif entry.key in RECOMPUTE_FLAGS:
                if isinstance(entry.value.value, bool):
                    self.flags.append((str(entry.key), entry.value.value))
                else:
                    self.parts.parse_issues.add_invalid_value(path, entry.value, Expect.BOOL)

    def read_mindswap_section(self, node: DocumentNode | None) -> None:
        """Read `mindswap`, the section of this package."""
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
            layers, refs = self.parts.layers(output, path)
            place = (path, output.location)
            self.statements.append(Statement("output_recompute", *place, None, *place, layers, path, refs))

    def _read_select(self, option: str, node: DocumentNode, path: str) -> None:
        if node.entries is not None:
            for named in node.unique_entries():
                name_path = f"{path}['{key_text(named.key)}']"
                layers = self._layers(named.value, name_path, Expect.RECOMPUTE)
                for pattern in self.parts.patterns(DocumentNode(named.location, named.key), name_path):
                    self._add(option, name_path, named.value, pattern, layers)
        elif node.items and any(isinstance(item.value, str) and not is_range(item) for item in node.items):
            for pattern in self.parts.patterns(node, path):
                self._add(option, pattern[1], node, pattern, (ALL_LAYERS, ()))
        else:
            layers = self._layers(node, path, Expect.SELECT)
            for name in default_operators(option, self.use_legacy):
                self._add(option, path, node, (name, path, node.location), layers, is_default=True)

    def _add(
        self,
        option: str,
        path: str,
        node: DocumentNode,
        named: Named,
        parsed_layers: ParsedLayers,
        is_default: bool = False,
    ) -> None:
        layers, refs = parsed_layers
        if layers or refs:
            statement = Statement(option, path, node.location, *named, layers, path, refs, is_default=is_default)
            self.statements.append(statement)

    def _layers(self, node: DocumentNode, path: str, expect: Expect) -> ParsedLayers:
        if is_stage_counts(node, self.pipeline, self.parts.num_layers):
            self.parts.parse_issues.stage_counts.append((path, node))
            return NO_LAYERS, ()
        return self.parts.layers(node, path, expect)
