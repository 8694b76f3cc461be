"""What stands for operators that the frontend cannot take for a CPU."""

import json

import pytest

from tests import forked
from tests.adapters.graphs import ROOT

pytestmark = pytest.mark.mindspore

# Legacy experts: 2 groups of ranks, 4 experts, 8 tokens each, 16 to 32 columns, weights transposed.
SCRIPT = """
import json
import mindspore as ms
from mindformers.modules.layers import Linear
from mindspore import nn
from mindspore.common.initializer import Zero
from mindswap.adapters.graph.frontend_limits import use_broadcast_products
from mindswap.adapters.graph.mindspore import compile_training_graph, enable_lazy_inline, find_lazy_inline_cell
from mindswap.graph.sharding.experts import restore_names

class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w1 = Linear(16, 32, has_bias=False, expert_num=4, outer_batch=2, compute_dtype=ms.float32)
        self.w2 = Linear(32, 16, has_bias=False, expert_num=4, outer_batch=2, compute_dtype=ms.float32)

    def construct(self, x):
        return self.w2(self.w1(x))

class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer()])

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.sum()

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
network = Network()
use_broadcast_products(network)
enable_lazy_inline(find_lazy_inline_cell(network))
graph = restore_names(compile_training_graph(network, (ms.Tensor(shape=(64, 16), dtype=ms.float32, init=Zero()),)))
wanted = ("BatchMatMul", "ReduceSum")
print(json.dumps([[[n.op, n.outputs[0].shape] for n in part if n.op in wanted and n.layer_index == 0]
                  for part in (graph.forward, graph.backward)]))
"""


def test_products_of_legacy_experts_read_one_weight_for_all_groups(tmp_path):
    script = tmp_path / "network.py"  # MindSpore compiles what is in a file
    script.write_text(SCRIPT)
    result = forked.run([script], cwd=ROOT)
    assert result.returncode == 0, result.stderr[-3000:]
    forward, backward = json.loads(result.stdout.splitlines()[-1])
    assert forward == [["BatchMatMul", [2, 4, 8, 32]], ["BatchMatMul", [2, 4, 8, 16]]]
    # Of each weight a gradient for each group, and their sum; of what w2 reads one like it. The input needs none.
    assert sorted(backward) == [
        ["BatchMatMul", [2, 4, 8, 32]],
        ["BatchMatMul", [2, 4, 16, 32]],
        ["BatchMatMul", [2, 4, 32, 16]],
        ["ReduceSum", [4, 16, 32]],
        ["ReduceSum", [4, 32, 16]],
    ]
