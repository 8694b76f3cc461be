"""Recording of one step of a configuration in PyNative mode; weights and tokens are random, only shapes matter."""

from collections.abc import Mapping
from importlib.metadata import version

import mindspore as ms
import numpy as np
from mindformers.wrapper.wrapper import DataOrderWrapperCell
from mindspore import ops

from mindswap.adapters.graph.apply import read_tree
from mindswap.adapters.graph.build import NOTES_KEY, build_network, example_inputs, make_input
from mindswap.adapters.graph.mindspore import find_layers
from mindswap.adapters.pynative.record import record
from mindswap.errors import ApplyError, GraphError
from mindswap.policy.model import Policy
from mindswap.pynative.trace import RecordedStep

MAX_TOKEN = 32  # minimum size of a vocabulary


def record_config(config_path: str, is_legacy: bool, text: str) -> RecordedStep:
    """Record one forward and backward pass of one rank on this CPU, without swap and recompute.

    Args:
        config_path: MindFormers YAML.
        is_legacy: whether it describes a legacy model; newer models are built with CPU replacements.
        text: the configuration to store in the trace.

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
    inputs = fill_inputs(example_inputs(config), values)
    ordered = DataOrderWrapperCell(list(inputs), network)
    weights = ms.ParameterTuple(network.trainable_params())
    gradients = ops.GradOperation(get_by_list=True)(ordered, weights)
    layers = list(find_layers(network))
    try:
        trace = record(network, layers, lambda: gradients(*inputs.values()), with_values=True)
    except (RuntimeError, TypeError, ValueError, ApplyError) as error:
        message = next(iter(str(error).splitlines()), type(error).__name__)
        raise GraphError(f"{config_path}: a CPU cannot run this step: {message}") from error
    trees, notes = tuple(read_tree(layer) for layer in layers), tuple(config.get(NOTES_KEY, ()))
    versions = {name: version(name) for name in ("mindspore", "mindformers")}
    return RecordedStep(trace, trees, text, versions, notes)


def fill_inputs(inputs: Mapping[str, ms.Tensor], random: np.random.Generator) -> dict[str, ms.Tensor]:
    """Return the same tensors with values."""
    filled = {}
    for name, tensor in inputs.items():
        array = make_input(name, tensor.shape, random, MAX_TOKEN)
        filled[name] = ms.Tensor(array.astype(ms.dtype_to_nptype(tensor.dtype)))
    return filled
