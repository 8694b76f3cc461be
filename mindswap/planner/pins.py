"""Decisions of the user that a plan keeps: operators that are swapped, recomputed, or kept in any case."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mindswap.errors import PlanError
from mindswap.policy.cell_tree import SEPARATOR, CellNode, Match, PatternError, exact_pattern, match_pattern
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy
from mindswap.policy.words import closest_names

# Of what is swapped where no distance is written, in operators.
DEFAULT_DISTANCE = 10


class Means(Enum):
    """Treatment of what a pin names."""

    KEEP = "keep"
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class Pin:
    """One decision of the user, in every layer."""

    pattern: str  # as `op_name`
    means: Means
    distance: int = DEFAULT_DISTANCE  # `backward_prefetch` of a swap


def read_pin(text: str) -> Pin:
    """From `PATTERN=keep`, `PATTERN=recompute`, `PATTERN=swap` or `PATTERN=swap:12`.

    Raises:
        PlanError: it is none of these.
    """
    pattern, _, what = text.rpartition("=")
    name, colon, distance = what.partition(":")
    means = next((one for one in Means if one.value == name), None)
    is_number = distance.isdecimal() and int(distance) > 0 and means is Means.SWAP
    if not pattern or means is None or (colon and not is_number):
        raise PlanError(
            f"--pin {text}: is not a decision\n    allowed: PATTERN=swap, PATTERN=swap:12 (backward_prefetch), "
            "PATTERN=recompute, PATTERN=keep\n    fix:     such as --pin 'attention\\.flash_attention=swap'"
        )
    return Pin(pattern, means, int(distance) if colon else DEFAULT_DISTANCE)


def fixed_policy(pins: Sequence[Pin], trees: Sequence[CellNode], layer_map: Sequence[int]) -> Policy:
    """The entries of all pins, one operator to a pattern.

    Args:
        pins: decisions.
        trees: of each kind of layer.
        layer_map: kind of each layer of the model.

    Raises:
        PlanError: a pin names nothing in any layer, or two decide about the same.
    """
    decided: dict[tuple[int, str], Pin] = {}
    for pin in pins:
        names = [(kind, match.name) for kind, tree in enumerate(trees) for match in _matches(pin.pattern, tree)]
        if not names:
            known = sorted({".".join(path) for tree in trees for path, _ in tree.walk()})
            near = ", ".join(closest_names(pin.pattern.replace(SEPARATOR, "."), known, limit=3))
            raise PlanError(
                f"--pin {pin.pattern}={pin.means.value}: names nothing in any layer\n    allowed: names as of op_name, "
                f"parts joined by '{SEPARATOR}'\n    fix:     near: {near}"
            )
        for one in names:
            other = decided.setdefault(one, pin)
            if (other.means, other.distance) != (pin.means, pin.distance):
                raise PlanError(
                    f"--pin {pin.pattern}={pin.means.value}: {one[1]} is pinned to {other.means.value} as well\n"
                    "    fix:     leave one out"
                )
    where: dict[tuple[str, Pin], list[int]] = {}
    for (kind, name), pin in decided.items():
        where.setdefault((name, pin), []).extend(i for i, own in enumerate(layer_map) if own == kind)

    def layers_of(indices: Sequence[int]) -> Layers:
        return ALL_LAYERS if len(indices) == len(layer_map) else Layers(tuple(sorted(indices)))

    entries = [
        (exact_pattern(name), pin, layers_of(indices))
        for (name, pin), indices in sorted(where.items(), key=lambda one: one[0][0])
    ]
    return Policy(
        True,
        op_swap=tuple(OpSwap(name, layers, pin.distance) for name, pin, layers in entries if pin.means is Means.SWAP),
        select_recompute=tuple(
            OpRecompute(name, layers) for name, pin, layers in entries if pin.means is Means.RECOMPUTE
        ),
    )


def _matches(pattern: str, tree: CellNode) -> list[Match]:
    try:
        return list(match_pattern(pattern, tree))
    except PatternError as error:
        raise PlanError(f"--pin {error}") from None
