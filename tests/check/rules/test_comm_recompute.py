from dataclasses import replace

import pytest

from mindswap.policy.cell_tree import CellNode, LayerTrees
from tests.builders import check, layer

TYPES = {"wq": "Linear", "reshape": "Reshape"}


def typed(node: CellNode, types: dict[str, str]) -> CellNode:
    children = tuple(typed(child, types) for child in node.children)
    return replace(node, type_name=types.get(node.name, node.type_name), children=children)


TREE = layer("""
    attention_norm
      norm*
      rcast*
    attention
      wq
        reshape*
        matmul*
""")


def warned(asked, types):
    trees = LayerTrees((typed(TREE, types),) * 4, {}, "the test model")
    problems = check(
        f"swap_config: {{swap: True}}\nrecompute_config:\n  select_comm_recompute: {asked}\n", trees
    ).problems
    return [(p.location.line, p.location.column) for p in problems if p.rule == "comm-recompute"]


@pytest.mark.parametrize(
    ("asked", "columns"),
    [
        ("True", [26]),
        (r"['attention_norm\.norm', 'attention_norm\.rcast']", [27, 51]),
        (r"['attention_norm\.norm', 'attention\.wq\.reshape']", [27]),
        (r"['attention\.wq\.reshape']", []),
        (r"['attention\.wq\.(matmul|reshape)']", []),
        (r"['no\.such']", []),  # for unmatched-pattern to say
        ("False", []),
    ],
)
def test_only_the_reshape_of_a_linear_layer_has_its_gather_run_again(asked, columns):
    assert warned(asked, TYPES) == [(3, column) for column in columns]


def test_nothing_is_said_of_models_whose_linear_layers_do_not_reshape():
    assert warned("True", {"wq": "ColumnParallelLinear", "reshape": "Reshape"}) == []
