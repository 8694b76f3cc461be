"""Context of the rules, and the questions that several rules ask."""

import functools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from mindswap.config import findings as rules
from mindswap.config.nodes import Document
from mindswap.config.problem import Level
from mindswap.policy.cell_tree import split_pattern
from mindswap.policy.coverage import Coverage
from mindswap.policy.formats.mindformers1.read import build_policy
from mindswap.policy.formats.mindformers1.settings import PolicySettings, Statement
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute
from mindswap.policy.formats.mindformers2.effect import SettingsEffect
from mindswap.policy.formats.mindformers2.settings import Settings2x
from mindswap.policy.model import Layers, Policy
from mindswap.policy.resolve import Treatment, resolve_layer

# Keys beside indices of layers: where statements of every layer stand, and where all statements stand.
EVERY, ANY = "every layer", "any layer"


class StatementIndex:
    """Statements by their layers, added one after another: those that share a layer are found without trying all."""

    def __init__(self, statements: Iterable[Statement] = ()):
        self._statements: list[Statement] = []
        self._found: dict[int | str, list[int]] = {}
        for statement in statements:
            self.add(statement)

    def add(self, statement: Statement) -> None:
        """One more, which later ones may meet."""
        for place in _places(statement.layers, asks=False):
            self._found.setdefault(place, []).append(len(self._statements))
        self._statements.append(statement)

    def candidates(self, layers: Layers) -> list[Statement]:
        """Those that have one of these layers, in the order in which they were added."""
        positions = {position for place in _places(layers, asks=True) for position in self._found.get(place, ())}
        return [self._statements[position] for position in sorted(positions)]


def _places(layers: Layers, asks: bool) -> tuple[int | str, ...]:
    """Keys of layers in an index; with `asks`, those of all that share a layer with them."""
    if not layers:
        return ()
    if layers.indices is None:
        return (ANY,) if asks else (ANY, EVERY)
    return (EVERY if asks else ANY, *layers.indices)


@dataclass
class FirstOfLayer:
    """The first statement of each layer, and the first with another value.

    Two at most, so that thousands of equal statements are not compared with one another.
    """

    _said: dict[Hashable, list[tuple[int, Statement, Hashable]]] = field(default_factory=dict)
    _count: int = 0

    def other(self, layers: Layers, value: Hashable) -> Statement | None:
        """The first statement of one of these layers with another value."""
        said = (entry for place in _places(layers, asks=True) for entry in self._said.get(place, ()))
        others = (entry for entry in said if entry[2] != value)
        first = min(others, key=lambda entry: entry[0], default=None)
        return first[1] if first is not None else None

    def add(self, statement: Statement, value: Hashable) -> None:
        """Add one more statement about its layers."""
        for place in _places(statement.layers, asks=False):
            said = self._said.setdefault(place, [])
            if not said or (len(said) == 1 and said[0][2] != value):
                said.append((self._count, statement, value))
        self._count += 1


@dataclass(frozen=True)
class StatementOverlap:
    """Overlap of two statements: the same operators in the same layers."""

    layers: Layers  # the layers they share
    operators: tuple[str, ...] = ()  # the operators they share; empty where the model is not known


class RecomputeIndex:
    """The operators that are recomputed, excludes taken off; each layer is looked at when it is first asked for."""

    def __init__(self, settings: PolicySettings, coverage: Coverage):
        self._settings, self._coverage = settings, coverage
        self._operators: dict[int, frozenset[str]] = {}

    @cached_property
    def _policy(self) -> Policy:
        """Policy of the statements about recompute together, patterns that cannot be matched left out."""
        usable = (s for s in self._settings.recompute if s.pattern is None or self._coverage.error(s.pattern) is None)
        return build_policy(replace(self._settings, is_swap_enabled=True, swap=(), recompute=tuple(usable)))

    def operators(self, layer_index: int) -> frozenset[str]:
        """Those of a layer."""
        if not self._settings.recompute:  # of a model of thousands of layers the rest takes seconds
            return frozenset()
        if layer_index not in self._operators:
            tree = self._coverage.layer_classes[self._coverage.layer_class_of[layer_index]]
            decided = resolve_layer(self._policy, layer_index, tree).operators()
            self._operators[layer_index] = frozenset(
                ".".join(path) for path, found in decided.items() if found.treatment is Treatment.RECOMPUTE
            )
        return self._operators[layer_index]


@dataclass(frozen=True, eq=False)
class Context:
    """Context passed to each rule."""

    document: Document  # the configuration, as located nodes
    settings: PolicySettings  # what it says, statement by statement
    coverage: Coverage | None = None  # patterns against the model; None where the model is not known
    environ: Mapping[str, str] = field(default_factory=dict)  # environment variables
    is_run: bool = False  # the training begins: what MindFormers refuses with swap off is left to it
    # derived: what is recomputed; None where the model is not known
    recompute: "RecomputeIndex | None" = field(init=False)

    def __post_init__(self) -> None:
        index = RecomputeIndex(self.settings, self.coverage) if self.coverage is not None else None
        object.__setattr__(self, "recompute", index)

    @property
    def num_layers(self) -> int | None:
        """Layers of the model; None if not known."""
        return self.settings.num_layers

    @property
    def error_with_swap(self) -> Level:
        """Level of what is wrong with swap alone: a warning while swap is off."""
        return Level.ERROR if self.settings.is_swap_enabled else Level.WARNING

    def as_applied(self) -> "Context":
        """Context with recompute as it acts: with swap off in the layers that MindFormers takes for its counts."""
        if self.settings.is_swap_enabled or self.num_layers is None or self.document.root is None:
            return self
        expansion, path = expand_stage_recompute(self.document, self.num_layers), "recompute_config.recompute"
        place = path, self.document.place(*path.split("."))
        whole = Statement("recompute", *place, None, *place, expansion.policy.layer_recompute, path)
        statements = (whole, *expansion.statements) if whole.layers else expansion.statements
        return replace(self, settings=replace(self.settings, recompute=statements))

    @property
    def stop_level(self) -> Level:
        """Level of what stops MindFormers or MindSpore: an error.

        In a run with swap off it is a warning, as nothing of ours may stop such a run.
        """
        return Level.WARNING if self.is_left_to_mindformers else Level.ERROR

    @property
    def is_left_to_mindformers(self) -> bool:
        """Whether a training begins with swap off."""
        return self.is_run and not self.settings.is_swap_enabled

    def overlap(self, left: Statement, right: Statement) -> StatementOverlap | None:
        """Overlap of two statements; None if they concern no operator together.

        Where the model is not known, only what the texts of the patterns show counts: equal parts
        from the layer down.
        """
        layers = shared_layers(left.layers, right.layers)
        if not layers:
            return None
        if self.coverage is not None:
            indices, operators = self.coverage.shared_operators(left.pattern, right.pattern, layers)
            is_everywhere = layers.indices is None and len(indices) == self.coverage.num_layers
            return StatementOverlap(layers if is_everywhere else Layers(indices), operators) if operators else None
        if left.pattern is None or right.pattern is None:
            return StatementOverlap(layers)
        left_parts, right_parts = split_pattern(left.pattern), split_pattern(right.pattern)
        length = min(len(left_parts), len(right_parts))
        return StatementOverlap(layers) if left_parts[:length] == right_parts[:length] else None

    def overlaps(
        self, lefts: Iterable[Statement], rights: Iterable[Statement]
    ) -> Iterator[tuple[Statement, Statement, StatementOverlap]]:
        """Every pair of statements, one of each side, that concern the same operators."""
        index = StatementIndex(rights)
        for left in lefts:
            for right in index.candidates(left.layers):
                overlap = self.overlap(left, right)
                if overlap is not None:
                    yield left, right, overlap

    def recomputed_operators(self, layer_index: int) -> frozenset[str]:
        """The operators of a layer that are recomputed, excludes taken off (the model must be known)."""
        if self.recompute is None:
            raise AssertionError("the model is not known")
        return self.recompute.operators(layer_index)

    def matches_anything(self, statement: Statement) -> bool:
        """True if a pattern names something in one of its layers (the model must be known)."""
        if self.coverage is None:
            raise AssertionError("the model is not known")
        by_kind = self.coverage.layers_by_class(statement.layers)
        return any(self.coverage.operators(statement.pattern, kind) for kind in by_kind)


def shared_layers(left: Layers, right: Layers) -> Layers:
    """The layers in both sets."""
    if left.indices is None:
        return right
    if right.indices is None:
        return left
    return Layers(set(left.indices).intersection(right.indices))


# What a rule for 2.x files looks at, and how it is made.

rule = functools.partial(rules.rule, prefix="pynative-")


@dataclass(frozen=True, eq=False)
class Context2x:
    """Context passed to each rule."""

    document: Document  # the configuration, as located nodes
    settings: Settings2x  # what it says, statement by statement
    effect: SettingsEffect  # what upstream makes of that
    mindformers: str = ""  # the version that is installed here; "" if none is, or if nobody looked

    @property
    def num_layers(self) -> int | None:
        """Layers of the model with those for multi-token prediction; None if not known."""
        return self.settings.num_layers
