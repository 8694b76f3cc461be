"""One step of a configuration, recorded in PyNative mode with random weights and tokens: only shapes matter."""

from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindformers.wrapper.wrapper import DataOrderWrapperCell
from mindspore import ops

from mindswap.adapters.apply import read_tree
from mindswap.adapters.build import NOTES_KEY, build_network, example_inputs
from mindswap.adapters.mindspore import find_layers
from mindswap.adapters.pynative.record import record
from mindswap.errors import ApplyError, GraphError
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import Policy
from mindswap.pynative.trace import Trace

__all__ = ["Recording", "record_config"]


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded step.

    Attributes:
        trace: with the values of operators.
        layers: tree of each layer.
        notes: where the step differs from the one that trains, in words.
    """

    trace: Trace
    layers: tuple[CellNode, ...]
    notes: tuple[str, ...]


def record_config(config_path: str, is_legacy: bool) -> Recording:
    """Record one forward and backward pass of one rank on this CPU, without swap and recompute.

    Args:
        config_path: MindFormers YAML.
        is_legacy: `use_legacy` of it; the newer models are built of parts that a CPU can run.

    Raises:
        GraphError: if MindFormers cannot build the network, or a CPU cannot run it.
    """
    if not is_legacy:
        from mindswap.adapters.pynative.cpu_cells import replace_cpu_cells

        replace_cpu_cells()
    network, config = build_network(config_path, Policy(is_swap_enabled=True))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    values = np.random.default_rng(0)
    for weight in network.get_parameters():
        weight.set_data(ms.Tensor(values.normal(0, 0.02, weight.shape).astype(np.float32)).astype(weight.dtype))
    network.set_train(True)
    inputs = {name: _fill(name, tensor, values) for name, tensor in example_inputs(config).items()}
    ordered = DataOrderWrapperCell(list(inputs), network)
    weights = ms.ParameterTuple(network.trainable_params())
    gradients = ops.GradOperation(get_by_list=True)(ordered, weights)
    layers = list(find_layers(network))
    try:
        trace = record(network, layers, lambda: gradients(*inputs.values()), with_values=True)
    except (RuntimeError, TypeError, ValueError, ApplyError) as error:
        what = next(iter(str(error).splitlines()), type(error).__name__)
        raise GraphError(f"{config_path}: a CPU cannot run this step: {what}") from error
    return Recording(trace, tuple(read_tree(layer) for layer in layers), tuple(config.get(NOTES_KEY, ())))


def _fill(name: str, tensor: ms.Tensor, values: np.random.Generator) -> ms.Tensor:
    """Values of an input; tokens from a few that every vocabulary has."""
    shape, dtype = tensor.shape, ms.dtype_to_nptype(tensor.dtype)
    if name == "position_ids":
        return ms.Tensor(np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype))
    if name == "loss_mask":
        return ms.Tensor(np.ones(shape, dtype))
    if name == "attention_mask":
        return ms.Tensor(np.broadcast_to(np.triu(np.ones(shape[-2:]), 1), shape).astype(dtype))
    return ms.Tensor(values.integers(3, 32, shape).astype(dtype))
