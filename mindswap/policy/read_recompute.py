"""`recompute_config` and the recompute options of `mindswap` -> statements."""

from dataclasses import dataclass, field

from mindswap.config.nodes import DocumentNode, key_text
from mindswap.config.pipeline import Pipeline, is_stage_counts
from mindswap.policy.model import ALL_LAYERS, NO_LAYERS, Layers
from mindswap.policy.read_parts import Parts, Pattern, is_range
from mindswap.policy.schema import (
    MINDSWAP_KEYS,
    RECOMPUTE_FLAGS,
    RECOMPUTE_KEYS,
    SELECT_OPTIONS,
    Expect,
    default_operators,
)
from mindswap.policy.settings import LayerRef, StageCounts, Statement


@dataclass(eq=False)
class RecomputeReader:
    """Reads what a configuration says about recompute; `parts` keeps what does not fit."""

    parts: Parts
    pipeline: Pipeline
    use_legacy: bool
    statements: list[Statement] = field(default_factory=list)
    flags: list[tuple[str, bool]] = field(default_factory=list)
    stage_counts: list[StageCounts] = field(default_factory=list)

    def read_section(self, node: DocumentNode | None) -> None:
        section = self.parts.section(node, "recompute_config")
        if section is None:
            return
        self.parts.unread.check_keys(section, "recompute_config", RECOMPUTE_KEYS)
        for entry in section.unique_entries():
            path = f"recompute_config.{key_text(entry.key)}"
            if entry.key == "recompute":
                whole = Pattern(None, path, entry.value.location)
                self._add("recompute", path, entry.value, whole, *self._layers(entry.value, path, Expect.RECOMPUTE))
            elif entry.key in SELECT_OPTIONS:
                self._read_select(str(entry.key), entry.value, path)
            elif entry.key in RECOMPUTE_FLAGS:
                if isinstance(entry.value.value, bool):
                    self.flags.append((str(entry.key), entry.value.value))
                else:
                    self.parts.unread.misfit(path, entry.value, Expect.BOOL)

    def read_own_section(self, node: DocumentNode | None) -> None:
        section = self.parts.section(node, "mindswap")
        if section is None:
            return
        self.parts.unread.check_keys(section, "mindswap", MINDSWAP_KEYS)
        stand_ins = section.get("cpu_stand_ins")
        if stand_ins is not None and not stand_ins.is_null and not isinstance(stand_ins.value, bool):
            self.parts.unread.misfit("mindswap.cpu_stand_ins", stand_ins, Expect.BOOL)
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
                layers, refs = self._layers(named.value, name_path, Expect.RECOMPUTE)
                for pattern in self.parts.patterns(DocumentNode(named.location, named.key), name_path):
                    self._add(option, name_path, named.value, pattern, layers, refs)
        elif node.items and any(isinstance(item.value, str) and not is_range(item) for item in node.items):
            for pattern in self.parts.patterns(node, path):
                self._add(option, pattern.path, node, pattern, ALL_LAYERS, ())
        else:
            layers, refs = self._layers(node, path, Expect.SELECT)
            for name in default_operators(option, self.use_legacy):
                self._add(option, path, node, Pattern(name, path, node.location), layers, refs, is_default=True)

    def _add(
        self,
        option: str,
        path: str,
        node: DocumentNode,
        pattern: Pattern,
        layers: Layers,
        refs: tuple[LayerRef, ...],
        is_default: bool = False,
    ) -> None:
        if layers or refs:
            named = (pattern.text, pattern.path, pattern.location)
            statement = Statement(option, path, node.location, *named, layers, path, refs, is_default=is_default)
            self.statements.append(statement)

    def _layers(self, node: DocumentNode, path: str, expect: Expect) -> tuple[Layers, tuple[LayerRef, ...]]:
        if is_stage_counts(node, self.pipeline, self.parts.num_layers):
            self.stage_counts.append(StageCounts(path, node))
            return NO_LAYERS, ()
        return self.parts.layers(node, path, expect)
