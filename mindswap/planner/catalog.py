"""The activation groups of a captured model: the decisions possible in each layer, with costs and savings."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from mindswap.graph.analysis.saved_tensors import Names
from mindswap.planner.candidates import ActivationGroup, find_activation_groups
from mindswap.planner.effect import ALL_OPERATORS, Consumers, find_consumers, find_merged_consumers
from mindswap.planner.problem import DEFAULT_ALLOW, Allow
from mindswap.policy.cell_tree import CellNode, exact_pattern
from mindswap.policy.model import ALL_LAYERS, OpRecompute, Policy
from mindswap.simulator.compiled_layers import UNSWAPPABLE
from mindswap.simulator.layer_block import Block, Role, Source
from mindswap.simulator.program import NO_OP, OpKind
from mindswap.simulator.step_model import StepModel

# The first group of every layer: the full layer, decided by `recompute`.
WHOLE_LAYER = ActivationGroup(Names(), (), (), (), ((),))
# Placeholder for groups that a layer does not have.
NO_GROUP = ActivationGroup(Names(), (), (), (), ())
# Groups below 2/1000 of a layer's activations get no decision.
SMALL_PERMILLE = 2


@dataclass(frozen=True, eq=False)
class Catalog:
    """Activation groups of a model with their costs. The first axis is the compiled layer."""

    layer_classes: tuple[int, ...]  # compiled layer that represents each layer of the model
    # shape (num_compiled, num_groups): `WHOLE_LAYER` first, then the groups of all layers by label
    groups: tuple[tuple[ActivationGroup, ...], ...]
    freed_bytes: np.ndarray  # this field and the next two are those of `DecisionCosts`; read-only
    recompute_ns: np.ndarray
    copy_ns: np.ndarray
    uses: tuple[Consumers, ...]  # for each compiled layer, readers of each operator's output
    merged: tuple[Consumers, ...]  # of these, readers that the graph lacks, from `find_merged_consumers`
    unheld_roles: tuple[frozenset[Role], ...]  # for each compiled layer, from `find_unheld_roles`
    # bool, shape of `freed_bytes`: recompute paths that leave a cell with weights; all False if MindSpore compiles them
    # together with recomputed cells
    is_across: np.ndarray
    is_cell: np.ndarray  # bool, shape (num_groups,): the group is a cell

    def combines_incompatible(self, assignment: np.ndarray) -> bool:
        """Return whether an assignment recomputes a cell and takes a path that leads out of a cell with weights.

        MindSpore 2.9.0 does not compile both in the newer models ("Cannot have multiple U Monad"): each depends on
        another state of the weights.
        """
        path_indices = np.maximum(-assignment, 0)
        across = self.is_across[np.array(self.layer_classes)[:, None], np.arange(assignment.shape[1]), path_indices]
        return bool((path_indices[:, self.is_cell] > 0).any() and across.any())

    def split_incompatible(self) -> tuple["Catalog", "Catalog"]:
        """Return two catalogs: without such paths, and without such cells."""
        cells = np.zeros_like(self.is_across)
        cells[:, self.is_cell, 1:] = True
        return self._without(self.is_across), self._without(cells)

    def _without(self, path_indices: np.ndarray) -> "Catalog":
        return replace(
            self,
            freed_bytes=np.where(path_indices, 0, self.freed_bytes),
            recompute_ns=np.where(path_indices, 0, self.recompute_ns),
        )

    def group(self, layer_index: int, position: int) -> ActivationGroup:
        """Return a group of a layer of the model."""
        return self.groups[self.layer_classes[layer_index]][position]


def build_catalog(
    model: StepModel, allow: Allow = DEFAULT_ALLOW, required_trees: Sequence[CellNode] | None = None
) -> Catalog:
    """Collect the activation groups of every compiled layer, with their costs.

    Args:
        model: step model.
        allow: means that plans may use.
        required_trees: cell trees of all layers, in which names must exist, if they differ from the captured ones: a
            network on CPU has stand-ins with other operators.
    """
    captured = model.captured
    has_cells = not model.settings.has_interleaved_halves  # MindSpore does not compile them: rule `interleaved_cell`
    by_layer = []
    for position in range(len(captured.trees)):
        tree, is_newer = captured.trees[position], model.settings.is_newer
        found_groups = find_activation_groups(captured.graph, model.names, position, tree, has_cells, is_newer)
        if required_trees is not None:
            layer = required_trees[captured.sample.layer_map.index(position)]
            paths = {".".join(path) for path, _ in layer.walk()}
            found_groups = tuple(_only(group, paths.issuperset) for group in found_groups)
        if allow.pinned:
            pinned = allow.pinned_names(captured.trees[position])
            found_groups = tuple(_only(group, pinned.isdisjoint) for group in found_groups)
        min_bytes = sum(group.size_bytes for group in found_groups) * SMALL_PERMILLE // 1000
        by_layer.append(
            {group.label: group for group in found_groups if not group.producers or group.size_bytes >= min_bytes}
        )
    labels = list(dict.fromkeys(label for groups_by_label in by_layer for label in groups_by_label))
    groups = tuple(
        (WHOLE_LAYER, *(groups_by_label.get(label, NO_GROUP) for label in labels)) for groups_by_label in by_layer
    )
    num_recompute_paths = max(len(group.recompute_paths) for layer_groups in groups for group in layer_groups)
    shape = (len(groups), len(labels) + 1)
    layer_classes, uses, merged = captured.sample.layer_map, find_consumers(model), find_merged_consumers(model)
    freed_bytes = np.zeros((*shape, 1 + num_recompute_paths), np.int64)
    recompute_ns = np.zeros_like(freed_bytes)
    copy_ns = np.zeros(shape, np.int64)
    unheld_roles = tuple(find_unheld_roles(model, layer_classes.index(position)) for position in range(len(groups)))
    is_across, is_cell = np.zeros(freed_bytes.shape, bool), np.zeros(shape[1], bool)
    for position, layer_groups in enumerate(groups):
        layer_index = layer_classes.index(position)
        if allow.recompute:
            # Full recompute would include pinned operators.
            has_whole = not model.layers.reads_caches and not allow.pinned
            freed_bytes[position, :, 1:], recompute_ns[position, :, 1:] = _recompute_costs(
                model, layer_index, layer_groups, num_recompute_paths, has_whole, unheld_roles[position]
            )
        if allow.swap:
            freed_bytes[position, :, 0], copy_ns[position] = _swap_costs(model, layer_index, layer_groups)
        is_cell |= [bool(group.recompute_paths) and not group.producers for group in layer_groups]
        if model.settings.is_newer:
            for i, group in enumerate(layer_groups):
                is_across[position, i, 1 : 1 + len(group.recompute_paths)] = [
                    path_index in group.across_cells for path_index in group.recompute_paths
                ]
    for array in (freed_bytes, recompute_ns, copy_ns, is_across, is_cell):
        array.flags.writeable = False
    return Catalog(
        layer_classes=layer_classes,
        groups=groups,
        freed_bytes=freed_bytes,
        recompute_ns=recompute_ns,
        copy_ns=copy_ns,
        uses=uses,
        merged=merged,
        unheld_roles=unheld_roles,
        is_across=is_across,
        is_cell=is_cell,
    )


def _only(group: ActivationGroup, may_name: Callable[[tuple[str, ...]], bool]) -> ActivationGroup:
    """Return the group with the decisions whose names are all permitted."""
    swap_names = group.swap_names if may_name(group.swap_names) else ()
    return replace(group, swap_names=swap_names, recompute_paths=tuple(filter(may_name, group.recompute_paths)))


def _recompute_costs(
    model: StepModel,
    layer_index: int,
    layer_groups: Sequence[ActivationGroup],
    num_recompute_paths: int,
    has_full_recompute: bool,
    unheld_roles: Set[Role],
) -> tuple[np.ndarray, np.ndarray]:
    """Return freed bytes and recompute time of each path: int64, shape (num_groups, num_recompute_paths)."""
    freed_bytes, recompute_ns = np.zeros((2, len(layer_groups), num_recompute_paths), np.int64)
    plain = model.layer_block(Policy(), layer_index)
    for i, group in enumerate(layer_groups):
        if group is WHOLE_LAYER and not has_full_recompute:
            continue
        for path_index in range(len(group.recompute_paths)):
            recomputed = model.layer_block(recompute_policy([(group, 1 + path_index)]), layer_index)
            freed = kept_bytes(model, plain, unheld_roles) - kept_bytes(model, recomputed, unheld_roles)
            if freed > 0:
                freed_bytes[i, path_index] = freed
                recompute_ns[i, path_index] = max(0, backward_ns(recomputed) - backward_ns(plain))
    return freed_bytes, recompute_ns


def _swap_costs(
    model: StepModel, layer_index: int, layer_groups: Sequence[ActivationGroup]
) -> tuple[np.ndarray, np.ndarray]:
    """Return freed bytes and time of the slower copy of each swap of a layer: int64, shape (num_groups,) each."""
    freed_bytes, copy_ns = np.zeros((2, len(layer_groups)), np.int64)
    unswappable = {label for label, names in model.holder_names(Policy(), layer_index).items() if UNSWAPPABLE in names}
    for i, group in enumerate(layer_groups):
        if group.swap_names and unswappable.isdisjoint(group.producers):
            freed_bytes[i] = group.size_bytes
            out_ns = sum(map(model.transfers.copy_out_ns, group.sizes_bytes))
            in_ns = sum(map(model.transfers.copy_in_ns, group.sizes_bytes))
            copy_ns[i] = max(out_ns, in_ns)
    return freed_bytes, copy_ns


def recomputed_names_of(group: ActivationGroup, path_index: int) -> tuple[str, ...]:
    """Return the cells and operators of a recompute path of a group; paths count from 1."""
    return (ALL_OPERATORS,) if group is WHOLE_LAYER else group.recompute_paths[path_index - 1]


def find_unheld_roles(model: StepModel, layer_index: int) -> frozenset[Role]:
    """Return the boundary tensors of the previous block that only readers in this layer make backward hold.

    The first layer reads the embedding in a wider dtype than the one it saves; with recompute it must be kept.
    """
    previous = model.blocks(Policy())[layer_index]
    boundary_tensors = [tensor for tensor in previous.arrays.boundary_tensors if tensor.is_forward]
    return frozenset(t.role for t in boundary_tensors if t.role is not None and t.uses.first_backward == NO_OP)


def kept_bytes(model: StepModel, block: Block, unheld_roles: Set[Role]) -> int:
    """Return the bytes kept from forward to backward, with those of `find_unheld_roles`.

    Tensors that all micro-batches share are counted only if there is one micro-batch.
    """
    tables = (
        (block.arrays.local_tensors, block.arrays.shared)
        if model.layout.num_micro_steps == 1
        else (block.arrays.local_tensors,)
    )
    own_bytes = sum(int(t.size_bytes[t.is_forward & (t.first_backward != NO_OP)].sum()) for t in tables)
    reads = [read for read in block.reads if read.source is Source.PREVIOUS and read.role in unheld_roles]
    return own_bytes + sum(read.size_bytes for read in reads if read.uses.first_backward != NO_OP)


def backward_ns(block: Block) -> int:
    """Return the backward time of a layer that follows an equal one, with exposed communication."""
    columns = block.arrays.backward
    ops = list(zip(columns.kind.tolist(), columns.duration_ns.tolist(), columns.wait_op.tolist(), strict=True))
    free_ns = {True: 0, False: 0}  # is compute -> end of the last operator on the stream: of compute, or the network
    begin_ns = before_ns = 0  # begin of the layer; end of the last operator of the previous layer
    for _ in range(2):
        begin_ns, ends_ns = free_ns[True], list[int]()
        for kind, duration_ns, wait_op in ops:
            is_compute = kind < OpKind.COLLECTIVE
            waited_ns = 0 if wait_op == NO_OP else ends_ns[wait_op]
            if not ends_ns and not is_compute:  # communication of the output of the previous layer
                waited_ns = before_ns
            free_ns[is_compute] = max(free_ns[is_compute], waited_ns) + duration_ns
            ends_ns.append(free_ns[is_compute])
        before_ns = ends_ns[-1] if ends_ns else 0
    return free_ns[True] - begin_ns


def recompute_policy(path_indices: Sequence[tuple[ActivationGroup, int]]) -> Policy:
    """Return a policy that recomputes groups by the given paths; its entries name all layers."""
    if any(group is WHOLE_LAYER for group, _ in path_indices):
        return Policy(True, layer_recompute=ALL_LAYERS)
    chosen = [group.recompute_paths[path_index - 1] for group, path_index in path_indices]
    names = sorted({name for names in chosen for name in names if not _is_inside(name, chosen)})
    return Policy(True, select_recompute=tuple(OpRecompute(exact_pattern(name), ALL_LAYERS) for name in names))


def _is_inside(name: str, chosen: Sequence[tuple[str, ...]]) -> bool:
    """Return whether another path names a cell around the operator, so that an entry of its own is redundant."""
    return any(name.startswith(f"{cell}.") for names in chosen if name not in names for cell in names)
