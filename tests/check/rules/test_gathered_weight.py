from dataclasses import replace

import pytest

from mindswap.policy.cell_tree import CellNode, LayerTrees
from tests.builders import check, found, layer

# Types as MindFormers has them.
TYPES = {"wq": "Linear", "wo": "Linear", "cast": "Cast"}


def typed(node: CellNode) -> CellNode:
    children = tuple(typed(child) for child in node.children)
    return replace(node, type_name=TYPES.get(node.name, node.type_name), children=children)


# Two linear layers with a cast each, a norm with one, an operator without.
TREE = typed(
    layer("""
        norm
          cast*
        attention
          wq
            cast*
            matmul*
          wo
            cast*
            matmul*
          add*
    """)
)
MODEL = LayerTrees((TREE,) * 4, {}, "the test model")


def config(recompute="{}", swap="", parallel="{enable_parallel_optimizer: True}", data_parallel=8, num_micro_batches=2):
    return f"""
        parallel: {parallel}
        parallel_config: {{data_parallel: {data_parallel}}}
        swap_config: {{swap: True, op_swap: [{swap}]}}
        recompute_config: {{select_recompute: {recompute}}}
        runner_config: {{gradient_accumulation_steps: {num_micro_batches}}}
    """


ADD = r"{op_name: 'attention\.add', backward_prefetch: 1, layers: [0]}"


def rules(text):
    return [(line, rule) for line, _, rule in found(text, MODEL) if rule == "gathered-weight"]


def test_recompute_of_casts_of_gathered_weights():
    text = config(r"{'attention\.w[qo]\.cast': True}", ADD)
    assert rules(text) == [(4, "gathered-weight")]
    (problem,) = [p for p in check(text, MODEL).problems if p.rule == "gathered-weight"]
    names = "attention.wo.cast, attention.wq.cast"
    assert f"{names} cast weights that the parallel optimizer gathers from 8 ranks" in problem.message
    assert "is never computed again: this frees nothing" in problem.message
    assert "level3" in problem.fix


def test_swap_of_such_a_cast():
    assert rules(config(swap=r"{op_name: 'attention\.wq\.cast', backward_prefetch: 1, layers: [0]}")) == [
        (3, "gathered-weight")
    ]


def test_with_one_micro_batch_a_swap_of_the_cast_frees_it_and_recompute_holds_what_was_gathered():
    """Dry runs of 2026-11-23: benchmarks/dryrun, `llama ops_10`, and tests/training/measure/test_backend.py."""
    swap = r"{op_name: 'attention\.wq\.cast', backward_prefetch: 1, layers: [0]}"
    assert rules(config(swap=swap, num_micro_batches=1)) == []
    text = config(r"{'attention\.wq\.cast': True}", ADD, num_micro_batches=1)
    (problem,) = [p for p in check(text, MODEL).problems if p.rule == "gathered-weight"]
    assert "stays for it as it is stored, which is no less: this frees nothing" in problem.message


def test_with_level3_they_are_released_in_any_case():
    level3 = "{enable_parallel_optimizer: True, parallel_optimizer_config: {optimizer_level: level3}}"
    text = config(r"{'attention\.wq\.cast': True}", ADD, level3)
    (problem,) = [p for p in check(text, MODEL).problems if p.rule == "gathered-weight"]
    assert "is released and gathered again in any case" in problem.message
    assert problem.fix == "delete it"


@pytest.mark.parametrize(
    "text",
    [
        config(r"{'attention\.wq': True}", ADD),  # the product as well
        config(r"{'norm\.cast': True}", ADD),  # of activations
        config(r"{'attention\.wq\.cast': True}", ADD, parallel="{}"),
        config(r"{'attention\.wq\.cast': True}", ADD, data_parallel=1),
        config(r"{'attention\.wq\.cast': True}", ADD, "{enable_parallel_optimizer: True, parallel_mode: 0}"),
    ],
)
def test_what_passes(text):
    assert rules(text) == []
