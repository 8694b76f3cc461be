"""A small model made by hand: four operators a layer, three tensors of 1 MB kept by each.

On the generic device (1 TB/s memory, 10 GB/s links, no latencies) an operator with one input takes 2 us, one with
two 3 us, and a copy 100 us.

    attn.exp    a = exp(x)       kept, read first by backward operator 2
    attn.mul    b = a * a        not kept
    mlp.relu    c = relu(b)      kept, read first by backward operator 1
    mlp.tanh    d = tanh(c)      kept, read first by backward operator 0; the next layer reads it in forward
"""

from mindswap.config.pipeline_layout import Pipeline
from mindswap.config.step_settings import StepSettings
from mindswap.config.weight_sharding import WeightSharding
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.model import Graph, Node, Saved, TensorType
from mindswap.policy.cell_tree import CellNode
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.step_model import StepModel
from tests.simulator.cost.builders import GENERIC

MB = 10**6
TYPE = TensorType((MB // 4,), "float32", MB)
OPERATORS = {"attn": {"exp": "Exp", "mul": "Mul"}, "mlp": {"relu": "ReLU", "tanh": "Tanh"}}


def small_model(
    num_layers: int = 4, num_stages: int = 1, num_micro_batches: int = 1, device: Device = GENERIC, num_chunks: int = 1
) -> StepModel:
    """The model on pipeline stages, in micro-batches."""
    forward, backward, saved = [_node("table", "Load", "weight", None), _node("embed", "Abs", "table", None)], [], []
    hidden = "embed"
    for i in range(num_layers):
        names = {name: f"{name}{i}" for name in ("exp", "mul", "relu", "tanh")}
        forward += [
            _node(names["exp"], "Exp", hidden, i, "attn"),
            _node(names["mul"], "Mul", f"{names['exp']} {names['exp']}", i, "attn"),
            _node(names["relu"], "ReLU", names["mul"], i, "mlp"),
            _node(names["tanh"], "Tanh", names["relu"], i, "mlp"),
        ]
        saved += [Saved(names[name], f"{names[name]}_b") for name in ("exp", "relu", "tanh")]
        hidden = names["tanh"]
    forward.append(_node("loss", "Neg", hidden, None))
    backward.append(_node("dloss", "Fill", "", None))
    gradient = "dloss"
    for i in reversed(range(num_layers)):
        backward += [
            _node(f"dtanh{i}", "TanhGrad", f"tanh{i}_b {gradient}", i, "mlp"),
            _node(f"drelu{i}", "ReluGrad", f"dtanh{i} relu{i}_b", i, "mlp"),
            _node(f"dmul{i}", "Mul", f"drelu{i} exp{i}_b", i, "attn"),
            _node(f"dexp{i}", "Mul", f"dmul{i} exp{i}_b", i, "attn"),
        ]
        gradient = f"dexp{i}"
    graph = Graph(tuple(forward), tuple(backward), tuple(saved), has_lazy_inline=True)
    cells = tuple(
        CellNode(cell, cell.title(), children=tuple(CellNode(name, op, True) for name, op in operators.items()))
        for cell, operators in OPERATORS.items()
    )
    trees = (CellNode("", "Layer", children=cells),) * num_layers
    everything = tuple(range(num_layers))
    captured = CapturedStep(LayerSample(everything, everything), trees, graph)
    pipeline = Pipeline(num_stages=num_stages, num_chunks=num_chunks, offset=0)
    uncut = WeightSharding()
    settings = StepSettings(1, 1, num_micro_batches, 1, 1, 1, pipeline, "SGD", uncut, False, False, "float32", False)
    return StepModel(captured, CostTable(device), settings)


def _node(name: str, op: str, inputs: str, layer: int | None, cell: str = "") -> Node:
    place = f"layers-CellList/{layer}-Layer/{cell}-{cell.title()}" if cell else "model-Model"
    scope = f"Default/{place}/{name}"
    return Node(name, op, layer, cell, scope, tuple(inputs.split()), (TYPE,), {})
