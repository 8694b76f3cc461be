"""Parse a document to `PolicySettings`, from every accepted spelling; unreadable values become `ParseIssues`.

Values with the right type but without meaning (layer 99 of 4, a pattern without a match) become statements; the rules
report them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mindswap.config.nodes import Document, DocumentNode, key_text
from mindswap.config.pipeline_layout import read_pipeline
from mindswap.policy.formats.mindformers1.read_parts import (
    LocatedLayers,
    LocatedPattern,
    Parts,
    RecomputeReader,
    is_empty,
)
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

# Keys of model.model_config for the number of layers.
NUM_LAYERS_KEYS = ("num_layers", "num_hidden_layers", "n_layer", "n_layers")
# Keys of model.model_config for the number of layers for multi-token prediction.
MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_layers", "mtp_depth")

_OFF_WORDS = ("false", "off", "no", "n", "0", "none")


def find_num_layers(document: Document) -> int | None:
    """Return the number of layers in model.model_config; None if it is missing or invalid."""
    return find_count((document.get("model", "model_config", key) for key in NUM_LAYERS_KEYS), 1)


def is_swap_enabled(document: Document) -> bool:
    """Return whether MindFormers takes swap as on: then lists of layers are indices, not counts per stage."""
    return _read_swap(document, Parts(None)).is_enabled


def read_settings(document: Document, num_layers: int | None = None) -> PolicySettings:
    """Parse the swap and recompute settings of a configuration.

    Args:
        document: the configuration.
        num_layers: layers of the model; None takes the number in the configuration.
    """
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
    """Return a value; None for null, which means not set."""
    return None if node is None or node.is_null else node


def _default_strategy(swap: DocumentNode, prefetch: DocumentNode | None) -> _Swap:
    distance = PREFETCH_DEFAULT if prefetch is None else prefetch.value if is_prefetch(prefetch) else None
    path = "swap_config.swap"
    statements = (
        Statement(
            option="op_swap",
            path=path,
            location=swap.location,
            pattern=pattern,
            pattern_path=path,
            pattern_location=swap.location,
            layers=ALL_LAYERS,
            layers_path=path,
            num_prefetch_ops=distance,
            prefetch_location=(prefetch or swap).location,
            is_default=True,
        )
        for pattern in DEFAULT_SWAP_PATTERNS
    )
    return _Swap(True, tuple(statements), distance)


def _read_layer_swap(node: DocumentNode, parts: Parts) -> Iterator[Statement]:
    for path, entry in parts.entries(node, "swap_config.layer_swap", Expect.LAYER_SWAP):
        parts.parse_issues.check_keys(entry, path, ENTRY_KEYS["layer_swap"], is_entry=True)
        yield from _swap_entry("layer_swap", path, entry, [LocatedPattern(None, path, entry.location)], parts)


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
    """Yield statements of the form that MindFormers writes: {op_name: [{backward_prefetch, layers}, ...]}."""
    for named in node.unique_entries():
        name_path = f"{path}['{key_text(named.key)}']"
        patterns = parts.patterns(DocumentNode(named.location, named.key), name_path)
        for entry_path, entry in parts.entries(named.value, name_path, Expect.LAYER_SWAP):
            parts.parse_issues.check_keys(entry, entry_path, ENTRY_KEYS["op_swap value"], is_entry=True)
            yield from _swap_entry("op_swap", entry_path, entry, patterns, parts)


def _swap_entry(
    option: str, path: str, entry: DocumentNode, patterns: Sequence[LocatedPattern], parts: Parts
) -> Iterator[Statement]:
    layers_node, prefetch = entry.get("layers"), entry.get("backward_prefetch")
    layers_path = f"{path}.layers"
    located = parts.layers(layers_node, layers_path) if layers_node is not None else LocatedLayers(NO_LAYERS)
    if prefetch is not None and not is_prefetch(prefetch):
        parts.parse_issues.add_invalid_value(f"{path}.backward_prefetch", prefetch, Expect.PREFETCH)
        prefetch = None
    for pattern in patterns:
        yield Statement(
            option=option,
            path=path,
            location=entry.location,
            pattern=pattern.pattern,
            pattern_path=pattern.path,
            pattern_location=pattern.location,
            layers=located.layers,
            layers_path=layers_path,
            layer_refs=located.refs,
            num_prefetch_ops=prefetch.value if prefetch is not None else None,
            prefetch_location=prefetch.location if prefetch is not None else None,
        )


def _is_default_strategy(
    layer_swap: DocumentNode | None, op_swap: DocumentNode | None, prefetch: DocumentNode | None
) -> bool:
    """Return whether swap has the default strategy: no layer_swap and op_swap, or the form of `to_dict()`.

    `TransformerSwapConfig.to_dict()` writes the default strategy as `layer_swap: []` and one pattern, which does not
    match flash attention in the newer models.
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


def build_policy(settings: PolicySettings) -> Policy:
    """Build the policy of all statements that could be parsed."""
    if not settings.is_swap_enabled:
        return Policy()
    entries: dict[str, Any] = {}
    for option in SELECT_OPTIONS:
        entries[option] = [OpRecompute(group.pattern, group.layers) for group in _grouped(settings.of(option))]
    entries["layer_swap"] = [LayerSwap(group.layers, group.prefetch) for group in _grouped(settings.of("layer_swap"))]
    entries["op_swap"] = [
        OpSwap(group.pattern, group.layers, group.prefetch) for group in _grouped(settings.of("op_swap"))
    ]
    for option, field in (("recompute", "layer_recompute"), ("output_recompute", "output_recompute")):
        entries[field] = union_layers(statement.layers for statement in settings.of(option))
    entries.update(settings.flags)
    return Policy(is_swap_enabled=True, default_prefetch=settings.default_prefetch, **entries)


class _Group(NamedTuple):
    """Statements with the same pattern and prefetch distance; each is None for options that do not have it."""

    pattern: Any
    prefetch: Any
    layers: Layers


def _grouped(statements: Iterable[Statement]) -> Iterator[_Group]:
    """Group statements, with patterns in order of first appearance, as MindFormers does."""
    by_pattern: dict[str | None, dict[int | None, list[Layers]]] = {}
    for statement in statements:
        is_readable = statement.num_prefetch_ops is not None or not statement.option.endswith("_swap")
        if statement.layers and is_readable:
            by_prefetch = by_pattern.setdefault(statement.pattern, {})
            by_prefetch.setdefault(statement.num_prefetch_ops, []).append(statement.layers)
    for pattern, by_prefetch in by_pattern.items():
        for prefetch, layers in by_prefetch.items():
            yield _Group(pattern, prefetch, union_layers(layers))
