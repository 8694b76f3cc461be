"""What a planner may decide about: operators by their names, and cells around what has none."""

from dataclasses import replace

import numpy as np

from mindswap.graph.analysis import saved_tensors as memory
from mindswap.graph.storage import classify_saved
from mindswap.planner.candidates import ActivationGroup, _Walker, _with_across
from mindswap.planner.catalog import build_catalog, recompute_policy
from mindswap.planner.planning import Planner
from mindswap.planner.problem import PlanProblem
from mindswap.policy.cell_tree import CellNode, exact_pattern
from mindswap.policy.model import NO_LAYERS
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
    catalog = build_catalog(model_with_a_function())
    [cell] = [i for i, group in enumerate(catalog.groups[1]) if group.recompute_paths == (("attn",),)]
    assert catalog.freed_bytes[1, cell, 1] == MB  # made again from what the layer before hands on


def test_no_cell_is_offered_that_computes_in_halves():
    model = model_with_a_function()
    halves = StepModel(model.layers.source, model.costs, replace(model.settings, has_interleaved_halves=True))
    assert ("attn",) not in [way for group in build_catalog(halves).groups[1] for way in group.recompute_paths]


def test_where_all_have_names_there_are_only_operators():
    ways = [way for group in build_catalog(small_model()).groups[1] for way in group.recompute_paths]
    assert ("attn.exp",) in ways and ("attn",) not in ways


class Names:
    """Every operator has the name of its cell and its own."""

    def __call__(self, found):
        return (f"{found.cell_path}.{found.name}",)

    def can_name(self, found):
        return True


class NamesOfAttributes(Names):
    """A cast is a function, which no entry can name."""

    def can_name(self, found):
        return found.op != "Cast"


def test_a_function_whose_output_is_held_as_a_named_view_is_swapped_by_that_name():
    """As the output of GLM4's norms, which a reshape of the next product holds."""
    cast, view = node("cast", "Cast", "x", cell_path="norm"), node("view", "Reshape", "cast", cell_path="mlp")
    step = graph([cast, view], [node("gradient", "MatMul", "view_b dy")], "view")
    walker = _Walker(step, NamesOfAttributes(), 0, CellNode("", "Layer"), ())
    assert walker.group(list(classify_saved(step))).swap_names == ("mlp.view",)


def test_a_tuple_runs_again_with_its_cell_but_for_what_others_read_of_that():
    """`mlp` makes `a` and bundles it; `attn.d` is of another cell; `reader` is outside of `mlp`."""
    a, bundle = node("a", "Exp", "x", cell_path="mlp"), node("both", "MakeTuple", "a x", cell_path="mlp")
    d = node("d", "Exp", "x", cell_path="attn")

    def way(read, *nodes):
        reader = node("reader", "Neg", read, cell_path="attn")
        return _Walker(graph([a, bundle, d, reader], []), Names(), 0, CellNode("", "Layer"), ())._recompute_path(
            [*nodes, bundle]
        )

    assert way("a", a) == ()  # the output of a cell stays, named or not
    assert way("a", d) == ("mlp", "attn.d")
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

    assert walker(First())._recompute_path([merged]) == ("qkv.view", "attn.join", "attn.split")
    assert walker(Names())._recompute_path([merged]) == ("attn.view",)
    # A swap is for what has its name in the cell where it stands.
    assert walker(Names())._can_swap([merged])
    assert not walker(First())._can_swap([merged])


def test_what_runs_again_with_a_cell_is_not_named_beside_it():
    """But for what the same way names as well: the output of a cell does not run again with it."""
    ways = (("feed_forward", "feed_forward.w2"), ("feed_forward.mul",), ("attention.add",))
    chosen = [(ActivationGroup(memory.Names.of(way[0]), (), (), (), (way,)), 1) for way in ways]
    found = [entry.pattern for entry in recompute_policy(chosen).select_recompute]
    assert found == [exact_pattern(name) for name in ("attention.add", "feed_forward", "feed_forward.w2")]


def test_a_way_is_known_that_leads_out_of_a_cell_with_weights():
    """`a` reads a weight in `attn`; `b` reads `a` and `d` reads it through a tuple, in `mlp`."""
    nodes = [
        node("w", "Load", "weight"),
        node("a", "MatMul", "x w", cell_path="attn"),
        node("again", "Exp", "a", cell_path="attn"),
        node("b", "Exp", "a", cell_path="mlp"),
        node("both", "MakeTuple", "b a", cell_path="mlp"),
        node("second", "TupleGetItem", "a", cell_path="mlp"),
        node("d", "Exp", "second", cell_path="mlp"),
        node("e", "Exp", "d", cell_path=""),
    ]
    walker = _Walker(graph(nodes, []), Names(), 0, CellNode("", "Layer"), ())
    by_name = {one.name: one for one in nodes}

    def is_across(*names):
        return walker._is_across([by_name[name] for name in names])

    assert is_across("a", "b") and is_across("d", "again", "a")
    assert not is_across("a", "again")  # stays in the cell
    assert not is_across("b", "again")  # what `attn` gives is kept
    assert not is_across("d", "e")  # no weight is read in `mlp`

    def is_into_cell(*names):
        return walker._is_into_cell([by_name[name] for name in names])

    assert is_into_cell("a", "b", "both")  # the bundle has `mlp` run again
    assert not is_into_cell("a", "b")
    assert not is_into_cell("b", "both")  # what `attn` gives is kept


def test_a_way_is_known_that_is_right_before_a_cell():
    """`norm` makes what `mlp` reads, also through a tuple; `first` is further away, and `mlp.gate` is in it."""
    nodes = [
        node("far", "Cast", "x", cell_path="first"),
        node("cast", "Cast", "far", cell_path="norm"),
        node("scaled", "Mul", "cast", cell_path="norm"),
        node("pair", "MakeTuple", "scaled far", cell_path=""),
        node("gate", "Exp", "scaled", cell_path="mlp.gate"),
        node("part", "TupleGetItem", "pair", cell_path="mlp"),
        node("out", "Exp", "part gate", cell_path="mlp"),
        node("beside", "Exp", "gate", layer=1, cell_path="mlp"),
    ]
    walker = _Walker(graph(nodes, []), Names(), 0, CellNode("", "Layer"), ())
    assert walker.cells_before("mlp") == {"norm"}
    assert walker.cells_before("mlp.gate") == {"norm"}
    assert walker.cells_before("norm") == {"first"}

    ways = (("norm.cast",), ("first.far", "norm.cast"), ("first.far",), ("mlp",))
    group = ActivationGroup(memory.Names.of("norm.cast"), (), (), (), ways, frozenset({("first.far",)}))
    assert _with_across(group, {"norm"}).across_cells == frozenset(ways[:3])


def newer(model: StepModel) -> StepModel:
    """The same, as one of the newer models."""
    return StepModel(model.layers.source, model.costs, replace(model.settings, is_newer=True))


def test_what_newer_models_do_not_compile_together_is_known():
    model = model_with_a_function()
    for catalog in (build_catalog(model), build_catalog(newer(model))):
        assert np.flatnonzero(catalog.is_cell).tolist() == [0, 4, 5]  # the full layer, `attn`, `mlp`

    catalog = build_catalog(newer(small_model()))
    operator = next(i for i, group in enumerate(catalog.groups[1]) if ("attn.exp",) in group.recompute_paths)
    is_across = np.zeros_like(catalog.is_across)
    is_across[:, operator, 1] = True
    catalog = replace(catalog, is_across=is_across)
    assignment = np.zeros((4, len(catalog.groups[1])), np.int64)
    assignment[1, operator] = -1
    assert not catalog.combines_incompatible(assignment)
    assignment[3, 0] = -1
    assert catalog.combines_incompatible(assignment)
    assignment[1, operator] = 5
    assert not catalog.combines_incompatible(assignment)  # a swap is no recompute

    without_ways, without_cells = catalog.split_incompatible()
    assert without_ways.freed_bytes[1, 0, 1] > 0 == without_ways.freed_bytes[1, operator, 1]
    assert without_cells.freed_bytes[1, operator, 1] > 0 == without_cells.freed_bytes[1, 0, 1]
    assert np.array_equal(without_cells.freed_bytes[:, :, 0], catalog.freed_bytes[:, :, 0])


def test_an_operator_right_before_a_cell_of_functions_is_of_those_that_do_not_compile_with_it():
    """No operator of `mlp` has a name, and `attn` makes what it reads: `attn.exp` runs again without `mlp` alone."""
    model = small_model()
    source = model.layers.source
    attention, mlp = source.trees[0].children
    tree = replace(source.trees[0], children=(attention, replace(mlp, children=(CellNode("inner", "Inner"),))))
    groups = build_catalog(StepModel(replace(source, trees=(tree,) * len(source.trees)), model.costs, model.settings))
    across = {way for group in groups.groups[1] for way in group.across_cells}
    assert ("attn.exp",) in across and ("mlp",) not in across
    assert not any(group.across_cells for group in build_catalog(model).groups[1])  # where all have names


def test_no_plan_mixes_what_does_not_compile():
    """Of the fastest plan of a legacy model some layers run again whole, and in others one operator: not so here, where
    that leads out of a cell with weights.
    """

    def plan(model):
        planner = Planner(model)
        is_way = planner.catalog.freed_bytes > 0
        is_way[:, 0] = False
        if model.settings.is_newer:
            planner.catalog = replace(planner.catalog, is_across=is_way)
        return planner.plan(PlanProblem(model, 15_600_000, 0, 8))

    mixed, apart = plan(small_model(8)), plan(newer(small_model(8)))
    assert mixed.fits and mixed.policy.layer_recompute != NO_LAYERS and mixed.policy.select_recompute
    assert apart.fits and (apart.policy.layer_recompute != NO_LAYERS) != bool(apart.policy.select_recompute)
    assert mixed.step_time_ns <= apart.step_time_ns
    assert mixed.num_evaluations < apart.num_evaluations
