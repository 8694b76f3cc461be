"""Translate the decisions of a layer into operator names, a block and its cost; and of all layers into a policy."""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Set
from dataclasses import replace

import numpy as np

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.planner.catalog import Catalog, backward_ns, kept_bytes, recompute_policy, recomputed_names_of
from mindswap.planner.effect import NO_INEFFECTIVE_NAMES, EffectPredictor, IneffectiveNames, coupled_swaps
from mindswap.planner.stage_problem import KEEP, AssignmentCost
from mindswap.policy.cell_tree import exact_pattern
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy
from mindswap.simulator.layer_block import Block, CopySetting, Role
from mindswap.simulator.program import NO_OP
from mindswap.simulator.step_model import StepModel


class LayerAssignments:
    """Translates decisions, int64 of shape (num_groups,), of a layer into operator names, blocks and costs; cached.

    Args:
        model: step model.
        catalog: groups of the model.
    """

    def __init__(self, model: StepModel, catalog: Catalog):
        self.model = model
        self.catalog = catalog
        self.effect_predictor = EffectPredictor(model)
        fixed = model.layers.fixed
        self._fixed_distances = {entry.prefetch for entry in fixed.op_swap} if fixed is not None else set[int]()
        self._holder_names: dict[tuple[object, ...], Mapping[Label, tuple[tuple[str, ...], ...]]] = {}
        self._blocks: dict[tuple[int, bytes], Block] = {}
        self._assignment_cost: dict[tuple[int, bytes], AssignmentCost] = {}
        self._idle: dict[tuple[int, bytes], frozenset[str]] = {}

    def recompute(self, layer_index: int, decisions: np.ndarray) -> Policy:
        """Return a policy with the recompute entries of the decisions."""
        recomputed = np.flatnonzero(decisions < KEEP).tolist()
        return recompute_policy([(self.catalog.group(layer_index, i), -int(decisions[i])) for i in recomputed])

    def ineffective_names(self, layer_index: int, decisions: np.ndarray) -> IneffectiveNames:
        """Return the names whose swap or recompute would have no effect; policies leave them out."""
        if decisions[0] < KEEP:
            return NO_INEFFECTIVE_NAMES
        named = self._named(layer_index, decisions)
        return self.effect_predictor.ineffective_names(layer_index, self.recompute(layer_index, decisions), named)

    def _swaps(self, layer_index: int, decisions: np.ndarray) -> dict[str, int]:
        """Return the operator names whose swap has an effect, with their prefetch distances.

        Whether a swap has an effect depends on what is recomputed, not on the other swaps, so the prediction is made
        once for each set of recomputed names with everything else swapped. `policy` predicts its exact decisions.
        """
        named = self._named(layer_index, decisions)
        key = (self.catalog.layer_classes[layer_index], np.minimum(decisions, KEEP).tobytes())
        if named and key not in self._idle:
            every = self._named(layer_index, np.where(decisions == KEEP, 1, decisions))
            self._idle[key] = self.effect_predictor.ineffective_names(
                layer_index, self.recompute(layer_index, decisions), every
            ).swap
        return {name: distance for name, distance in named.items() if name not in self._idle[key]}

    def _named(self, layer_index: int, decisions: np.ndarray) -> dict[str, int]:
        """Return the names to swap under which backward holds a tensor, with their prefetch distances.

        Groups that recomputed operators read are left out. The compiler merges equal operators only if their settings
        are equal, so all names of a merged operator get the largest distance.
        """
        named: dict[str, int] = {}
        for i, names in self._swapped(layer_index, decisions):
            named |= {name: max(named.get(name, 0), int(decisions[i])) for name in names}
        for merged in self.holder_names(layer_index, decisions).values() if named else ():
            for names in map(named.keys().__and__, merged):
                named |= dict.fromkeys(names, max((named[name] for name in names), default=0))
        return named

    def _swapped(self, layer_index: int, decisions: np.ndarray) -> Iterator[tuple[int, set[str]]]:
        """Yield each swapped group of a layer that has an effect, with the names of the holders that swap moves."""
        uses = self.catalog.merged[self.catalog.layer_classes[layer_index]]
        recomputed = np.flatnonzero(decisions < KEEP).tolist()
        paths = (recomputed_names_of(self.catalog.group(layer_index, i), -int(decisions[i])) for i in recomputed)
        recomputed_names = [name for names in paths for name in names]
        for i in np.flatnonzero(decisions > KEEP).tolist():
            holders = self.holder_names(layer_index, decisions).values()
            holding = {name for merged in holders for names in merged for name in names}
            names = holding.intersection(self.catalog.group(layer_index, i).swap_names)
            if not coupled_swaps(uses, names, recomputed_names):
                yield i, names

    def policy(self, assignment: np.ndarray) -> Policy:
        """Return the policy of an assignment, int64 of shape (num_layers, num_groups), for all layers of the model."""
        full_recompute_layers: list[int] = []
        swaps: dict[tuple[str, int], list[int]] = {}
        recompute_layers: dict[str, list[int]] = {}
        for layer, decisions in enumerate(assignment):
            if decisions[0] < KEEP:
                full_recompute_layers.append(layer)
                continue
            ineffective_names = self.ineffective_names(layer, decisions)
            idle = set(map(exact_pattern, ineffective_names.recompute))
            for entry in self.recompute(layer, decisions).select_recompute:
                if entry.pattern in idle:
                    continue
                recompute_layers.setdefault(entry.pattern, []).append(layer)
            for name, distance in self._named(layer, decisions).items():
                if name not in ineffective_names.swap:
                    swaps.setdefault((exact_pattern(name), distance), []).append(layer)

        def layers_of(indices: list[int]) -> Layers:
            return ALL_LAYERS if len(indices) == len(assignment) else Layers(tuple(indices))

        return Policy(
            True,
            op_swap=tuple(OpSwap(pattern, layers_of(layers), p) for (pattern, p), layers in sorted(swaps.items())),
            layer_recompute=layers_of(full_recompute_layers),
            select_recompute=tuple(
                OpRecompute(pattern, layers_of(layers)) for pattern, layers in sorted(recompute_layers.items())
            ),
        )

    def effective(self, layer_index: int, decisions: np.ndarray) -> np.ndarray:
        """Return the decisions with `KEEP` in place of swaps without effect, as in the policy."""
        if not (decisions > KEEP).any() or decisions[0] < KEEP:
            return decisions
        ineffective = self.ineffective_names(layer_index, decisions).swap
        is_moved = np.zeros(len(decisions), bool)
        is_moved[[i for i, names in self._swapped(layer_index, decisions) if not names <= ineffective]] = True
        return np.where((decisions > KEEP) & ~is_moved, KEEP, decisions)

    def holder_names(self, layer_index: int, decisions: np.ndarray) -> Mapping[Label, tuple[tuple[str, ...], ...]]:
        """Return, by tensor label, the names under which backward holds it given the recompute of the decisions."""
        key = (self.catalog.layer_classes[layer_index], np.minimum(decisions, KEEP).tobytes())
        if key not in self._holder_names:
            self._holder_names[key] = self.model.holder_names(self.recompute(layer_index, decisions), layer_index)
        return self._holder_names[key]

    def block(self, layer_index: int, decisions: np.ndarray) -> Block:
        """Return the compiled block of the layer with its recompute and swap."""
        key = (self.catalog.layer_classes[layer_index], decisions.tobytes())
        if key not in self._blocks:
            self._blocks[key] = self._make_block(layer_index, decisions)
        return self._blocks[key]

    def assignment_cost(self, layer_index: int, decisions: np.ndarray) -> AssignmentCost:
        """Return the cost of the decisions, from the compiled block."""
        without_distances = np.minimum(decisions, 1)
        key = (self.catalog.layer_classes[layer_index], without_distances.tobytes())
        if key not in self._assignment_cost:
            plain, unheld_roles = self.block(layer_index, np.zeros_like(decisions)), self.catalog.unheld_roles[key[0]]
            self._assignment_cost[key] = _assignment_cost(
                self.model, unheld_roles, plain, self.block(layer_index, without_distances)
            )
        return self._assignment_cost[key]

    def _make_block(self, layer_index: int, decisions: np.ndarray) -> Block:
        recompute = self.recompute(layer_index, decisions)
        if not (decisions > KEEP).any():
            return self.model.layer_block(recompute, layer_index)
        named = self._swaps(layer_index, decisions)
        copies: dict[Label, CopySetting] = {}
        for label, holders in self.holder_names(layer_index, decisions).items():
            distances = [[named.get(name) for name in names] for names in holders]
            if not self.model.captured.has_all_tags:
                distances = [[max((d for d in group if d is not None), default=None)] for group in distances]
            # Operators merged by the compiler share one copy.
            moved = [distance for group in distances for distance in dict.fromkeys(group) if distance is not None]
            if moved:
                copies[label] = CopySetting(max(moved), len(moved), any(None in group for group in distances))
        # If labels are ambiguous without recompute they are ambiguous with it, so that block is not needed.
        if _is_plain(self.block(layer_index, np.zeros_like(decisions)), copies, is_saved=False):
            block = self.model.layer_block(recompute, layer_index)
            if _is_plain(block, copies):
                return block.with_copies(copies)
        # Otherwise the rewritten graph decides which tensors of a name are copied and which operators are merged. That
        # depends only on which distances are equal, so they are replaced by their ranks and the block is shared.
        numbers = number_distances(named.values(), self._fixed_distances)
        entries = tuple(OpSwap(exact_pattern(name), ALL_LAYERS, numbers[named[name]]) for name in sorted(named))
        block = self.model.layer_block(replace(recompute, op_swap=entries), layer_index)
        return block.with_distances({number: distance for distance, number in numbers.items()})


def number_distances(distances: Iterable[int], fixed: Collection[int]) -> dict[int, int]:
    """Map each prefetch distance to its rank; distances of fixed entries keep their value.

    Ranks between two fixed distances are as small as possible, so that sets of equal size get the same ranks.
    """
    numbers: dict[int, int] = {}
    number = 0
    for distance in sorted({*distances, *fixed}):
        number = distance if distance in fixed else number + 1
        numbers[distance] = number
    return numbers


def _is_plain(block: Block, labels: Container[Label], is_saved: bool = True) -> bool:
    """Return whether each label is that of a single forward tensor, which backward reads if `is_saved`."""
    named = [tensor for tensor in block.tensors if tensor.is_forward and tensor.label in labels]
    are_read = all(tensor.role is not None or tensor.uses.first_backward != NO_OP for tensor in named)
    return (are_read or not is_saved) and len(named) == len({tensor.label for tensor in named})


def _assignment_cost(model: StepModel, unheld_roles: Set[Role], plain: Block, block: Block) -> AssignmentCost:
    """Return the cost of a block relative to the same layer with the pinned decisions only.

    `unheld_roles` is from `find_unheld_roles`.
    """

    def costs_of(each: Block) -> np.ndarray:
        """Return the bytes that are not kept, the time of backward, that of the slower copies, and the host memory."""
        moved = [
            tensor
            for tensor in each.tensors
            if tensor.num_copies > 0 and tensor.is_forward and (tensor.role or tensor.uses.first_backward != NO_OP)
        ]
        times = (model.transfers.copy_out_ns, model.transfers.copy_in_ns)
        link_ns = max(sum(t.num_copies * copy_ns(t.size_bytes) for t in moved) for copy_ns in times)
        unheld_bytes = sum(tensor.size_bytes for tensor in moved if not tensor.is_resident)
        freed_bytes = unheld_bytes - kept_bytes(model, each, unheld_roles)
        return np.array([freed_bytes, backward_ns(each), link_ns, sum(t.num_copies * t.size_bytes for t in moved)])

    freed_bytes, recompute_ns, link_ns, host_bytes = (costs_of(block) - costs_of(plain)).tolist()
    return AssignmentCost(freed_bytes, max(0, recompute_ns), link_ns, host_bytes)
