"""`mindswap.apply` on networks that are not MindFormers'."""

import dataclasses
from types import SimpleNamespace

import pytest

import mindswap
from mindswap.errors import ApplyError, GraphError
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy

pytestmark = pytest.mark.mindspore

SWAP = Policy(is_swap_enabled=True, op_swap=(OpSwap("tanh", Layers((1,)), 6),))


@pytest.fixture(scope="module")
def cells():
    import mindspore as ms
    from mindspore import Tensor, nn, ops

    class Block(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(8, 8)
            self.tanh = ops.Tanh()

        def construct(self, x):
            return self.tanh(self.dense(x))

    class Network(nn.Cell):
        """`backbone.NAME` is the list of blocks."""

        def __init__(self, name="stages"):
            super().__init__()
            self.name = name
            self.backbone = nn.Cell()
            self.backbone.insert_child_to_cell(name, nn.CellList([Block(), Block()]))
            self.blocks_in_use = self.backbone._cells[name]
            self.head = nn.Dense(8, 8)
            self.loss = ops.ReduceSum()

        def construct(self, x):
            for block in self.blocks_in_use:
                x = block(x)
            return self.loss(self.head(x))

    inputs = Tensor(shape=(4, 8), dtype=ms.float32, init=ms.common.initializer.Zero())
    return SimpleNamespace(network=Network, inputs=inputs)


def offloaded(network, name):
    return {
        f"{index}.{key}": primitive.attrs["backward_prefetch"]
        for index, block in enumerate(network.backbone._cells[name])
        for key, primitive in block._primitives.items()
        if primitive.attrs.get("offload")
    }


def is_lazy_inline(network):
    from mindswap.adapters.graph.mindspore import has_lazy_inline

    return has_lazy_inline(network)


def test_the_list_of_layers_is_named_by_its_path(cells):
    network = cells.network()
    actions = mindswap.apply(network, SWAP, layers="backbone.stages")
    assert offloaded(network, "stages") == {"1.tanh": 6}
    assert [entry.layer_index for entry in actions] == [0, 1]
    assert is_lazy_inline(network)


def test_without_a_path_the_usual_names_are_looked_for(cells):
    network = cells.network("blocks")
    mindswap.apply(network, SWAP)
    assert offloaded(network, "blocks") == {"1.tanh": 6}


def test_what_was_applied_is_in_the_compiled_graph(cells):
    """Tanh keeps its output for its own gradient, 4 x 8 x 4 bytes, and the next product reads it."""
    from mindswap.adapters.graph.mindspore import compile_training_graph

    network = cells.network()
    mindswap.apply(network, SWAP, layers="backbone.stages")
    (pair,) = compile_training_graph(network, [cells.inputs]).swap_pairs
    assert (pair.producer.op, pair.num_prefetch_ops, pair.size_bytes) == ("Tanh", 6, 128)


def test_lazy_inline_can_be_left_alone(cells):
    network = cells.network()
    mindswap.apply(network, SWAP, layers="backbone.stages", with_lazy_inline=False)
    assert not is_lazy_inline(network)


def test_a_disabled_policy_changes_nothing(cells):
    network = cells.network()
    off = Policy(False, op_swap=(OpSwap("tanh", ALL_LAYERS, 6),))
    assert mindswap.apply(network, off, layers="backbone.stages") == ()
    assert offloaded(network, "stages") == {}
    assert not is_lazy_inline(network)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("backbone.layers", r"layers='backbone\.layers': Cell has no cell 'layers'; it has: stages"),
        ("spine", r"layers='spine': Network has no cell 'spine'; it has: backbone, blocks_in_use, head"),
        ("backbone.stages.0.dense.x", r"Dense has no cell 'x'; it has: none"),
        ("head", "layers='head' is one Dense, not a list of layers"),
    ],
)
def test_a_wrong_path_is_refused_with_the_names_that_are_there(cells, path, message):
    with pytest.raises(ApplyError, match=message):
        mindswap.apply(cells.network(), SWAP, layers=path)


def test_a_network_without_a_list_of_the_usual_name_says_how_to_name_it(cells):
    with pytest.raises(ApplyError, match=r"no list of layers in Network; .*layers='\.\.\.'"):
        mindswap.apply(cells.network(), SWAP)


def test_a_pattern_that_names_nothing_is_refused(cells):
    policy = Policy(is_swap_enabled=True, op_swap=(OpSwap("gelu", ALL_LAYERS, 6),))
    with pytest.raises(ApplyError, match="'gelu'"):
        mindswap.apply(cells.network(), policy, layers="backbone.stages")


def test_a_policy_of_a_file_can_be_applied(cells, tmp_path):
    (tmp_path / "x.yaml").write_text(
        "swap_config: {swap: True, op_swap: [{op_name: 'dense', backward_prefetch: 2, layers: True}]}"
    )
    network = cells.network()
    mindswap.apply(network, mindswap.load_policy(tmp_path / "x.yaml"), layers="backbone.stages")
    dense = network.backbone._cells["stages"][0].dense
    assert dense.matmul.attrs["backward_prefetch"] == 2


def test_a_capture_shows_what_the_policy_does(cells):
    from mindswap.graph.storage import Placement, classify_saved

    network = cells.network("stages")
    mindswap.apply(network, SWAP, layers="backbone.stages")
    graph = mindswap.capture(network, [cells.inputs])
    swapped = [s for s in classify_saved(graph) if s.placement is Placement.SWAPPED]
    # The output of Tanh of block 1, (4, 8) in float32.
    assert [(s.storage.producer.op, s.storage.layer_index, s.copied_bytes) for s in swapped] == [("Tanh", 1, 128)]


def test_without_lazy_inline_nothing_can_be_swapped(cells):
    graph = mindswap.capture(cells.network("stages"), [cells.inputs], with_lazy_inline=False)
    assert not graph.has_lazy_inline
    assert graph.swap_pairs == ()


def test_layers_that_the_network_does_not_have_are_refused(cells):
    beyond = Policy(is_swap_enabled=True, op_swap=(OpSwap("tanh", Layers((1, 7)), 6),))
    with pytest.raises(ApplyError, match=r"layers 0 to 1, the policy names \[7\]"):
        mindswap.apply(cells.network("stages"), beyond, layers="backbone.stages")


def test_a_default_strategy_without_flash_attention_is_refused(cells):
    default = Policy(is_swap_enabled=True, default_prefetch=1, op_swap=(OpSwap(r".*\.flash_attention", ALL_LAYERS, 1),))
    with pytest.raises(ApplyError, match="no flash attention"):
        mindswap.apply(cells.network("stages"), default, layers="backbone.stages")


@pytest.mark.parametrize(
    "option", ["select_recompute", "select_comm_recompute", "select_recompute_exclude", "select_comm_recompute_exclude"]
)
def test_a_pattern_of_any_option_that_names_nothing_is_refused(cells, option):
    policy = Policy(**{option: [OpRecompute("gelu", ALL_LAYERS), OpRecompute("tanh", ALL_LAYERS)]})
    with pytest.raises(ApplyError, match=rf"^{option} names no operator of this network: 'gelu'$"):
        mindswap.apply(cells.network("stages"), policy, layers="backbone.stages")


def test_default_operators_that_are_not_there_are_a_warning(cells, caplog):
    """As in `mindswap check`: no model has all of them."""
    policy = mindswap.load_policy({"swap_config": {"swap": True}, "recompute_config": {"select_comm_recompute": True}})
    policy = dataclasses.replace(policy, default_prefetch=None, op_swap=())
    mindswap.apply(cells.network("stages"), policy, layers="backbone.stages")
    assert caplog.messages == [
        "select_comm_recompute: none of the default operators is in this network, so it has no effect"
    ]


def test_lazy_inline_of_the_layers_goes_to_the_network(cells, caplog):
    """MindSpore compiles equal lazy_inline cells as one: block 1 would swap nothing, or block 0 too."""
    network = cells.network("stages")
    for block in network.backbone._cells["stages"]:
        block.cell_init_args = "lazy_inline_Block"
    with caplog.at_level("INFO"):
        mindswap.apply(network, SWAP, layers="backbone.stages")
    assert caplog.messages[-1] == "mindswap: 2 Block: lazy_inline is on Network instead, else all would swap alike"
    graph = mindswap.capture(network, [cells.inputs])
    assert [(pair.producer.op, pair.producer.layer_index) for pair in graph.swap_pairs] == [("Tanh", 1)]


def test_a_capture_of_lazy_inline_layers_alone_says_what_to_do(cells):
    network = cells.network("stages")
    for block in network.backbone._cells["stages"]:
        block.cell_init_args = "lazy_inline_Block"
    network.cell_init_args = "lazy_inline_Network"
    with pytest.raises(GraphError, match=r"several cells are lazy_inline: .*\n.*\n    fix:     take @lazy_inline off"):
        mindswap.capture(network, [cells.inputs], with_lazy_inline=False)


def test_after_a_capture_single_operators_run(cells):
    """After a compile with lazy_inline the CPU of MindSpore refuses operators such as LayerNorm; a capture mends it."""
    import mindspore as ms

    network = cells.network()
    mindswap.apply(network, SWAP, layers="backbone.stages")
    assert mindswap.capture(network, [cells.inputs]).has_lazy_inline
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        normal = ms.nn.LayerNorm((2,), epsilon=0.0)(ms.Tensor([[1.0, 3.0]]))
        assert normal.asnumpy().tolist() == [[-1.0, 1.0]]
    finally:
        ms.set_context(mode=mode)
