"""Pins: decisions of the user about operators (swap, recompute or keep) that every plan contains."""

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

# Default of `backward_prefetch`, in operators.
DEFAULT_DISTANCE = 10
# Reasons why a name has no effect, if the rewritten graph has no more specific one.
COPY_FREES_NOTHING = "its copy frees nothing: another name holds the same memory"
RECOMPUTE_FREES_NOTHING = "its recompute frees nothing without that of another name"


class PinTreatment(Enum):
    """Treatment of the operators of a pin."""

    KEEP = "keep"
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class Pin:
    """One decision of the user, for all layers."""

    pattern: str  # pattern of operators, as in `op_name`
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
    """Parse `PATTERN=keep`, `PATTERN=recompute`, `PATTERN=swap` or `PATTERN=swap:12`.

    Raises:
        PlanError: if the text is none of these.
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
    pins: Sequence[Pin], model: StepModel, allow: Allow, required_trees: Sequence[CellNode] | None = None
) -> Policy:
    """Convert pins to a policy with one entry for each operator or cell.

    A pattern may also match operators for which its treatment has no effect in the compiled graph; they get no entry.
    A cell with such operators is swapped operator by operator.

    Args:
        pins: decisions.
        model: step model without pins.
        allow: means that plans may use.
        required_trees: cell trees of all layers, in which names must exist, as in `build_catalog`.

    Raises:
        PlanError: lists every pin that matches nothing, whose treatment is not allowed, that contradicts another one,
            or that has no effect in any layer.
    """
    trees = model.captured.trees
    nameable = [
        {
            ".".join(path)
            for path, _ in (
                tree if required_trees is None else required_trees[model.captured.sample.layer_map.index(layer_class)]
            ).walk()
        }
        for layer_class, tree in enumerate(trees)
    ]
    matches = {
        pin: [entry for entry in _find_matches(pin, trees) if entry[1].name in nameable[entry[0]]] for pin in pins
    }
    problems = [*_not_allowed(pins, allow, model.settings.inlines_layers)]
    problems += [_no_match(pin, nameable) for pin in pins if not matches[pin]]
    problems += _contradictions(matches)
    if problems:
        raise PlanError("\n".join(problems))
    names = {
        pin: [(layer_class, match.name) for layer_class, match in pin_matches]
        for pin, pin_matches in matches.items()
        if pin.treatment is not PinTreatment.KEEP
    }
    idle = _idle_names(names, model)
    # A cell without operators is split into nothing: then the reason is that of the cell.
    reasons = {pin: idle.get(pin_matches[0], "") for pin, pin_matches in names.items()}
    for pin in names if idle else ():
        if pin.treatment is PinTreatment.SWAP:
            split = (
                [(layer_class, name) for name in _split(match, (layer_class, match.name) in idle)]
                for layer_class, match in matches[pin]
            )
            names[pin] = [entry for pin_matches in split for entry in pin_matches if entry[1] in nameable[entry[0]]]
    idle = _idle_names(names, model) if idle else idle
    effective = {pin: [name for name in pin_matches if name not in idle] for pin, pin_matches in names.items()}
    problems = [
        _no_effect(pin, idle[names[pin][0]] if names[pin] else reasons[pin], model)
        for pin, pin_matches in effective.items()
        if not pin_matches
    ]
    if problems:
        raise PlanError("\n".join(problems))
    decided = {name: pin for pin, pin_matches in effective.items() for name in pin_matches}
    return _to_policy({name: pin for name, pin in decided.items() if not _is_inside(name, decided)}, model)


def _find_matches(pin: Pin, trees: Sequence[CellNode]) -> list[tuple[int, Match]]:
    """Return (layer class, match) for each cell and operator that the pattern matches."""
    try:
        return [
            (layer_class, match) for layer_class, tree in enumerate(trees) for match in match_pattern(pin.pattern, tree)
        ]
    except PatternError as error:
        raise PlanError(f"--pin {error}") from None


def _operators_of(match: Match) -> Iterator[str]:
    """Yield the operator, or all operators of the cell."""
    operators = [".".join(path) for path, node in match.node.walk(match.path) if node.is_primitive]
    yield from [match.name] if match.node.is_primitive else operators


def _split(match: Match, has_idle: bool) -> Iterable[str]:
    """Return the name, or the operators of a cell if swap of some has no effect."""
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
    """Return a problem for each pair of pins with different decisions about the same operator."""
    decided: dict[Name, Pin] = {}
    contradictions: dict[tuple[Pin, Pin], str] = {}
    for pin, entries in matches.items():
        for name in ((layer_class, operator) for layer_class, match in entries for operator in _operators_of(match)):
            other = decided.setdefault(name, pin)
            if (other.treatment, other.distance) != (pin.treatment, pin.distance):
                contradictions.setdefault((other, pin), name[1])
    return [
        f"{pin}: {name} is pinned by {other} as well\n    allowed: one decision about an operator\n"
        "    fix:     leave one out, or make its pattern match less"
        for (other, pin), name in contradictions.items()
    ]


def _idle_names(names: Mapping[Pin, Sequence[Name]], model: StepModel) -> dict[Name, str]:
    """Return the names for which the pins together have no effect in the rewritten graphs, with the reason."""
    effect_predictor, layer_map = EffectPredictor(model), model.captured.sample.layer_map
    idle: dict[Name, str] = {}
    for layer_class in range(len(model.captured.trees)):
        by_treatment = {treatment: dict[str, int]() for treatment in PinTreatment}
        for pin, pin_names in names.items():
            by_treatment[pin.treatment].update(
                {name: pin.distance for name_class, name in pin_names if name_class == layer_class}
            )
        swapped, recomputed = by_treatment[PinTreatment.SWAP], by_treatment[PinTreatment.RECOMPUTE]
        policy = Policy(
            True,
            op_swap=tuple(OpSwap(exact_pattern(name), ALL_LAYERS, distance) for name, distance in swapped.items()),
            select_recompute=tuple(OpRecompute(exact_pattern(name), ALL_LAYERS) for name in recomputed),
        )
        layer_index = layer_map.index(layer_class)
        ineffective_names = effect_predictor.ineffective_names(layer_index, policy, swapped)
        reasons = {entry.entry: entry.reason.value for entry in predict_effect(model, policy, layer_index).idle}
        for name in swapped:
            if name in ineffective_names.swap:
                idle[layer_class, name] = reasons.get(exact_pattern(name), COPY_FREES_NOTHING)
        for name in recomputed:
            if name in ineffective_names.recompute:
                # `reasons` lacks names that have no effect only after other names without effect are removed.
                idle[layer_class, name] = reasons.get(name, RECOMPUTE_FREES_NOTHING)
    return idle


def _no_effect(pin: Pin, reason: str, model: StepModel) -> str:
    """Return the problem of a pin without effect, with the operators for which its treatment has an effect."""
    effect_predictor, layer_map = EffectPredictor(model), model.captured.sample.layer_map
    effective: dict[str, None] = {}
    for layer_class in range(len(model.captured.trees)):
        layer_index = layer_map.index(layer_class)
        groups = model.holder_names(Policy(), layer_index).values()
        names = sorted({name for holders in groups for group in holders for name in group if name})
        if pin.treatment is PinTreatment.SWAP:
            idle = effect_predictor.ineffective_names(layer_index, Policy(True), names).swap
        else:
            entries = tuple(OpRecompute(exact_pattern(name), ALL_LAYERS) for name in names)
            idle = effect_predictor.ineffective_names(layer_index, Policy(True, select_recompute=entries), ()).recompute
        effective |= dict.fromkeys(name for name in names if name not in idle)
    near = ", ".join(closest_names(pin.pattern.replace(SEPARATOR, "."), sorted(effective), limit=1)) or "leave it out"
    return (
        f"{pin}: has no effect in any layer: {reason}\n    allowed: {', '.join(sorted(effective)) or 'nothing'}\n"
        f"    fix:     {near}"
    )


def _is_inside(name: Name, decided: Iterable[Name]) -> bool:
    """Return whether a name is inside a cell that is decided as a whole."""
    return any(layer_class == name[0] and cell != name[1] and is_within(name[1], cell) for layer_class, cell in decided)


def _to_policy(decided: Mapping[Name, Pin], model: StepModel) -> Policy:
    """Build the entries, each for the layers that have the operator."""
    layer_map = model.captured.sample.layer_map
    layer_indices: dict[tuple[str, PinTreatment, int], list[int]] = {}
    for (layer_class, name), pin in decided.items():
        indices = layer_indices.setdefault((name, pin.treatment, pin.distance), [])
        indices += [index for index, class_of_layer in enumerate(layer_map) if class_of_layer == layer_class]

    def layers_of(indices: Sequence[int]) -> Layers:
        return ALL_LAYERS if len(indices) == len(layer_map) else Layers(tuple(sorted(indices)))

    entries = [
        (exact_pattern(name), treatment, distance, layers_of(indices))
        for (name, treatment, distance), indices in sorted(layer_indices.items(), key=lambda item: item[0][0])
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
