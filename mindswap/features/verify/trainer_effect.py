"""Compare the entries of a configuration of MindFormers 2.x with what its trainer did in a dry run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindswap.config.nodes import Document
from mindswap.config.problem import Level, Location, Problem
from mindswap.features.dryrun import TrainerStep, WrapperEffect
from mindswap.policy.cell_tree import PatternError
from mindswap.policy.formats.mindformers2.effect import SettingsEffect
from mindswap.policy.formats.mindformers2.processes import ONE_PROCESS, find_max_processes
from mindswap.policy.formats.mindformers2.settings import Target
from mindswap.policy.formats.mindformers2.tables import match_paths
from mindswap.policy.wording import name_indices

NO_EFFECT, SINGLE = "no-effect", "one-process"
SWAPS, RECOMPUTES = ("layer_swap", "op_swap"), ("full_recompute_layer", "select_module")


@dataclass(frozen=True)
class EntryEffect:
    """Effect of an entry of the file in a dry run.

    Attributes:
        target: the entry.
        layers: layers that it names.
        acting_layers: those in which something was copied out and back, or recomputed.
        reasons: reasons for which it does not act, each with the layers.
        out_bytes: size of the storages copied to the host that were saved within its cells; None if not measured.
        num_out: number of these copies; None if not measured.
        num_recomputed: cells of the entry that ran once more in backward.
    """

    target: Target
    layers: tuple[int, ...]
    acting_layers: tuple[int, ...]
    reasons: tuple[tuple[str, tuple[int, ...]], ...] = ()
    out_bytes: int | None = None
    num_out: int | None = None
    num_recomputed: int = 0

    @property
    def acts(self) -> bool:
        """Return whether it acts in all layers that it names."""
        return bool(self.layers) and self.acting_layers == self.layers


def compare_entries(effect: SettingsEffect, step: TrainerStep) -> tuple[EntryEffect, ...]:
    """Return the effect of each entry.

    Args:
        effect: settings of the file, for the reasons.
        step: a dry run of the file, not extrapolated.
    """
    options = (*(SWAPS if effect.settings.is_swap_enabled else ()), *RECOMPUTES)
    return tuple(_entry_effect(target, effect, step) for option in options for target in effect.settings.of(option))


def _entry_effect(target: Target, effect: SettingsEffect, step: TrainerStep) -> EntryEffect:
    layers = effect.settings.layers_of(target)
    if target.option in SWAPS and step.own_swap is not None:
        acting = tuple(layer for layer in layers if layer in step.own_targets.get(target.path, ()))
        inactive_layers = tuple(layer for layer in layers if layer not in acting)
        reasons = (("mindswap's executor moves nothing: backward reads nothing of it that may move", inactive_layers),)
        return EntryEffect(target, layers, acting, reasons if inactive_layers else ())
    wrappers = [wrapper for wrapper in step.wrappers if wrapper.layer in layers and _is_of(target, wrapper)]
    acting = tuple(sorted({wrapper.layer for wrapper in wrappers if _acts(wrapper)}))
    by_reason: dict[str, list[int]] = {}
    for layer in layers:
        if layer not in acting:
            by_reason.setdefault(_reason(target, layer, wrappers, effect), []).append(layer)
    return EntryEffect(
        target,
        layers,
        acting,
        tuple((reason, tuple(indices)) for reason, indices in by_reason.items()),
        sum(wrapper.out_bytes for wrapper in wrappers),
        sum(wrapper.num_out for wrapper in wrappers),
        sum(wrapper.num_recomputed > 0 for wrapper in wrappers),
    )


def _is_of(target: Target, wrapper: WrapperEffect) -> bool:
    """Return whether an entry requests a wrapper that is in one of its layers."""
    if wrapper.action != ("swap" if target.option in SWAPS else "recompute"):
        return False
    if target.pattern is None or not wrapper.path:
        return target.pattern is None and not wrapper.path
    try:
        return bool(match_paths(target.pattern, (wrapper.path,)))
    except PatternError:
        return False


def _acts(wrapper: WrapperEffect) -> bool:
    if wrapper.action == "swap":
        return wrapper.num_out > 0 and wrapper.back_bytes == wrapper.out_bytes
    return wrapper.num_recomputed > 0


def _reason(target: Target, layer: int, wrappers: Sequence[WrapperEffect], effect: SettingsEffect) -> str:
    """Return why an entry does not act in a layer."""
    layer_wrappers = [wrapper for wrapper in wrappers if wrapper.layer == layer]
    if any(wrapper.num_out for wrapper in layer_wrappers):
        return "offloaded tensors are not prefetched"
    if layer_wrappers and target.option in SWAPS:
        return "its cells save nothing that may move: outputs of the layer, weights and inputs of the model stay"
    if layer_wrappers:
        return "its cells do not run once more in backward: they save nothing that backward reads"
    drops = effect.layers[layer].drops if layer < len(effect.layers) else ()
    for drop in drops:
        if drop.option == target.option and target.pattern is not None and match_paths(target.pattern, (drop.path,)):
            return f"{drop.path} {drop.reason}" if drop.reason.startswith("is inside") else drop.reason
    return "MindFormers wraps no cell for it: another entry has the layer, or the pattern matches nothing"


def find_problems(
    document: Document, effect: SettingsEffect, entries: Sequence[EntryEffect], num_cards: int | None
) -> tuple[Problem, ...]:
    """Return an error for each entry that does not act, in all or some of its layers.

    Args:
        document: the configuration.
        effect: its settings.
        entries: what its entries did in a dry run, which applies them as several processes do.
        num_cards: cards of the training; None takes the most that the batch sizes allow.
    """
    is_single = (find_max_processes(document) if num_cards is None else num_cards) == 1
    problems = list(_single_problems(document, effect, entries)) if is_single else []
    for entry in entries:
        for reason, layers in entry.reasons:
            named = "" if layers == entry.layers else f" in {name_indices('layer', layers)}"
            message = f"{entry.target.path}: has no effect{named}: {reason}"
            problems.append(
                Problem(entry.target.location, NO_EFFECT, Level.ERROR, message, "", "take these layers out of it")
            )
    return tuple(problems)


def _single_problems(document: Document, effect: SettingsEffect, entries: Sequence[EntryEffect]) -> Iterator[Problem]:
    """Yield a problem for each section that has no effect in one process."""
    options = {entry.target.option for entry in entries}
    sections = {"recompute": options.intersection(RECOMPUTES)}
    if not effect.settings.is_own_engine:
        sections = {"swap": options.intersection(SWAPS), **sections}
    for section, named in sections.items():
        if named:
            fix = "several processes" + (", or mindswap: {swap_engine: mindswap}" if section == "swap" else "")
            message = f"{section}: has no effect in one process: {ONE_PROCESS}"
            entry = document.entry(section)
            location = entry.location if entry is not None else Location(document.file)
            yield Problem(location, SINGLE, Level.ERROR, message, "two processes or more", fix)
