"""A configuration compiled so that it can be run, with weights and inputs of its own."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindformers.wrapper.wrapper import DataOrderWrapperCell

from mindswap.adapters.build import build_network, example_inputs, make_input
from mindswap.adapters.mindformers import set_policy
from mindswap.adapters.mindspore import compile_training_model, enable_lazy_inline, find_lazy_inline_cell
from mindswap.graph.execute.run import dtype_of
from mindswap.graph.load import load_graph
from mindswap.graph.load_code import StepCode, load_code
from mindswap.graph.model import Graph
from mindswap.policy.model import Policy

SEED = 20260101


@dataclass(frozen=True, eq=False)
class Runnable:
    """A compiled step that can be run."""

    # graph, code: of the same compile
    graph: Graph
    code: StepCode
    columns: tuple[tuple[str, tuple[int, ...], str], ...]  # inputs of the step in order: name, shape and type
    vocab_size: int  # tokens are below it


def compile_runnable(config_path: str, policy: Policy) -> Runnable:
    """Compile all layers of the network of a YAML file under a policy, on one rank.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    network, config = build_network(config_path, policy)
    set_policy(network, policy)
    enable_lazy_inline(find_lazy_inline_cell(network))
    columns = example_inputs(config)
    model = compile_training_model(DataOrderWrapperCell(list(columns), network), tuple(columns.values()))
    described = tuple((name, tuple(t.shape), str(t.dtype).lower()) for name, t in columns.items())
    return Runnable(load_graph(model), load_code(model), described, int(config.model.model_config.vocab_size))


def make_values(runnable: Runnable) -> dict[str, np.ndarray]:
    """Weights and inputs by their names in the code: the same for the same names and shapes, whatever the policy."""
    values = {
        name: _make_weight(parameter, known.shape, known.dtype)
        for name, (parameter, known) in runnable.code.weights.items()
    }
    for name, (column, shape, dtype) in zip(runnable.code.main.parameters, runnable.columns, strict=True):
        made = make_input(column, shape, _random(column), runnable.vocab_size)
        values[name] = np.ascontiguousarray(made.astype(dtype_of(dtype)))
    return values


def _make_weight(name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small random numbers; around 1 for vectors, which scale."""
    around = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
    return (_random(name).standard_normal(shape) * 0.05 + around).astype(dtype_of(dtype))


def _random(name: str) -> np.random.Generator:
    return np.random.default_rng([SEED, zlib.crc32(name.encode())])


def run_by_mindspore(
    config_path: str, runnable: Runnable, values: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Loss and gradients of the same network by MindSpore's own execution: lazy_inline off, no policy.

    Raises:
        RuntimeError: if the CPU lacks a kernel.
    """
    network, _ = build_network(config_path, Policy(is_swap_enabled=True))
    by_name = {parameter: values[name] for name, (parameter, _) in runnable.code.weights.items()}
    for parameter in network.get_parameters():
        if parameter.name in by_name:
            parameter.set_data(ms.Tensor(by_name[parameter.name]))
        else:
            parameter.init_data()
    network.set_train(True)
    names = [name for name, _, _ in runnable.columns]
    wrapped = DataOrderWrapperCell(names, network)
    inputs = tuple(ms.Tensor(values[name]) for name in runnable.code.main.parameters)
    step = ms.value_and_grad(wrapped, None, ms.ParameterTuple(network.trainable_params()))
    loss, gradients = step(*inputs)
    return loss.asnumpy(), tuple(gradient.asnumpy() for gradient in gradients)
