"""What a planner may decide about: operators by their names, and cells around what has none."""

from dataclasses import replace

from mindswap.planner.catalog import collect_items
from mindswap.policy.cell_tree import CellNode
from mindswap.simulator.step_model import StepModel
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


def test_where_all_have_names_there_are_only_operators():
    ways = [way for item in collect_items(small_model()).items[1] for way in item.recompute_names]
    assert ("attn.exp",) in ways and ("attn",) not in ways
