"""Pins: decisions of the user that every plan keeps: operators that are swapped, recomputed, or kept in any case."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from mindswap.config.step_settings import LAYERS_NOT_INLINED, MAX_INLINED_MICRO_BATCHES
from mindswap.errors import PlanError
from mindswap.planner.effect import EffectPredictor, predict_effect
from mindswap.planner.problem import Allow
from mindswap.policy.cell_tree import SEPARATOR, CellNode, Match, PatternError, exact_pattern, is_within, match_pattern
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy
from mindswap.policy.wording import closest_names
from mindswap.simulator.step_model import StepModel

# Of what is swapped where no distance is written, in operators.
DEFAULT_DISTANCE = 10
# Reasons of names without effect where the rewritten graphs give none.
COPY_FREES_NOTHING = "its copy frees nothing: another name holds the same memory"
RECOMPUTE_FREES_NOTHING = "its recompute frees nothing without that of another name"


class PinTreatment(Enum):
    """Treatment of the operators of a pin."""

    KEEP = "keep"
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class Pin:
    """One decision of the user, in every layer."""

    pattern: str  # as `op_name`
    treatment: PinTreatment
    distance: int = DEFAULT_DISTANCE  # `backward_prefetch` of a swap

    def __str__(self) -> str:
        distance = (
            f":{self.distance}" if self.treatment is PinTreatment.SWAP and self.distance != DEFAULT_DISTANCE else ""
        )
        return f"--pin {self.pattern}={self.treatment.value}{distance}"


# Compiled layer and operator path or cell path.
Name = tuple[int, str]


def read_pin(text: str) -> Pin:
    """From `PATTERN=keep`, `PATTERN=recompute`, `PATTERN=swap` or `PATTERN=swap:12`.

    Raises:
        PlanError: it is none of these.
    """
    pattern, _, decision = text.rpartition("=")
    name, colon, distance = decision.partition(":")
    treatment = next((member for member in PinTreatment if member.value == name), None)
    is_number = distance.isdecimal() and int(distance) > 0 and treatment is PinTreatment.SWAP
    if not pattern or treatment is None or (colon and not is_number):
        raise PlanError(
            f"--pin {text}: is not a decision\n    allowed: PATTERN=swap, PATTERN=swap:12 (backward_prefetch), "
            "PATTERN=recompute, PATTERN=keep\n    fix:     such as --pin 'attention\\.flash_attention=swap'"
        )
    return Pin(pattern, treatment, int(distance) if colon else DEFAULT_DISTANCE)


def pinned_policy(
    pins: Sequence[Pin], model: StepModel, allow: Allow, known: Sequence[CellNode] | None = None
) -> Policy:
    """The entries of all pins, one operator or cell to a pattern.

    A pattern may also match operators on which its treatment has no effect, as the compiler sees it; they get no entry.
    A cell with such operators is swapped operator by operator.

    Args:
        pins: decisions.
        model: the step, without pins.
        allow: what plans may do.
        known: trees of all layers in which names must be, as in `build_catalog`.

    Raises:
        PlanError: with every pin that matches nothing, whose treatment is not allowed, that contradicts another one, or
            that has no effect in any layer.
    """
    trees = model.captured.trees
    nameable = [
        {
            ".".join(path)
            for path, _ in (tree if known is None else known[model.captured.sample.layer_map.index(kind)]).walk()
        }
        for kind, tree in enumerate(trees)
    ]
    matches = {pin: [one for one in _find_matches(pin, trees) if one[1].name in nameable[one[0]]] for pin in pins}
    problems = [*_not_allowed(pins, allow, model.settings.inlines_layers)]
    problems += [_no_match(pin, nameable) for pin in pins if not matches[pin]]
    problems += _contradictions(matches)
    if problems:
        raise PlanError("\n".join(problems))
    names = {
        pin: [(kind, match.name) for kind, match in found]
        for pin, found in matches.items()
        if pin.treatment is not PinTreatment.KEEP
    }
    idle = _idle_names(names, model)
    for pin in names if idle else ():
        if pin.treatment is PinTreatment.SWAP:
            split = (
                [(kind, name) for name in _split(match, (kind, match.name) in idle)] for kind, match in matches[pin]
            )
            names[pin] = [one for found in split for one in found if one[1] in nameable[one[0]]]
    idle = _idle_names(names, model) if idle else idle
    effective = {pin: [name for name in found if name not in idle] for pin, found in names.items()}
    problems = [_no_effect(pin, idle[names[pin][0]], model) for pin, found in effective.items() if not found]
    if problems:
        raise PlanError("\n".join(problems))
    decided = {name: pin for pin, found in effective.items() for name in found}
    return _to_policy({name: pin for name, pin in decided.items() if not _is_inside(name, decided)}, model)


def _find_matches(pin: Pin, trees: Sequence[CellNode]) -> list[tuple[int, Match]]:
    """Compiled layers, and the cells and operators that the pattern matches there."""
    try:
        return [(kind, match) for kind, tree in enumerate(trees) for match in match_pattern(pin.pattern, tree)]
    except PatternError as error:
        raise PlanError(f"--pin {error}") from None


def _operators_of(match: Match) -> Iterator[str]:
    """The operator, or all operators of the cell."""
    below = [".".join(path) for path, node in match.node.walk(match.path) if node.is_primitive]
    yield from [match.name] if match.node.is_primitive else below


def _split(match: Match, has_idle: bool) -> Iterable[str]:
    """The name, or the operators of a cell of which some cannot be swapped."""
    return _operators_of(match) if has_idle else [match.name]


def _not_allowed(pins: Sequence[Pin], allow: Allow, inlines_layers: bool) -> Iterator[str]:
    for pin in pins:
        if pin.treatment is PinTreatment.SWAP and not allow.swap and not inlines_layers:
            yield (
                f"{pin}: {LAYERS_NOT_INLINED}\n    allowed: micro_batch_num up to {MAX_INLINED_MICRO_BATCHES}\n"
                "    fix:     pin it to recompute or keep, or fewer micro-batches of more samples"
            )
        elif (pin.treatment is PinTreatment.SWAP and not allow.swap) or (
            pin.treatment is PinTreatment.RECOMPUTE and not allow.recompute
        ):
            other = "recompute" if pin.treatment is PinTreatment.SWAP else "swap"
            yield (
                f"{pin}: --allow {other} excludes it\n    allowed: {other}, keep\n"
                "    fix:     --allow swap,recompute, or leave the pin out"
            )


def _no_match(pin: Pin, nameable: Iterable[Iterable[str]]) -> str:
    near = ", ".join(closest_names(pin.pattern.replace(SEPARATOR, "."), sorted(set().union(*nameable)), limit=3))
    return (
        f"{pin}: names nothing in any layer\n    allowed: names as of op_name, parts joined by '{SEPARATOR}'\n"
        f"    fix:     near: {near}"
    )


def _contradictions(matches: Mapping[Pin, Sequence[tuple[int, Match]]]) -> list[str]:
    """Pairs of pins that decide otherwise about the same operator, also as part of a cell."""
    decided: dict[Name, Pin] = {}
    found: dict[tuple[Pin, Pin], str] = {}
    for pin, entries in matches.items():
        for name in ((kind, operator) for kind, match in entries for operator in _operators_of(match)):
            other = decided.setdefault(name, pin)
            if (other.treatment, other.distance) != (pin.treatment, pin.distance):
                found.setdefault((other, pin), name[1])
    return [
        f"{pin}: {name} is pinned by {other} as well\n    allowed: one decision about an operator\n"
        "    fix:     leave one out, or make its pattern match less"
        for (other, pin), name in found.items()
    ]


def _idle_names(names: Mapping[Pin, Sequence[Name]], model: StepModel) -> dict[Name, str]:
    """The names on which all pins together have no effect, with the reason: asked of the rewritten graphs."""
    effect_predictor, layer_map = EffectPredictor(model), model.captured.sample.layer_map
    idle: dict[Name, str] = {}
    for kind in range(len(model.captured.trees)):
        by_treatment = {treatment: dict[str, int]() for treatment in PinTreatment}
        for pin, found in names.items():
            by_treatment[pin.treatment].update({name: pin.distance for own, name in found if own == kind})
        swapped, recomputed = by_treatment[PinTreatment.SWAP], by_treatment[PinTreatment.RECOMPUTE]
        policy = Policy(
            True,
            op_swap=tuple(OpSwap(exact_pattern(name), ALL_LAYERS, distance) for name, distance in swapped.items()),
            select_recompute=tuple(OpRecompute(exact_pattern(name), ALL_LAYERS) for name in recomputed),
        )
        layer_index = layer_map.index(kind)
        ineffective_names = effect_predictor.ineffective_names(layer_index, policy, swapped)
        reasons = {entry.entry: entry.reason.value for entry in predict_effect(model, policy, layer_index).idle}
        for name in swapped:
            if name in ineffective_names.swap:
                idle[kind, name] = reasons.get(exact_pattern(name), COPY_FREES_NOTHING)
        for name in recomputed:
            if name in ineffective_names.recompute:
                # `reasons` has none for a name that is idle only once other idle names are left out.
                idle[kind, name] = reasons.get(name, RECOMPUTE_FREES_NOTHING)
    return idle


def _no_effect(pin: Pin, reason: str, model: StepModel) -> str:
    """A pin without effect, and the operators on which its treatment has one."""
    effect_predictor, layer_map = EffectPredictor(model), model.captured.sample.layer_map
    found: dict[str, None] = {}
    for kind in range(len(model.captured.trees)):
        layer_index = layer_map.index(kind)
        groups = model.holder_names(Policy(), layer_index).values()
        names = sorted({name for held_by in groups for group in held_by for name in group if name})
        if pin.treatment is PinTreatment.SWAP:
            idle = effect_predictor.ineffective_names(layer_index, Policy(True), names).swap
        else:
            entries = tuple(OpRecompute(exact_pattern(name), ALL_LAYERS) for name in names)
            idle = effect_predictor.ineffective_names(layer_index, Policy(True, select_recompute=entries), ()).recompute
        found |= dict.fromkeys(name for name in names if name not in idle)
    near = ", ".join(closest_names(pin.pattern.replace(SEPARATOR, "."), sorted(found), limit=1)) or "leave it out"
    return (
        f"{pin}: has no effect in any layer: {reason}\n    allowed: {', '.join(sorted(found)) or 'nothing'}\n"
        f"    fix:     {near}"
    )


def _is_inside(name: Name, decided: Iterable[Name]) -> bool:
    """Return whether it is part of a cell that is decided as a whole."""
    return any(kind == name[0] and cell != name[1] and is_within(name[1], cell) for kind, cell in decided)


def _to_policy(decided: Mapping[Name, Pin], model: StepModel) -> Policy:
    """The entries, each for the layers that have the operator."""
    layer_map = model.captured.sample.layer_map
    where: dict[tuple[str, PinTreatment, int], list[int]] = {}
    for (kind, name), pin in decided.items():
        indices = where.setdefault((name, pin.treatment, pin.distance), [])
        indices += [index for index, own in enumerate(layer_map) if own == kind]

    def layers_of(indices: Sequence[int]) -> Layers:
        return ALL_LAYERS if len(indices) == len(layer_map) else Layers(tuple(sorted(indices)))

    entries = [
        (exact_pattern(name), treatment, distance, layers_of(indices))
        for (name, treatment, distance), indices in sorted(where.items(), key=lambda item: item[0][0])
    ]
    return Policy(
        True,
        op_swap=tuple(
            OpSwap(name, layers, distance)
            for name, treatment, distance, layers in entries
            if treatment is PinTreatment.SWAP
        ),
        select_recompute=tuple(
            OpRecompute(name, layers) for name, treatment, _, layers in entries if treatment is PinTreatment.RECOMPUTE
        ),
    )
