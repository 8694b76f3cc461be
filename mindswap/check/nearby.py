"""Statements by what they concern, so that those of the same layers and operators are found without trying all pairs.

What is found may meet; `Context.overlap` decides. Time grows with the statements, their layers and what is found.
"""

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field

from mindswap.policy.coverage import Coverage
from mindswap.policy.match import split_pattern
from mindswap.policy.model import Layers
from mindswap.policy.settings import Statement

# Keys beside indices of layers: where statements of every layer stand, and where all statements stand.
EVERY, ANY = "every layer", "any layer"


class StatementIndex:
    """Statements, added one after another.

    A statement stands under keys of (operators, layer); those it may meet stand under the keys it asks for. For whole
    layers (no pattern) and where the model is not known, words take the place of operators.

    Args:
        coverage: patterns against the model; None where the model is not known.
    """

    def __init__(self, coverage: Coverage | None):
        self._coverage = coverage
        self._statements: list[Statement] = []
        self._found: dict[Hashable, dict[str | None, list[int]]] = {}

    def add(self, statement: Statement) -> None:
        """One more, which later ones may meet."""
        position = len(self._statements)
        self._statements.append(statement)
        for key in self._keys(statement, asks=False):
            self._found.setdefault(key, {}).setdefault(statement.pattern, []).append(position)

    def candidates(self, statement: Statement, with_own_pattern: bool = True) -> list[Statement]:
        """Those that a statement may meet, in the order in which they were added."""
        positions: set[int] = set()
        for key in self._keys(statement, asks=True):
            for pattern, there in self._found.get(key, {}).items():
                if with_own_pattern or pattern != statement.pattern:
                    positions.update(there)
        return [self._statements[position] for position in sorted(positions)]

    def _keys(self, statement: Statement, asks: bool) -> Iterator[Hashable]:
        for place in _places(statement.layers, asks):
            for name in self._names(statement, place, asks):
                yield name, place

    def _names(self, statement: Statement, place: int | str, asks: bool) -> Collection[Hashable]:
        """What a statement names at one place."""
        if self._coverage is None:
            return _names_of_text(statement.pattern, asks)
        layers = Layers(place) if isinstance(place, int) else statement.layers
        kinds = self._coverage.layers_by_kind(layers)
        return {name for kind in kinds for name in self._names_of_kind(statement.pattern, kind, asks)}

    def _names_of_kind(self, pattern: str | None, kind: int, asks: bool) -> Collection[Hashable]:
        """The operators; one word for a whole layer, and one for whatever names any of its operators."""
        assert self._coverage is not None
        operators = self._coverage.operators(pattern, kind)
        if pattern is None:
            return (("anything",),) if asks else (("anything",), ("whole",))
        return (*operators, ("whole",) if asks else ("anything",)) if operators else ()


def _places(layers: Layers, asks: bool) -> tuple[int | str, ...]:
    """Where layers stand, or where those stand that share one with them."""
    if not layers:
        return ()
    if layers.indices is None:
        return (ANY,) if asks else (ANY, EVERY)
    return (EVERY if asks else ANY, *layers.indices)


def _names_of_text(pattern: str | None, asks: bool) -> Collection[Hashable]:
    """Two patterns may meet if one begins with the levels of the other; no pattern has no levels."""
    parts = tuple(split_pattern(pattern)) if pattern is not None else ()
    beginnings = [parts[:length] for length in range(len(parts) + 1)]
    at, below = ("at", "below") if asks else ("below", "at")
    return (*((at, beginning) for beginning in beginnings), (below, parts))


@dataclass
class FirstOfLayer:
    """The first that was said of each layer, and the first that says something else."""

    _said: dict[Hashable, list[tuple[int, Statement, Hashable]]] = field(default_factory=dict)
    _count: int = 0

    def other(self, layers: Layers, value: Hashable) -> Statement | None:
        """The first statement of one of these layers with another value."""
        said = (entry for place in _places(layers, asks=True) for entry in self._said.get(place, ()))
        others = (entry for entry in said if entry[2] != value)
        first = min(others, key=lambda entry: entry[0], default=None)
        return first[1] if first is not None else None

    def add(self, statement: Statement, value: Hashable) -> None:
        """What one more says of its layers."""
        for place in _places(statement.layers, asks=False):
            said = self._said.setdefault(place, [])
            if not said or (len(said) == 1 and said[0][2] != value):
                said.append((self._count, statement, value))
        self._count += 1
