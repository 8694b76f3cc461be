"""A captured model as something to choose from: items of its layers, blocks for a choice, and the way to a Policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import regex

from mindswap.plan.candidates import Item, find_items
from mindswap.plan.space import KEEP, Figures, Space
from mindswap.policy.match import SEPARATOR
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy
from mindswap.simulate.block_arrays import arrays_of, with_copies
from mindswap.simulate.blocks import Block
from mindswap.simulate.build import StageLayout
from mindswap.simulate.program import NO_OP
from mindswap.simulate.schedule import order_turns
from mindswap.simulate.step_model import StepModel

__all__ = ["WHOLE_LAYER", "Catalog", "StepSpace", "collect_items", "to_policy"]

# The first item of every model: the layer as a whole, which `recompute` names.
WHOLE_LAYER = Item("", (), (), (), ((),))
# What is smaller than this part of a layer is not worth a decision.
SMALL_PERMILLE = 2

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Catalog:
    """Items of a model, and what each is worth.

    Attributes:
        items: `WHOLE_LAYER` first, then the items of all layers, in order of production.
        freed_bytes, recompute_ns, copy_ns: as `Figures` has them, first axis by compiled layer.
    """

    items: tuple[Item, ...]
    freed_bytes: np.ndarray
    recompute_ns: np.ndarray
    copy_ns: np.ndarray


def collect_items(model: StepModel, allow_swap: bool = True, allow_recompute: bool = True) -> Catalog:
    """The items of every compiled layer; equal ones once.

    Args:
        model: the step.
        allow_swap, allow_recompute: what may be chosen.
    """
    captured = model.captured
    by_layer = []
    for position in range(len(captured.trees)):
        every = find_items(captured.graph, model.names, position)
        least_bytes = sum(item.size_bytes for item in every) * SMALL_PERMILLE // 1000
        by_layer.append([item for item in every if item.size_bytes >= least_bytes])
    items = (WHOLE_LAYER, *dict.fromkeys(item for found in by_layer for item in found))
    num_ways = max((len(item.recompute_names) for item in items), default=0)
    shape = (len(by_layer), len(items), 1 + num_ways)
    freed_bytes, recompute_ns, copy_ns = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape[:2], int)
    for position, found in enumerate(by_layer):
        layer_index = captured.sample.layer_map.index(position)
        plain = model.layer_block(Policy(), layer_index)
        for i, item in enumerate(items):
            if item not in found and item is not WHOLE_LAYER:
                continue
            if item.swap_names and allow_swap:
                freed_bytes[position, i, 0] = item.size_bytes
                out_ns = sum(map(model.transfers.copy_out_ns, item.sizes_bytes))
                in_ns = sum(map(model.transfers.copy_in_ns, item.sizes_bytes))
                copy_ns[position, i] = max(out_ns, in_ns)
            for way in range(1, 1 + len(item.recompute_names) if allow_recompute else 1):
                again = model.layer_block(_recompute_policy([(item, way)]), layer_index)
                freed = _kept_bytes(plain) - _kept_bytes(again)
                if freed > 0:
                    freed_bytes[position, i, way] = freed
                    recompute_ns[position, i, way] = max(0, _backward_ns(again) - _backward_ns(plain))
    return Catalog(items, freed_bytes, recompute_ns, copy_ns)


def _kept_bytes(block: Block) -> int:
    tensors = arrays_of(block).own
    return int(tensors.size_bytes[tensors.is_forward & (tensors.first_backward != NO_OP)].sum())


def _backward_ns(block: Block) -> int:
    return int(arrays_of(block).backward.duration_ns.sum())


def _recompute_policy(ways: Sequence[tuple[Item, int]]) -> Policy:
    """Recompute of items in one layer; the policy names all layers."""
    if any(item is WHOLE_LAYER for item, _ in ways):
        return Policy(True, layer_recompute=ALL_LAYERS)
    names = sorted({name for item, way in ways for name in item.recompute_names[way - 1]})
    return Policy(True, select_recompute=tuple(OpRecompute(_pattern(name), ALL_LAYERS) for name in names))


def _pattern(path: str) -> str:
    """The pattern that names exactly one operator path."""
    return SEPARATOR.join(regex.escape(part) for part in path.split("."))


class StepSpace(Space):
    """One pipeline stage of a captured model, run alone for as few micro-batches as show its steady state."""

    def __init__(self, model: StepModel, catalog: Catalog, stage: int, budget_bytes: int, host_budget_bytes: int):
        layout = model.layout
        num_micro_batches, num_in_flight = _short_run(layout, stage)
        super().__init__(model.transfers, replace(layout, num_micro_batches=num_micro_batches), stage)
        self.model = model
        self.catalog = catalog
        self.budget_bytes = budget_bytes
        self.host_budget_bytes = host_budget_bytes
        num_layers = model.captured.num_layers
        sections = sorted(section for chunk in layout.chunks[stage] for section in chunk)
        self.layers = tuple(section - 1 for section in sections if 1 <= section <= num_layers)
        self.items = {label: i for i, item in enumerate(catalog.items) for label in item.producers}
        kinds = [model.captured.sample.layer_map[layer] for layer in self.layers]
        self.figures = Figures(
            catalog.freed_bytes[kinds], catalog.recompute_ns[kinds], catalog.copy_ns[kinds], num_in_flight
        )
        self._kinds = kinds
        self._plain = model.blocks(Policy())
        self._known: dict[tuple[int, bytes], Block] = {}

    def blocks(self, choice: np.ndarray) -> Sequence[Block]:
        """The whole step, with the layers of this stage as chosen."""
        blocks = list(self._plain)
        for layer_index, kind, row in zip(self.layers, self._kinds, choice, strict=True):
            key = (kind, row.tobytes())
            if key not in self._known:
                self._known[key] = self._block(layer_index, row)
            blocks[1 + layer_index] = self._known[key]
        return blocks

    def _block(self, layer_index: int, row: np.ndarray) -> Block:
        items = self.catalog.items
        ways = [(items[i], -int(row[i])) for i in np.flatnonzero(row < KEEP)]
        block = self.model.layer_block(_recompute_policy(ways), layer_index)
        prefetch = {label: int(row[i]) for i in np.flatnonzero(row > KEEP) for label in items[i].producers}
        return with_copies(block, prefetch) if prefetch else block


def _short_run(layout: StageLayout, stage: int) -> tuple[int, int]:
    """Micro-batches that show warm-up, steady state and cool-down of a stage, and how many are in flight at most."""
    num_chunks, num_stages = len(layout.chunks[stage]), layout.num_stages
    in_flight = most = 0
    for turn in order_turns(stage, num_stages, num_chunks, layout.num_micro_batches):
        in_flight += 1 if turn.is_forward else -1
        most = max(most, in_flight)
    if num_chunks > 1:  # whole rounds, as the order is made of them
        rounds = -(-(most + num_chunks) // (num_chunks * num_stages))
        return min(layout.num_micro_batches, rounds * num_stages), -(-most // num_chunks)
    return min(layout.num_micro_batches, most + 1), most


def to_policy(catalog: Catalog, choices: Sequence[tuple[Sequence[int], np.ndarray]]) -> Policy:
    """The policy of the choices of all stages.

    Args:
        catalog: the items.
        choices: for each stage the layers and the choice.
    """
    rows = {layer: row for layers, choice in choices for layer, row in zip(layers, choice, strict=True)}
    whole = [layer for layer, row in sorted(rows.items()) if row[0] < KEEP]
    swaps: dict[tuple[str, int], list[int]] = {}
    again: dict[str, list[int]] = {}
    for layer, row in sorted(rows.items()):
        if layer in whole:
            continue
        for i in np.flatnonzero(row):
            item, value = catalog.items[i], int(row[i])
            if value > KEEP:
                for name in item.swap_names:
                    swaps.setdefault((name, value), []).append(layer)
            else:
                for name in item.recompute_names[-value - 1]:
                    layers = again.setdefault(name, [])
                    if layer not in layers:
                        layers.append(layer)

    def layers_of(indices: list[int]) -> Layers:
        return ALL_LAYERS if len(indices) == len(rows) else Layers(tuple(sorted(indices)))

    return Policy(
        True,
        op_swap=tuple(OpSwap(_pattern(name), layers_of(where), p) for (name, p), where in swaps.items()),
        layer_recompute=layers_of(whole),
        select_recompute=tuple(OpRecompute(_pattern(name), layers_of(where)) for name, where in again.items()),
    )
