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
WHOLE = (Setting.LAYER_SWAP, Setting.RECOMPUTE, Setting.OUTPUT_RECOMPUTE)
# Entries of these name primitives: a cell has no communication of its own.
OF_PRIMITIVES = (Setting.SELECT_COMM_RECOMPUTE, Setting.SELECT_COMM_RECOMPUTE_EXCLUDE)


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
class Claim:
    """A cell or primitive of a layer that an entry names; the layer itself has the path ()."""

    entry: Entry
    match: Match

    @property
    def path(self) -> Path:
        return self.match.path


@dataclass(frozen=True)
class Decision:
    """Decision for one operator."""

    recomputed_by: tuple[Claim, ...] = ()  # entries that have it run again in backward
    # of the entries that offload it the one that counts; without effect where it is recomputed
    offloaded_by: Claim | None = None
    excluded_by: tuple[Claim, ...] = ()  # entries that keep it from being recomputed
    communicated_again_by: tuple[Claim, ...] = ()  # entries that have its communication repeated

    @property
    def treatment(self) -> Treatment:
        """Treatment of its output."""
        if self.recomputed_by:
            return Treatment.RECOMPUTE
        return Treatment.KEEP if self.offloaded_by is None else Treatment.OFFLOAD

    @property
    def named_prefetch(self) -> int | None:
        """Prefetch distance that entries ask for, also where it is recomputed; None if none does."""
        return None if self.offloaded_by is None else self.offloaded_by.entry.prefetch

    @property
    def prefetch(self) -> int | None:
        """Prefetch distance in operators, if it is offloaded."""
        return None if self.recomputed_by else self.named_prefetch

    @property
    def decided_by(self) -> tuple[Claim, ...]:
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
    recomputes: tuple[Claim, ...] = ()
    is_output_recomputed: bool = False  # with the whole layer its output, too
    comm_recomputes: tuple[Claim, ...] = ()  # primitives whose communication is repeated
    excludes: tuple[Claim, ...] = ()  # what must not be recomputed
    comm_excludes: tuple[Claim, ...] = ()  # what must not communicate again
    offloads: tuple[Claim, ...] = ()  # weakest first: of those that cover an operator the last one counts
    overridden: tuple[Claim, ...] = ()  # claims that others of their kind take everything from
    silent: tuple[Entry, ...] = ()  # entries that have the layer and do not act in it

    @property
    def is_fully_recomputed(self) -> bool:
        return any(not claim.path for claim in self.recomputes)

    @property
    def layer_prefetch(self) -> int | None:
        """Prefetch distance of the layer as a whole; None where it is not offloaded whole."""
        return next((claim.entry.prefetch for claim in self.offloads if not claim.path), None)

    @property
    def op_swaps(self) -> tuple[Claim, ...]:
        """Cells and primitives to offload; one inside another comes later and overrides it."""
        return tuple(claim for claim in self.offloads if claim.path)

    def of(self, *paths: Path) -> Decision:
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

    def lost_on(self, *paths: Path) -> tuple[Claim, ...]:
        """The entries that name an operator and do not decide what happens to it."""
        decision = self.of(*paths)
        deciding = {*decision.decided_by, *decision.communicated_again_by}
        silent = [entry for setting in Setting for entry in self.silent if entry.setting is setting]
        claimed = (claim for entry in silent for claim in _claims(entry, self.layer))
        claims = (*claimed, *self.overridden, *self.offloads, *self.recomputes)
        return tuple(claim for claim in _covering(claims, paths) if claim not in deciding)

    def operators(self) -> Mapping[Path, Decision]:
        """The decision for each operator: primitives, and cells that hold nothing."""
        return {path: self.of(path) for path, node in self.layer.walk() if not node.children}

    def primitives(self) -> Mapping[Path, Decision]:
        return {path: self.of(path) for path, node in self.layer.walk() if node.is_primitive}


def resolve_layer(policy: Policy, layer_index: int, layer: CellNode) -> LayerDecisions:
    """The decisions of a policy for one layer of the model; a disabled policy decides nothing.

    Raises:
        PatternError: if a pattern is not a regular expression.
    """
    acting = acting_entries(policy, layer_index)
    claims: dict[Setting, list[Claim]] = {setting: [] for setting in Setting}
    for entry in acting:
        claims[entry.setting] += _claims(entry, layer)
    excludes = tuple(claims[Setting.SELECT_RECOMPUTE_EXCLUDE])
    comm_excludes = tuple(claims[Setting.SELECT_COMM_RECOMPUTE_EXCLUDE])
    selected, gone = _without(claims[Setting.SELECT_RECOMPUTE], excludes)
    communicated, comm_gone = _without(claims[Setting.SELECT_COMM_RECOMPUTE], comm_excludes)
    swaps, overridden = _override(claims[Setting.OP_SWAP])
    return LayerDecisions(
        layer_index=layer_index,
        layer=layer,
        recomputes=(*claims[Setting.RECOMPUTE], *selected),
        is_output_recomputed=bool(claims[Setting.OUTPUT_RECOMPUTE]),
        comm_recomputes=communicated,
        excludes=excludes,
        comm_excludes=comm_excludes,
        offloads=(*claims[Setting.LAYER_SWAP], *swaps),
        overridden=(*overridden, *gone, *comm_gone),
        silent=tuple(entry for entry in _entries(policy, layer_index) if entry not in acting),
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


def moves_any(policy: Policy) -> bool:
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


def matches_of(claims: Iterable[Claim]) -> tuple[Match, ...]:
    """Parts below the layer that claims name, each once."""
    return tuple({claim.path: claim.match for claim in claims if claim.path}.values())


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


def _claims(entry: Entry, layer: CellNode) -> Iterator[Claim]:
    matches = (Match((), layer),) if entry.setting in WHOLE else match_pattern(entry.pattern, layer)
    for match in matches:
        if match.node.is_primitive or entry.setting not in OF_PRIMITIVES:
            yield Claim(entry, match)


def _without(claims: Sequence[Claim], excludes: Sequence[Claim]) -> tuple[tuple[Claim, ...], tuple[Claim, ...]]:
    """The claims that are neither excluded nor inside an excluded cell; the others."""
    left: list[Claim] = []
    gone: list[Claim] = []
    for claim in claims:
        (gone if _covering(excludes, (claim.path,)) else left).append(claim)
    return tuple(left), tuple(gone)


def _override(claims: Sequence[Claim]) -> tuple[tuple[Claim, ...], tuple[Claim, ...]]:
    """The claims on which no later one lies, in order; the others."""
    left: dict[Path, Claim] = {}
    overridden: list[Claim] = []
    for claim in claims:
        overridden += [left.pop(path) for path in list(left) if path[: len(claim.path)] == claim.path]
        left[claim.path] = claim
    return tuple(left.values()), tuple(overridden)


def _covering(claims: Sequence[Claim], paths: Sequence[Path]) -> tuple[Claim, ...]:
    """The claims on an operator, or on a cell that it is in, under any of its paths."""
    if not claims:  # most often; a planner asks for every operator of thousands of policies
        return ()
    around = {path[:depth] for path in paths for depth in range(len(path) + 1)}
    return tuple([claim for claim in claims if claim.match.path in around])
