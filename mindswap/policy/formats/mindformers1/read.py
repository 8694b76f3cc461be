"""Document -> PolicySettings: every accepted spelling taken apart, what does not fit kept as a misfit.

Nothing is judged here beyond "can this be read": values that fit their place but make no sense
(layer 99 of 4, a pattern that matches nothing) become statements, and the rules find them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mindswap.config.nodes import Document, DocumentNode, key_text
from mindswap.config.pipeline_layout import read_pipeline
from mindswap.policy.formats.mindformers1.read_parts import Named, Parts, RecomputeReader, is_empty
from mindswap.policy.formats.mindformers1.schema import (
    ENTRY_KEYS,
    PREFETCH_DEFAULT,
    SELECT_OPTIONS,
    SWAP_KEYS,
    Expect,
    find_count,
    is_prefetch,
)
from mindswap.policy.formats.mindformers1.settings import PolicySettings, Statement
from mindswap.policy.model import (
    ALL_LAYERS,
    DEFAULT_SWAP_PATTERNS,
    NO_LAYERS,
    Layers,
    LayerSwap,
    OpRecompute,
    OpSwap,
    Policy,
    union_layers,
)

# The names MindFormers takes for the number of layers, in model.model_config.
NUM_LAYERS_KEYS = ("num_layers", "num_hidden_layers", "n_layer", "n_layers")
# Its names for the number of layers of multi-token prediction, in model.model_config.
MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_layers", "mtp_depth")

_OFF_WORDS = ("false", "off", "no", "n", "0", "none")


def find_num_layers(document: Document) -> int | None:
    """Number of layers that model.model_config states; None if it does not."""
    return find_count((document.get("model", "model_config", key) for key in NUM_LAYERS_KEYS), 1)


def read_settings(document: Document, num_layers: int | None = None) -> PolicySettings:
    """Statements of a configuration about swap and recompute; also of the number of layers, if that is not given."""
    parts = Parts(num_layers if num_layers is not None else find_num_layers(document))
    pipeline = read_pipeline(document)
    swap = _read_swap(document, parts)
    recompute = RecomputeReader(parts, pipeline, document.is_legacy)
    if swap.is_enabled:
        recompute.read_section(document.get("recompute_config"))
        recompute.read_mindswap_section(document.get("mindswap"))
    return PolicySettings(
        is_swap_enabled=swap.is_enabled,
        use_legacy=document.is_legacy,
        num_layers=parts.num_layers,
        pipeline=pipeline,
        default_prefetch=swap.default_prefetch,
        swap=swap.statements,
        recompute=tuple(recompute.statements),
        flags=tuple(recompute.flags),
        parse_issues=parts.parse_issues,
    )


@dataclass(frozen=True)
class _Swap:
    """Content of `swap_config`."""

    is_enabled: bool = False
    statements: tuple[Statement, ...] = ()
    default_prefetch: int | None = None


def _read_swap(document: Document, parts: Parts) -> _Swap:
    section = parts.section(document.get("swap_config"), "swap_config")
    swap = section.get("swap") if section is not None else None
    if section is None or (swap is not None and swap.value is False):
        return _Swap()
    if swap is not None and swap.value is not True:
        parts.parse_issues.add_invalid_value("swap_config.swap", swap, Expect.BOOL)
        if is_empty(swap) or str(swap.value).strip().lower() in _OFF_WORDS:
            return _Swap()
    parts.parse_issues.check_keys(section, "swap_config", SWAP_KEYS)
    if swap is None:
        return _Swap()
    layer_swap, op_swap, prefetch = (_set(section.get(key)) for key in ("layer_swap", "op_swap", "default_prefetch"))
    if prefetch is not None and not is_prefetch(prefetch):
        parts.parse_issues.add_invalid_value("swap_config.default_prefetch", prefetch, Expect.PREFETCH)
    if _is_default_strategy(layer_swap, op_swap, prefetch):
        return _default_strategy(swap, prefetch)
    statements: list[Statement] = []
    if layer_swap is not None:
        statements += _read_layer_swap(layer_swap, parts)
    if op_swap is not None:
        statements += _read_op_swap(op_swap, parts)
    return _Swap(True, tuple(statements))


def _set(node: DocumentNode | None) -> DocumentNode | None:
    """A value; None for null, which means not set."""
    return None if node is None or node.is_null else node


def _default_strategy(swap: DocumentNode, prefetch: DocumentNode | None) -> _Swap:
    distance = PREFETCH_DEFAULT if prefetch is None else prefetch.value if is_prefetch(prefetch) else None
    path_fields = ("swap_config.swap", swap.location)
    prefetch_fields = (distance, (prefetch or swap).location)
    statements = (
        Statement(
            "op_swap",
            *path_fields,
            pattern,
            *path_fields,
            ALL_LAYERS,
            "swap_config.swap",
            (),
            *prefetch_fields,
            is_default=True,
        )
        for pattern in DEFAULT_SWAP_PATTERNS
    )
    return _Swap(True, tuple(statements), distance)


def _read_layer_swap(node: DocumentNode, parts: Parts) -> Iterator[Statement]:
    for path, entry in parts.entries(node, "swap_config.layer_swap", Expect.LAYER_SWAP):
        parts.parse_issues.check_keys(entry, path, ENTRY_KEYS["layer_swap"], is_entry=True)
        yield from _swap_entry("layer_swap", path, entry, [(None, path, entry.location)], parts)


def _read_op_swap(node: DocumentNode, parts: Parts) -> Iterator[Statement]:
    path = "swap_config.op_swap"
    if node.entries and not any(node.entry(key) for key in ENTRY_KEYS["op_swap"]):
        yield from _read_op_swap_mapping(node, path, parts)
        return
    for entry_path, entry in parts.entries(node, path, Expect.OP_SWAP):
        parts.parse_issues.check_keys(entry, entry_path, ENTRY_KEYS["op_swap"], is_entry=True)
        name = entry.get("op_name")
        patterns = parts.patterns(name, f"{entry_path}.op_name") if name is not None else []
        yield from _swap_entry("op_swap", entry_path, entry, patterns, parts)


def _read_op_swap_mapping(node: DocumentNode, path: str, parts: Parts) -> Iterator[Statement]:
    """The form that MindFormers itself makes: {op_name: [{backward_prefetch, layers}, ...]}."""
    for named in node.unique_entries():
        name_path = f"{path}['{key_text(named.key)}']"
        patterns = parts.patterns(DocumentNode(named.location, named.key), name_path)
        for entry_path, entry in parts.entries(named.value, name_path, Expect.LAYER_SWAP):
            parts.parse_issues.check_keys(entry, entry_path, ENTRY_KEYS["op_swap value"], is_entry=True)
            yield from _swap_entry("op_swap", entry_path, entry, patterns, parts)


def _swap_entry(
    option: str, path: str, entry: DocumentNode, patterns: Sequence[Named], parts: Parts
) -> Iterator[Statement]:
    layers_node, prefetch = entry.get("layers"), entry.get("backward_prefetch")
    layers, refs = parts.layers(layers_node, f"{path}.layers") if layers_node is not None else (NO_LAYERS, ())
    if prefetch is not None and not is_prefetch(prefetch):
        parts.parse_issues.add_invalid_value(f"{path}.backward_prefetch", prefetch, Expect.PREFETCH)
        prefetch = None
    distance = (prefetch.value, prefetch.location) if prefetch is not None else (None, None)
    for named in patterns:
        yield Statement(option, path, entry.location, *named, layers, f"{path}.layers", refs, *distance)


def _is_default_strategy(
    layer_swap: DocumentNode | None, op_swap: DocumentNode | None, prefetch: DocumentNode | None
) -> bool:
    """True without layer_swap and op_swap, or for what MindFormers' own config object makes of that.

    `TransformerSwapConfig.to_dict()` writes the default strategy as `layer_swap: []` and one pattern,
    which does not reach flash attention in the newer models.
    """
    if layer_swap is None and op_swap is None:
        return True
    if not is_empty(layer_swap) or op_swap is None or prefetch is None:
        return False
    entries = op_swap.get(DEFAULT_SWAP_PATTERNS[0])
    if entries is None or len(op_swap.unique_entries()) != 1 or not entries.items or len(entries.items) != 1:
        return False
    layers, distance = entries.items[0].get("layers"), entries.items[0].get("backward_prefetch")
    if layers is None or distance is None:
        return False
    return layers.value is True and is_prefetch(distance) and distance.value == prefetch.value


# Settings -> one immutable Policy.


def build_policy(settings: PolicySettings) -> Policy:
    """The policy of everything that could be read."""
    if not settings.is_swap_enabled:
        return Policy()
    entries: dict[str, Any] = {
        option: tuple(OpRecompute(pattern, layers) for pattern, _, layers in _grouped(settings.of(option)))
        for option in SELECT_OPTIONS
    }
    entries["layer_swap"] = [LayerSwap(layers, prefetch) for _, prefetch, layers in _grouped(settings.of("layer_swap"))]
    entries["op_swap"] = [OpSwap(name, layers, prefetch) for name, prefetch, layers in _grouped(settings.of("op_swap"))]
    for option, field in (("recompute", "layer_recompute"), ("output_recompute", "output_recompute")):
        entries[field] = union_layers(statement.layers for statement in settings.of(option))
    entries.update(settings.flags)
    return Policy(is_swap_enabled=True, default_prefetch=settings.default_prefetch, **entries)


def _grouped(statements: Iterable[Statement]) -> Iterator[tuple[Any, Any, Layers]]:
    """(pattern, prefetch, layers); patterns in order of first appearance, as MindFormers groups them."""
    by_pattern: dict[str | None, dict[int | None, list[Layers]]] = {}
    for statement in statements:
        is_readable = statement.num_prefetch_ops is not None or not statement.option.endswith("_swap")
        if statement.layers and is_readable:
            by_prefetch = by_pattern.setdefault(statement.pattern, {})
            by_prefetch.setdefault(statement.num_prefetch_ops, []).append(statement.layers)
    for pattern, by_prefetch in by_pattern.items():
        for prefetch, layers in by_prefetch.items():
            yield pattern, prefetch, union_layers(layers)
