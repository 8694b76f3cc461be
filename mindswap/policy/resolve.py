r"""Decision of a policy for each operator of a layer, and by which entry.

This is the one place where entries are weighed against each other. Applying, log lines, simulating, verifying,
planning and explaining read its decisions.

Order of the entries, from the specification ("Fine-Grained Activations SWAP" of MindFormers):

- An operator that is recomputed is not offloaded.
- Recompute of a whole layer overrides select recompute in it; the exclude options override both.
- `op_swap` overrides `layer_swap`. Of two patterns that name an operator the later one decides; a pattern that stands
  twice acts with its first entry that has the layer. Of `layer_swap` the first entry that has the layer acts.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from mindswap.policy.cell_tree import CellNode, Match, match_pattern
from mindswap.policy.formats.mindformers1.schema import SELECT_OPTIONS
from mindswap.policy.model import OpRecompute, Policy

# Attribute names from the layer down; () is the layer itself.
Path = tuple[str, ...]


class Setting(Enum):
    """Kind of place in a configuration where an entry stands."""

    LAYER_SWAP = "layer_swap"
    OP_SWAP = "op_swap"
    RECOMPUTE = "recompute"
    OUTPUT_RECOMPUTE = "output_recompute"
    SELECT_RECOMPUTE = "select_recompute"
    SELECT_COMM_RECOMPUTE = "select_comm_recompute"
    SELECT_RECOMPUTE_EXCLUDE = "select_recompute_exclude"
    SELECT_COMM_RECOMPUTE_EXCLUDE = "select_comm_recompute_exclude"


# Entries of these name no part of a layer.
WHOLE_LAYER_SETTINGS = (Setting.LAYER_SWAP, Setting.RECOMPUTE, Setting.OUTPUT_RECOMPUTE)
# Entries of these name primitives: a cell has no communication of its own.
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
    pattern: str = ""  # what it names; "" for the whole layer
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

    recomputed_by: tuple[EntryMatch, ...] = ()  # entries that have it run again in backward
    # of the entries that offload it the one that counts; without effect where it is recomputed
    offloaded_by: EntryMatch | None = None
    excluded_by: tuple[EntryMatch, ...] = ()  # entries that keep it from being recomputed
    comm_recomputed_by: tuple[EntryMatch, ...] = ()  # entries that have its communication repeated

    @property
    def treatment(self) -> Treatment:
        """Treatment of its output."""
        if self.recomputed_by:
            return Treatment.RECOMPUTE
        return Treatment.KEEP if self.offloaded_by is None else Treatment.OFFLOAD

    @property
    def requested_prefetch(self) -> int | None:
        """Prefetch distance that entries ask for, also where it is recomputed; None if none does."""
        return None if self.offloaded_by is None else self.offloaded_by.entry.prefetch

    @property
    def prefetch(self) -> int | None:
        """Prefetch distance in operators, if it is offloaded."""
        return None if self.recomputed_by else self.requested_prefetch

    @property
    def decided_by(self) -> tuple[EntryMatch, ...]:
        """The entries that it follows from."""
        if self.recomputed_by:
            return self.recomputed_by
        return (*self.excluded_by, *((self.offloaded_by,) if self.offloaded_by else ()))


@dataclass(frozen=True)
class LayerDecisions:
    """Decisions of a policy for a layer."""

    layer_index: int
    layer: CellNode
    # what runs again: the layer, or cells and primitives of it; nothing that is excluded as a whole
    recomputes: tuple[EntryMatch, ...] = ()
    is_output_recomputed: bool = False  # with the whole layer its output, too
    comm_recomputes: tuple[EntryMatch, ...] = ()  # primitives whose communication is repeated
    excludes: tuple[EntryMatch, ...] = ()  # what must not be recomputed
    comm_excludes: tuple[EntryMatch, ...] = ()  # what must not communicate again
    offloads: tuple[EntryMatch, ...] = ()  # weakest first: of those that cover an operator the last one counts
    overridden: tuple[EntryMatch, ...] = ()  # claims that others of their kind take everything from
    inactive: tuple[Entry, ...] = ()  # entries that have the layer and do not act in it

    @property
    def is_fully_recomputed(self) -> bool:
        """Return whether an entry recomputes the layer itself."""
        return any(not entry_match.path for entry_match in self.recomputes)

    @property
    def layer_prefetch(self) -> int | None:
        """Prefetch distance of the layer as a whole; None where it is not offloaded whole."""
        return next((entry_match.entry.prefetch for entry_match in self.offloads if not entry_match.path), None)

    @property
    def op_swaps(self) -> tuple[EntryMatch, ...]:
        """Cells and primitives to offload; one inside another comes later and overrides it."""
        return tuple(entry_match for entry_match in self.offloads if entry_match.path)

    def decision_for(self, *paths: Path) -> Decision:
        """The decision for an operator.

        Args:
            paths: of the operator, also of one that the model has no attribute for (a cell and a type); several if the
                compiler made one operator of those, or a graph cannot tell them apart.
        """
        recomputes = _covering(self.recomputes, paths)
        excludes = _covering(self.excludes, paths)
        offloads = _covering(self.offloads, paths)
        return Decision(
            () if excludes else recomputes,
            offloads[-1] if offloads else None,
            excludes,
            _covering(self.comm_recomputes, paths),
        )

    def overridden_on(self, *paths: Path) -> tuple[EntryMatch, ...]:
        """The entries that name an operator and do not decide what happens to it."""
        decision = self.decision_for(*paths)
        deciding = {*decision.decided_by, *decision.comm_recomputed_by}
        inactive = [entry for setting in Setting for entry in self.inactive if entry.setting is setting]
        claimed = (entry_match for entry in inactive for entry_match in _find_entry_matches(entry, self.layer))
        entry_matches = (*claimed, *self.overridden, *self.offloads, *self.recomputes)
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
        """The decision for each operator: primitives, and cells that hold nothing."""
        return {path: self.decision_for(path) for path, node in self.layer.walk() if not node.children}

    def primitives(self) -> Mapping[Path, Decision]:
        """Return the decision for each primitive of the layer."""
        return {path: self.decision_for(path) for path, node in self.layer.walk() if node.is_primitive}


def resolve_layer(policy: Policy, layer_index: int, layer: CellNode) -> LayerDecisions:
    """The decisions of a policy for one layer of the model; a disabled policy decides nothing.

    Raises:
        PatternError: if a pattern is not a regular expression.
    """
    acting = acting_entries(policy, layer_index)
    entry_matches: dict[Setting, list[EntryMatch]] = {setting: [] for setting in Setting}
    for entry in acting:
        entry_matches[entry.setting] += _find_entry_matches(entry, layer)
    excludes = tuple(entry_matches[Setting.SELECT_RECOMPUTE_EXCLUDE])
    comm_excludes = tuple(entry_matches[Setting.SELECT_COMM_RECOMPUTE_EXCLUDE])
    selected, gone = _split_excluded(entry_matches[Setting.SELECT_RECOMPUTE], excludes)
    communicated, comm_gone = _split_excluded(entry_matches[Setting.SELECT_COMM_RECOMPUTE], comm_excludes)
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
        overridden=(*overridden, *gone, *comm_gone),
        inactive=tuple(entry for entry in _entries(policy, layer_index) if entry not in acting),
    )


def acting_entries(policy: Policy, layer_index: int) -> tuple[Entry, ...]:
    """The entries that act in a layer of the model, whatever they name there; none of a disabled policy."""
    entries = tuple(_entries(policy, layer_index))
    is_full = any(entry.setting is Setting.RECOMPUTE for entry in entries)
    acting: dict[tuple[Setting, str], Entry] = {}
    for entry in entries:
        if entry.setting in (Setting.SELECT_RECOMPUTE, Setting.SELECT_COMM_RECOMPUTE) and is_full:
            continue
        if entry.setting is Setting.OUTPUT_RECOMPUTE and not is_full:
            continue
        # Of two entries for the whole layer, or with one pattern, the first acts.
        acting.setdefault((entry.setting, entry.pattern), entry)
    return tuple(acting.values())


def with_recompute_only(policy: Policy) -> Policy:
    """With swap disabled, what acts in a training: nothing moves, MindFormers itself recomputes."""
    if policy.is_swap_enabled:
        return policy
    return replace(policy, is_swap_enabled=True, default_prefetch=None, layer_swap=(), op_swap=())


def has_swaps(policy: Policy) -> bool:
    """A policy with swap enabled swaps, as far as its names have something that backward needs."""
    return any(entry.layers for entry in policy.layer_swap) or any(entry.layers for entry in policy.op_swap)


def layer_key(policy: Policy, layer_index: int) -> tuple[tuple[Hashable, ...], ...]:
    """The entries that have a layer of a policy with swap enabled: layers with one key are decided alike.

    Plain tuples, not `Entry`: a planner asks for every layer of thousands of policies.
    """
    selects = (getattr(policy, option) for option in SELECT_OPTIONS)
    selected = tuple(tuple(entry.pattern for entry in entries if layer_index in entry.layers) for entries in selects)
    recompute = (layer_index in policy.layer_recompute, layer_index in policy.output_recompute, *selected)
    layer_swaps = tuple(entry.prefetch for entry in policy.layer_swap if layer_index in entry.layers)
    op_swaps = tuple((entry.pattern, entry.prefetch) for entry in policy.op_swap if layer_index in entry.layers)
    return recompute, layer_swaps, op_swaps


def unique_matches(entry_matches: Iterable[EntryMatch]) -> tuple[Match, ...]:
    """Parts below the layer that claims name, each once."""
    return tuple({entry_match.path: entry_match.match for entry_match in entry_matches if entry_match.path}.values())


def _entries(policy: Policy, layer_index: int) -> Iterator[Entry]:
    """The entries that have a layer, in the order of the log lines."""
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
    matches = (Match((), layer),) if entry.setting in WHOLE_LAYER_SETTINGS else match_pattern(entry.pattern, layer)
    for match in matches:
        if match.node.is_primitive or entry.setting not in PRIMITIVE_SETTINGS:
            yield EntryMatch(entry, match)


def _split_excluded(
    entry_matches: Sequence[EntryMatch], excludes: Sequence[EntryMatch]
) -> tuple[tuple[EntryMatch, ...], tuple[EntryMatch, ...]]:
    """The claims that are neither excluded nor inside an excluded cell; the others."""
    left: list[EntryMatch] = []
    gone: list[EntryMatch] = []
    for entry_match in entry_matches:
        (gone if _covering(excludes, (entry_match.path,)) else left).append(entry_match)
    return tuple(left), tuple(gone)


def _split_overridden(entry_matches: Sequence[EntryMatch]) -> tuple[tuple[EntryMatch, ...], tuple[EntryMatch, ...]]:
    """The claims on which no later one lies, in order; the others."""
    left: dict[Path, EntryMatch] = {}
    overridden: list[EntryMatch] = []
    for entry_match in entry_matches:
        overridden += [left.pop(path) for path in list(left) if path[: len(entry_match.path)] == entry_match.path]
        left[entry_match.path] = entry_match
    return tuple(left.values()), tuple(overridden)


def _covering(entry_matches: Sequence[EntryMatch], paths: Sequence[Path]) -> tuple[EntryMatch, ...]:
    """The claims on an operator, or on a cell that it is in, under any of its paths."""
    if not entry_matches:  # most often; a planner asks for every operator of thousands of policies
        return ()
    around = {path[:depth] for path in paths for depth in range(len(path) + 1)}
    return tuple([entry_match for entry_match in entry_matches if entry_match.match.path in around])
