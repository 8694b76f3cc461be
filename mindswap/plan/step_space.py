"""A captured model as something to choose from: items of its layers, blocks for a choice, and the way to a Policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mindswap.graph.names import Label, Names
from mindswap.plan.candidates import Item, find_items
from mindswap.plan.coupling import ALL_OPERATORS, Uses, find_merged_uses, find_uses, idle_swaps
from mindswap.plan.problem import DEFAULT_ALLOW, Allow
from mindswap.plan.space import KEEP, Figures, Score, Space, Worth
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.match import exact_pattern
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy
from mindswap.simulate.block import Block
from mindswap.simulate.build import StageLayout, build_program
from mindswap.simulate.engine import simulate
from mindswap.simulate.host import peak_host_bytes
from mindswap.simulate.memory import peak_memory
from mindswap.simulate.program import NO_OP
from mindswap.simulate.schedules import most_in_flight
from mindswap.simulate.step_model import HELD, StepModel
from mindswap.simulate.timeline import Timeline

__all__ = ["WHOLE_LAYER", "Catalog", "Rows", "StepSpace", "WholeSpace", "collect_items", "to_policy"]

# The first item of every layer: all of it, which `recompute` names.
WHOLE_LAYER = Item(Names(), (), (), (), ((),))
# What a layer does not have.
NO_ITEM = Item(Names(), (), (), (), ())
# What is smaller than this part of a layer is not worth a decision.
SMALL_PERMILLE = 2


@dataclass(frozen=True, eq=False)
class Catalog:
    """Items of a model, and what each is worth. First axis is by compiled layer.

    Attributes:
        kinds: compiled layer that stands for each layer of the model.
        items: shape (num_compiled, num_items): `WHOLE_LAYER` first, then those of all layers by label.
        freed_bytes, recompute_ns, copy_ns, conflicts: as `Figures` has them; not writeable.
        uses: for each compiled layer, which operators use whose output; after `coupled` only the `merged` ones.
        merged: of these, the uses that leave a copy for nothing on every version.
    """

    kinds: tuple[int, ...]
    items: tuple[tuple[Item, ...], ...]
    freed_bytes: np.ndarray
    recompute_ns: np.ndarray
    copy_ns: np.ndarray
    conflicts: np.ndarray
    uses: tuple[Uses, ...]
    merged: tuple[Uses, ...]

    def coupled(self) -> "Catalog":
        """The same if swaps of what recomputed operators use are allowed."""
        left = np.stack(
            [_find_conflicts(*of_layer) for of_layer in zip(self.merged, self.items, self.freed_bytes, strict=True)]
        )
        left.flags.writeable = False
        return replace(self, conflicts=left, uses=self.merged)

    def item(self, layer_index: int, position: int) -> Item:
        """An item of a layer of the model."""
        return self.items[self.kinds[layer_index]][position]


def collect_items(model: StepModel, allow: Allow = DEFAULT_ALLOW, known: Sequence[CellNode] | None = None) -> Catalog:
    """The items of every compiled layer.

    Args:
        model: the step.
        allow: what may be chosen.
        known: trees of all layers in which names must be, where they are not those that were captured: the network
            of a CPU has stand-ins with operators of their own.
    """
    captured = model.captured
    by_layer = []
    for position in range(len(captured.trees)):
        every = find_items(captured.graph, model.names, position)
        if known is not None:
            layer = known[captured.sample.layer_map.index(position)]
            every = tuple(_with_known_names(item, layer) for item in every)
        least_bytes = sum(item.size_bytes for item in every) * SMALL_PERMILLE // 1000
        by_layer.append({item.label: item for item in every if item.size_bytes >= least_bytes})
    labels = list(dict.fromkeys(label for found in by_layer for label in found))
    items = tuple((WHOLE_LAYER, *(found.get(label, NO_ITEM) for label in labels)) for found in by_layer)
    num_ways = max(len(item.recompute_names) for row in items for item in row)
    shape = (len(items), len(labels) + 1)
    kinds, uses = captured.sample.layer_map, find_uses(model)
    freed_bytes = np.zeros((*shape, 1 + num_ways), np.int64)
    recompute_ns = np.zeros_like(freed_bytes)
    copy_ns = np.zeros(shape, np.int64)
    conflicts = np.zeros((*shape, 1 + num_ways, shape[1]), bool)
    for position, row in enumerate(items):
        layer_index = kinds.index(position)
        if allow.recompute:
            freed_bytes[position, :, 1:], recompute_ns[position, :, 1:] = _recompute_figures(
                model, layer_index, row, num_ways
            )
        if allow.swap:
            freed_bytes[position, :, 0], copy_ns[position] = _swap_figures(model, layer_index, row)
        conflicts[position] = _find_conflicts(uses[position], row, freed_bytes[position])
    for array in (freed_bytes, recompute_ns, copy_ns, conflicts):
        array.flags.writeable = False
    return Catalog(kinds, items, freed_bytes, recompute_ns, copy_ns, conflicts, uses, find_merged_uses(model))


def _with_known_names(item: Item, layer: CellNode) -> Item:
    """The item without the decisions that name what a layer does not have."""
    paths = {".".join(path) for path, _ in layer.walk()}
    ways = tuple(way for way in item.recompute_names if paths.issuperset(way))
    return replace(item, swap_names=item.swap_names * paths.issuperset(item.swap_names), recompute_names=ways)


def _recompute_figures(
    model: StepModel, layer_index: int, row: Sequence[Item], num_ways: int
) -> tuple[np.ndarray, np.ndarray]:
    """What each way of recompute of a layer frees, and the time that it takes: int64, shape (num_items, num_ways)."""
    freed_bytes, recompute_ns = np.zeros((2, len(row), num_ways), np.int64)
    plain = model.layer_block(Policy(), layer_index)
    for i, item in enumerate(row):
        if item is WHOLE_LAYER and model.layers.reads_caches:
            continue
        for way in range(len(item.recompute_names)):
            again = model.layer_block(_recompute_policy([(item, 1 + way)]), layer_index)
            freed = _kept_bytes(model, plain) - _kept_bytes(model, again)
            if freed > 0:
                freed_bytes[i, way] = freed
                recompute_ns[i, way] = max(0, _backward_ns(again) - _backward_ns(plain))
    return freed_bytes, recompute_ns


def _swap_figures(model: StepModel, layer_index: int, row: Sequence[Item]) -> tuple[np.ndarray, np.ndarray]:
    """What each swap of a layer frees, and the time of its slower copy: int64, shape (num_items,)."""
    freed_bytes, copy_ns = np.zeros((2, len(row)), np.int64)
    held = {label for label, names in model.keepers(Policy(), layer_index).items() if HELD in names}
    for i, item in enumerate(row):
        if item.swap_names and held.isdisjoint(item.producers):
            freed_bytes[i] = item.size_bytes
            out_ns = sum(map(model.transfers.copy_out_ns, item.sizes_bytes))
            in_ns = sum(map(model.transfers.copy_in_ns, item.sizes_bytes))
            copy_ns[i] = max(out_ns, in_ns)
    return freed_bytes, copy_ns


def _find_conflicts(uses: Uses, row: Sequence[Item], freed_bytes: np.ndarray) -> np.ndarray:
    """Which swaps take no effect beside which recompute, in one compiled layer.

    Args:
        uses: which operators of the layer use whose output.
        row: its items.
        freed_bytes: by each decision, shape (num_items, 1 + num_ways).

    Returns:
        bool, shape (num_items, 1 + num_ways, num_items): item and way of recompute, item that is swapped.
    """
    conflicts = np.zeros((*freed_bytes.shape, len(row)), bool)
    for i, way in np.argwhere(freed_bytes[:, 1:] > 0).tolist():
        recomputed = _recomputed_names(row[i], 1 + way)
        for j in np.flatnonzero(freed_bytes[:, 0] > 0).tolist():
            idle = idle_swaps(uses, row[j].swap_names, recomputed)
            conflicts[i, 1 + way, j] = i != j and bool(idle)
    return conflicts


def _recomputed_names(item: Item, way: int) -> tuple[str, ...]:
    return (ALL_OPERATORS,) if item is WHOLE_LAYER else item.recompute_names[way - 1]


def _kept_bytes(model: StepModel, block: Block) -> int:
    """What is there from forward to backward. What all micro-batches read is there in any case if there are more."""
    of_block = (block.arrays.own, block.arrays.shared) if model.layout.num_turns == 1 else (block.arrays.own,)
    return sum(int(t.size_bytes[t.is_forward & (t.first_backward != NO_OP)].sum()) for t in of_block)


def _backward_ns(block: Block) -> int:
    return int(block.arrays.backward.duration_ns.sum())


def _recompute_policy(ways: Sequence[tuple[Item, int]]) -> Policy:
    """Recompute of items in one layer; the policy names all layers."""
    if any(item is WHOLE_LAYER for item, _ in ways):
        return Policy(True, layer_recompute=ALL_LAYERS)
    names = sorted({name for item, way in ways for name in item.recompute_names[way - 1]})
    return Policy(True, select_recompute=tuple(OpRecompute(exact_pattern(name), ALL_LAYERS) for name in names))


class Rows:
    """What a row of a choice means for its layer: operator names, and the block that comes of it."""

    def __init__(self, model: StepModel, catalog: Catalog):
        self.model = model
        self.catalog = catalog
        self._keepers: dict[tuple[object, ...], Mapping[Label, tuple[tuple[str, ...], ...]]] = {}
        self._blocks: dict[tuple[int, bytes], Block] = {}
        self._worth: dict[tuple[int, bytes], Worth] = {}

    def recompute(self, layer_index: int, row: np.ndarray) -> Policy:
        """What is recomputed."""
        found = np.flatnonzero(row < KEEP).tolist()
        return _recompute_policy([(self.catalog.item(layer_index, i), -int(row[i])) for i in found])

    def recomputed_names(self, layer_index: int, row: np.ndarray) -> tuple[str, ...]:
        """Cells and operators that are recomputed; `ALL_OPERATORS` for the whole layer."""
        found = np.flatnonzero(row < KEEP).tolist()
        named = [_recomputed_names(self.catalog.item(layer_index, i), -int(row[i])) for i in found]
        return tuple(dict.fromkeys(name for names in named for name in names))

    def swaps(self, layer_index: int, row: np.ndarray) -> dict[str, int]:
        """Names to swap that hold something -> distance; without items that recomputed operators use."""
        kind, recomputed = self.catalog.kinds[layer_index], self.recomputed_names(layer_index, row)
        holding = {name for keepers in self.keepers(layer_index, row).values() for names in keepers for name in names}
        named: dict[str, int] = {}
        for i in np.flatnonzero(row > KEEP).tolist():
            names = holding.intersection(self.catalog.item(layer_index, i).swap_names)
            if not idle_swaps(self.catalog.uses[kind], names, recomputed):
                named |= {name: max(named.get(name, 0), int(row[i])) for name in names}
        return named

    def effective(self, layer_index: int, row: np.ndarray) -> np.ndarray:
        """The row without items that it would swap for nothing."""
        kind, recomputed = self.catalog.kinds[layer_index], self.recomputed_names(layer_index, row)
        uses, found = self.catalog.uses[kind], row.copy()
        for i in np.flatnonzero(row > KEEP).tolist():
            if idle_swaps(uses, self._holding(layer_index, row, i), recomputed):
                found[i] = KEEP
        return found

    def _holding(self, layer_index: int, row: np.ndarray, item: int) -> set[str]:
        """Names of an item under which backward holds something."""
        keepers = self.keepers(layer_index, row).values()
        holding = {name for names_of in keepers for names in names_of for name in names}
        return holding.intersection(self.catalog.item(layer_index, item).swap_names)

    def keepers(self, layer_index: int, row: np.ndarray) -> Mapping[Label, tuple[tuple[str, ...], ...]]:
        """By label of a tensor, the names under which it is held beside what the row recomputes."""
        key = (self.catalog.kinds[layer_index], np.minimum(row, KEEP).tobytes())
        if key not in self._keepers:
            self._keepers[key] = self.model.keepers(self.recompute(layer_index, row), layer_index)
        return self._keepers[key]

    def block(self, layer_index: int, row: np.ndarray) -> Block:
        """The layer with what the row recomputes and swaps."""
        key = (self.catalog.kinds[layer_index], row.tobytes())
        if key not in self._blocks:
            self._blocks[key] = self._make_block(layer_index, row)
        return self._blocks[key]

    def worth(self, layer_index: int, row: np.ndarray) -> Worth:
        """What a row comes to, from its block."""
        near = np.minimum(row, 1)
        key = (self.catalog.kinds[layer_index], near.tobytes())
        if key not in self._worth:
            plain = self.block(layer_index, np.zeros_like(row))
            self._worth[key] = _worth(self.model, plain, self.block(layer_index, near))
        return self._worth[key]

    def _make_block(self, layer_index: int, row: np.ndarray) -> Block:
        block = self.model.layer_block(self.recompute(layer_index, row), layer_index)
        if not (row > KEEP).any():
            return block
        named = self.swaps(layer_index, row)
        copies: dict[Label, tuple[int, int, bool]] = {}
        for label, keepers in self.keepers(layer_index, row).items():
            distances = [[named.get(name) for name in names] for names in keepers]
            if not self.model.captured.has_all_tags:
                distances = [[max((d for d in group if d is not None), default=None)] for group in distances]
            # Equal operators under one setting are one, and so is their copy.
            moved = [distance for group in distances for distance in dict.fromkeys(group) if distance is not None]
            if moved:
                copies[label] = (max(moved), len(moved), any(None in group for group in distances))
        return block.with_copies(copies)


def _worth(model: StepModel, plain: Block, block: Block) -> Worth:
    """What a block comes to beside that of the same layer without any policy."""
    own = block.arrays.own
    moved = own.is_forward & (own.first_backward != NO_OP) & (own.num_copies > 0)
    handed = [tensor for tensor in block.arrays.handed if tensor.is_forward and tensor.num_copies]
    sizes = [*own.size_bytes[moved].tolist(), *(tensor.size_bytes for tensor in handed)]
    counts = [*own.num_copies[moved].tolist(), *(tensor.num_copies for tensor in handed)]
    held = [*own.is_held[moved].tolist(), *(tensor.is_held for tensor in handed)]
    away_bytes = sum(size for size, is_held in zip(sizes, held, strict=True) if not is_held)
    copies = (model.transfers.copy_out_ns, model.transfers.copy_in_ns)
    return Worth(
        _kept_bytes(model, plain) - _kept_bytes(model, block) + away_bytes,
        max(0, _backward_ns(block) - _backward_ns(plain)),
        max(sum(n * copy_ns(size) for n, size in zip(counts, sizes, strict=True)) for copy_ns in copies),
        sum(n * size for n, size in zip(counts, sizes, strict=True)),
    )


class _ModelSpace(Space):
    """Layers of a captured model."""

    fixed_operators = 3000  # blocks are made and put together

    def __init__(
        self,
        model: StepModel,
        catalog: Catalog,
        layers: Sequence[int],
        layout: StageLayout,
        stage: int,
        in_flight: int,
        rows: Rows | None,
    ):
        super().__init__(model.transfers, layout, stage)
        self.layers = tuple(layers)
        self.items = {
            name: i for row in catalog.items for i, item in enumerate(row) for label in item.producers for name in label
        }
        kinds = [catalog.kinds[layer] for layer in self.layers]
        self.figures = Figures(
            catalog.freed_bytes[kinds],
            catalog.recompute_ns[kinds],
            catalog.copy_ns[kinds],
            in_flight,
            catalog.conflicts[kinds],
        )
        self._rows = rows or Rows(model, catalog)
        self._plain = model.blocks(Policy())

    def blocks(self, choice: np.ndarray) -> Sequence[Block]:
        """The whole step, with the layers of this space as chosen."""
        blocks = list(self._plain)
        for layer_index, row in zip(self.layers, choice, strict=True):
            blocks[1 + layer_index] = self._rows.block(layer_index, row)
        return blocks

    def worth(self, layer: int, row: np.ndarray) -> Worth:
        """What a row comes to, exactly: items may share what runs again, or a name."""
        return self._rows.worth(self.layers[layer], row)

    def effective(self, choice: np.ndarray) -> np.ndarray:
        """The choice without swaps that take no effect beside what it recomputes."""
        rows = zip(self.layers, choice, strict=True)
        return np.array([self._rows.effective(layer, row) for layer, row in rows]).reshape(choice.shape)


class StepSpace(_ModelSpace):
    """One pipeline stage of a captured model, run alone for as few micro-batches as show its steady state.

    Args:
        model: the step.
        catalog: its items.
        stage: which one.
        budget_bytes: for activations.
        host_budget_bytes: of one card.
        rows: of the same model and catalog, to share what is known of layers.
    """

    def __init__(
        self,
        model: StepModel,
        catalog: Catalog,
        stage: int,
        budget_bytes: int,
        host_budget_bytes: int,
        rows: Rows | None = None,
    ):
        layout = model.layout
        num_micro_batches, num_in_flight = _short_run(layout, stage)
        num_layers = model.captured.num_layers
        sections = sorted(section for chunk in layout.chunks[stage] for section in chunk)
        layers = [section - 1 for section in sections if 1 <= section <= num_layers]
        short = replace(layout, num_micro_batches=num_micro_batches)
        super().__init__(model, catalog, layers, short, stage, num_in_flight, rows)
        self.budget_bytes = budget_bytes
        self.host_budget_bytes = host_budget_bytes


class WholeSpace(_ModelSpace):
    """All pipeline stages of a captured model together: here stages wait for each other, and copies with them.

    Args:
        model: the step, or one with fewer micro-batches.
        catalog: its items.
        budget_bytes: device memory, static memory included.
        host_budget_bytes: of one card.
        rows: as for `StepSpace`.
        layers: those to decide about; None for all.
        others: choice of all layers, from which the others take theirs.
    """

    def __init__(
        self,
        model: StepModel,
        catalog: Catalog,
        budget_bytes: int,
        host_budget_bytes: int,
        rows: Rows | None = None,
        layers: Sequence[int] | None = None,
        others: np.ndarray | None = None,
    ):
        in_flight = max(_short_run(model.layout, stage)[1] for stage in range(model.layout.num_stages))
        layers = range(model.captured.num_layers) if layers is None else layers
        super().__init__(model, catalog, layers, model.layout, 0, in_flight, rows)
        if others is not None:
            self._plain = [self._plain[0], *(self._rows.block(*row) for row in enumerate(others)), self._plain[-1]]
        self.static_bytes = np.array([static.total_bytes for static in model.static])
        self.budget_bytes = budget_bytes
        self.host_budget_bytes = host_budget_bytes

    def timeline(self, choice: np.ndarray) -> Timeline:
        """All stages."""
        return simulate(build_program(self.blocks(choice), self.transfers, self.layout), check=False)

    def score(self, timeline: Timeline) -> Score:
        """What is over the budgets, of all stages together; the peak is that of the fullest."""
        over = int(self.over_bytes(timeline).sum())
        peak_bytes = int((peak_memory(timeline) + self.static_bytes).max())
        return Score(over, timeline.step_time_ns, timeline.step_time_ns, peak_bytes)

    def over_bytes(self, timeline: Timeline) -> np.ndarray:
        """What each stage is over the budgets: int64, shape (num_stages,)."""
        peaks = peak_memory(timeline) + self.static_bytes
        stage_of = timeline.program.copies_stage
        host = np.array([peak_host_bytes(timeline, stage_of == stage) for stage in range(len(peaks))])
        return np.maximum(0, peaks - self.budget_bytes) + np.maximum(0, host - self.host_budget_bytes)


def _short_run(layout: StageLayout, stage: int) -> tuple[int, int]:
    """Micro-batches that show warm-up, steady state and cool-down of a stage, and how many are in flight at most."""
    num_chunks, num_stages = len(layout.chunks[stage]), layout.num_stages
    most = most_in_flight(layout.passes(stage))
    num_whole = -(-most // layout.num_sequences)  # micro-batches
    if num_chunks > 1:  # whole rounds, as the order is made of them
        rounds = -(-(num_whole + num_chunks) // (num_chunks * num_stages))
        return layout.short_of(rounds * num_stages), -(-most // num_chunks)
    return layout.short_of(num_whole + 2), most


def to_policy(model: StepModel, catalog: Catalog, choices: Sequence[tuple[Sequence[int], np.ndarray]]) -> Policy:
    """The policy of the choices of all stages.

    Args:
        model: the step.
        catalog: its items.
        choices: for each stage the layers and the choice.
    """
    rows = Rows(model, catalog)
    whole: list[int] = []
    swaps: dict[tuple[str, int], list[int]] = {}
    again: dict[str, list[int]] = {}
    by_layer = {layer: row for layers, choice in choices for layer, row in zip(layers, choice, strict=True)}
    for layer, row in sorted(by_layer.items()):
        if row[0] < KEEP:
            whole.append(layer)
            continue
        for entry in rows.recompute(layer, row).select_recompute:
            again.setdefault(entry.pattern, []).append(layer)
        for name, distance in rows.swaps(layer, row).items():
            swaps.setdefault((exact_pattern(name), distance), []).append(layer)

    def layers_of(indices: list[int]) -> Layers:
        return ALL_LAYERS if len(indices) == len(by_layer) else Layers(tuple(indices))

    return Policy(
        True,
        op_swap=tuple(OpSwap(pattern, layers_of(where), p) for (pattern, p), where in sorted(swaps.items())),
        layer_recompute=layers_of(whole),
        select_recompute=tuple(OpRecompute(pattern, layers_of(where)) for pattern, where in sorted(again.items())),
    )
