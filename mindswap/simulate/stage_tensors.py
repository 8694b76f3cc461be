"""The tensors of a virtual chunk as rows of a table, at positions within its passes. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mindswap.graph.names import Label
from mindswap.simulate.block import Block
from mindswap.simulate.block_parts import Role, Uses
from mindswap.simulate.links import links_of
from mindswap.simulate.program import NO_OP, MemoryKind
from mindswap.simulate.stage_pass import NONE, neighbour_reads, shift
from mindswap.simulate.turns import TENSOR_COLUMNS, Turns, in_halves

__all__ = ["TensorTable"]

# Last use in forward, first and last use in backward.
_Positions = tuple[int, int, int]


@dataclass(frozen=True)
class TensorTable:
    """Makes the rows of a chunk.

    Attributes:
        blocks: sections of the model.
        sections: of the chunk.
        turns: its passes.
        label_maps: for each block, by its id, the labels of the step that its own stand for.
        label: number of a label.
        layer_of: layer of a section.
    """

    blocks: Sequence[Block]
    sections: tuple[int, ...]
    turns: Turns
    label_maps: Mapping[int, np.ndarray]
    label: Callable[[Label], int]
    layer_of: Callable[[int], int]

    def own(self) -> dict[str, np.ndarray]:
        """Tensors that no other block reads; positions count from the begin of the pass."""
        sections, turns = self.sections, self.turns
        tables = [self.blocks[section].arrays.own for section in sections]
        sizes = [len(own.size_bytes) for own in tables]

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(own, name) for own in tables])

        is_forward = joined("is_forward")
        forward = np.repeat([turns.forward.starts[section] for section in sections], sizes)
        backward = np.repeat([turns.backward.starts[section] for section in sections], sizes)
        made = joined("made_at") + np.where(is_forward, forward, backward)

        def back(name: str) -> np.ndarray:
            return shift(joined(name), backward, NO_OP, NONE)

        if turns.places is None:
            first, last = back("first_backward"), back("last_backward")
        else:
            places = turns.places
            made = np.where(is_forward, made, places[np.minimum(made, len(places) - 1)])
            first, last = in_halves(
                places, back("first_input"), back("last_input"), back("first_weight"), back("last_weight")
            )
        maps = [self.label_maps[id(self.blocks[section])] for section in sections]
        return {
            "size_bytes": joined("size_bytes"),
            "is_forward": is_forward,
            "begin": made,
            "last_forward": shift(joined("last_forward"), forward, NO_OP, NONE),
            "first_backward": first,
            "last_backward": last,
            "kind": joined("kind"),
            "label": np.concatenate([labels[own.label] for labels, own in zip(maps, tables, strict=True)]),
            "layer": np.repeat([self.layer_of(section) for section in sections], sizes),
            "prefetch": joined("prefetch"),
            "num_copies": joined("num_copies"),
            "is_held": joined("is_held"),
            "is_final": joined("is_final"),
        }

    def others(self) -> dict[str, np.ndarray]:
        """What blocks hand on, what other stages send, and what the layers share."""
        rows = np.array(list(self._rows()), np.int64).reshape(-1, len(TENSOR_COLUMNS))
        handed = self._handed()
        return {name: np.concatenate([handed[name], rows[:, at]]) for at, name in enumerate(TENSOR_COLUMNS)}

    def _rows(self) -> Iterator[tuple[int, ...]]:
        """What other stages send, and what the layers share."""
        sections, turns = self.sections, self.turns
        sizes: dict[Role, int] = {}  # of what layers share
        made: dict[Role, int] = {}  # where it is made, if that is on this stage
        shared_uses: dict[Role, list[_Positions]] = {}
        for section in sections:
            for tensor in self.blocks[section].arrays.handed:
                if tensor.role is not None and tensor.role.is_shared:
                    sizes[tensor.role] = tensor.size_bytes
                    made[tensor.role] = self._made_at(section, tensor.made_at, tensor.is_forward)
                    shared_uses.setdefault(tensor.role, []).append(self._relative(tensor.uses, section))
            for read in self.blocks[section].reads:
                if read.role.is_shared:
                    sizes[read.role] = read.size_bytes
                    shared_uses.setdefault(read.role, []).append(self._relative(read.uses, section))
        for part, section in ((turns.forward, sections[0]), (turns.backward, sections[-1])):
            if part.receive is not None:
                is_forward = part is turns.forward
                for read in neighbour_reads(self.blocks[section], is_forward):
                    uses = self._relative(read.uses, section)
                    yield self._row(read.size_bytes, is_forward, 0, uses, "received", self.layer_of(section))
        first = {True: self._made_at(sections[0], 0, True), False: self._made_at(sections[-1], 0, False)}
        for role, size_bytes in sizes.items():
            begin = made.get(role, first[role.is_forward])  # what another stage makes is there from the start
            yield self._row(size_bytes, role.is_forward, begin, _merge(shared_uses[role]), "shared by layers", NO_OP)

    def _handed(self) -> dict[str, np.ndarray]:
        """Tensors that a block makes in one pass and its neighbour reads, on this stage or the next."""
        sections = self.sections
        # Each block with the next one in forward and in backward; itself where there is none.
        pairs = [
            (section, sections[near] if 0 <= near < len(sections) else section, is_forward)
            for at, section in enumerate(sections)
            for near, is_forward in ((at + 1, True), (at - 1, False))
        ]
        links = [
            links_of(self.blocks[own], None if other == own else self.blocks[other], is_forward)
            for own, other, is_forward in pairs
        ]
        sizes = [len(found) for found in links]

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(found, name) for found in links], axis=-1)

        parts, places = (self.turns.forward, self.turns.backward), self.turns.places
        starts = np.array([[[part.starts[pair[who]] for pair in pairs] for part in parts] for who in (0, 1)])
        starts = np.repeat(starts, sizes, axis=2)  # of the block and of its neighbour; of forward and backward
        is_forward, is_sent = np.repeat([pair[2] for pair in pairs], sizes), joined("is_sent")
        uses = joined("uses")
        uses[:, 0] = shift(uses[:, 0], starts[:, 0], NONE, NONE)
        uses[:, 1:] = shift(uses[:, 1:], starts[:, 1, None], NONE, NONE)
        if places is not None:
            uses[:, 1], uses[:, 2] = in_halves(places, *uses[:, 3:].swapaxes(0, 1))
        for passes, rows in ((True, [0]), (False, [1, 2])):
            part = parts[not passes]
            if part.send is not None:  # what another stage reads is read when it is sent
                sent = is_sent & (is_forward == passes)
                for row in rows:
                    uses[1, row, sent] = self._place(part.num_ops - 1, passes)
        made_at = joined("made_at")
        again_at = made_at + starts[0, 1]
        if places is not None:
            again_at = places[np.minimum(again_at, len(places) - 1)]
        first = np.where(uses[:, 1] == NONE, -NONE, uses[:, 1]).min(axis=0)
        maps = [self.label_maps[id(self.blocks[own])] for own, _, _ in pairs]
        return {
            "size_bytes": joined("size_bytes"),
            "is_forward": is_forward.astype(np.int64),
            "begin": np.where(is_forward, made_at + starts[0, 0], again_at),
            "last_forward": uses[:, 0].max(axis=0),
            "first_backward": np.where(first == -NONE, NONE, first),
            "last_backward": uses[:, 2].max(axis=0),
            "kind": joined("kind"),
            "label": np.concatenate([labels[found.label] for labels, found in zip(maps, links, strict=True)]),
            "layer": np.repeat([self.layer_of(own) for own, _, _ in pairs], sizes),
            "micro_batch": np.zeros(sum(sizes), np.int64),
            "prefetch": joined("prefetch"),
            "num_copies": joined("num_copies"),
            "is_held": joined("is_held"),
        }

    def _row(
        self, size_bytes: int, is_forward: bool, begin: int, uses: _Positions, label: Label, layer: int
    ) -> tuple[int, ...]:
        return (size_bytes, is_forward, begin, *uses, MemoryKind.TRANSIENT, self.label(label), layer, 0, 0, 0, False)

    def _place(self, position: int, is_forward: bool) -> int:
        """An operator of a pass; of the whole backward, where it is in the halves."""
        places = self.turns.places
        return position if is_forward or places is None else int(places[position])

    def _made_at(self, section: int, made_at: int, is_forward: bool) -> int:
        part = self.turns.forward if is_forward else self.turns.backward
        return self._place(part.starts[section] + made_at, is_forward)

    def _relative(self, uses: Uses, section: int) -> _Positions:
        turns = self.turns
        forward, backward = turns.forward.starts[section], turns.backward.starts[section]

        def at(value: int | None, base: int) -> int:
            return NONE if value is None else value + base

        last_forward = at(uses.last_forward, forward)
        if turns.places is None:
            return last_forward, at(uses.first_backward, backward), at(uses.last_backward, backward)
        parts = (uses.first_input, uses.last_input, uses.first_weight, uses.last_weight)
        first, last = in_halves(turns.places, *(np.array([at(part, backward)]) for part in parts))
        return last_forward, int(first[0]), int(last[0])


def _merge(uses: Sequence[_Positions]) -> _Positions:
    firsts = [first for _, first, _ in uses if first != NONE]
    return max(last for last, _, _ in uses), min(firsts, default=NONE), max(last for _, _, last in uses)
