"""Document -> Settings: every accepted spelling taken apart, what does not fit kept as a misfit.

Nothing is judged here beyond "can this be read": values that fit their place but make no sense
(layer 99 of 4, a pattern that matches nothing) become statements, and the rules find them.
"""

import re
from collections.abc import Sequence

from mindswap.config.pipeline import is_stage_counts, read_pipeline
from mindswap.document.nodes import Document, Entry, Node, expanded_size, key_text
from mindswap.document.problem import Location
from mindswap.policy.model import ALL_LAYERS, DEFAULT_SWAP_PATTERNS, NO_LAYERS, Layers
from mindswap.policy.schema import (
    ENTRY_KEYS,
    MAX_NUM_LAYERS,
    MAX_SECTION_VALUES,
    MINDSWAP_KEYS,
    PREFETCH_DEFAULT,
    RECOMPUTE_FLAGS,
    RECOMPUTE_KEYS,
    SELECT_OPTIONS,
    SWAP_KEYS,
    Expect,
    default_operators,
    is_index,
    is_pattern,
    is_prefetch,
)
from mindswap.policy.settings import LayerRef, Misfit, MissingKey, Settings, StageCounts, Statement, UnknownKey

__all__ = ["NUM_LAYERS_KEYS", "find_num_layers", "is_empty", "read_settings"]

# The names MindFormers takes for the number of layers, in model.model_config.
NUM_LAYERS_KEYS = ("num_layers", "num_hidden_layers", "n_layer", "n_layers")

_RANGE = re.compile(r"\s*(\d{1,6})\s*-\s*(\d{1,6})\s*", re.ASCII)


def find_num_layers(document: Document) -> int | None:
    """Number of layers that model.model_config states; None if it does not."""
    for key in NUM_LAYERS_KEYS:
        node = document.get("model", "model_config", key)
        if node is not None and is_index(node) and 1 <= node.value <= MAX_NUM_LAYERS:
            return node.value
    return None


def is_empty(node: Node | None) -> bool:
    """True for what MindFormers takes as "not there": missing, null, {}, [], "", 0, False."""
    return node is None or not (node.items or node.entries or node.value)


def read_settings(document: Document, num_layers: int | None = None) -> Settings:
    """What a configuration says about swap and recomputation.

    Args:
        document: the configuration.
        num_layers: layers of the model; None takes what the configuration states.
    """
    return _Reader(document, num_layers if num_layers is not None else find_num_layers(document)).read()


class _Reader:
    def __init__(self, document: Document, num_layers: int | None):
        self.document = document
        self.num_layers = num_layers
        self.pipeline = read_pipeline(document)
        self.use_legacy = document.is_legacy
        self.default_prefetch: int | None = None
        self.swap: list[Statement] = []
        self.recompute: list[Statement] = []
        self.flags: list[tuple[str, bool]] = []
        self.misfits: list[Misfit] = []
        self.stage_counts: list[StageCounts] = []
        self.unknown_keys: list[UnknownKey] = []
        self.missing_keys: list[MissingKey] = []

    def read(self) -> Settings:
        is_swap_enabled = self._read_swap_section()
        if is_swap_enabled:
            self._read_recompute_section()
            self._read_own_section()
        return Settings(
            is_swap_enabled,
            self.use_legacy,
            self.num_layers,
            self.pipeline,
            self.default_prefetch,
            tuple(self.swap),
            tuple(self.recompute),
            tuple(self.flags),
            tuple(self.misfits),
            tuple(self.stage_counts),
            tuple(self.unknown_keys),
            tuple(self.missing_keys),
        )

    # swap_config

    def _read_swap_section(self) -> bool:
        section = self.document.get("swap_config")
        if section is None or is_empty(section):
            return False
        if not self._is_usable_section(section, "swap_config"):
            return False
        swap = section.get("swap")
        if swap is None or swap.value is False:
            if swap is None:
                self._check_keys(section, "swap_config", SWAP_KEYS)
            return False
        if swap.value is not True:
            self._misfit("swap_config.swap", swap, Expect.BOOL)
            if is_empty(swap) or str(swap.value).strip().lower() in ("false", "off", "no", "n", "0", "none"):
                return False
        self._check_keys(section, "swap_config", SWAP_KEYS)
        layer_swap, op_swap = section.get("layer_swap"), section.get("op_swap")
        prefetch = section.get("default_prefetch")
        if prefetch is not None and prefetch.is_null:
            prefetch = None  # as with layer_swap and op_swap, null means not set
        if prefetch is not None and not is_prefetch(prefetch):
            self._misfit("swap_config.default_prefetch", prefetch, Expect.PREFETCH)
        if _asks_for_default_strategy(layer_swap, op_swap, prefetch):
            self._add_default_strategy(swap, prefetch)
            return True
        if layer_swap is not None and not layer_swap.is_null:
            self._read_layer_swap(layer_swap)
        if op_swap is not None and not op_swap.is_null:
            self._read_op_swap(op_swap)
        return True

    def _add_default_strategy(self, swap: Node, prefetch: Node | None) -> None:
        if prefetch is None:
            self.default_prefetch = PREFETCH_DEFAULT
        elif is_prefetch(prefetch):
            self.default_prefetch = prefetch.value
        path = "swap_config.swap"
        for pattern in DEFAULT_SWAP_PATTERNS:
            self.swap.append(
                Statement(
                    "op_swap",
                    path,
                    swap.location,
                    pattern,
                    path,
                    swap.location,
                    ALL_LAYERS,
                    path,
                    num_prefetch_ops=self.default_prefetch,
                    prefetch_location=prefetch.location if prefetch is not None else swap.location,
                    is_default=True,
                )
            )

    def _read_layer_swap(self, node: Node) -> None:
        path = "swap_config.layer_swap"
        for entry_path, entry in self._entries(node, path, Expect.LAYER_SWAP):
            self._check_keys(entry, entry_path, ENTRY_KEYS["layer_swap"], are_required=True)
            self._add_swap("layer_swap", entry_path, entry, [(None, entry_path, entry.location)])

    def _read_op_swap(self, node: Node) -> None:
        path = "swap_config.op_swap"
        if node.entries and not any(node.entry(key) for key in ENTRY_KEYS["op_swap"]):
            self._read_op_swap_mapping(node, path)
            return
        for entry_path, entry in self._entries(node, path, Expect.OP_SWAP):
            self._check_keys(entry, entry_path, ENTRY_KEYS["op_swap"], are_required=True)
            name = entry.get("op_name")
            patterns = self._patterns(name, f"{entry_path}.op_name") if name is not None else []
            self._add_swap("op_swap", entry_path, entry, patterns)

    def _read_op_swap_mapping(self, node: Node, path: str) -> None:
        """The form that MindFormers itself makes: {op_name: [{backward_prefetch, layers}, ...]}."""
        for named in node.unique_entries():
            name_path = f"{path}['{key_text(named.key)}']"
            patterns = self._patterns(Node(named.location, named.key), name_path)
            for entry_path, entry in self._entries(named.value, name_path, Expect.LAYER_SWAP):
                self._check_keys(entry, entry_path, ENTRY_KEYS["op_swap value"], are_required=True)
                self._add_swap("op_swap", entry_path, entry, patterns)

    def _entries(self, node: Node, path: str, expect: Expect) -> list[tuple[str, Node]]:
        """The mappings of a list, or the one mapping that stands in place of a list."""
        if node.entries is not None:
            return [(path, node)] if node.entries else []
        if node.items is None:
            self._misfit(path, node, expect)
            return []
        entries = [(f"{path}[{index}]", item) for index, item in enumerate(node.items)]
        for entry_path, entry in entries:
            if entry.entries is None:
                self._misfit(entry_path, entry, Expect.MAPPING)
        return [(entry_path, entry) for entry_path, entry in entries if entry.entries is not None]

    def _add_swap(
        self, option: str, path: str, entry: Node, patterns: Sequence[tuple[str | None, str, Location]]
    ) -> None:
        layers_node, prefetch = entry.get("layers"), entry.get("backward_prefetch")
        layers, refs = self._layers(layers_node, f"{path}.layers") if layers_node is not None else (NO_LAYERS, ())
        if prefetch is not None and not is_prefetch(prefetch):
            self._misfit(f"{path}.backward_prefetch", prefetch, Expect.PREFETCH)
            prefetch = None
        for pattern, pattern_path, pattern_location in patterns:
            self.swap.append(
                Statement(
                    option,
                    path,
                    entry.location,
                    pattern,
                    pattern_path,
                    pattern_location,
                    layers,
                    f"{path}.layers",
                    refs,
                    prefetch.value if prefetch is not None else None,
                    prefetch.location if prefetch is not None else None,
                )
            )

    # mindswap

    def _read_own_section(self) -> None:
        section = self.document.get("mindswap")
        if section is None or is_empty(section) or not self._is_usable_section(section, "mindswap"):
            return
        self._check_keys(section, "mindswap", MINDSWAP_KEYS)
        stand_ins = section.get("cpu_stand_ins")
        if stand_ins is not None and not stand_ins.is_null and not isinstance(stand_ins.value, bool):
            self._misfit("mindswap.cpu_stand_ins", stand_ins, Expect.BOOL)
        node = section.get("output_recompute")
        if node is not None and not node.is_null:
            path = "mindswap.output_recompute"
            layers, refs = self._layers(node, path)
            self.recompute.append(
                Statement("output_recompute", path, node.location, None, path, node.location, layers, path, refs)
            )

    # recompute_config

    def _read_recompute_section(self) -> None:
        section = self.document.get("recompute_config")
        if section is None or is_empty(section) or not self._is_usable_section(section, "recompute_config"):
            return
        self._check_keys(section, "recompute_config", RECOMPUTE_KEYS)
        for entry in section.unique_entries():
            path = f"recompute_config.{key_text(entry.key)}"
            if entry.key == "recompute":
                self._read_layer_recompute(entry.value, path)
            elif entry.key in SELECT_OPTIONS:
                self._read_select(str(entry.key), entry.value, path)
            elif entry.key in RECOMPUTE_FLAGS:
                if isinstance(entry.value.value, bool):
                    self.flags.append((str(entry.key), entry.value.value))
                else:
                    self._misfit(path, entry.value, Expect.BOOL)

    def _read_layer_recompute(self, node: Node, path: str) -> None:
        layers, refs = self._recompute_layers(node, path, Expect.RECOMPUTE)
        if layers or refs:
            self.recompute.append(
                Statement("recompute", path, node.location, None, path, node.location, layers, path, refs)
            )

    def _read_select(self, option: str, node: Node, path: str) -> None:
        if node.entries is not None:
            for named in node.unique_entries():
                name_path = f"{path}['{key_text(named.key)}']"
                layers, refs = self._recompute_layers(named.value, name_path, Expect.RECOMPUTE)
                for pattern in self._patterns(Node(named.location, named.key), name_path):
                    self._add_select(option, name_path, named.value, pattern, layers, refs)
        elif node.items and any(
            isinstance(item.value, str) and not _RANGE.fullmatch(item.value) for item in node.items
        ):
            for pattern in self._patterns(node, path):
                self._add_select(option, pattern[1], node, pattern, ALL_LAYERS, ())
        else:
            layers, refs = self._recompute_layers(node, path, Expect.SELECT)
            for name in default_operators(option, self.use_legacy):
                self._add_select(option, path, node, (name, path, node.location), layers, refs, is_default=True)

    def _add_select(
        self,
        option: str,
        path: str,
        node: Node,
        pattern: tuple[str, str, Location],
        layers: Layers,
        refs: tuple[LayerRef, ...],
        is_default: bool = False,
    ) -> None:
        if layers or refs:
            name, pattern_path, pattern_location = pattern
            self.recompute.append(
                Statement(
                    option,
                    path,
                    node.location,
                    name,
                    pattern_path,
                    pattern_location,
                    layers,
                    path,
                    refs,
                    is_default=is_default,
                )
            )

    def _recompute_layers(self, node: Node, path: str, expect: Expect) -> tuple[Layers, tuple[LayerRef, ...]]:
        if is_stage_counts(node, self.pipeline, self.num_layers):
            self.stage_counts.append(StageCounts(path, node))
            return NO_LAYERS, ()
        return self._layers(node, path, expect)

    # parts

    def _layers(self, node: Node, path: str, expect: Expect = Expect.LAYERS) -> tuple[Layers, tuple[LayerRef, ...]]:
        if isinstance(node.value, bool):
            return (ALL_LAYERS if node.value else NO_LAYERS), ()
        if node.items is not None:
            refs = []
            for index, item in enumerate(node.items):
                found = _layer_refs(item)
                if found is None:
                    self._misfit(f"{path}[{index}]", item, Expect.LAYER_INDEX)
                else:
                    refs += found
        else:
            refs = (_layer_refs(node) if isinstance(node.value, str) else None) or []
            if not refs:
                self._misfit(path, node, expect)
        limit = self.num_layers or MAX_NUM_LAYERS
        indices = sorted({ref.index for ref in refs if 0 <= ref.index < limit})
        return Layers(tuple(indices)), tuple(refs)

    def _patterns(self, node: Node, path: str) -> list[tuple[str, str, Location]]:
        """The operator names at a place, each with its path and place."""
        places = [(path, node)]
        if node.items is not None:
            places = [(f"{path}[{index}]", item) for index, item in enumerate(node.items)]
        if not places:
            self._misfit(path, node, Expect.PATTERN)
        patterns = []
        for place_path, place in places:
            if is_pattern(place):
                patterns.append((str(place.value), place_path, place.location))
            else:
                self._misfit(place_path, place, Expect.PATTERN)
        return patterns

    def _check_keys(self, node: Node, path: str, known: tuple[str, ...], are_required: bool = False) -> None:
        for entry in node.unique_entries():
            if entry.key not in known:
                self._unknown(path, entry, known)
        if are_required:
            self.missing_keys += [MissingKey(path, node, key) for key in known if node.entry(key) is None]

    def _is_usable_section(self, section: Node, path: str) -> bool:
        if section.entries is None:
            self._misfit(path, section, Expect.MAPPING)
            return False
        if expanded_size(section) > MAX_SECTION_VALUES:
            self._misfit(path, section, Expect.SMALL_SECTION)
            return False
        return True

    def _misfit(self, path: str, node: Node, expect: Expect) -> None:
        self.misfits.append(Misfit(path, node, expect))

    def _unknown(self, path: str, entry: Entry, known: tuple[str, ...]) -> None:
        self.unknown_keys.append(UnknownKey(f"{path}.{key_text(entry.key)}", entry, known))


def _asks_for_default_strategy(layer_swap: Node | None, op_swap: Node | None, prefetch: Node | None) -> bool:
    """True without layer_swap and op_swap, or for what MindFormers' own config object makes of that.

    `TransformerSwapConfig.to_dict()` writes the default strategy as `layer_swap: []` and one pattern,
    which does not reach flash attention in the newer models.
    """
    if (layer_swap is None or layer_swap.is_null) and (op_swap is None or op_swap.is_null):
        return True
    if not is_empty(layer_swap) or op_swap is None or prefetch is None:
        return False
    entries = op_swap.get(DEFAULT_SWAP_PATTERNS[0])
    if entries is None or len(op_swap.unique_entries()) != 1 or not entries.items or len(entries.items) != 1:
        return False
    entry = entries.items[0]
    layers, entry_prefetch = entry.get("layers"), entry.get("backward_prefetch")
    return (
        layers is not None
        and layers.value is True
        and entry_prefetch is not None
        and is_prefetch(entry_prefetch)
        and entry_prefetch.value == prefetch.value
    )


def _layer_refs(node: Node) -> list[LayerRef] | None:
    """The indices that one list element stands for; None if it is neither an index nor a range."""
    if is_index(node):
        return [LayerRef(node.value, node.location)]
    parts = _RANGE.fullmatch(node.value) if isinstance(node.value, str) else None
    if parts is None:
        return None
    first, last = int(parts[1]), int(parts[2])
    if first > last:
        return None
    # One index too large is enough to refuse a range; the rest of it need not be written out.
    return [LayerRef(index, node.location) for index in range(first, min(last, max(first, MAX_NUM_LAYERS)) + 1)]
