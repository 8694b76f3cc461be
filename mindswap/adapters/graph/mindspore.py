"""Compilation of a training cell by the frontend of MindSpore, up to the graph of forward and backward.

The export-phase compile runs parsing, autodiff, recompute and offload, and no backend. It needs no device, and with
`no_init_parameters` no memory for weights.
"""

import contextlib
import gc
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import mindspore as ms
from mindspore import nn, ops
from mindspore.ops import Primitive
from mindspore.train.mind_ir_pb2 import ModelProto

from mindswap.adapters.graph.apply import iterate_primitives
from mindswap.adapters.versions import cell_graph_executor
from mindswap.errors import NOT_COMPILED, ApplyError, GraphError, require
from mindswap.graph.constants import restore_constants
from mindswap.graph.load import PATH_TAG, load_graph
from mindswap.graph.model import Graph

LAZY_INLINE_PREFIX = "lazy_inline_"
# An entry of MindSpore's "Traceback of Net Construct Code": file, line, and the source line below it.
SOURCE_LOCATION = re.compile(r"^# \d+ In file (\S+:\d+)[^\n]*\n([^\n]*)", re.MULTILINE)
# Attribute names of the list of transformer layers.
LAYER_LISTS = ("layers", "blocks", "h")
# MindSpore caches one compiled graph for each value of `cell_init_args`; two networks must not share one.
_lazy_inline_ids = itertools.count()


def has_lazy_inline(cell: nn.Cell) -> bool:
    """Return whether the compiler keeps `cell` as separate functions, which any offload requires."""
    return getattr(cell, "_cell_init_args", "").startswith(LAZY_INLINE_PREFIX)


def is_pynative() -> bool:
    """Return whether operators run one by one instead of as a compiled graph."""
    return ms.get_context("mode") == ms.PYNATIVE_MODE


def enable_lazy_inline(cell: nn.Cell) -> None:
    """Mark `cell` as the `lazy_inline` decorator of MindSpore does, even after construction."""
    if not has_lazy_inline(cell):
        cell.cell_init_args = f"{LAZY_INLINE_PREFIX}{type(cell).__name__}_mindswap_{next(_lazy_inline_ids)}"


def find_layers(network: nn.Cell) -> nn.CellList:
    """Return the list of transformer layers of a network (`model.layers`, `model.decoder.layers`, ...).

    Raises:
        ApplyError: if there is none.
    """
    require("network", network, nn.Cell)
    lists = [
        (name.count("."), -len(cell), name, cell)
        for name, cell in network.cells_and_names()
        if isinstance(cell, nn.CellList) and name.rsplit(".", 1)[-1] in LAYER_LISTS and ".mtp." not in f".{name}."
    ]
    if not lists:
        raise ApplyError(
            f"no list of layers in {type(network).__name__}; name it: mindswap.apply(network, policy, layers='...')"
        )
    return min(lists)[-1]


def find_lazy_inline_cell(network: nn.Cell) -> nn.Cell:
    """Return the cell that is or should be lazy_inline: the one decorated by MindFormers, else the network."""
    cells = [cell for _, cell in network.cells_and_names()]
    decorated = next((cell for cell in cells if has_lazy_inline(cell)), None)
    return decorated or next((cell for cell in cells if type(cell).__name__ == "GPTModel"), network)


def interleave_batch(network: nn.Cell, num_parts: int) -> nn.Cell:
    """Return a cell that calls a network once for each part of a batch; it is lazy_inline, and nothing in it."""
    for _, cell in network.cells_and_names():
        if has_lazy_inline(cell):
            cell.cell_init_args = ""
    interleaved = nn.MicroBatchInterleaved(network, num_parts)
    enable_lazy_inline(interleaved)
    return interleaved


def mark_lazy_inline(network: nn.Cell, layers: Sequence[nn.Cell]) -> dict[str, int]:
    """Make the cell around all layers lazy_inline, and no other cell.

    If the layers themselves are lazy_inline, MindSpore compiles equal ones as one function: settings of the first apply
    to all, settings of the others to none.

    Args:
        network: the network.
        layers: its layers; empty if unknown.

    Returns:
        By class, the number of cells that are no longer lazy_inline.
    """
    decorated = [cell for _, cell in network.cells_and_names() if has_lazy_inline(cell)]
    within = {id(cell) for layer in layers for _, cell in layer.cells_and_names()}
    needed = {id(cell) for cell in layers or decorated}

    def is_around(cell: nn.Cell) -> bool:
        return id(cell) not in within and {id(child) for _, child in cell.cells_and_names()} >= needed

    around = list(filter(is_around, decorated))
    unmarked = [cell for cell in decorated if cell not in around[:1]]
    for cell in unmarked:
        cell.cell_init_args = ""
    enable_lazy_inline(around[0] if around else find_lazy_inline_cell(network))
    return dict(Counter(type(cell).__name__ for cell in unmarked))


def tag_primitives(layer: nn.Cell, every_primitive: bool) -> list[Primitive]:
    """Let primitives carry their path (`PATH_TAG`), which prevents the compiler from merging equal ones.

    Args:
        layer: the layer.
        every_primitive: tag all primitives; otherwise only those that cell and type do not identify.

    Returns:
        The tagged primitives.
    """
    by_key: dict[tuple[object, ...], list[Any]] = {}
    for path, primitive in iterate_primitives(layer):
        by_key.setdefault((path[:-1], primitive.name), []).append((path, primitive))
    chosen = [entry for group in by_key.values() if every_primitive or len(group) > 1 for entry in group]
    for path, primitive in chosen:
        primitive.add_prim_attr(PATH_TAG, ".".join(path))
    return [primitive for _, primitive in chosen]


class _GradientCell(nn.Cell):
    """Gradients of a network with respect to its trainable parameters, which determines the saved tensors."""

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network
        self.weights = ms.ParameterTuple(network.trainable_params())
        self.grad = ops.GradOperation(get_by_list=True)

    def init_parameters_data(self, auto_parallel_mode=False):
        """Leave the weights without values; MindSpore would allocate them after the compile."""
        return {}

    def construct(self, *inputs):
        return self.grad(self.network, self.weights)(*inputs)


def compile_training_graph(network: nn.Cell, inputs: Sequence[ms.Tensor], layer_list: str | None = None) -> Graph:
    """Compile forward and backward of a network by the frontend.

    Args:
        network: see `compile_training_model`.
        inputs: see `compile_training_model`.
        layer_list: name of the list that holds the layers, whose primitives all carry `PATH_TAG`; None uses the layer
            in the scope of an operator.

    Raises:
        GraphError: if the compiler refuses the network.
    """
    graph = restore_constants(load_graph(compile_training_model(network, inputs), layer_list))
    weights = tuple(network.get_parameters())
    return replace(
        graph,
        frozen=tuple(weight.name for weight in weights if not weight.requires_grad),
        unsharded=tuple(weight.name for weight in weights if not weight.parallel_optimizer),
    )


# Error of the compiler -> known fix.
FIXES = {
    "multiple U Monad": "name in recompute_config either whole layers and cells, or operators that read what another "
    r"cell with weights gives (self_attention\.split_qkv that of linear_qkv), not both"
}


def compile_training_model(network: nn.Cell, inputs: Sequence[ms.Tensor]) -> ModelProto:
    """Compile forward and backward of a network by the frontend, to MindSpore's protobuf.

    Args:
        network: returns its loss; its lazy_inline marks are used as they are.
        inputs: tensors of the right shape and dtype; their values do not matter.

    Raises:
        GraphError: if the compiler refuses the network, with its message.
    """
    require("network", network, nn.Cell)
    require("inputs", inputs, list, tuple)
    network.set_train(True)
    cell = _GradientCell(network)
    cell.set_train(True)
    try:
        with _frozen_objects(), swaps_paused(network):
            phase, _ = cell_graph_executor.compile(cell, *inputs, phase="export.mindir", do_convert=False)
        serialized = cell_graph_executor._get_func_graph_proto(cell, phase, "mind_ir")
    except (RuntimeError, TypeError, ValueError, AttributeError, NameError, IndexError, OSError) as error:
        raise GraphError(f"{NOT_COMPILED}: {_describe_failure(error)}") from error
    finally:
        _reset_lazy_inline()
    model = ModelProto()
    model.ParseFromString(serialized)
    return model


def _reset_lazy_inline() -> None:
    """Compile a cell without lazy_inline; after a compile with it MindSpore refuses to run anything on CPU."""
    cell_graph_executor.compile(_EmptyCell(), ms.Tensor(0.0, ms.float32), phase="export.mindir", do_convert=False)


class _EmptyCell(nn.Cell):
    """A cell without lazy_inline."""

    def construct(self, x):
        return x


@contextlib.contextmanager
def _frozen_objects() -> Iterator[None]:
    """Exclude existing objects from the garbage collection that MindSpore runs before each compile (0.2 s)."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _describe_failure(error: Exception) -> str:
    """Return the error, the innermost line of the model's source, and the fix if it is known, without call stacks."""
    text = str(error).strip()
    message = next((line.strip() for line in text.splitlines() if line.strip(" -\t")), type(error).__name__)
    fix = "".join(f"\n    fix:     {fix}" for fault, fix in FIXES.items() if fault in message)
    locations = SOURCE_LOCATION.findall(text)
    if not locations:
        return message + fix
    *_, (location, code) = locations
    return f"{message}\n    at {location}: {code.strip()}{fix}"


def swaps_paused(network) -> contextlib.AbstractContextManager[object]:
    """Disable swaps in PyNative mode on the network, inside the block."""
    if not hasattr(ms, "MsDispatchMode"):
        return contextlib.nullcontext()
    from mindswap.adapters.pynative import swap

    return swap.swaps_paused(network)
