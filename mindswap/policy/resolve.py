r"""Precedence: the decision of a policy for each operator of a layer, and the entry that determines it.

All consumers (applier, log lines, simulator, verification, planner, `explain`) call `resolve_layer`; no other module
compares entries.

Precedence of entries, from the specification ("Fine-Grained Activations SWAP" of MindFormers):

- An operator that is recomputed is not offloaded.
- Full recompute of a layer overrides select recompute in it; the exclude options override both.
- `op_swap` overrides `layer_swap`. If two patterns match an operator, the later one applies; if one pattern has several
  entries, the first that lists the layer applies. Of `layer_swap`, the first entry that lists the layer applies.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from mindswap.policy.cell_tree import CellNode, Match, match_pattern
from mindswap.policy.formats.mindformers1.schema import SELECT_OPTIONS
from mindswap.policy.model import OpRecompute, Policy

# Attribute names from the layer to a cell or primitive; () is the layer itself.
Path = tuple[str, ...]


class Setting(Enum):
    """The configuration option that an entry belongs to."""

    LAYER_SWAP = "layer_swap"
    OP_SWAP = "op_swap"
    RECOMPUTE = "recompute"
    OUTPUT_RECOMPUTE = "output_recompute"
    SELECT_RECOMPUTE = "select_recompute"
    SELECT_COMM_RECOMPUTE = "select_comm_recompute"
    SELECT_RECOMPUTE_EXCLUDE = "select_recompute_exclude"
    SELECT_COMM_RECOMPUTE_EXCLUDE = "select_comm_recompute_exclude"


# Options whose entries apply to full layers.
FULL_LAYER_SETTINGS = (Setting.LAYER_SWAP, Setting.RECOMPUTE, Setting.OUTPUT_RECOMPUTE)
# Options whose entries match primitives only, because cells do not communicate.
PRIMITIVE_SETTINGS = (Setting.SELECT_COMM_RECOMPUTE, Setting.SELECT_COMM_RECOMPUTE_EXCLUDE)


class Treatment(Enum):
    """Treatment of the output of an operator between forward and backward."""

    KEEP = "keep"
    OFFLOAD = "offload"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class Entry:
    """One entry of a policy."""

    setting: Setting
    pattern: str = ""  # "" for the full layer
    prefetch: int | None = None  # prefetch distance in operators; None for recompute


@dataclass(frozen=True)
class Override:
    """Two entries that match one operator: the winner applies, the loser does not."""

    winner: Entry
    loser: Entry


@dataclass(frozen=True)
class EntryMatch:
    """A cell or primitive of a layer that an entry matches; the layer itself has the path ()."""

    entry: Entry
    match: Match

    @property
    def path(self) -> Path:
        """Return the path of the cell or primitive below the layer."""
        return self.match.path


@dataclass(frozen=True)
class Decision:
    """Decision for one operator."""

    recomputed_by: tuple[EntryMatch, ...] = ()  # entries that recompute it in backward
    # the offload entry that applies; without effect if the operator is recomputed
    offloaded_by: EntryMatch | None = None
    excluded_by: tuple[EntryMatch, ...] = ()  # entries that exclude it from recompute
    comm_recomputed_by: tuple[EntryMatch, ...] = ()  # entries that recompute its communication

    @property
    def treatment(self) -> Treatment:
        """Treatment of the output."""
        if self.recomputed_by:
            return Treatment.RECOMPUTE
        return Treatment.KEEP if self.offloaded_by is None else Treatment.OFFLOAD

    @property
    def requested_prefetch(self) -> int | None:
        """Prefetch distance of the offload entry, even if the operator is recomputed; None without one."""
        return None if self.offloaded_by is None else self.offloaded_by.entry.prefetch

    @property
    def prefetch(self) -> int | None:
        """Prefetch distance in operators; None if it is not offloaded."""
        return None if self.recomputed_by else self.requested_prefetch

    @property
    def decided_by(self) -> tuple[EntryMatch, ...]:
        """The entries that determine the treatment."""
        if self.recomputed_by:
            return self.recomputed_by
        return (*self.excluded_by, *((self.offloaded_by,) if self.offloaded_by else ()))


@dataclass(frozen=True)
class LayerDecisions:
    """Decisions of a policy for all operators of a layer."""

    layer_index: int
    layer: CellNode
    # matches of recompute entries; those that are fully excluded are in `overridden`
    recomputes: tuple[EntryMatch, ...] = ()
    is_output_recomputed: bool = False  # full recompute includes the output of the layer
    comm_recomputes: tuple[EntryMatch, ...] = ()  # primitives whose communication is recomputed
    excludes: tuple[EntryMatch, ...] = ()  # matches of exclude entries
    comm_excludes: tuple[EntryMatch, ...] = ()  # matches of exclude entries for communication
    offloads: tuple[EntryMatch, ...] = ()  # by ascending precedence: the last one that covers an operator applies
    overridden: tuple[EntryMatch, ...] = ()  # matches that others of the same option override completely
    inactive: tuple[Entry, ...] = ()  # entries that list the layer but do not apply to it

    @property
    def is_fully_recomputed(self) -> bool:
        """Return whether an entry recomputes the layer itself."""
        return any(not entry_match.path for entry_match in self.recomputes)

    @property
    def layer_prefetch(self) -> int | None:
        """Prefetch distance of the full layer; None if the layer is not offloaded as a unit."""
        return next((entry_match.entry.prefetch for entry_match in self.offloads if not entry_match.path), None)

    @property
    def op_swaps(self) -> tuple[EntryMatch, ...]:
        """Cells and primitives to offload; a match inside another one comes later and overrides it."""
        return tuple(entry_match for entry_match in self.offloads if entry_match.path)

    def decision_for(self, *paths: Path) -> Decision:
        """Return the decision for an operator.

        Args:
            paths: path of the operator, which may be a cell and a type if the model has no attribute for it; several
                paths if the compiler merged operators, or a graph cannot distinguish them.
        """
        recomputes = _covering(self.recomputes, paths)
        excludes = _covering(self.excludes, paths)
        offloads = _covering(self.offloads, paths)
        return Decision(
            recomputed_by=() if excludes else recomputes,
            offloaded_by=offloads[-1] if offloads else None,
            excluded_by=excludes,
            comm_recomputed_by=_covering(self.comm_recomputes, paths),
        )

    def overridden_on(self, *paths: Path) -> tuple[EntryMatch, ...]:
        """Return the matches of an operator whose entries do not determine its treatment."""
        decision = self.decision_for(*paths)
        deciding = {*decision.decided_by, *decision.comm_recomputed_by}
        inactive = [entry for setting in Setting for entry in self.inactive if entry.setting is setting]
        inactive_matches = (entry_match for entry in inactive for entry_match in _find_entry_matches(entry, self.layer))
        entry_matches = (*inactive_matches, *self.overridden, *self.offloads, *self.recomputes)
        return tuple(entry_match for entry_match in _covering(entry_matches, paths) if entry_match not in deciding)

    def overrides(self, *paths: Path) -> tuple[Override, ...]:
        """Return the overridden entries of an operator, each with the entry that overrides it.

        An overridden recompute entry is left out if another entry recomputes the operator anyway, and entries for
        communication are left out because they do not compete with the others.

        Args:
            paths: as in `decision_for`.
        """
        decision = self.decision_for(*paths)
        over_swap = decision.recomputed_by or decision.decided_by[-1:]
        winners = {Setting.LAYER_SWAP: over_swap, Setting.OP_SWAP: over_swap}
        if not decision.recomputed_by:
            winners |= dict.fromkeys((Setting.RECOMPUTE, Setting.SELECT_RECOMPUTE), decision.excluded_by)
        losers = (match.entry for match in self.overridden_on(*paths))
        return tuple(Override(winners[loser.setting][0].entry, loser) for loser in losers if winners.get(loser.setting))

    def operators(self) -> Mapping[Path, Decision]:
        """Return the decision for each operator: primitives, and cells without children."""
        return {path: self.decision_for(path) for path, node in self.layer.walk() if not node.children}

    def primitives(self) -> Mapping[Path, Decision]:
        """Return the decision for each primitive of the layer."""
        return {path: self.decision_for(path) for path, node in self.layer.walk() if node.is_primitive}


def resolve_layer(policy: Policy, layer_index: int, layer: CellNode) -> LayerDecisions:
    """Resolve a policy for one layer.

    Args:
        policy: the policy; with swap disabled, all operators are kept.
        layer_index: index of the layer in the model.
        layer: cells and primitives of the layer.

    Raises:
        PatternError: a pattern is not a valid regular expression.
    """
    acting = acting_entries(policy, layer_index)
    entry_matches: dict[Setting, list[EntryMatch]] = {setting: [] for setting in Setting}
    for entry in acting:
        entry_matches[entry.setting] += _find_entry_matches(entry, layer)
    excludes = tuple(entry_matches[Setting.SELECT_RECOMPUTE_EXCLUDE])
    comm_excludes = tuple(entry_matches[Setting.SELECT_COMM_RECOMPUTE_EXCLUDE])
    selected, excluded = _split_excluded(entry_matches[Setting.SELECT_RECOMPUTE], excludes)
    communicated, comm_excluded = _split_excluded(entry_matches[Setting.SELECT_COMM_RECOMPUTE], comm_excludes)
    swaps, overridden = _split_overridden(entry_matches[Setting.OP_SWAP])
    return LayerDecisions(
        layer_index=layer_index,
        layer=layer,
        recomputes=(*entry_matches[Setting.RECOMPUTE], *selected),
        is_output_recomputed=bool(entry_matches[Setting.OUTPUT_RECOMPUTE]),
        comm_recomputes=communicated,
        excludes=excludes,
        comm_excludes=comm_excludes,
        offloads=(*entry_matches[Setting.LAYER_SWAP], *swaps),
        overridden=(*overridden, *excluded, *comm_excluded),
        inactive=tuple(entry for entry in _entries(policy, layer_index) if entry not in acting),
    )


def acting_entries(policy: Policy, layer_index: int) -> tuple[Entry, ...]:
    """Return the entries that apply to a layer, whether or not their patterns match; none with swap disabled."""
    entries = tuple(_entries(policy, layer_index))
    is_full = any(entry.setting is Setting.RECOMPUTE for entry in entries)
    acting: dict[tuple[Setting, str], Entry] = {}
    for entry in entries:
        if entry.setting in (Setting.SELECT_RECOMPUTE, Setting.SELECT_COMM_RECOMPUTE) and is_full:
            continue
        if entry.setting is Setting.OUTPUT_RECOMPUTE and not is_full:
            continue
        # Of several entries with the same option and pattern, the first applies.
        acting.setdefault((entry.setting, entry.pattern), entry)
    return tuple(acting.values())


def with_recompute_only(policy: Policy) -> Policy:
    """Return the policy that is in effect with swap disabled: recompute by MindFormers, no offload."""
    if policy.is_swap_enabled:
        return policy
    return replace(policy, is_swap_enabled=True, default_prefetch=None, layer_swap=(), op_swap=())


def has_swaps(policy: Policy) -> bool:
    """Return whether a policy has swap entries with layers."""
    return any(entry.layers for entry in policy.layer_swap) or any(entry.layers for entry in policy.op_swap)


def layer_key(policy: Policy, layer_index: int) -> tuple[tuple[Hashable, ...], ...]:
    """Return a key of the entries that list a layer; layers with equal keys have equal decisions.

    Plain tuples instead of `Entry`, because the planner calls this for every layer of thousands of policies.
    """
    selects = (getattr(policy, option) for option in SELECT_OPTIONS)
    selected = tuple(tuple(entry.pattern for entry in entries if layer_index in entry.layers) for entries in selects)
    recompute = (layer_index in policy.layer_recompute, layer_index in policy.output_recompute, *selected)
    layer_swaps = tuple(entry.prefetch for entry in policy.layer_swap if layer_index in entry.layers)
    op_swaps = tuple((entry.pattern, entry.prefetch) for entry in policy.op_swap if layer_index in entry.layers)
    return recompute, layer_swaps, op_swaps


def unique_matches(entry_matches: Iterable[EntryMatch]) -> tuple[Match, ...]:
    """Return the matched cells and primitives without duplicates and without the layer itself."""
    return tuple({entry_match.path: entry_match.match for entry_match in entry_matches if entry_match.path}.values())


def _entries(policy: Policy, layer_index: int) -> Iterator[Entry]:
    """Yield the entries that list a layer, in the order of the log lines."""
    if not policy.is_swap_enabled:
        return
    if layer_index in policy.layer_recompute:
        yield Entry(Setting.RECOMPUTE)
    if layer_index in policy.output_recompute:
        yield Entry(Setting.OUTPUT_RECOMPUTE)
    for option in SELECT_OPTIONS:
        ops: tuple[OpRecompute, ...] = getattr(policy, option)
        yield from (Entry(Setting(option), op.pattern) for op in ops if layer_index in op.layers)
    yield from (Entry(Setting.LAYER_SWAP, "", e.prefetch) for e in policy.layer_swap if layer_index in e.layers)
    yield from (Entry(Setting.OP_SWAP, e.pattern, e.prefetch) for e in policy.op_swap if layer_index in e.layers)


def _find_entry_matches(entry: Entry, layer: CellNode) -> Iterator[EntryMatch]:
    matches = (Match((), layer),) if entry.setting in FULL_LAYER_SETTINGS else match_pattern(entry.pattern, layer)
    for match in matches:
        if match.node.is_primitive or entry.setting not in PRIMITIVE_SETTINGS:
            yield EntryMatch(entry, match)


def _split_excluded(
    entry_matches: Sequence[EntryMatch], excludes: Sequence[EntryMatch]
) -> tuple[tuple[EntryMatch, ...], tuple[EntryMatch, ...]]:
    """Split matches into those outside and those inside of excluded cells."""
    remaining: list[EntryMatch] = []
    excluded: list[EntryMatch] = []
    for entry_match in entry_matches:
        (excluded if _covering(excludes, (entry_match.path,)) else remaining).append(entry_match)
    return tuple(remaining), tuple(excluded)


def _split_overridden(entry_matches: Sequence[EntryMatch]) -> tuple[tuple[EntryMatch, ...], tuple[EntryMatch, ...]]:
    """Split matches into those that no later match covers, in order, and the others."""
    remaining: dict[Path, EntryMatch] = {}
    overridden: list[EntryMatch] = []
    for entry_match in entry_matches:
        overridden += [
            remaining.pop(path) for path in list(remaining) if path[: len(entry_match.path)] == entry_match.path
        ]
        remaining[entry_match.path] = entry_match
    return tuple(remaining.values()), tuple(overridden)


def _covering(entry_matches: Sequence[EntryMatch], paths: Sequence[Path]) -> tuple[EntryMatch, ...]:
    """Return the matches of an operator or of a cell around it, for any of its paths."""
    if not entry_matches:  # the common case; the planner calls this for every operator of thousands of policies
        return ()
    prefixes = {path[:depth] for path in paths for depth in range(len(path) + 1)}
    return tuple([entry_match for entry_match in entry_matches if entry_match.match.path in prefixes])
