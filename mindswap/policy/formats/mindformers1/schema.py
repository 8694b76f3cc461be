r"""Schema of `swap_config` and `recompute_config`, as data.

The reader asks here whether a value fits; the rules take their "allowed" text from here, so what
is accepted and what a message says cannot drift apart.
"""

import re
from collections.abc import Iterable
from enum import Enum

from mindswap.config.nodes import DocumentNode, expanded_size, is_int
from mindswap.files import package_data

SWAP_KEYS = ("swap", "default_prefetch", "layer_swap", "op_swap")
SELECT_OPTIONS = (
    "select_recompute",
    "select_comm_recompute",
    "select_recompute_exclude",
    "select_comm_recompute_exclude",
)
# Flags of recompute_config with MindFormers' defaults.
RECOMPUTE_FLAGS = {
    "parallel_optimizer_comm_recompute": False,
    "mp_comm_recompute": True,
    "recompute_slice_activation": False,
}
RECOMPUTE_KEYS = ("recompute", *SELECT_OPTIONS, *RECOMPUTE_FLAGS)
# Figures of the simulated device.
DEVICE_KEYS = ("device", "calibration", "memory", *(figure["name"] for figure in package_data("hardware/figures.json")))
# mindswap's own section.
MINDSWAP_KEYS = ("cpu_stand_ins", "ignore", "output_recompute", "audit_swap", "stream_copies", *DEVICE_KEYS)
# Keys of one entry, by option; `op_swap value` is an entry below an operator name.
ENTRY_KEYS = {
    "layer_swap": ("backward_prefetch", "layers"),
    "op_swap": ("op_name", "backward_prefetch", "layers"),
    "op_swap value": ("backward_prefetch", "layers"),
}
# The place of each key, for messages about one that is found elsewhere.
ENTRY_PREFIX = "an entry of "
SECTION_OF_KEY = {
    **dict.fromkeys(SWAP_KEYS, "swap_config"),
    **dict.fromkeys(RECOMPUTE_KEYS, "recompute_config"),
    **dict.fromkeys(MINDSWAP_KEYS, "mindswap"),
    "op_name": f"{ENTRY_PREFIX}op_swap",
    **dict.fromkeys(ENTRY_KEYS["layer_swap"], f"{ENTRY_PREFIX}layer_swap or op_swap"),
}
PREFETCH_DEFAULT = 1
# More layers than any model has; a larger index is refused even where the model is not known.
MAX_NUM_LAYERS = 10_000
# A few lines can stand for billions of values: an alias counts each time it is used, a range as its layers, and a key,
# which may be a pattern that is held against every layer, as 40.
MAX_SECTION_SIZE = 60_000
KEY_SIZE = 40
RANGE = re.compile(r"\s*(\d{1,6})\s*-\s*(\d{1,6})\s*", re.ASCII)

# Operators that `True` or a list of layers stands for, by option and by use_legacy.
_DEFAULT_OPERATORS = {
    True: (r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu"),
    False: (
        r"mlp\.shared_experts\.mul",
        r"mlp\.shared_experts\.activation_func\.silu",
        r"mlp\.mul",
        r"mlp\.activation_func\.silu",
    ),
}
_DEFAULT_COMM_OPERATORS = (r".*\.norm",)


SMALL_SECTION = (
    f"at most {MAX_SECTION_SIZE} values; a key counts as {KEY_SIZE}, a range as its layers, an alias at each use"
)


class Expect(Enum):
    """Values that a place in the configuration takes, in the words of the messages."""

    BOOL = "True or False"
    MAPPING = "a mapping"
    PREFETCH = "an integer, 1 or more (number of operators)"
    LAYERS = "a list of layer indices such as [0, 3] or ['0-3', 7], or True for every layer"
    LAYER_INDEX = "layer indices: integers, or ranges such as '0-3'"
    PATTERN = r"an operator name, a string such as 'attention\.flash_attention', or a list of them"
    LAYER_SWAP = "null, or a list of {backward_prefetch: ..., layers: ...}"
    OP_SWAP = "null, or a list of {op_name: ..., backward_prefetch: ..., layers: ...}"
    RECOMPUTE = "True, False, or a list of layer indices such as [0, 3]"
    SELECT = (
        "True, False, a list of operator names, a list of layer indices, or a mapping of each operator name to "
        "True or a list of layer indices"
    )
    SMALL_SECTION = SMALL_SECTION


def is_too_large(section: DocumentNode) -> bool:
    """Return whether a section stands for more than is read."""
    return expanded_size(section, _node_size) > MAX_SECTION_SIZE


def _node_size(node: DocumentNode) -> int:
    if node.entries is not None:
        return 1 + KEY_SIZE * len(node.entries)
    ends = RANGE.fullmatch(node.value) if isinstance(node.value, str) else None
    return 1 if ends is None else min(max(int(ends[2]) - int(ends[1]) + 1, 1), MAX_NUM_LAYERS)


def is_prefetch(node: DocumentNode) -> bool:
    """True for a prefetch distance: an integer of at least 1 (a bool is none)."""
    return is_index(node) and 1 <= node.value < 2**31


def is_index(node: DocumentNode) -> bool:
    """True for an integer (a bool is none)."""
    return is_int(node.value)


def find_count(nodes: Iterable[DocumentNode | None], minimum: int) -> int | None:
    """The first that is a number of layers, from `minimum` on."""
    counts = (node.value for node in nodes if node is not None and is_index(node))
    return next((value for value in counts if minimum <= value <= MAX_NUM_LAYERS), None)


def is_pattern(node: DocumentNode) -> bool:
    """True for a string that is not empty."""
    return isinstance(node.value, str) and bool(node.value.strip())


def default_operators(option: str, use_legacy: bool) -> tuple[str, ...]:
    """The operators that `option: True` stands for, one of SELECT_OPTIONS.

    `use_legacy` is the top-level key of the configuration; False for the newer model families.
    """
    return _DEFAULT_COMM_OPERATORS if "comm" in option else _DEFAULT_OPERATORS[use_legacy]
