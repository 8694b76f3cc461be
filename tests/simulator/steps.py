"""A captured step made by hand: an embedding, layers of four operators, a loss; masks shared by all layers.

Every tensor has 1 KiB. Forward of layer i, with h_i what the layer before gives (h_0 the embedding):

    matmul_i = MatMul(h_i)     in mlp
    gelu_i   = Gelu(matmul_i)  in mlp
    mul_i    = Mul(gelu_i, mask)
    add_i    = Add(mul_i, h_i)             = h_(i+1)

Backward of it, from grad_(i+1), the gradient of h_(i+1):

    mul_grad_i    = MulGrad(grad_(i+1), gelu_i, mask)
    gelu_grad_i   = GeluGrad(mul_grad_i, matmul_i)
    matmul_grad_i = MatMulGrad(gelu_grad_i, h_i)
    grad_i        = AddN(matmul_grad_i, grad_(i+1))

So each layer keeps three tensors: matmul, gelu, and h_i, which the layer before makes.
"""

from dataclasses import replace

from mindswap.config.pipeline_layout import Pipeline
from mindswap.config.step_settings import StepSettings
from mindswap.config.weight_sharding import WeightSharding
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.model import Graph
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.step_model import StepModel
from tests.builders import layer
from tests.graph.builders import graph, node
from tests.simulator.cost.builders import device

TREE = layer("""
    mlp
      matmul*
      gelu*
    mul*
    add*
""")
MATMUL = replace(TREE.children[0].children[0], type_name="MatMul")
TREE = replace(
    TREE,
    children=(replace(TREE.children[0], children=(MATMUL, *TREE.children[0].children[1:])), *TREE.children[1:]),
)
SETTINGS = StepSettings(
    batch_size=1,
    seq_length=16,
    num_micro_batches=1,
    data_parallel=1,
    model_parallel=1,
    context_parallel=1,
    pipeline=Pipeline(),
    optimizer="AdamW",
    sharding=WeightSharding(),
    is_accumulator_sharded=False,
    is_state_offloaded=False,
    compute_dtype="float16",
    is_fused=False,
)


def hand_graph(num_layers: int = 3) -> Graph:
    """The step; the names are those above."""
    forward = [
        node("weight", "Load", "▸CR_embedding.table", layer=None),
        placed("embed", "Gather", "ids weight", None, "embedding"),
        placed("mask", "Less", "ids", None, "mask"),
    ]
    source = "embed"
    for i in range(num_layers):
        forward += [
            placed("matmul", "MatMul", source, i, "mlp"),
            placed("gelu", "Gelu", f"matmul{i}", i, "mlp"),
            placed("mul", "Mul", f"gelu{i} mask", i, ""),
            placed("add", "Add", f"mul{i} {source}", i, ""),
        ]
        source = f"add{i}"
    forward.append(placed("loss", "ReduceSum", source, None, "loss"))
    backward = [node("loss_grad", "LossGrad", f"{source}_b", layer=None, cell_path="loss")]
    gradient = "loss_grad"
    for i in reversed(range(num_layers)):
        source = f"add{i - 1}" if i else "embed"
        backward += [
            gradient_of(f"mul_grad{i}", "MulGrad", f"{gradient} gelu{i}_b mask_b", i, f"mul{i}"),
            gradient_of(f"gelu_grad{i}", "GeluGrad", f"mul_grad{i} matmul{i}_b", i, f"gelu{i}"),
            gradient_of(f"matmul_grad{i}", "MatMul", f"gelu_grad{i} {source}_b", i, f"matmul{i}"),
            gradient_of(f"grad{i}", "AddN", f"matmul_grad{i} {gradient}", i, f"add{i}"),
        ]
        gradient = f"grad{i}"
    backward.append(node("embed_grad", "UnsortedSegmentSum", gradient, layer=None, cell_path="embedding"))
    saved = ["embed", "mask", *(f"{name}{i}" for i in range(num_layers) for name in ("matmul", "gelu", "add"))]
    return graph(forward, backward, saved=" ".join(saved))


def placed(name, op, inputs, index, cell):
    name = name if index is None else f"{name}{index}"
    made = node(name, op, inputs, layer=index, cell_path=cell)
    return replace(made, scope=f"Default/{index}-Layer/{cell}-Cell/{op}-{name}")


def gradient_of(name, op, inputs, index, origin):
    return replace(node(name, op, inputs, layer=index), origin=origin)


def captured(num_layers: int = 3) -> CapturedStep:
    """Three layers that stand for `num_layers`."""
    middle = (1,) * (num_layers - 2)
    sample = LayerSample((0, 1, num_layers - 1), (0, *middle, 2))
    return CapturedStep(sample, (TREE,) * 3, hand_graph())


def model(num_layers: int = 3, figures: dict | None = None, **settings) -> StepModel:
    """The model on the generic device with other figures."""
    return StepModel(captured(num_layers), CostTable(device(**(figures or {}))), replace(SETTINGS, **settings))
