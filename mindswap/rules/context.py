"""The context that is passed to each rule, and analyses that several rules share."""

import functools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

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

# Keys of the index besides layer indices: of statements for every layer, and of all statements.
EVERY, ANY = "every layer", "any layer"


class StatementIndex:
    """Index of statements by layer, to find those that share a layer without comparing all pairs."""

    def __init__(self, statements: Iterable[Statement] = ()):
        self._statements: list[Statement] = []
        self._positions: dict[int | str, list[int]] = {}
        for statement in statements:
            self.add(statement)

    def add(self, statement: Statement) -> None:
        """Add a statement."""
        for key in _index_keys(statement.layers, is_query=False):
            self._positions.setdefault(key, []).append(len(self._statements))
        self._statements.append(statement)

    def candidates(self, layers: Layers) -> list[Statement]:
        """Return the statements that share a layer with `layers`, in the order in which they were added."""
        positions: set[int] = set()
        for key in _index_keys(layers, is_query=True):
            positions.update(self._positions.get(key, ()))
        return [self._statements[position] for position in sorted(positions)]


def _index_keys(layers: Layers, is_query: bool) -> tuple[int | str, ...]:
    """Return the keys under which layers are stored, or those to look up for all that share a layer."""
    if not layers:
        return ()
    if layers.indices is None:
        return (ANY,) if is_query else (ANY, EVERY)
    return (EVERY if is_query else ANY, *layers.indices)


@dataclass
class FirstOfLayer:
    """The first statement of each layer, and the first one with another value.

    At most two per layer, so that thousands of equal statements are not compared with each other.
    """

    _statements: dict[Hashable, list[tuple[int, Statement, Hashable]]] = field(default_factory=dict)
    _count: int = 0

    def find_different(self, layers: Layers, value: Hashable) -> Statement | None:
        """Return the first statement of one of these layers with another value; None if there is none."""
        entries = (entry for key in _index_keys(layers, is_query=True) for entry in self._statements.get(key, ()))
        candidates = (entry for entry in entries if entry[2] != value)
        first = min(candidates, key=lambda entry: entry[0], default=None)
        return first[1] if first is not None else None

    def add(self, statement: Statement, value: Hashable) -> None:
        """Add a statement with its value."""
        for key in _index_keys(statement.layers, is_query=False):
            entries = self._statements.setdefault(key, [])
            if not entries or (len(entries) == 1 and entries[0][2] != value):
                entries.append((self._count, statement, value))
        self._count += 1


@dataclass(frozen=True)
class StatementOverlap:
    """Layers and operators that two statements share."""

    layers: Layers  # the layers they share
    operators: tuple[str, ...] = ()  # the operators they share; empty if the model is not known


class OverlappingPair(NamedTuple):
    """Two statements that share operators."""

    left: Statement
    right: Statement
    overlap: StatementOverlap


class RecomputeIndex:
    """Recomputed operators of each layer, without excluded ones; computed on first use."""

    def __init__(self, settings: PolicySettings, coverage: Coverage):
        self._settings, self._coverage = settings, coverage
        self._operators: dict[int, frozenset[str]] = {}

    @cached_property
    def _policy(self) -> Policy:
        """Policy of all recompute statements whose patterns are valid."""
        usable = (s for s in self._settings.recompute if s.pattern is None or self._coverage.error(s.pattern) is None)
        return build_policy(replace(self._settings, is_swap_enabled=True, swap=(), recompute=tuple(usable)))

    def operators(self, layer_index: int) -> frozenset[str]:
        """Return the recomputed operators of a layer."""
        if not self._settings.recompute:  # the rest takes seconds for models with thousands of layers
            return frozenset()
        if layer_index not in self._operators:
            tree = self._coverage.layer_classes[self._coverage.layer_class_of[layer_index]]
            decided = resolve_layer(self._policy, layer_index, tree).operators()
            self._operators[layer_index] = frozenset(
                ".".join(path) for path, decision in decided.items() if decision.treatment is Treatment.RECOMPUTE
            )
        return self._operators[layer_index]


@dataclass(frozen=True, eq=False)
class Context:
    """Context passed to each rule."""

    document: Document  # the configuration, as located nodes
    settings: PolicySettings  # its statements
    coverage: Coverage | None = None  # matches patterns in the model; None if the model is not known
    environ: Mapping[str, str] = field(default_factory=dict)  # environment variables
    is_training_start: bool = False  # a training starts: with swap off, MindFormers reports its own errors
    # derived: recomputed operators; None if the model is not known
    recompute: "RecomputeIndex | None" = field(init=False)

    def __post_init__(self) -> None:
        index = RecomputeIndex(self.settings, self.coverage) if self.coverage is not None else None
        object.__setattr__(self, "recompute", index)

    @property
    def num_layers(self) -> int | None:
        """Layers of the model; None if not known."""
        return self.settings.num_layers

    @property
    def swap_error_level(self) -> Level:
        """Level of problems that matter with swap only: a warning while swap is off."""
        return Level.ERROR if self.settings.is_swap_enabled else Level.WARNING

    def as_applied(self) -> "Context":
        """Return the context with the effective recompute: with swap off, counts per stage are expanded to layers."""
        if self.settings.is_swap_enabled or self.num_layers is None or self.document.root is None:
            return self
        expansion, path = expand_stage_recompute(self.document, self.num_layers), "recompute_config.recompute"
        location = self.document.location_of(*path.split("."))
        full = Statement(
            option="recompute",
            path=path,
            location=location,
            pattern=None,
            pattern_path=path,
            pattern_location=location,
            layers=expansion.policy.layer_recompute,
            layers_path=path,
        )
        statements = (full, *expansion.statements) if full.layers else expansion.statements
        return replace(self, settings=replace(self.settings, recompute=statements))

    @property
    def refusal_level(self) -> Level:
        """Level of settings that MindFormers or MindSpore refuse: an error.

        A warning if a training starts with swap off, because mindswap must not stop it.
        """
        return Level.WARNING if self.leaves_errors_to_mindformers else Level.ERROR

    @property
    def leaves_errors_to_mindformers(self) -> bool:
        """Return whether a training starts with swap off, so that MindFormers reports its own errors."""
        return self.is_training_start and not self.settings.is_swap_enabled

    def overlap(self, left: Statement, right: Statement) -> StatementOverlap | None:
        """Return the overlap of two statements; None if they share no operator.

        If the model is not known, patterns overlap if one is a prefix of the other, part by part.
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

    def overlaps(self, lefts: Iterable[Statement], rights: Iterable[Statement]) -> Iterator[OverlappingPair]:
        """Yield all pairs of a left and a right statement that share operators, with their overlap."""
        index = StatementIndex(rights)
        for left in lefts:
            for right in index.candidates(left.layers):
                overlap = self.overlap(left, right)
                if overlap is not None:
                    yield OverlappingPair(left, right, overlap)

    def recomputed_operators(self, layer_index: int) -> frozenset[str]:
        """Return the recomputed operators of a layer without excluded ones; the model must be known."""
        if self.recompute is None:
            raise AssertionError("the model is not known")
        return self.recompute.operators(layer_index)

    def matches_anything(self, statement: Statement) -> bool:
        """Return whether the pattern of a statement matches in one of its layers; the model must be known."""
        if self.coverage is None:
            raise AssertionError("the model is not known")
        layer_classes = self.coverage.layers_by_class(statement.layers)
        return any(self.coverage.operators(statement.pattern, layer_class) for layer_class in layer_classes)


def shared_layers(left: Layers, right: Layers) -> Layers:
    """Return the intersection of two sets of layers."""
    if left.indices is None:
        return right
    if right.indices is None:
        return left
    return Layers(set(left.indices).intersection(right.indices))


# Decorator and context of rules for MindFormers 2.x.

rule = functools.partial(rules.rule, prefix="pynative-")


@dataclass(frozen=True, eq=False)
class Context2x:
    """Context passed to each rule."""

    document: Document  # the configuration, as located nodes
    settings: Settings2x  # its statements
    effect: SettingsEffect  # their effect in MindFormers 2.x
    mindformers: str = ""  # installed version; "" if not installed or not checked

    @property
    def num_layers(self) -> int | None:
        """Layers of the model with those for multi-token prediction; None if not known."""
        return self.settings.num_layers
