"""The normalised policy against MindFormers' own TransformerSwapConfig and LayerSetting, where those are right."""

from types import SimpleNamespace

import pytest

from mindswap.config.pipeline_layout import Pipeline
from mindswap.config.render import document_from_data
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.formats.mindformers1.stage_counts import layers_of_stage_counts
from mindswap.policy.resolve import resolve_layer
from mindswap.rules.checker import check_shape
from tests.builders import document

pytestmark = pytest.mark.mindspore

NUM_LAYERS = 4


@pytest.fixture(scope="module")
def upstream():
    """The real classes, and a small real layer."""
    from mindformers.modules.transformer.transformer import TransformerRecomputeConfig, TransformerSwapConfig
    from mindformers.parallel_core.training_graph.transformer import utils
    from mindformers.parallel_core.training_graph.transformer.utils import LayerSetting
    from mindspore import nn, ops

    class Attention(nn.Cell):
        def __init__(self):
            super().__init__()
            self.wq, self.wo = nn.Dense(2, 2), nn.Dense(2, 2)
            self.flash_attention = nn.Softmax()
            self.mul = ops.Mul()

    class FeedForward(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w1, self.w2 = nn.Dense(2, 2), nn.Dense(2, 2)
            self.mul = ops.Mul()

    class Layer(nn.Cell):
        def __init__(self):
            super().__init__()
            self.attention, self.feed_forward = Attention(), FeedForward()
            self.add = ops.Add()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "is_legacy_model", lambda: True)  # a test before may have built a newer model
        yield SimpleNamespace(
            swap=TransformerSwapConfig, recompute=TransformerRecomputeConfig, setting=LayerSetting, layer=Layer
        )


def primitives(cell, prefix=()):
    """Every primitive that is an attribute: its path, itself, and the cell that holds it."""
    from mindspore import ops

    for name, value in {**vars(cell), **cell._primitives}.items():
        if isinstance(value, ops.Primitive):
            yield (*prefix, name), value, cell
    for name, child in cell.name_cells().items():
        yield from primitives(child, (*prefix, name))


def tree_of(cell, name=""):
    children = [CellNode(path[-1], type(p).__name__, True) for path, p, _ in primitives(cell) if len(path) == 1]
    children += [tree_of(child, child_name) for child_name, child in cell.name_cells().items()]
    return CellNode(name, type(cell).__name__, children=tuple(children))


def upstream_effect(upstream, swap, recompute, layer_index, **parallel):
    """(prefetch, is recomputed) of every primitive after LayerSetting has set one layer."""
    layer = upstream.layer()
    config = SimpleNamespace(
        swap=upstream.swap(**swap),
        recompute=upstream.recompute(**recompute),
        pipeline_stage=1,
        gradient_aggregation_group=4,
        **parallel,
    )
    upstream.setting(NUM_LAYERS, 0, config)(layer, layer_index)
    return {
        path: (
            p.attrs.get("backward_prefetch") if p.attrs.get("offload") else None,
            bool(p.attrs.get("recompute")) or (owner._scope or "").startswith("recompute_"),
        )
        for path, p, owner in primitives(layer)
    }


def our_effect(upstream, swap, recompute, layer_index):
    """The same from the normalised policy."""
    data = {"swap_config": swap, "recompute_config": recompute}
    result = check_shape(document_from_data(data, "data"), NUM_LAYERS)
    assert result.problems == ()
    layer = upstream.layer()
    actions = resolve_layer(result.policy, layer_index, tree_of(layer))
    effect = {}
    for path, *_ in primitives(layer):
        inside = {path[:end] for end in range(1, len(path) + 1)}
        prefetch = actions.layer_prefetch
        for action in actions.op_swaps:
            if action.match.path in inside:
                prefetch = action.entry.prefetch
        is_recomputed = actions.is_fully_recomputed or not inside.isdisjoint(claim.path for claim in actions.recomputes)
        effect[path] = (prefetch, is_recomputed)
    return effect


def entry(layers, prefetch, name=None):
    named = {"op_name": name} if name else {}
    return {**named, "backward_prefetch": prefetch, "layers": layers}


SWAPS = [
    {"swap": True},
    {"swap": True, "default_prefetch": 10},
    {"swap": True, "layer_swap": [entry([0, 3], 20)]},
    {"swap": True, "layer_swap": entry([1], 5)},
    {"swap": True, "layer_swap": [entry(True, 7)]},
    {"swap": True, "layer_swap": [entry([0], 20), entry([1, 2], 10)]},
    {
        "swap": True,
        "op_swap": [entry([0, 1, 2], 20, "attention"), entry([3], 10, "attention"), entry([1, 2], 15, "feed_forward")],
    },
    {"swap": True, "op_swap": entry([0], 3, r"attention\.w[qo]")},
    {"swap": True, "op_swap": [entry(True, 3, r".*\.mul")]},
    {"swap": True, "op_swap": [entry([0, 2], 3, ["add", r"feed_forward\.w1"])]},
    {"swap": True, "layer_swap": [entry([0, 1], 2)], "op_swap": [entry([1, 2], 9, "attention")]},
    {"swap": True, "op_swap": [entry([0], 2, "attention"), entry([0], 9, r"attention\.wq")]},
]
RECOMPUTES = [
    {},
    {"recompute": True},
    {"recompute": [0, 2]},
    {"select_recompute": {"feed_forward": [0, 3]}},
    {"select_recompute": {"feed_forward": True, r"attention\.wq": [1]}},
    {"recompute": [0], "select_recompute": {"feed_forward": [1]}},
]


@pytest.mark.parametrize("layer_index", range(NUM_LAYERS))
@pytest.mark.parametrize("recompute", RECOMPUTES, ids=str)
@pytest.mark.parametrize("swap", SWAPS, ids=str)
def test_every_operator_gets_what_upstream_gives_it(upstream, swap, recompute, layer_index):
    assert our_effect(upstream, swap, recompute, layer_index) == upstream_effect(upstream, swap, recompute, layer_index)


@pytest.mark.parametrize("swap", SWAPS, ids=str)
def test_what_upstream_makes_of_a_section_is_the_same_policy(upstream, swap):
    written = upstream.swap(**swap).to_dict()
    first = check_shape(document_from_data({"swap_config": swap}, "data"), NUM_LAYERS).policy
    second = check_shape(document_from_data({"swap_config": written}, "data"), NUM_LAYERS).policy
    assert first == second


def test_the_object_itself_can_be_read(upstream):
    made = upstream.swap(**SWAPS[6])
    policy = check_shape(document_from_data({"swap_config": made}, "data"), NUM_LAYERS).policy
    assert policy == check_shape(document_from_data({"swap_config": SWAPS[6]}, "data"), NUM_LAYERS).policy


@pytest.mark.parametrize(
    ("num_layers", "stages", "offset", "counts"),
    [
        (8, 1, 0, [3]),
        (8, 2, 0, [2, 1]),
        (8, 2, 0, [9, 0]),
        (9, 2, [1, 0], [2, 3]),
        (11, 3, [1, 1, 0], [1, 2, 3]),
        (8, 4, 0, [[1, 0, 2, 1]]),
    ],
)
def test_stage_counts_name_the_layers_that_upstream_recomputes(upstream, num_layers, stages, offset, counts):
    config = SimpleNamespace(
        swap=upstream.swap(),
        recompute=upstream.recompute(recompute=counts),
        pipeline_stage=stages,
        gradient_aggregation_group=4,
    )
    setting = upstream.setting(num_layers, offset, config)
    theirs = tuple(index for index in range(num_layers) if setting._check_layer_rule(index))
    node = document(f"a: {counts}").get("a")
    assert layers_of_stage_counts(node, Pipeline(stages, 1, offset), num_layers) == theirs
