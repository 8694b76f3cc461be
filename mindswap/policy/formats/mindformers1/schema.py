r"""Schema of `swap_config` and `recompute_config`, as data.

The parser validates values with it, and the rules take their "allowed" texts from it, so the messages always state what
is accepted.
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
# Keys for figures of the simulated device.
DEVICE_KEYS = ("device", "calibration", "memory", *(figure["name"] for figure in package_data("hardware/figures.json")))
# mindswap's own section.
MINDSWAP_KEYS = (
    "cpu_stand_ins",
    "ignore",
    "output_recompute",
    "audit_swap",
    "stream_copies",
    "swap_engine",
    *DEVICE_KEYS,
)
# Keys of one entry, by option; `op_swap value` is an entry below an operator name.
ENTRY_KEYS = {
    "layer_swap": ("backward_prefetch", "layers"),
    "op_swap": ("op_name", "backward_prefetch", "layers"),
    "op_swap value": ("backward_prefetch", "layers"),
}
# Section of each key, for messages about a misplaced key.
ENTRY_PREFIX = "an entry of "
SECTION_OF_KEY = {
    **dict.fromkeys(SWAP_KEYS, "swap_config"),
    **dict.fromkeys(RECOMPUTE_KEYS, "recompute_config"),
    **dict.fromkeys(MINDSWAP_KEYS, "mindswap"),
    "op_name": f"{ENTRY_PREFIX}op_swap",
    **dict.fromkeys(ENTRY_KEYS["layer_swap"], f"{ENTRY_PREFIX}layer_swap or op_swap"),
}
PREFETCH_DEFAULT = 1
# More layers than any model has; a larger index is refused even if the model is not known.
MAX_NUM_LAYERS = 10_000
# A few lines can expand to billions of values, so an alias counts at each use, a range counts its layers, and a key,
# which may be a pattern that is matched with every layer, counts 40.
MAX_SECTION_SIZE = 60_000
KEY_SIZE = 40
RANGE = re.compile(r"\s*(\d{1,6})\s*-\s*(\d{1,6})\s*", re.ASCII)

# Default operators, which `True` or a list of layers selects, by use_legacy.
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
    """Kinds of values that a key accepts, in the words of the messages."""

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
    """Return whether a section expands to more values than are parsed."""
    return expanded_size(section, _node_size) > MAX_SECTION_SIZE


def _node_size(node: DocumentNode) -> int:
    if node.entries is not None:
        return 1 + KEY_SIZE * len(node.entries)
    ends = RANGE.fullmatch(node.value) if isinstance(node.value, str) else None
    return 1 if ends is None else min(max(int(ends[2]) - int(ends[1]) + 1, 1), MAX_NUM_LAYERS)


def is_prefetch(node: DocumentNode) -> bool:
    """Return whether a value is a prefetch distance: an integer of at least 1, not a bool."""
    return is_index(node) and 1 <= node.value < 2**31


def is_index(node: DocumentNode) -> bool:
    """Return whether a value is an integer but not a bool."""
    return is_int(node.value)


def find_count(nodes: Iterable[DocumentNode | None], minimum: int) -> int | None:
    """Return the first value that is a number of layers of at least `minimum`; None if there is none."""
    counts = (node.value for node in nodes if node is not None and is_index(node))
    return next((value for value in counts if minimum <= value <= MAX_NUM_LAYERS), None)


def is_pattern(node: DocumentNode) -> bool:
    """Return whether a value is a non-blank string."""
    return isinstance(node.value, str) and bool(node.value.strip())


def default_operators(option: str, use_legacy: bool) -> tuple[str, ...]:
    """Return the patterns of the operators that `option: True` selects.

    Args:
        option: one of `SELECT_OPTIONS`.
        use_legacy: value of the top-level key; False for the newer model families.
    """
    return _DEFAULT_COMM_OPERATORS if "comm" in option else _DEFAULT_OPERATORS[use_legacy]
