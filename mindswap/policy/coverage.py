"""Which operators the patterns of a policy name, worked out once per pattern and kind of layer.

An operator is a leaf of the tree: a primitive, or a cell that holds neither cells nor primitives.
"""

from functools import cached_property

from mindswap.policy.cell_tree import CellNode, LayerTrees
from mindswap.policy.match import Match, PatternError, match_pattern
from mindswap.policy.model import Layers


class Coverage:
    """Patterns against the layers of one model. Layers with equal trees are one kind."""

    def __init__(self, trees: LayerTrees):
        self.trees = trees
        self.num_layers = len(trees.layers)
        index_of: dict[CellNode, int] = {}
        self.kind_of = tuple(index_of.setdefault(tree, len(index_of)) for tree in trees.layers)  # by layer
        self.kinds = tuple(index_of)  # the distinct trees
        self._operators: dict[tuple[str | None, int], frozenset[str]] = {}
        self._errors: dict[str, PatternError] = {}

    @cached_property
    def paths(self) -> tuple[str, ...]:
        r"""Every path that a pattern can name, written with `\.`, in order of definition."""
        names = (r"\.".join(path) for tree in self.kinds for path, _ in tree.walk())
        return tuple(dict.fromkeys(names))

    def error(self, pattern: str) -> PatternError | None:
        """Why a pattern cannot be matched; None if it can."""
        for kind in range(len(self.kinds)):
            self.matches(pattern, kind)
        return self._errors.get(pattern)

    def matches(self, pattern: str, kind: int) -> tuple[Match, ...]:
        """What a pattern names in one kind of layer; nothing if it is no usable regular expression."""
        if pattern not in self._errors:
            try:
                return match_pattern(pattern, self.kinds[kind])
            except PatternError as error:
                self._errors[pattern] = error
        return ()

    def names_prediction(self, pattern: str) -> bool:
        """Whether a pattern names something of the layer of multi-token prediction."""
        return self.trees.prediction is not None and bool(match_pattern(pattern, self.trees.prediction))

    def operators(self, pattern: str | None, kind: int) -> frozenset[str]:
        """The operators below what a pattern names; None stands for the whole layer."""
        key = (pattern, kind)
        if key not in self._operators:
            named = [match.path for match in self.matches(pattern, kind)] if pattern is not None else [()]
            leaves = (path for path, node in self.kinds[kind].walk() if not node.children)
            self._operators[key] = frozenset(
                ".".join(path) for path in leaves if any(path[: len(start)] == start for start in named)
            )
        return self._operators[key]

    def layers_by_kind(self, layers: Layers) -> dict[int, tuple[int, ...]]:
        """The layers of a set, by kind; layers the model does not have are left out."""
        by_kind: dict[int, list[int]] = {}
        for index in layers.resolve(self.num_layers):
            if 0 <= index < self.num_layers:
                by_kind.setdefault(self.kind_of[index], []).append(index)
        return {kind: tuple(indices) for kind, indices in by_kind.items()}

    def shared_operators(
        self, left: str | None, right: str | None, layers: Layers
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Where two patterns meet: the layers out of `layers`, and the operators in them."""
        shared_layers: list[int] = []
        shared: set[str] = set()
        for kind, indices in self.layers_by_kind(layers).items():
            both = self.operators(left, kind) & self.operators(right, kind)
            if both:
                shared_layers += indices
                shared |= both
        return tuple(sorted(shared_layers)), tuple(sorted(shared))
