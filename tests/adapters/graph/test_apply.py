"""Attributes on real cells of MindSpore; nothing is compiled."""

import inspect
import logging
from types import SimpleNamespace

import pytest

from mindswap.adapters.graph.apply import apply_policy, check_layers, iterate_primitives, read_tree
from mindswap.errors import ApplyError
from mindswap.policy.cell_tree import PatternError, match_pattern
from mindswap.policy.formats.mindformers1.schema import default_operators
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from tests.adapters.graph_pairs import Lines

pytestmark = pytest.mark.mindspore

NUM_LAYERS = 3
# The primitives of one layer below, by path; those of `nn.Dense` as MindSpore defines them.
DENSE = ("reshape", "shape_op", "matmul", "bias_add")
PATHS = [
    "add",
    "attention.mul",
    *(f"attention.wq.{name}" for name in DENSE),
    "attention.flash.flash",
    *(f"feed_forward.w1.{name}" for name in DENSE),
    "feed_forward.mul",
]


@pytest.fixture(scope="module")
def cells():
    from mindspore import nn, ops

    class Flash(nn.Cell):
        def __init__(self):
            super().__init__()
            self.flash = ops.Softmax()

    class Attention(nn.Cell):
        def __init__(self):
            super().__init__()
            self.wq = nn.Dense(2, 2)
            self.flash = Flash()
            self.mul = ops.Mul()
            self.absent = None

    class FeedForward(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w1 = nn.Dense(2, 2)
            self.mul = ops.Mul()

    class Layer(nn.Cell):
        def __init__(self):
            super().__init__()
            self.attention = Attention()
            self.feed_forward = FeedForward()
            self.add = ops.Add()

        def construct(self, x):
            return x

    return SimpleNamespace(layer=Layer, list=nn.CellList, sequential=nn.SequentialCell)


@pytest.fixture
def layers(cells):
    return cells.list([cells.layer() for _ in range(NUM_LAYERS)])


def primitives(layer):
    return {".".join(path): primitive for path, primitive in iterate_primitives(layer)}


def offload(layer):
    """Path -> prefetch of what is offloaded."""
    return {
        path: primitive.attrs["backward_prefetch"]
        for path, primitive in primitives(layer).items()
        if primitive.attrs.get("offload") is True
    }


def recomputed_cells(layer):
    """Cells that are recomputed, those below one included."""
    return {name for name, cell in layer.cells_and_names() if (cell.get_scope() or "").startswith("recompute_")}


def attribute(layer, name):
    return {path: p.attrs[name] for path, p in primitives(layer).items() if name in p.attrs}


def policy(**fields):
    return Policy(is_swap_enabled=True, **fields)


def op(pattern, prefetch=5, layers=None):
    return OpSwap(pattern, ALL_LAYERS if layers is None else Layers(layers), prefetch)


# Reading.


def test_the_tree_has_every_cell_and_primitive(layers):
    tree = read_tree(layers[0])
    assert sorted(".".join(path) for path, node in tree.walk() if node.is_primitive) == sorted(PATHS)
    assert [child.name for child in tree.children] == ["add", "attention", "feed_forward"]
    types = {".".join(path): node.type_name for path, node in tree.walk()}
    assert (types["attention"], types["attention.flash.flash"], types["add"]) == ("Attention", "Softmax", "Add")


def test_equal_layers_have_equal_trees(layers):
    assert read_tree(layers[0]) == read_tree(layers[1])


def test_a_layer_of_numbered_cells_can_be_read_and_set(cells):
    layer = cells.sequential([cells.layer(), cells.layer()])
    apply_policy([layer], policy(op_swap=(op(r"1\.add"),)))
    assert offload(layer) == {"1.add": 5}


def test_recompute_adds_nothing_to_the_tree(layers):
    """MindSpore keeps a recomputed cell in a second cell; no user has written that."""
    tree = read_tree(layers[0])
    layers[0].attention.recompute()
    layers[0].recompute()
    assert read_tree(layers[0]) == tree


# Swap.


def test_a_layer_swap_sets_every_primitive_of_its_layers(layers):
    apply_policy(layers, policy(layer_swap=(LayerSwap(Layers((0, 2)), 20),)))
    assert [offload(layer) for layer in layers] == [dict.fromkeys(PATHS, 20), {}, dict.fromkeys(PATHS, 20)]


def test_a_cell_is_swapped_with_all_below_it(layers):
    apply_policy(layers, policy(op_swap=(op("attention"),)))
    assert offload(layers[0]) == {path: 5 for path in PATHS if path.startswith("attention.")}


def test_a_primitive_three_levels_down(layers):
    apply_policy(layers, policy(op_swap=(op(r"attention\.flash\.flash", 7, (1,)),)))
    assert [offload(layer) for layer in layers] == [{}, {"attention.flash.flash": 7}, {}]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        (".*", PATHS),
        (r".*\.mul", ["attention.mul", "feed_forward.mul"]),
        (r"feed_forward\..*", [path for path in PATHS if path.startswith("feed_forward.")]),
        (r"attention\.(wq|flash)", [path for path in PATHS if path.startswith(("attention.wq.", "attention.flash."))]),
    ],
)
def test_a_pattern_with_stars(layers, pattern, matched):
    apply_policy(layers, policy(op_swap=(op(pattern),)))
    assert offload(layers[0]) == dict.fromkeys(matched, 5)


def test_a_later_pattern_and_op_swap_override(layers):
    entries = (op("attention", 1), op(r"attention\.wq", 2), op(r"attention\.wq\.matmul", 3))
    apply_policy(layers, policy(layer_swap=(LayerSwap(ALL_LAYERS, 9),), op_swap=entries))
    expected = dict.fromkeys(PATHS, 9)
    expected |= {path: 1 for path in PATHS if path.startswith("attention.")}
    expected |= {path: 2 for path in PATHS if path.startswith("attention.wq.")}
    assert offload(layers[0]) == expected | {"attention.wq.matmul": 3}


# Recompute.


def test_full_recompute_marks_every_cell_of_the_layer(layers):
    apply_policy(layers, policy(layer_recompute=Layers((1,))))
    assert [bool(recomputed_cells(layer)) for layer in layers] == [False, True, False]
    assert {"attention", "attention.wq", "feed_forward.w1"} <= recomputed_cells(layers[1])


def test_a_recomputed_cell_and_a_recomputed_primitive(layers):
    entries = (OpRecompute("feed_forward", ALL_LAYERS), OpRecompute("add", ALL_LAYERS))
    apply_policy(layers, policy(select_recompute=entries))
    marked = {name for name in recomputed_cells(layers[0]) if "_recompute_cell" not in name}
    assert marked == {"feed_forward", "feed_forward.w1"}
    assert attribute(layers[0], "recompute") == {"add": True}


def test_an_exclude_inside_a_recomputed_cell_is_set_on_its_primitives(layers):
    apply_policy(
        layers,
        policy(
            select_recompute=(OpRecompute("feed_forward", ALL_LAYERS),),
            select_recompute_exclude=(OpRecompute(r"feed_forward\.w1", Layers((0,))),),
        ),
    )
    assert attribute(layers[0], "recompute") == {f"feed_forward.w1.{name}": False for name in DENSE}
    assert attribute(layers[1], "recompute") == {}


def test_an_exclude_holds_with_full_recompute(layers):
    exclude = (OpRecompute(r"attention\.mul", ALL_LAYERS),)
    apply_policy(layers, policy(layer_recompute=ALL_LAYERS, select_recompute_exclude=exclude))
    assert "attention" in recomputed_cells(layers[0])
    assert attribute(layers[0], "recompute") == {"attention.mul": False}


@pytest.mark.parametrize("excluded", [False, True])
def test_a_primitive_that_the_model_itself_recomputes_can_be_set_again(layers, excluded):
    """MindSpore then keeps a bool where the method was; the fused norm of MindFormers has such a primitive."""
    layers[0].add.recompute()
    exclude = (OpRecompute("add", Layers((0,))),) if excluded else ()
    apply_policy(layers, policy(select_recompute=(OpRecompute("add", ALL_LAYERS),), select_recompute_exclude=exclude))
    assert [attribute(layer, "recompute") for layer in layers] == [
        {"add": not excluded}, {"add": True}, {"add": True},
    ]  # fmt: skip


def test_communication_is_recomputed_or_not(layers):
    apply_policy(
        layers,
        policy(
            select_comm_recompute=(OpRecompute(r".*\.w.\.matmul", ALL_LAYERS),),
            select_comm_recompute_exclude=(OpRecompute(r"attention\.wq\.matmul", ALL_LAYERS),),
        ),
    )
    assert attribute(layers[0], "recompute_comm_op") == {"attention.wq.matmul": False, "feed_forward.w1.matmul": True}


def test_options_of_recompute_reach_the_cells(layers):
    fields = {"recompute_slice_activation": True, "mp_comm_recompute": False}
    apply_policy(layers, policy(layer_recompute=Layers((0,)), **fields))
    assert set(attribute(layers[0], "slice_activation")) == set(PATHS)
    assert set(attribute(layers[0], "slice_activation").values()) == {True}
    assert set(attribute(layers[0], "recompute_comm_op").values()) == {False}
    assert attribute(layers[1], "slice_activation") == {}


# What is refused, and what changes nothing.


def test_a_pattern_that_names_nothing_is_refused_before_anything_is_set(layers):
    entries = (op("attention"), op(r"attention\.wz"), op("mlp"))
    with pytest.raises(ApplyError, match=r"op_swap names no operator of this network: 'attention\\.wz', 'mlp'"):
        apply_policy(layers, policy(op_swap=entries))
    assert [offload(layer) for layer in layers] == [{}] * NUM_LAYERS


def test_of_the_default_patterns_one_has_to_match(layers):
    default = policy(default_prefetch=10, op_swap=(op(r".*\.flash", 10), op(r".*\.core_attention\.flash", 10)))
    apply_policy(layers, default)
    assert offload(layers[0]) == {"attention.flash.flash": 10}
    with pytest.raises(ApplyError):
        apply_policy(layers, policy(default_prefetch=10, op_swap=(op(r".*\.core_attention\.flash", 10),)))


def test_a_broken_pattern_is_refused(layers):
    with pytest.raises(PatternError):
        apply_policy(layers, policy(op_swap=(op("("),)))


def test_a_disabled_policy_changes_nothing(layers):
    def state():
        cells = [
            (name, cell.get_scope(), dict(cell.get_flags()), sorted(vars(cell)))
            for layer in layers
            for name, cell in layer.cells_and_names()
        ]
        return cells, [[(path, dict(p.attrs)) for path, p in primitives(layer).items()] for layer in layers]

    before = state()
    off = Policy(False, layer_swap=(LayerSwap(ALL_LAYERS, 1),), op_swap=(op("nothing"),), layer_recompute=ALL_LAYERS)
    assert apply_policy(layers, off) == ()
    assert state() == before


# What is logged.


def test_lines_are_logged_layer_by_layer_through_the_given_logger(layers):
    seen = []
    logger = logging.Logger("test")
    logger.addHandler(logging.Handler())
    logger.handlers[0].emit = lambda record: seen.append((record.levelname, record.getMessage()))
    entries = (op("attention", 20, (0, 1)), op("add", 15, (1,)))
    recompute = (OpRecompute("feed_forward", Layers((0,))),)
    actions = apply_policy(layers, policy(op_swap=entries, select_recompute=recompute), logger)
    assert seen == [
        ("INFO", "Set select recompute at layer 0: feed_forward"),
        ("INFO", "Set op_swap at layer 0: .attention, value=20"),
        ("INFO", "Set op_swap at layer 1: .attention, value=20, .add, value=15"),
    ]
    assert [entry.layer_index for entry in actions] == [0, 1, 2]


def test_layers_may_stand_for_other_indices(layers):
    apply_policy(layers, policy(op_swap=(op("add", 5, (7,)),)), indices=(6, 7, 7))
    assert [offload(layer) for layer in layers] == [{}, {"add": 5}, {"add": 5}]


def test_some_layers_of_a_model_take_a_policy_that_names_others(layers):
    """Layers 0 to 2 of 9 are on the stage; 7 is on another, and 9 on none."""
    apply_policy(layers, policy(op_swap=(op("add", 5, (2, 7)),)), indices=(0, 1, 2))
    assert [offload(layer) for layer in layers] == [{}, {}, {"add": 5}]
    check_layers(policy(op_swap=(op("add", 5, (2, 7)),)), 9)
    with pytest.raises(ApplyError, match=r"layers 0 to 8, the policy names \[9\]"):
        check_layers(policy(op_swap=(op("add", 5, (2, 9)),)), 9)


def test_a_primitive_that_layers_share_is_set_in_one_of_them_only(layers):
    """As the gating of all routers in MindFormers 1.9.0; what was set on it before stays."""
    shared = layers[0].attention.flash.flash
    shared.add_prim_attr("in_strategy", ((1, 2),))
    for layer in layers[1:]:
        layer.attention.flash.flash = shared
    apply_policy(layers, policy(op_swap=(op(r"attention\.flash", 5, (1,)),)))
    assert [offload(layer) for layer in layers] == [{}, {"attention.flash.flash": 5}, {}]
    assert [layer.attention.flash.flash.attrs["in_strategy"] for layer in layers] == [((1, 2),)] * 3


def test_the_output_of_a_recomputed_layer_is_kept_unless_it_is_named(layers):
    apply_policy(layers, policy(layer_recompute=Layers((0, 1)), output_recompute=Layers((0,))))
    assert [layer.get_flags().get("output_recompute") for layer in layers] == [True, False, None]


@pytest.mark.parametrize("is_again", [True, False])
def test_gathers_of_the_parallel_optimizer_are_asked_for_only_where_they_are_to_run_again(
    layers, monkeypatch, is_again
):
    """MindSpore 2.9.0 does nothing but say that it has zero3 instead."""
    lines = Lines()
    # MindSpore's own logger belongs to the process: what ran before in it decides whether a line arrives anywhere.
    monkeypatch.setitem(inspect.unwrap(type(layers[0]).recompute).__globals__, "logger", lines.logger)
    apply_policy(layers, policy(layer_recompute=ALL_LAYERS, parallel_optimizer_comm_recompute=is_again))
    assert any("zero3" in line for line in lines.lines) is is_again


@pytest.mark.parametrize("use_legacy", [True, False])
def test_default_operators_to_recompute_need_not_be_there(layers, caplog, use_legacy):
    names = default_operators("select_recompute", use_legacy)
    defaults = tuple(OpRecompute(name, ALL_LAYERS) for name in names)
    has_some = any(match_pattern(name, read_tree(layers[0])) for name in names)
    apply_policy(layers, policy(select_recompute=defaults))
    assert ("none of the default operators is in this network" in caplog.text) is not has_some
    with pytest.raises(ApplyError):  # written out by hand, and one more that nothing has
        apply_policy(layers, policy(select_recompute=(*defaults, OpRecompute("no_such_cell", ALL_LAYERS))))


def test_a_pattern_of_one_kind_of_layers_is_enough(cells):
    both = cells.list([cells.layer(), cells.sequential([cells.layer()])])
    apply_policy(both, policy(op_swap=(op("attention"),)))
    assert offload(both[0]) and not offload(both[1])


@pytest.mark.parametrize("index", [9, 12])
@pytest.mark.parametrize(
    "fields",
    [
        lambda layers: {"layer_recompute": layers},
        lambda layers: {"output_recompute": layers},
        lambda layers: {"layer_swap": (LayerSwap(layers, 5),)},
        lambda layers: {"op_swap": (OpSwap("add", layers, 5),)},
        lambda layers: {"select_recompute": (OpRecompute("add", layers),)},
        lambda layers: {"select_comm_recompute": (OpRecompute("add", layers),)},
    ],
    ids=["layers", "outputs", "layer_swap", "op_swap", "select_recompute", "select_comm_recompute"],
)
def test_layers_that_the_network_does_not_have_are_named_wherever_they_are_asked_for(fields, index):
    with pytest.raises(ApplyError, match=rf"layers 0 to 8, the policy names \[{index}\]"):
        check_layers(policy(**fields(Layers((2, index)))), 9)
    check_layers(policy(**fields(Layers((2, 8)))), 9)


# Shared cells.


def test_layers_that_share_a_cell_are_treated_alike(cells):
    shared = cells.layer()
    layers = [shared, cells.layer(), shared]
    only_first = policy(layer_swap=(LayerSwap(Layers((0,)), 5),))
    with pytest.raises(ApplyError, match=r"layer 0: .* is also layer 2: .*\n    fix: "):
        apply_policy(layers, only_first)
    assert offload(shared) == {}
    apply_policy(layers, policy(layer_swap=(LayerSwap(Layers((0, 2)), 5),)))
    assert offload(shared) == dict.fromkeys(PATHS, 5)
    apply_policy(layers, only_first, is_swap_per_call=True)
    with pytest.raises(ApplyError, match=r"layer 0: .* is also layer 2: "):
        apply_policy(layers, policy(layer_recompute=Layers((0,))), is_swap_per_call=True)


def test_a_primitive_that_layers_share_becomes_one_for_each(cells):
    """`Primitive._clone` of MindSpore 2.9.0 fails for `BiasAdd`."""
    layers = [cells.layer(), cells.layer()]
    bias_add = layers[1].feed_forward.w1.bias_add = layers[0].feed_forward.w1.bias_add
    apply_policy(layers, policy(layer_swap=(LayerSwap(Layers((1,)), 5),)))
    assert layers[0].feed_forward.w1.bias_add is bias_add is not layers[1].feed_forward.w1.bias_add
    assert offload(layers[0]) == {} and offload(layers[1]) == dict.fromkeys(PATHS, 5)
    assert bias_add.attrs.items() <= layers[1].feed_forward.w1.bias_add.attrs.items()
