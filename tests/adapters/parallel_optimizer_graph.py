"""What MindSpore's frontend makes of the parallel optimizer: a small network compiled for 2048 ranks. Run as a script.

semi_auto_parallel refuses the device target CPU ("Invalid backend: CPU"), and no other target can be set without its
libraries. So the network is built for the CPU, and the three letters of the target are overwritten in memory just
before the export-phase compile, which runs no backend. Without communication MindSpore counts 2048 devices.

Prints JSON: for each case the functions, each a list of [operator, name, inputs, rows of the output, is recomputed];
in "parameters", for each setting of the parallel optimizer, the rows of weights, sums of gradients and states.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common import lazy_inline
from mindspore.graph.api import _cell_graph_executor
from mindspore.train.mind_ir_pb2 import ModelProto

NUM_RANKS = 2048
SETTINGS = (
    {"optimizer_level": "level1"},
    {"optimizer_level": "level2"},
    {"optimizer_level": "level3"},
    {"gradient_accumulation_shard": True},
    {"gradient_accumulation_shard": False},
    {"gradient_accumulation_shard": False, "optimizer_level": "level2"},
)
CASES = {"flat": (False, "level1"), "lazy_inline": (True, "level1"), "level3": (False, "level3")}


class Block(nn.Cell):
    """`relu(x @ float16(w))`, x cut over the ranks."""

    def __init__(self, name: str):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((NUM_RANKS, 64)), ms.float32), name=name)
        self.matmul = ops.MatMul(transpose_b=True).shard(((NUM_RANKS, 1), (1, 1)))
        self.cast = ops.Cast()
        self.relu = ops.ReLU().shard(((NUM_RANKS, 1),))

    def construct(self, x):
        return self.relu(self.matmul(x, self.cast(self.w, ms.float16)))


class Flat(nn.Cell):
    """A block behind a product, so that backward needs the weight of the block."""

    def __init__(self):
        super().__init__()
        self.first, self.last = Block("first"), Block("last")
        self.slice = ops.StridedSlice().shard(((NUM_RANKS, 1),))
        self.sum = ops.ReduceSum().shard(((NUM_RANKS, 1),))

    def construct(self, x):
        hidden = self.slice(self.first(x), (0, 0), (NUM_RANKS, 64), (1, 1))
        return self.sum(self.last(hidden), (0, 1))


class LazyInline(Flat):
    """The same as a function of its own."""

    @lazy_inline
    def __init__(self):
        super().__init__()


class Gradients(nn.Cell):
    """Gradients of all weights."""

    def __init__(self, network: nn.Cell):
        super().__init__()
        self.network = network
        self.weights = ms.ParameterTuple(network.trainable_params())
        self.grad = ops.GradOperation(get_by_list=True)

    def construct(self, x):
        return self.grad(self.network, self.weights)(x)


class Sums(nn.Cell):
    """A network with sums of gradients and optimizer states, as MindFormers makes them, all set to zero."""

    def __init__(self, network: nn.Cell):
        super().__init__()
        self.network = Gradients(network)
        weights = self.network.weights
        self.sums = weights.clone(prefix="accu_grads", init="zeros")
        self.states = weights.clone(prefix="adam_m", init="zeros")

    def construct(self, x):
        gradients = self.network(x)
        for value in (*self.sums, *self.states):
            gradients = ops.depend(gradients, ops.assign(value, ops.zeros_like(value)))
        return gradients


def rename_target(old: bytes, new: bytes) -> None:
    """Overwrites the device target in the object that `MsContext::GetInstance()` gives."""
    library = ctypes.CDLL(str(Path(ms.__file__).parent / "lib" / "libmindspore_core.so"))
    get_instance = library._ZN9mindspore9MsContext11GetInstanceEv
    shared = (ctypes.c_void_p * 2)()
    get_instance.restype, get_instance.argtypes = None, [ctypes.c_void_p]
    get_instance(ctypes.addressof(shared))
    ranges = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "rw" in line.split()[1]
    ]
    for offset in range(0, 4096, 8):
        place = ctypes.c_uint64.from_address(shared[0] + offset).value
        if any(low <= place < high - 8 for low, high in ranges) and ctypes.string_at(place, 4) == old + b"\0":
            ctypes.memmove(place, new, len(new))


def compile_case(is_lazy: bool, level: str) -> list:
    model = compile_network(Gradients(LazyInline() if is_lazy else Flat()), {"optimizer_level": level})
    again = {p.name for p in model.primitives for a in p.attribute if a.name == "recompute" and a.i == 1}
    return [
        [
            [_op(node), node.output[0], list(node.input), _rows(node), node.op_type.removeprefix("REF::") in again]
            for node in function.node
            if node.op_type != "Constant"
        ]
        for function in (model.graph, *model.functions)
    ]


def compile_parameters(settings: dict) -> dict[str, int]:
    model = compile_network(Sums(Block("w")), settings)
    return {parameter.name.rpartition(":")[2]: parameter.dims[0] for parameter in model.graph.parameter}


def compile_network(network: nn.Cell, settings: dict) -> ModelProto:
    ms.reset_auto_parallel_context()
    network.set_train()
    ms.set_auto_parallel_context(
        device_num=NUM_RANKS, global_rank=0, parallel_mode="semi_auto_parallel", full_batch=True,
        enable_parallel_optimizer=True, parallel_optimizer_config=settings,
    )  # fmt: skip
    rename_target(b"CPU", b"GPU")
    try:
        x = Tensor(np.ones((NUM_RANKS, 64)), ms.float16)
        phase, _ = _cell_graph_executor.compile(network, x, phase=f"export.{id(network)}", do_convert=False)
        model = ModelProto()
        model.ParseFromString(_cell_graph_executor._get_func_graph_proto(network, phase, "mind_ir"))
    finally:
        rename_target(b"GPU", b"CPU")
    return model


def _op(node) -> str:
    return node.op_type.removeprefix("REF::").partition(":")[0]


def _rows(node) -> int | None:
    shapes = [tensor.dims for attribute in node.attribute for tensor in attribute.tensors if tensor.dims]
    return int(shapes[0][0]) if shapes else None


if __name__ == "__main__":
    os.environ |= {"RANK_SIZE": str(NUM_RANKS), "RANK_ID": "0"}
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    answer = {name: compile_case(*case) for name, case in CASES.items()}
    json.dump({**answer, "parameters": [compile_parameters(settings) for settings in SETTINGS]}, sys.stdout)
