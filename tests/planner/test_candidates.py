"""What a planner may decide about: operators by their names, and cells around what has none."""

from dataclasses import replace

from mindswap.graph import memory
from mindswap.planner.candidates import Item, _Walker
from mindswap.planner.catalog import collect_items, recompute_policy
from mindswap.policy.cell_tree import CellNode, exact_pattern
from mindswap.simulator.step_model import StepModel
from tests.graph.builders import graph, node
from tests.planner.models import MB, small_model


def model_with_a_function() -> StepModel:
    """The small model, of whose `attn` no operator is an attribute: no entry can name `exp`, which keeps 1 MB."""
    model = small_model()
    source = model.layers.source
    attention, mlp = source.trees[0].children
    tree = replace(source.trees[0], children=(replace(attention, children=(CellNode("inner", "Inner"),)), mlp))
    return StepModel(replace(source, trees=(tree,) * len(source.trees)), model.costs, model.settings)


def test_a_cell_is_offered_where_no_name_reaches():
    catalog = collect_items(model_with_a_function())
    [cell] = [i for i, item in enumerate(catalog.items[1]) if item.recompute_names == (("attn",),)]
    assert catalog.freed_bytes[1, cell, 1] == MB  # made again from what the layer before hands on


def test_no_cell_is_offered_that_computes_in_halves():
    model = model_with_a_function()
    halves = StepModel(model.layers.source, model.costs, replace(model.settings, computes_halves=True))
    assert ("attn",) not in [way for item in collect_items(halves).items[1] for way in item.recompute_names]


def test_where_all_have_names_there_are_only_operators():
    ways = [way for item in collect_items(small_model()).items[1] for way in item.recompute_names]
    assert ("attn.exp",) in ways and ("attn",) not in ways


class Names:
    """Every operator has the name of its cell and its own."""

    def __call__(self, found):
        return (f"{found.cell_path}.{found.name}",)

    def can_name(self, found):
        return True


def test_a_tuple_runs_again_with_its_cell_and_what_others_read_of_that_is_named():
    """`mlp` makes `a` and bundles it; `attn.d` is of another cell; `reader` is outside of `mlp`."""
    a, bundle = node("a", "Exp", "x", cell_path="mlp"), node("both", "MakeTuple", "a x", cell_path="mlp")
    d = node("d", "Exp", "x", cell_path="attn")

    def way(read, *nodes):
        reader = node("reader", "Neg", read, cell_path="attn")
        return _Walker(graph([a, bundle, d, reader], []), Names(), 0, CellNode("", "Layer"), ())._way([*nodes, bundle])

    assert way("a", a) == ("mlp", "mlp.a")
    assert way("x", a) == ()  # recompute of the cell alone says no operator
    assert way("x", d) == ("mlp", "attn.d")


def test_of_two_reshapes_that_the_compiler_made_one_both_are_named():
    """The first is `qkv.view`; where the node stands, in `attn`, the model has two that may be the second."""
    merged = node("view", "Reshape", "x", cell_path="attn")
    reshapes = tuple(CellNode(name, "Reshape", True) for name in ("join", "split"))
    layer = CellNode("", "Layer", children=(CellNode("attn", "Attention", children=reshapes),))

    class First(Names):
        def __call__(self, found):
            return (f"qkv.{found.name}",)

    def walker(names):
        return _Walker(graph([merged], []), names, 0, layer, ())

    assert walker(First())._way([merged]) == ("qkv.view", "attn.join", "attn.split")
    assert walker(Names())._way([merged]) == ("attn.view",)
    # A swap is for what has its name in the cell where it stands.
    assert walker(Names())._can_swap([merged])
    assert not walker(First())._can_swap([merged])


def test_what_runs_again_with_a_cell_is_not_named_beside_it():
    """But for what the same way names as well: the output of a cell does not run again with it."""
    ways = (("feed_forward", "feed_forward.w2"), ("feed_forward.mul",), ("attention.add",))
    chosen = [(Item(memory.Names.of(way[0]), (), (), (), (way,)), 1) for way in ways]
    found = [entry.pattern for entry in recompute_policy(chosen).select_recompute]
    assert found == [exact_pattern(name) for name in ("attention.add", "feed_forward", "feed_forward.w2")]
