from dataclasses import replace
from textwrap import dedent

import pytest

from mindswap import cli
from mindswap.policy.cell_tree import CellNode, LayerTrees
from tests.builders import check, found, layer

# Rule `gathered-weight`. Types as MindFormers has them.
TYPES = {"wq": "Linear", "wo": "Linear", "cast": "Cast"}


def typed(node: CellNode, types: dict[str, str]) -> CellNode:
    children = tuple(typed(child, types) for child in node.children)
    return replace(node, type_name=types.get(node.name, node.type_name), children=children)


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
    """),
    TYPES,
)
MODEL = LayerTrees((TREE,) * 4, {}, "the test model")


def config(
    recompute="{}",
    swap="",
    parallel="{enable_parallel_optimizer: True}",
    data_parallel=8,
    num_micro_batches=2,
    num_stages=1,
    dtypes="{param_init_type: float32, compute_dtype: bfloat16}",
):
    return f"""
        parallel: {parallel}
        parallel_config: {{data_parallel: {data_parallel}, pipeline_stage: {num_stages}}}
        swap_config: {{swap: True, op_swap: [{swap}]}}
        recompute_config: {{select_recompute: {recompute}}}
        runner_config: {{gradient_accumulation_steps: {num_micro_batches}}}
        model: {{model_config: {dtypes}}}
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
    assert "is never recomputed: this frees nothing" in problem.message
    assert problem.fix == "delete it"  # level3 with accumulation does not compile


def test_swap_of_such_a_cast():
    assert rules(config(swap=r"{op_name: 'attention\.wq\.cast', backward_prefetch: 1, layers: [0]}")) == [
        (3, "gathered-weight")
    ]


def test_with_one_micro_batch_a_swap_of_the_cast_frees_it_and_recompute_holds_what_was_gathered():
    """Dry runs of 2026-11-23: benchmarks/dryrun, `llama ops_10`, and tests/features/dryrun/test_on_backend.py."""
    swap = r"{op_name: 'attention\.wq\.cast', backward_prefetch: 1, layers: [0]}"
    assert rules(config(swap=swap, num_micro_batches=1)) == []
    text = config(r"{'attention\.wq\.cast': True}", ADD, num_micro_batches=1)
    (problem,) = [p for p in check(text, MODEL).problems if p.rule == "gathered-weight"]
    assert "would be kept in float32 instead: this frees nothing" in problem.message
    assert problem.fix.startswith("delete it, or name it in op_swap")


HALF = "{param_init_type: float16, compute_dtype: bfloat16}"
CAST = r"{op_name: 'attention\.wq\.cast', backward_prefetch: 1, layers: [0]}"


@pytest.mark.parametrize(
    "text",
    [
        config(r"{'attention\.wq\.cast': True}", dtypes=HALF),
        config(swap=CAST, dtypes=HALF),
        config(r"{'attention\.wq\.cast': True}", dtypes=HALF, num_micro_batches=1, num_stages=2),
    ],
)
def test_weights_in_half_precision_are_cast_behind_the_gather_and_each_layer_keeps_its_copy(text):
    """Dry runs of README's plan: 69338 MiB without recompute of the casts, 59673 with it."""
    assert rules(text) == []


@pytest.mark.parametrize(
    ("dtypes", "num_micro_batches"),
    [
        (HALF, 1),  # kept in float16 instead
        ("{param_init_type: bfloat16, compute_dtype: bfloat16}", 2),  # no cast
        ("{}", 2),  # the defaults are equal
    ],
)
def test_the_same_recompute_with_one_micro_batch_or_without_a_cast_frees_nothing(dtypes, num_micro_batches):
    text = config(r"{'attention\.wq\.cast': True}", ADD, dtypes=dtypes, num_micro_batches=num_micro_batches)
    assert rules(text) == [(4, "gathered-weight")]


def test_with_level3_recompute_frees_them():
    level3 = "{enable_parallel_optimizer: True, parallel_optimizer_config: {optimizer_level: level3}}"
    assert rules(config(r"{'attention\.wq\.cast': True}", ADD, level3)) == []


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


# Rule `comm-recompute`.


COMM_TYPES = {"wq": "Linear", "reshape": "Reshape"}
COMM_TREE = layer("""
    attention_norm
      norm*
      rcast*
    attention
      wq
        reshape*
        matmul*
""")


def warned(asked, types):
    trees = LayerTrees((typed(COMM_TREE, types),) * 4, {}, "the test model")
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
    assert warned(asked, COMM_TYPES) == [(3, column) for column in columns]


def test_nothing_is_said_of_models_whose_linear_layers_do_not_reshape():
    assert warned("True", {"wq": "ColumnParallelLinear", "reshape": "Reshape"}) == []


# Rule `optimizer-comm-recompute`.


TEXT = """
    parallel: {{enable_parallel_optimizer: {enabled}, parallel_optimizer_config: {{optimizer_level: {level}}}}}
    parallel_config: {{data_parallel: 8}}
    swap_config: {{swap: {swap}}}
    recompute_config:
      recompute: True
      parallel_optimizer_comm_recompute: {flag}
"""


def flag_config(enabled=True, level="level1", swap=True, flag=True):
    return TEXT.format(enabled=enabled, level=level, swap=swap, flag=flag)


@pytest.mark.parametrize(
    ("values", "fix"),
    [
        (
            {},
            "delete it; parallel_optimizer_config: {optimizer_level: level3} gathers weights again in backward",
        ),
        ({"level": "level3"}, "delete it; optimizer_level: level3 gathers weights again in backward already"),
        ({"enabled": False}, "delete it; the parallel optimizer gathers no weights here"),
    ],
)
def test_it_says_where_the_effect_is_to_be_had(values, fix):
    problem = next(p for p in check(flag_config(**values)).problems if p.rule == "optimizer-comm-recompute")
    assert (problem.location.line, problem.location.column, problem.level.value) == (6, 38, "warning")
    assert problem.fix == fix


@pytest.mark.parametrize("values", [{"flag": False}, {"swap": False}])
def test_nothing_is_said_where_it_is_not_asked_for_or_swap_is_off(values):
    """With swap off MindFormers does not pass the flag on, which is for `stage-recompute` to say."""
    assert "optimizer-comm-recompute" not in [rule for *_, rule in found(flag_config(**values))]


def test_explain_says_it_too(capsys, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("model: {model_config: {num_layers: 2}}\n" + dedent(flag_config()))
    cli.main(["explain", str(path)])
    output = "".join(capsys.readouterr())
    assert f"{path}:8:38: " in output and "[optimizer-comm-recompute]" in output


# Rule `kept-by-reshape`.


LLAMA = """
    model: {{model_config: {{type: LlamaConfig, num_layers: 4{model}}}, arch: {{type: LlamaForCausalLM}}}}
    swap_config: {swap}
    recompute_config: {{select_recompute: {recompute}}}
"""
SWAPS = ("{swap: False}", "{swap: True, op_swap: []}")


def kept(recompute, swap, model=""):
    problems = check(LLAMA.format(recompute=recompute, swap=swap, model=model), None).problems
    return [problem for problem in problems if problem.rule == "kept-by-reshape"]


@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize(
    ("recompute", "num"),
    [
        ("True", 1),
        (r"['feed_forward\.mul']", 1),
        (r"['feed_forward\.w3\.matmul']", 1),  # as in MindFormers' own guide to memory
        (r"['feed_forward\.w1\.matmul']", 0),  # silu reads it
        (r"['feed_forward\.mul', 'feed_forward\.w2\.reshape']", 0),
        (r"['feed_forward\.(mul|w2)']", 0),
        ("['feed_forward']", 0),
        ("['attention']", 0),
    ],
)
def test_a_reshape_keeps_what_is_recomputed(recompute, num, swap):
    problems = kept(recompute, swap)
    assert len(problems) == num
    for problem in problems:
        assert (problem.level.value, problem.location.line) == ("warning", 3)
        assert "which is the same memory" in problem.message and "reshape'" in problem.fix


def test_counts_per_stage_are_the_layers_that_they_stand_for():
    (problem,) = kept("[3]", "{swap: False}")
    assert "frees nothing in layers 0-2" in problem.message


def test_a_layer_that_is_recomputed_whole_keeps_nothing():
    text = LLAMA.format(recompute="[4]", swap="{swap: False}", model="").replace("{select", "{recompute: [3], select")
    assert ["layer 3" in p.message for p in check(text, None).problems if p.rule == "kept-by-reshape"] == [True]
