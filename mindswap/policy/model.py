"""The normalized policy: the treatment of the activations of each operator in each layer.

`policy.formats.mindformers1.read` makes this immutable object from any accepted spelling; it is applied, simulated and
planned. `Policy.to_config()` returns it in the format of MindFormers; parsing that returns an equal policy.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from mindswap.errors import MindswapError
from mindswap.policy.formats.mindformers1.schema import RECOMPUTE_FLAGS, SELECT_OPTIONS

__all__ = [
    "ALL_LAYERS",
    "DEFAULT_SWAP_PATTERNS",
    "NO_LAYERS",
    "LayerSwap",
    "Layers",
    "OpRecompute",
    "OpSwap",
    "Policy",
    "union_layers",
]

# The default strategy swaps flash attention. It is two levels deep in the legacy models
# (attention.flash_attention) and three in the newer ones (self_attention.core_attention.flash_attention).
DEFAULT_SWAP_PATTERNS = (r".*\.flash_attention", r".*\.core_attention\.flash_attention")


@dataclass(frozen=True, init=False)
class Layers:
    """A set of layer indices: `Layers(0, 3)`, `Layers(range(4))`, or `Layers(None)` for every layer.

    Attributes:
        indices: sorted, without duplicates; None for every layer of the model.

    Raises:
        MindswapError: if an argument is not a layer index.
    """

    indices: tuple[int, ...] | None

    def __init__(self, *indices: int | Iterable[int] | None):
        values: Iterable[Any] = indices
        if len(indices) == 1 and not isinstance(indices[0], int):
            values = indices[0] if isinstance(indices[0], Iterable) and not isinstance(indices[0], str) else indices
        values = tuple(values)
        wrong = [index for index in values if isinstance(index, bool) or not isinstance(index, int) or index < 0]
        if wrong and values != (None,):
            raise MindswapError(f"Layers: {wrong[0]!r} is not a layer index\n    allowed: indices from 0: Layers(0, 3)")
        object.__setattr__(self, "indices", None if wrong else tuple(sorted(set(values))))

    def __repr__(self) -> str:
        return f"Layers({'None' if self.indices is None else ', '.join(map(str, self.indices))})"

    def __contains__(self, layer_index: int) -> bool:
        return self.indices is None or layer_index in self.indices

    def __bool__(self) -> bool:
        return self.indices is None or bool(self.indices)

    def resolve(self, num_layers: int) -> tuple[int, ...]:
        """Return the indices as a tuple, in a model of `num_layers` layers."""
        return tuple(range(num_layers)) if self.indices is None else self.indices

    def to_config(self) -> bool | list[int]:
        """Return `True` for every layer, else the list of indices."""
        return True if self.indices is None else list(self.indices)


# Fields of a policy that hold entries.
ENTRY_FIELDS = ("layer_swap", "op_swap", *SELECT_OPTIONS)
ALL_LAYERS = Layers(None)
NO_LAYERS = Layers(())


def union_layers(parts: Iterable[Layers]) -> Layers:
    """Return the union of sets of layers."""
    parts = tuple(parts)
    if any(layers.indices is None for layers in parts):
        return ALL_LAYERS
    return Layers(index for layers in parts for index in layers.indices or ())


def _require_layers(layers: object) -> None:
    if not isinstance(layers, Layers):
        raise MindswapError(f"layers={layers!r} is not a set of layers\n    fix:     layers=Layers(0, 3)")


def _require_distance(prefetch: object, name: str = "prefetch") -> None:
    if not isinstance(prefetch, int) or isinstance(prefetch, bool) or prefetch < 1:
        raise MindswapError(f"{name}={prefetch!r} is not a distance\n    allowed: a number of operators from 1")


def _require_pattern(pattern: object) -> None:
    if not isinstance(pattern, str):
        raise MindswapError(f"pattern={pattern!r} names no operator\n    fix:     pattern='attention'")


_REQUIRE: dict[str, Callable[[object], None]] = {
    "layers": _require_layers, "prefetch": _require_distance, "pattern": _require_pattern,
}  # fmt: skip


@dataclass(frozen=True)
class _ValidatedEntry:
    """Base of entries, which validates the fields on construction."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _REQUIRE[name](value)


@dataclass(frozen=True)
class LayerSwap(_ValidatedEntry):
    """Offload every operator of these layers, prefetched `prefetch` operators ahead."""

    layers: Layers
    prefetch: int


@dataclass(frozen=True)
class OpSwap(_ValidatedEntry):
    r"""Offload the operators that `pattern` matches in these layers.

    Attributes:
        pattern: parts joined by `\.`; each part is a regular expression that must match the full
            name of one level below the layer; the last part matches a cell or a primitive.
        layers: layers to which the entry applies.
        prefetch: prefetch distance in operators (`backward_prefetch` in YAML), at least 1.
    """

    pattern: str
    layers: Layers
    prefetch: int


@dataclass(frozen=True)
class OpRecompute(_ValidatedEntry):
    """Recompute the operators that `pattern` matches in these layers (pattern as in `OpSwap`)."""

    pattern: str
    layers: Layers


def _entries(name: str, value: object) -> tuple[Any, ...]:
    """Convert the value of a field of `ENTRY_FIELDS` to a tuple of entries, or raise MindswapError."""
    kind = {"layer_swap": LayerSwap, "op_swap": OpSwap}.get(name, OpRecompute)
    entries = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    wrong = [entry for entry in entries if not isinstance(entry, kind)]
    if wrong or not isinstance(value, Iterable):
        shown = repr(wrong[0] if wrong else value)
        raise MindswapError(f"{name}: {shown} is not a list of entries\n    fix:     {name}=[{kind.__name__}(...)]")
    return entries


@dataclass(frozen=True)
class Policy:
    """Requested swap and recompute, normalized.

    Precedence of overlapping entries, lowest first: layer_swap (the first entry that lists the layer), then op_swap in
    order (a later pattern overrides an earlier one). Full recompute of a
    layer overrides select recompute of its operators; the exclude options override both.

    In Python, entries may be given as any sequence: `Policy(op_swap=[OpSwap("attention", Layers(0, 3), 20)])`.

    Attributes:
        is_swap_enabled: `swap: True`; by default True if any layer or operator is named. When False, every other swap
            field is empty, and so are the recompute fields, because MindFormers then recomputes by itself (counts per
            stage). Only `policy.formats.mindformers1.stage_recompute` fills the recompute fields with swap off, to
            describe that recompute.
        default_prefetch: prefetch distance of the default strategy; None if it does not apply. `op_swap` then holds its
            patterns, which need not be given.
        layer_swap: full layers to offload.
        op_swap: operators to offload.
        layer_recompute: layers with full recompute.
        select_recompute: operators to recompute.
        select_comm_recompute: communication operators to recompute.
        select_recompute_exclude: operators that must not be recomputed.
        select_comm_recompute_exclude: communication operators that must not be recomputed.
        recompute_slice_activation: shard the saved inputs of recomputed layers over the tensor parallel group.
        mp_comm_recompute: recompute tensor parallel communication inside a recomputed layer.
        parallel_optimizer_comm_recompute: recompute the AllGather of the parallel optimizer.
        output_recompute: layers of layer_recompute whose output is not kept either: backward recomputes it for the next
            layer, so consecutive layers of this kind form groups that keep one hidden state each.
    """

    is_swap_enabled: bool = cast(bool, None)  # never None after __post_init__
    default_prefetch: int | None = None
    layer_swap: tuple[LayerSwap, ...] = ()
    op_swap: tuple[OpSwap, ...] = cast(Any, None)  # never None after __post_init__
    layer_recompute: Layers = NO_LAYERS
    select_recompute: tuple[OpRecompute, ...] = ()
    select_comm_recompute: tuple[OpRecompute, ...] = ()
    select_recompute_exclude: tuple[OpRecompute, ...] = ()
    select_comm_recompute_exclude: tuple[OpRecompute, ...] = ()
    recompute_slice_activation: bool = False
    mp_comm_recompute: bool = True
    parallel_optimizer_comm_recompute: bool = False
    output_recompute: Layers = NO_LAYERS

    def __post_init__(self) -> None:
        if self.default_prefetch is not None:
            _require_distance(self.default_prefetch, "default_prefetch")
        if self.op_swap is None:
            default = DEFAULT_SWAP_PATTERNS if self.default_prefetch is not None else ()
            object.__setattr__(self, "op_swap", [OpSwap(name, ALL_LAYERS, self.default_prefetch) for name in default])
        for name in ENTRY_FIELDS:
            object.__setattr__(self, name, _entries(name, getattr(self, name)))
        _require_layers(self.layer_recompute)
        _require_layers(self.output_recompute)
        if self.is_swap_enabled is None:
            names_any = any(getattr(self, name) for name in (*ENTRY_FIELDS, "layer_recompute", "output_recompute"))
            object.__setattr__(self, "is_swap_enabled", names_any)
        for name in ("is_swap_enabled", *RECOMPUTE_FLAGS):
            if not isinstance(getattr(self, name), bool):
                raise MindswapError(f"{name}={getattr(self, name)!r}\n    allowed: True or False")

    def combined_with(self, fixed: "Policy") -> "Policy":
        """Return this policy with the operator entries of `fixed` added with higher precedence, and swap on."""
        combined: dict[str, Any] = {}
        for name in ("op_swap", "select_recompute"):
            entries = getattr(self, name)
            combined[name] = (*entries, *(entry for entry in getattr(fixed, name) if entry not in entries))
        return replace(self, is_swap_enabled=True, **combined)

    def to_config(self) -> dict[str, Any]:
        """Return `{"swap_config": ..., "recompute_config": ...}` as in MindFormers YAML, and `mindswap` if needed."""
        if not self.is_swap_enabled:
            return {"swap_config": {"swap": False}}
        swap: dict[str, Any] = {"swap": True}
        if self.default_prefetch is not None:
            swap["default_prefetch"] = self.default_prefetch
        else:
            if self.layer_swap:
                swap["layer_swap"] = [_to_config(entry) for entry in self.layer_swap]
            if self.op_swap or not self.layer_swap:
                swap["op_swap"] = [{"op_name": entry.pattern, **_to_config(entry)} for entry in self.op_swap]
        selects: dict[str, Sequence[OpRecompute]] = {option: getattr(self, option) for option in SELECT_OPTIONS}
        recompute = {
            "recompute": self.layer_recompute.to_config() or False,
            **{option: {e.pattern: e.layers.to_config() for e in ops} or False for option, ops in selects.items()},
            "recompute_slice_activation": self.recompute_slice_activation,
            "mp_comm_recompute": self.mp_comm_recompute,
            "parallel_optimizer_comm_recompute": self.parallel_optimizer_comm_recompute,
        }
        config = {"swap_config": swap, "recompute_config": recompute}
        if self.output_recompute:
            config["mindswap"] = {"output_recompute": self.output_recompute.to_config()}
        return config


def _to_config(entry: LayerSwap | OpSwap) -> dict[str, Any]:
    return {"backward_prefetch": entry.prefetch, "layers": entry.layers.to_config()}
