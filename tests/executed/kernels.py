"""A configuration compiled so that it can be run, with weights and inputs of its own."""

import contextlib
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindformers.wrapper.wrapper import DataOrderWrapperCell
from mindspore.ops.primitive import Primitive, _run_op

from mindswap.adapters.graph.build import build_network, example_inputs, make_input
from mindswap.adapters.graph.mindformers import set_policy
from mindswap.adapters.graph.mindspore import compile_training_model, enable_lazy_inline, find_lazy_inline_cell
from mindswap.errors import GraphError
from mindswap.graph.load import load_graph
from mindswap.graph.model import Graph, TensorType
from mindswap.policy.model import Policy
from tests.executed.load_code import StepCode, load_code
from tests.executed.run import dtype_of
from tests.executed.stand_ins import STAND_INS

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


# Operators on CPU: MindSpore's own kernels, and stand-ins of numpy for those that only an NPU has.

# Attributes that are for the compiler: how to shard, to recompute, to offload.
NOT_FOR_KERNELS = frozenset(
    {"offload", "backward_prefetch", "recompute", "duplicated", "in_strategy", "out_strategy", "in_layout",
     "out_layout", "input_names", "output_names", "mindswap_path", "side_effect_mem", "side_effect_hidden"}
)  # fmt: skip


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """While this lasts, MindSpore runs single operators at once, as `CpuKernels` needs it."""
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        yield
    finally:
        ms.set_context(mode=mode)


class CpuKernels:
    """Runs operators by name, eagerly.

    Attributes:
        stand_ins: operators that ran as stand-ins, and how often.
        in_float32: operators that the CPU has in float32 only: computed there and rounded back.
    """

    def __init__(self) -> None:
        self.stand_ins: Counter[str] = Counter()
        self.in_float32: Counter[str] = Counter()
        self._missing: set[tuple[Any, ...]] = set()

    def __call__(
        self, op: str, attributes: Mapping[str, object], inputs: tuple[Any, ...], outputs: tuple[TensorType, ...]
    ) -> tuple[np.ndarray, ...]:
        """Outputs of one operator. Raises GraphError if the CPU has no kernel and there is no stand-in."""
        key = (op, *(value.dtype.name for value in inputs if isinstance(value, np.ndarray)))
        if key not in self._missing:
            try:
                return _shaped(op, _run(op, attributes, inputs), outputs)
            except (RuntimeError, TypeError, ValueError) as error:
                self._missing.add(key)
                reason = next((line for line in str(error).splitlines() if line.strip(" -\t")), type(error).__name__)
        else:
            reason = "no kernel"
        if op in STAND_INS:
            self.stand_ins[op] += 1
            return _shaped(op, STAND_INS[op](*inputs), outputs)
        if _has_half(inputs):
            self.in_float32[op] += 1
            results = _run(op, attributes, tuple(_widened(value) for value in inputs))
            narrow = tuple(r.astype(np.float16) if r.dtype == np.float32 else r for r in results)
            return _shaped(op, narrow, outputs)
        raise GraphError(f"the CPU cannot run {op}, and there is no stand-in for it: {reason}")


def _run(op: str, attributes: Mapping[str, object], inputs: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    primitive = Primitive(op)
    for name, value in attributes.items():
        if name not in NOT_FOR_KERNELS and isinstance(value, (bool, int, float, str, tuple)):
            primitive.add_prim_attr(name, value)
    result = _run_op(primitive, op, tuple(_as_tensor(value) for value in inputs))
    results = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(entry.asnumpy() if isinstance(entry, ms.Tensor) else np.asarray(entry) for entry in results)


def _as_tensor(value: object) -> object:
    if isinstance(value, np.ndarray):
        return ms.Tensor(value)
    if isinstance(value, tuple):
        return tuple(_as_tensor(entry) for entry in value)
    return value


def _has_half(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_half, value))
    return isinstance(value, np.ndarray) and value.dtype == np.float16


def _widened(value: object) -> object:
    if isinstance(value, np.ndarray) and value.dtype == np.float16:
        return value.astype(np.float32)
    return tuple(_widened(entry) for entry in value) if isinstance(value, tuple) else value


def _shaped(op: str, results: tuple[np.ndarray, ...], outputs: tuple[TensorType, ...]) -> tuple[np.ndarray, ...]:
    """Outputs of the compiled types, or an error: memory is counted by what was really computed."""
    if not outputs:
        return results
    for result, known in zip(results, outputs, strict=True):
        if result.shape != known.shape or result.dtype.name != known.dtype:
            raise GraphError(
                f"{op} gave {result.dtype.name}{list(result.shape)}, compiled is {known.dtype}{list(known.shape)}"
            )
    # Outputs that share memory with an input would be poisoned with it.
    return tuple(np.array(result) for result in results)
