"""What MindSpeed's adaptive memory measures of a layer, module by module, and the settings it makes of it.

Source:
    Ascend/MindSpeed, `mindspeed/core/memory/adaptive_memory/`: `adaptive_memory_profiling.py` (memory and time of
    modules), `adaptive_memory_prefetch.py` with `adaptive_memory_swap_manager.py` (lossless swap), and
    `adaptive_memory_policy.py` (combinations).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mindswap.policy.cell_tree import SEPARATOR, CellNode
from mindswap.policy.model import ALL_LAYERS, OpRecompute, Policy
from mindswap.simulator.layer_block import Block
from mindswap.simulator.program import NO_OP
from mindswap.simulator.step_model import StepModel
from other_systems.saved import SavedTensor, saved_tensors

__all__ = ["LayerSetting", "list_settings", "lossless_modules", "tensors_of"]

# A swap is lossless if it makes forward of a layer no more than 5 % slower.
MAX_OVERHEAD_PERMILLE = 50
# Smaller tensors are not swapped, and recompute that saves less is not considered.
SMALL_TENSOR_BYTES = 2**19
SMALL_SAVING_BYTES = 2**20


@dataclass(frozen=True)
class LayerSetting:
    """Settings of the modules of a layer, with its cost as MindSpeed adds it up.

    Attributes:
        kept_bytes: activations of one micro-batch that stay on the device.
        time_ns: forward time of what runs again.
        swapped, recomputed: paths of modules.
        is_whole: the layer is fully recomputed.
    """

    kept_bytes: int
    time_ns: int = 0
    swapped: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()
    is_whole: bool = False

    def __add__(self, other: "LayerSetting") -> "LayerSetting":
        return LayerSetting(
            self.kept_bytes + other.kept_bytes,
            self.time_ns + other.time_ns,
            self.swapped + other.swapped,
            self.recomputed + other.recomputed,
        )


def tensors_of(module: str, tensors: Iterable[SavedTensor]) -> list[SavedTensor]:
    """The tensors that swap of a module moves: those that its operators save for their gradients."""
    return [
        tensor
        for tensor in tensors
        if tensor.size_bytes >= SMALL_TENSOR_BYTES
        and any(f"{cell}.".startswith(f"{module}.") for cell in tensor.saved_in)
    ]


def lossless_modules(model: StepModel) -> tuple[str, ...]:
    """Modules of the first layer that can all be swapped at next to no cost.

    All modules directly below the layer to begin with. While forward of the layer, at whose end the copies are
    waited for, is more than 5 % slower, the last module gives way to the modules below it.
    """
    tree = model.captured.trees[model.captured.sample.layer_map[0]]
    below = {".".join(path): [child for child in node.children if not child.is_primitive] for path, node in tree.walk()}
    tensors = saved_tensors(model, 0)
    modules = [child.name for child in tree.children if not child.is_primitive]
    while modules and _overhead_permille(model, modules, tensors) > MAX_OVERHEAD_PERMILLE:
        last = modules.pop()
        modules += [f"{last}.{child.name}" for child in below[last]]
    return tuple(modules)


def _overhead_permille(model: StepModel, modules: Sequence[str], tensors: Sequence[SavedTensor]) -> int:
    """Delay of the end of forward of the layer if it waits for the copies out.

    What the layer behind saves stands for what this one saves of its own input: it is there from the begin.
    """
    forward_ends = list(accumulate(op.duration_ns for op in model.layer_block(Policy(), 0).forward))
    moved = {tensor for module in modules for tensor in tensors_of(module, tensors)}
    ready = [
        (0 if t.last_forward >= len(forward_ends) else forward_ends[t.producer_op_index], t.size_bytes) for t in moved
    ]
    copied_ns = 0
    for ready_ns, size_bytes in sorted(ready):
        copied_ns = max(copied_ns, ready_ns) + model.transfers.copy_out_ns(size_bytes)
    return max(0, copied_ns - forward_ends[-1]) * 1000 // forward_ends[-1]


def list_settings(model: StepModel) -> tuple[LayerSetting, ...]:
    """The settings of a layer to choose from: recompute of all, nothing, then the mixtures worth having.

    The original lists every mixture of swap and recompute of modules; here those are left out that keep no less
    and cost no less than another one.
    """
    tree = model.captured.trees[model.captured.sample.layer_map[0]]
    plain = model.layer_block(Policy(), 0)
    recomputed = model.layer_block(Policy(layer_recompute=ALL_LAYERS), 0)
    nothing = LayerSetting(_kept_bytes(plain))
    everything = LayerSetting(_kept_bytes(recomputed), _backward_ns(recomputed) - _backward_ns(plain), is_whole=True)
    swappable = lossless_modules(model)
    mixtures = _combine([nothing], (_module_settings(model, tree, swappable, (c.name,), c) for c in _cells(tree)))
    return (everything, nothing, *(setting for setting in mixtures if setting != nothing))


def _cells(node: CellNode) -> list[CellNode]:
    return [child for child in node.children if not child.is_primitive]


def _module_settings(
    model: StepModel, tree: CellNode, swappable: Sequence[str], path: tuple[str, ...], node: CellNode
) -> list[LayerSetting]:
    """Settings that a module can have and on those below it; `kept_bytes` is relative to setting nothing."""
    name = ".".join(path)
    children = (_module_settings(model, tree, swappable, (*path, c.name), c) for c in _cells(node))
    settings = _combine([LayerSetting(0)], children)
    if name in swappable:
        moved = sum(tensor.size_bytes for tensor in tensors_of(name, saved_tensors(model, 0)))
        settings.append(LayerSetting(-moved, swapped=(name,)))
    else:
        plain = model.layer_block(Policy(), 0)
        recomputed = model.layer_block(Policy(select_recompute=(OpRecompute(SEPARATOR.join(path), ALL_LAYERS),)), 0)
        freed = _kept_bytes(plain) - _kept_bytes(recomputed)
        if freed > SMALL_SAVING_BYTES:
            settings.append(LayerSetting(-freed, _backward_ns(recomputed) - _backward_ns(plain), recomputed=(name,)))
    return _without_dominated(settings)


def _combine(begin: list[LayerSetting], choices: Iterable[list[LayerSetting]]) -> list[LayerSetting]:
    for options in choices:
        begin = _without_dominated([setting + option for setting in begin for option in options])
    return begin


def _without_dominated(settings: list[LayerSetting]) -> list[LayerSetting]:
    kept: list[LayerSetting] = []
    for setting in sorted(settings, key=lambda s: (s.time_ns, s.kept_bytes)):
        if not kept or setting.kept_bytes < kept[-1].kept_bytes:
            kept.append(setting)
    return kept


def _kept_bytes(block: Block) -> int:
    """Tensors that forward keeps for backward of the layer and, its output, of the layer behind it."""
    return sum(
        t.size_bytes for t in block.tensors if t.is_forward and (t.uses.first_backward != NO_OP or t.role is not None)
    )


def _backward_ns(block: Block) -> int:
    return sum(op.duration_ns for op in block.backward)
