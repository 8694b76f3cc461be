"""Operators that the patterns of a policy match, computed once per pattern and layer class.

An operator is a leaf of the tree: a primitive, or a cell without children.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mindswap.errors import MindswapError
from mindswap.policy.cell_tree import CellNode, LayerTrees, Match, PatternError, match_pattern
from mindswap.policy.formats.mindformers1.schema import default_operators
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy


class Coverage:
    """Matches of patterns in the layers of one model. Layers with equal trees are one layer class.

    Attributes:
        trees: the layers of the model.
        num_layers: number of layers.
        layer_class_of: layer index -> index of its class.
        layer_classes: the distinct trees.
    """

    def __init__(self, trees: LayerTrees):
        self.trees = trees
        self.num_layers = len(trees.layers)
        index_of: dict[CellNode, int] = {}
        self.layer_class_of = tuple(index_of.setdefault(tree, len(index_of)) for tree in trees.layers)  # by layer
        self.layer_classes = tuple(index_of)  # the distinct trees
        self._operators: dict[tuple[str | None, int], frozenset[str]] = {}
        self._errors: dict[str, PatternError] = {}

    @cached_property
    def paths(self) -> tuple[str, ...]:
        r"""All paths that a pattern can match, written with `\.`, in order of definition."""
        names = (r"\.".join(path) for tree in self.layer_classes for path, _ in tree.walk())
        return tuple(dict.fromkeys(names))

    def error(self, pattern: str) -> PatternError | None:
        """Return the error of an invalid pattern; None if it is valid."""
        for layer_class in range(len(self.layer_classes)):
            self.matches(pattern, layer_class)
        return self._errors.get(pattern)

    def matches(self, pattern: str, layer_class: int) -> tuple[Match, ...]:
        """Return the matches of a pattern in a layer class; empty if the pattern is invalid."""
        if pattern not in self._errors:
            try:
                return match_pattern(pattern, self.layer_classes[layer_class])
            except PatternError as error:
                self._errors[pattern] = error
        return ()

    def matches_mtp_layer(self, pattern: str) -> bool:
        """Return whether a pattern matches in the layer for multi-token prediction."""
        return self.trees.mtp_layer is not None and bool(match_pattern(pattern, self.trees.mtp_layer))

    def operators(self, pattern: str | None, layer_class: int) -> frozenset[str]:
        """Return the operators inside the matches of a pattern; None matches the full layer."""
        key = (pattern, layer_class)
        if key not in self._operators:
            self._operators[key] = frozenset().union(*self.operators_by_match(pattern, layer_class))
        return self._operators[key]

    def operators_by_match(self, pattern: str | None, layer_class: int) -> tuple[frozenset[str], ...]:
        """Return the operators inside each match of a pattern; None matches the full layer."""
        matched = [match.path for match in self.matches(pattern, layer_class)] if pattern is not None else [()]
        leaves = [path for path, node in self.layer_classes[layer_class].walk() if not node.children]

        def operators_below(parent: tuple[str, ...]) -> frozenset[str]:
            return frozenset(".".join(path) for path in leaves if path[: len(parent)] == parent)

        return tuple(map(operators_below, matched))

    def layers_by_class(self, layers: Layers) -> dict[int, tuple[int, ...]]:
        """Group layers by class; indices outside of the model are dropped."""
        indices_by_class: dict[int, list[int]] = {}
        for index in layers.resolve(self.num_layers):
            if 0 <= index < self.num_layers:
                indices_by_class.setdefault(self.layer_class_of[index], []).append(index)
        return {layer_class: tuple(indices) for layer_class, indices in indices_by_class.items()}

    def shared_operators(
        self, left: str | None, right: str | None, layers: Layers
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the layers of `layers` in which two patterns share operators, and these operators."""
        shared_layers: list[int] = []
        shared: set[str] = set()
        for layer_class, indices in self.layers_by_class(layers).items():
            common_operators = self.operators(left, layer_class) & self.operators(right, layer_class)
            if common_operators:
                shared_layers += indices
                shared |= common_operators
        return tuple(sorted(shared_layers)), tuple(sorted(shared))


# Named baseline policies, for comparison with a policy or plan.


@dataclass(frozen=True)
class Baseline:
    """A policy with the same settings in all layers."""

    title: str  # name in tables
    meaning: str  # settings in words
    policy: Callable[[Sequence[CellNode]], Policy]  # returns the policy for the trees of all layer classes


def _always(**fields: Any) -> Callable[[Sequence[CellNode]], Policy]:
    policy = Policy(is_swap_enabled=True, **fields)
    return lambda trees: policy


def _select_recompute(trees: Sequence[CellNode]) -> Policy:
    """Return select recompute of the default operators, of legacy or newer models, that the model has."""
    default_patterns = (*default_operators("select_recompute", True), *default_operators("select_recompute", False))
    patterns = [pattern for pattern in default_patterns if any(match_pattern(pattern, tree) for tree in trees)]
    return Policy(
        is_swap_enabled=True, select_recompute=tuple(OpRecompute(pattern, ALL_LAYERS) for pattern in patterns)
    )


def _recompute_swap(trees: Sequence[CellNode]) -> Policy:
    """Return recompute of all cells of a layer; the sums between them, which are their inputs, are swapped.

    Recompute of a layer as a whole keeps its input on the device: MindSpore recomputes it as a function, so an
    attribute of an operator inside makes no copy.
    """
    swapped = [ADD] if any(match_pattern(ADD, tree) for tree in trees) else []
    return _recompute_and_swap(cell_names(trees), swapped)


def _recompute_swap_norms(trees: Sequence[CellNode]) -> Policy:
    """Return `_recompute_swap` in which the outputs of norms are swapped, too.

    The output of a recomputed cell stays on the device. A swap moves it only if the cell is not recomputed as a whole.
    """
    recomputed: list[str] = []
    swapped = [ADD] if any(match_pattern(ADD, tree) for tree in trees) else []
    for name in cell_names(trees):
        inner = _norm_operators(name, trees)
        recomputed += [rf"{name}\.{operator}" for operator in inner] or [name]
        swapped += [rf"{name}\.{NORM_OUTPUT}"] if inner else []
    return _recompute_and_swap(recomputed, swapped)


def _recompute_and_swap(recomputed: Iterable[str], swapped: Iterable[str]) -> Policy:
    return Policy(
        is_swap_enabled=True,
        op_swap=tuple(OpSwap(name, ALL_LAYERS, 10) for name in swapped),
        select_recompute=tuple(OpRecompute(name, ALL_LAYERS) for name in recomputed),
    )


def _norm_operators(cell: str, trees: Sequence[CellNode]) -> tuple[str, ...]:
    """Return the operators of a norm before its output, if an operator of its own casts that; else none.

    The newer models cast input and output of a norm by one operator, so theirs have no such form.
    """
    cells = [child for tree in trees for child in tree.children if child.name == cell]
    names = dict.fromkeys(child.name for node in cells for child in node.children)
    is_norm = all(child.is_primitive for node in cells for child in node.children) and NORM_OUTPUT in names
    return tuple(name for name in names if name != NORM_OUTPUT) if is_norm else ()


def cell_names(trees: Sequence[CellNode]) -> tuple[str, ...]:
    """Return the names of the cells of a layer that have operators, in order of definition."""
    cells = (
        child.name
        for tree in trees
        for child in tree.children
        if child.children and any(node.is_primitive for _, node in child.walk())
    )
    return tuple(dict.fromkeys(cells))


KEEP_ALL, FULL_RECOMPUTE = "none", "full-recompute"
ADD = "add"  # the operator that adds the input of a layer to the output of a cell
NORM_OUTPUT = "rcast"  # the operator of a norm of the legacy models that casts its output
# The defaults of `recompute`, `select_recompute` and `swap` in MindFormers 1.9.0; full recompute is also
# `--recompute-granularity full` of Megatron-LM.
BASELINES: Mapping[str, Baseline] = {
    KEEP_ALL: Baseline("keep all", "keep every activation on the device", _always()),
    FULL_RECOMPUTE: Baseline("full recompute", "recompute: True", _always(layer_recompute=ALL_LAYERS)),
    "select-recompute": Baseline(
        "select recompute", "select_recompute: True, MindFormers' default operators", _select_recompute
    ),
    "default-swap": Baseline(
        "default SWAP, prefetch 1", "swap: True, default_prefetch: 1", _always(default_prefetch=1)
    ),
    "default-swap-10": Baseline(
        "default SWAP, prefetch 10", "swap: True, default_prefetch: 10", _always(default_prefetch=10)
    ),
    "swap-everything": Baseline(
        "swap everything",
        "layer_swap of all layers, backward_prefetch: 10",
        _always(layer_swap=[LayerSwap(ALL_LAYERS, 10)]),
    ),
    "recompute-swap": Baseline(
        "recompute, inputs swapped",
        "every cell of a layer recomputed, op_swap of its inputs (add), backward_prefetch: 10",
        _recompute_swap,
    ),
    "recompute-swap-norms": Baseline(
        "recompute, inputs and norms swapped",
        "the same, with op_swap of the outputs of norms, which are not recomputed then",
        _recompute_swap_norms,
    ),
}


def baseline_policy(name: str, trees: Sequence[CellNode]) -> Policy:
    """Return the policy of a baseline for a model, given the trees of its layer classes.

    Raises:
        MindswapError: if there is no such baseline.
    """
    if name not in BASELINES:
        raise MindswapError(f"no baseline '{name}'; known: {', '.join(BASELINES)}")
    return BASELINES[name].policy(trees)
