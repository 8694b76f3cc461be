"""Parsed settings of `swap`, `recompute` and `recompute_comm` with locations; `read_pynative` makes them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mindswap.config.nodes import DocumentNode, is_huge
from mindswap.config.problem import Location
from mindswap.policy.formats.mindformers1.schema import ENTRY_PREFIX, MAX_NUM_LAYERS, SMALL_SECTION
from mindswap.policy.formats.mindformers1.settings import ParseIssues

# Elements of lists of layers in MindFormers 2.x: `5`, `'5'`, `0-19`.

# `_LAYER_ID_SPEC_PATTERN` of mindformers/pynative/distributed/activation_checkpoint.py (2.1.0).
_SPEC = re.compile(r"(\d+)(?:-(\d+))?")
# Longer texts cannot be layer indices of any model.
_MAX_CHARS = 15


@dataclass(frozen=True)
class LayerSpec:
    """One element of a list of layers, both ends inclusive; `first` may be above `last`."""

    first: int
    last: int
    path: str
    location: Location

    @property
    def text(self) -> str:
        """The element as in the configuration."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def parse_spec(node: DocumentNode, path: str) -> LayerSpec | None:
    """Parse one list element; None if MindFormers does not accept it."""
    if node.items is not None or node.entries is not None or is_huge(node.value):
        return None
    text = str(node.value).strip()
    match = _SPEC.fullmatch(text)
    if match is None or len(text) > _MAX_CHARS:
        return None
    first = int(match[1])
    return LayerSpec(first, int(match[2]) if match[2] is not None else first, path, node.location)


def indices_of(specs: Iterable[LayerSpec], limit: int) -> tuple[int, ...]:
    """Return the layers below `limit`, in ascending order."""
    indices: set[int] = set()
    for spec in specs:
        indices.update(range(spec.first, min(spec.last, limit - 1) + 1))
    return tuple(sorted(indices))


# Keys of each section. Source: mindformers/pynative/config/config.py (2.1.0), SwapConfig and the two above it.
SECTION_KEYS = {
    "swap": ("enable", "default_prefetch", "layer_swap", "op_swap"),
    "recompute": ("mode", "full_recompute_layer", "select_module", "exclude_op"),
    "recompute_comm": ("enable", "select_module"),
}
# `mindswap.swap_engine: mindswap` lets mindswap's own executor swap the operators of the section `swap`.
SWAP_ENGINE, OWN_ENGINE = "swap_engine", "mindswap"
# Section of each key that only one section has, for messages about a misplaced key.
SECTION_OF_KEY_2X = {
    **dict.fromkeys(("default_prefetch", "layer_swap", "op_swap"), "swap"),
    **dict.fromkeys(("mode", "full_recompute_layer", "exclude_op"), "recompute"),
    "op_name": f"{ENTRY_PREFIX}op_swap",
    "layers": f"{ENTRY_PREFIX}layer_swap or op_swap",
}


class Expect2x(Enum):
    """Kinds of values that a key accepts, in the words of the messages."""

    SECTION = "a mapping"
    SMALL_SECTION = SMALL_SECTION
    BOOL = "True or False"
    PREFETCH = "an integer, 1 or more (number of layers)"
    ENGINE = "mindswap, or upstream (MindFormers with HyperParallel)"
    MODE = "None, full or select"
    ENTRIES = "null, or a list of mappings in brackets or with dashes"
    ENTRY = "a mapping with `layers`"
    LAYERS = "a list of layers such as [0, 3] or ['0-3', 7]"
    LAYER = "one layer or an ascending range, without blanks: 5, '5' or '0-19'"
    PATTERN = r"one operator path, a string such as 'self_attention\.core_attention'"
    MODULES = "a mapping of operator paths to lists of layers"
    EXCLUDE = "a mapping of operator paths to lists of layers (a list of names in mindformers 2.0.0 only)"


@dataclass(frozen=True)
class Target:
    """One entry of the configuration: cells or operators to swap or recompute in some layers."""

    # key of the entry: `layer_swap`, `op_swap`, `full_recompute_layer`, `select_module`, `exclude_op`, or `comm` for
    # `recompute_comm.select_module`
    option: str
    path: str  # key path of the entry, e.g. `swap.op_swap[1]`
    location: Location  # start of the entry
    pattern: str | None  # regular expression that must match the full path; None for full layers
    pattern_path: str  # key path of the pattern
    pattern_location: Location  # location of the pattern
    layers_path: str  # key path of the list of layers
    layers_location: Location  # start of the list
    specs: tuple[LayerSpec, ...]  # elements of the list that could be parsed
    prefetch: int | None = None  # distance of this entry in layers, which only mindswap's own executor has


@dataclass(frozen=True, eq=False)
class Settings2x:
    """Parsed settings of the three sections."""

    num_layers: int | None  # layers of the model with those for multi-token prediction; None if not known
    num_mtp_layers: int  # layers for multi-token prediction
    is_swap_enabled: bool  # value of `swap.enable`; also True for an invalid value that does not look like "off"
    prefetch: int | None  # `swap.default_prefetch`, in layers; None if invalid
    mode: str | None  # `recompute.mode`; None if invalid
    is_comm_enabled: bool  # value of `recompute_comm.enable`
    targets: tuple[Target, ...]  # entries in order, also those without effect
    # invalid values and keys. Upstream ignores an unknown key in an entry, and refuses one in a section
    parse_issues: ParseIssues
    is_own_engine: bool = False  # `mindswap.swap_engine` is mindswap: its executor swaps, not HyperParallel

    def of(self, option: str) -> tuple[Target, ...]:
        """Return the targets of one option."""
        return tuple(target for target in self.targets if target.option == option)

    def layers_of(self, target: Target) -> tuple[int, ...]:
        """Return the layers of a target that exist in the model."""
        return indices_of(target.specs, self.num_layers if self.num_layers is not None else MAX_NUM_LAYERS)

    @property
    def full_layers(self) -> frozenset[int]:
        """Layers with full recompute; `full_recompute_layer` also applies with `mode: select`."""
        return frozenset(i for target in self.of("full_recompute_layer") for i in self.layers_of(target))

    @property
    def swap_layers(self) -> frozenset[int]:
        """Layers that are swapped as full layers: those of the first entry of `layer_swap` only."""
        return frozenset(i for target in self.of("layer_swap")[:1] for i in self.layers_of(target))
