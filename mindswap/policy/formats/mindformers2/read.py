"""Parse a document of MindFormers 2.x to `Settings2x`; unreadable values become `ParseIssues`."""

from mindswap.config.nodes import Document, DocumentNode, key_text
from mindswap.config.problem import Location
from mindswap.policy.formats.mindformers1.schema import find_count, is_index, is_pattern, is_prefetch
from mindswap.policy.formats.mindformers1.settings import ParseIssues
from mindswap.policy.formats.mindformers2.settings import (
    OWN_ENGINE,
    SECTION_KEYS,
    SWAP_ENGINE,
    Expect2x,
    Settings2x,
    Target,
    parse_spec,
)

NUM_LAYERS_KEYS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_layers")
_OFF_WORDS = ("false", "off", "no", "n", "0", "none", "null")


def find_num_layers_2x(document: Document) -> int | None:
    """Return the number of layers in `model`, without those for multi-token prediction; None if it is missing."""
    return find_count((document.get("model", key) for key in NUM_LAYERS_KEYS), 1)


def find_mtp_layers(document: Document) -> int:
    """Return the number of layers for multi-token prediction, whose indices follow those of the other layers."""
    return find_count((document.get("model", key) for key in MTP_KEYS), 0) or 0


def read_pynative(document: Document, num_layers: int | None) -> Settings2x:
    """Parse the swap and recompute settings of a configuration of MindFormers 2.x.

    Args:
        document: the configuration.
        num_layers: layers without those for multi-token prediction; None takes the number in the configuration.
    """
    return _Reader(document, num_layers if num_layers is not None else find_num_layers_2x(document)).read()


class _Reader:
    def __init__(self, document: Document, num_layers: int | None):
        self.document = document
        self.num_mtp_layers = find_mtp_layers(document)
        self.num_layers = num_layers + self.num_mtp_layers if num_layers is not None else None
        self.targets: list[Target] = []
        self.parse_issues = ParseIssues()
        self.is_own_engine = document.value("mindswap", SWAP_ENGINE) == OWN_ENGINE

    def read(self) -> Settings2x:
        self._check_engine()
        is_swap_enabled, prefetch = self._read_swap()
        is_comm_enabled = self._read_comm()
        mode = self._read_recompute(is_comm_enabled)
        return Settings2x(
            num_layers=self.num_layers,
            num_mtp_layers=self.num_mtp_layers,
            is_swap_enabled=is_swap_enabled,
            prefetch=prefetch,
            mode=mode,
            is_comm_enabled=is_comm_enabled,
            targets=tuple(self.targets),
            parse_issues=self.parse_issues,
            is_own_engine=self.is_own_engine,
        )

    def _check_engine(self) -> None:
        node = self.document.get("mindswap", SWAP_ENGINE)
        if node is not None and node.value not in (OWN_ENGINE, "upstream"):
            self.parse_issues.add_invalid_value(f"mindswap.{SWAP_ENGINE}", node, Expect2x.ENGINE)

    def _section(self, name: str) -> DocumentNode | None:
        node = self.document.get(name)
        if node is None:
            return None
        section = self.parse_issues.section(node, name, Expect2x.SECTION, Expect2x.SMALL_SECTION)
        if section is not None:
            self.parse_issues.check_keys(section, name, SECTION_KEYS[name])
        return section

    def _is_enabled(self, section: DocumentNode, name: str) -> bool:
        node = section.get("enable")
        if node is None or isinstance(node.value, bool):
            return node is not None and node.value
        self.parse_issues.add_invalid_value(f"{name}.enable", node, Expect2x.BOOL)
        return str(node.value).strip().lower() not in _OFF_WORDS

    def _read_swap(self) -> tuple[bool, int | None]:
        section = self._section("swap")
        if section is None:
            return False, 1
        is_enabled = self._is_enabled(section, "swap")
        prefetch: int | None = 1
        node = section.get("default_prefetch")
        if node is not None:
            prefetch = node.value if is_prefetch(node) else None
            if prefetch is None and (is_enabled or not is_index(node)):
                self.parse_issues.add_invalid_value("swap.default_prefetch", node, Expect2x.PREFETCH)
        if is_enabled:  # upstream validates the lists only if swap is enabled
            for path, entry in self._entries(section.get("layer_swap"), "swap.layer_swap", ("layers",)):
                layers = entry.get("layers")
                if layers is not None:
                    prefetch_of_entry = self._prefetch_distance(path, entry)
                    self._add("layer_swap", path, entry.location, layers, f"{path}.layers", prefetch=prefetch_of_entry)
            for path, entry in self._entries(section.get("op_swap"), "swap.op_swap", ("op_name", "layers")):
                self._read_op_swap(path, entry)
        return is_enabled, prefetch

    def _entries(self, node: DocumentNode | None, path: str, keys: tuple[str, ...]) -> list[tuple[str, DocumentNode]]:
        """Return the mappings of a list, or a single mapping, with their key paths, after checking their keys."""
        if node is None or node.is_null:
            return []
        candidates = [(f"{path}[{index}]", item) for index, item in enumerate(node.items or ())]
        if node.items is None:
            self.parse_issues.add_invalid_value(path, node, Expect2x.ENTRIES)
            candidates = [(path, node)] if node.entries is not None else []
        for entry_path, entry in candidates:
            if entry.entries is None:
                self.parse_issues.add_invalid_value(entry_path, entry, Expect2x.ENTRY)
        entries = [(entry_path, entry) for entry_path, entry in candidates if entry.entries is not None]
        optional = ("prefetch",) if self.is_own_engine else ()
        for entry_path, entry in entries:
            self.parse_issues.check_keys(entry, entry_path, keys, is_entry=True, optional_keys=optional)
        return entries

    def _read_op_swap(self, path: str, entry: DocumentNode) -> None:
        name, layers = entry.get("op_name"), entry.get("layers")
        if name is not None and not is_pattern(name):
            self.parse_issues.add_invalid_value(f"{path}.op_name", name, Expect2x.PATTERN)
        elif name is not None and layers is not None:
            place = (f"{path}.op_name", name.location)
            prefetch = self._prefetch_distance(path, entry)
            self._add("op_swap", path, entry.location, layers, f"{path}.layers", name.value, place, prefetch)

    def _prefetch_distance(self, path: str, entry: DocumentNode) -> int | None:
        """Return the distance of an entry, which only mindswap's own executor has; None without one."""
        node = entry.get("prefetch") if self.is_own_engine else None
        if node is None or is_prefetch(node):
            return node.value if node is not None else None
        self.parse_issues.add_invalid_value(f"{path}.prefetch", node, Expect2x.PREFETCH)
        return None

    def _read_recompute(self, is_comm_enabled: bool) -> str | None:
        section = self._section("recompute")
        if section is None:
            return "None"
        node = section.get("mode")
        mode: str | None = "None"
        if node is not None:
            mode = node.value if isinstance(node.value, str) and node.value in ("None", "full", "select") else None
            if mode is None:
                self.parse_issues.add_invalid_value("recompute.mode", node, Expect2x.MODE)
        full, select, exclude = (section.get(key) for key in SECTION_KEYS["recompute"][1:])
        is_on = mode in ("full", "select")
        if full is not None and not full.is_null and is_on:
            path = "recompute.full_recompute_layer"
            self._add("full_recompute_layer", path, full.location, full, path)
        if select is not None and not select.is_null and is_on:
            # With `mode: full` upstream validates the structure, and ignores the entries.
            self._read_modules(select, "recompute.select_module", "select_module", is_active=mode == "select")
        if exclude is not None and not exclude.is_null and (is_on or is_comm_enabled):
            if exclude.entries is None:
                self.parse_issues.add_invalid_value("recompute.exclude_op", exclude, Expect2x.EXCLUDE)
            else:
                self._read_modules(exclude, "recompute.exclude_op", "exclude_op", is_active=True)
        return mode

    def _read_comm(self) -> bool:
        section = self._section("recompute_comm")
        if section is None:
            return False
        is_enabled = self._is_enabled(section, "recompute_comm")
        select = section.get("select_module")
        if select is not None and not select.is_null and is_enabled:
            self._read_modules(select, "recompute_comm.select_module", "comm", is_active=True)
        return is_enabled

    def _read_modules(self, node: DocumentNode, path: str, option: str, is_active: bool) -> None:
        if node.entries is None:
            self.parse_issues.add_invalid_value(path, node, Expect2x.MODULES)
            return
        for entry in node.unique_entries():
            name_path = f"{path}['{key_text(entry.key)}']"
            if not isinstance(entry.key, str) or not entry.key.strip():
                self.parse_issues.add_invalid_value(
                    name_path, DocumentNode(entry.location, entry.key), Expect2x.PATTERN
                )
            elif is_active or entry.value.items is None:
                self._add(option, name_path, entry.location, entry.value, name_path, entry.key)

    def _add(
        self,
        option: str,
        path: str,
        location: Location,
        layers: DocumentNode,
        layers_path: str,
        pattern: str | None = None,
        pattern_place: tuple[str, Location] | None = None,
        prefetch: int | None = None,
    ) -> None:
        """Record a target; without `pattern_place`, the pattern has the location of the entry."""
        specs = []
        if layers.items is None:
            self.parse_issues.add_invalid_value(layers_path, layers, Expect2x.LAYERS)
        for index, item in enumerate(layers.items or ()):
            spec = parse_spec(item, f"{layers_path}[{index}]")
            if spec is None or spec.first > spec.last:
                self.parse_issues.add_invalid_value(f"{layers_path}[{index}]", item, Expect2x.LAYER)
            else:
                specs.append(spec)
        place = pattern_place or (path, location)
        self.targets.append(
            Target(option, path, location, pattern, *place, layers_path, layers.location, tuple(specs), prefetch)
        )
