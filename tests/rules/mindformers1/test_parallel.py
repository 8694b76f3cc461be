import pytest

from mindswap.config.problem import Level
from mindswap.policy.cell_tree import LayerTrees
from tests.builders import check, found, layer

# Rule `parallel-optimizer`.


SETTINGS = """
        parallel:
          enable_parallel_optimizer: True
          parallel_optimizer_config:
            {}
        parallel_config: {{data_parallel: 8}}
        swap_config: {{swap: {}}}
"""


def parallel_optimizer_config(line, swap=True):
    return SETTINGS.format(line, swap)


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("optimizer_level: level4", 22),
        ("gradient_accumulation_shard: 1", 34),
        ("parallel_optimizer_threshold: -1", 35),
        ("parallel_optimizer_threshold: 1.5", 35),
        ("optimizer_weight_shard_size: 0", 34),
        ("optimizer_weight_shard_size: True", 34),
        ("optimizer_leve: level1", 5),
        ("optimizer_weight_shard_size: 3", 34),  # 3 does not divide 8
        ("optimizer_weight_shard_size: 1", 34),  # MindSpore ignores it
    ],
)
def test_what_does_not_fit(line, column):
    assert [entry for entry in found(parallel_optimizer_config(line)) if entry[2] == "parallel-optimizer"] == [
        (4, column, "parallel-optimizer")
    ]


@pytest.mark.parametrize(
    "line",
    [
        "optimizer_level: level3",
        "gradient_accumulation_shard: False",
        "parallel_optimizer_threshold: 0",
        "optimizer_weight_shard_size: -1",
        "optimizer_weight_shard_size: 4",
        "optimizer_weight_shard_size: 8",
    ],
)
def test_what_passes(line):
    assert [entry for entry in found(parallel_optimizer_config(line)) if entry[2] == "parallel-optimizer"] == []


@pytest.mark.parametrize(
    ("size", "effect"),
    [(3, "does not divide 8 ranks, so no weight is sharded"), (16, "has no effect, weights are sharded over 8 ranks")],
)
def test_a_size_that_does_not_divide_the_ranks(size, effect):
    text = parallel_optimizer_config(f"optimizer_weight_shard_size: {size}")
    (problem,) = [problem for problem in check(text).problems if problem.rule == "parallel-optimizer"]
    assert problem.message.endswith(f"optimizer_weight_shard_size: {size} {effect}")
    assert (problem.allowed, problem.fix[:31]) == ("-1, or a divisor of 8 from 2 on", "optimizer_weight_shard_size: -1")


def test_level_and_shard_of_gradients_contradict_each_other():
    problems = check(
        parallel_optimizer_config("{optimizer_level: level1, gradient_accumulation_shard: False}")
    ).problems
    (problem,) = [entry for entry in problems if entry.rule == "parallel-optimizer"]
    assert problem.fix == "delete it; level2 means True, level1 False"


@pytest.mark.parametrize(("shard", "levels"), [("False", [Level.WARNING]), ("True", [])])
def test_level2_overrules_a_shard_of_gradients(shard, levels):
    problems = check(
        parallel_optimizer_config(f"{{optimizer_level: level2, gradient_accumulation_shard: {shard}}}")
    ).problems
    assert [problem.level for problem in problems if problem.rule == "parallel-optimizer"] == levels


@pytest.mark.parametrize(("is_training_start", "level"), [(True, Level.WARNING), (False, Level.ERROR)])
def test_with_swap_off_it_stops_commands_and_no_run(is_training_start, level):
    problems = check(
        parallel_optimizer_config("optimizer_level: level4", swap=False), is_training_start=is_training_start
    ).problems
    assert [p.level for p in problems if p.rule == "parallel-optimizer"] == [level]


# Rule `interleaved-cell`.

HALVES = layer("""
    attention
      wo
        matmul*
    feed_forward
      mul*
      w1
        matmul*
      w3
        matmul*
""")


@pytest.mark.parametrize(
    ("operators", "lines"),
    [
        ({"feed_forward": [0, 1, 2, 5]}, {4: "layers 0-1"}),  # 2 and 5 are the last of their stages
        ({"feed_forward": True}, {4: "layers 0-1, 3-4"}),
        ({r"feed_forward\.w1": [0, 5], r"feed_forward\.w3": [0, 2, 5]}, {5: "layer 0"}),  # together in 0 and 5
        ({r"feed_forward\..*": [2]}, {4: "layer 2"}),
        ({r"feed_forward\.w[13]\.matmul": True, r"feed_forward\.mul": True, "attention": True}, {}),
        ({r"feed_forward\.w3": True}, {}),
    ],
)
def test_cells_that_compute_in_halves_do_not_run_again(operators, lines):
    entries = "\n".join(f"    '{name}': {layers}" for name, layers in operators.items())
    text = f"""\
swap_config: {{swap: True}}
recompute_config:
  select_recompute:
{entries}
parallel_config: {{model_parallel: 2, pipeline_stage: 2, use_seq_parallel: True}}
model: {{model_config: {{num_layers: 6, fine_grain_interleave: 2}}}}
"""
    trees = LayerTrees((HALVES,) * 6, {}, "the test model")

    def warnings(text):
        return [p for p in check(text, trees).problems if p.rule == "interleaved-cell"]

    found_lines = {p.location.line: p.message.split(" in ")[1].split(", which")[0] for p in warnings(text)}
    assert found_lines == lines
    assert warnings(text.replace("interleave: 2", "interleave: 1")) == []
    assert warnings(text.replace("model_parallel: 2", "model_parallel: 1")) == []


# Rule `pipeline-scheduler`.


ON = "swap_config: {swap: True}\n"


def pipeline_scheduler_config(name, interleave="True", swap=ON):
    return f"{swap}parallel: {{pipeline_config: {{pipeline_interleave: {interleave}, pipeline_scheduler: {name}}}}}"


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "seqpipe", "seqvpp", "seqsmartvpp", "zero_bubble_v", "null"])
def test_names_of_mindspore_pass(name):
    problems = check(pipeline_scheduler_config(name)).problems
    assert [p for p in problems if p.rule == "pipeline-scheduler"] == []


@pytest.mark.parametrize("name", ["zero_bubble_h", "1F1B", "True", "[seqpipe]"])
def test_other_names_are_reported(name):
    assert found(pipeline_scheduler_config(name)) == [(2, 77, "pipeline-scheduler")]


def test_without_interleave_there_is_1f1b_only():
    assert found(pipeline_scheduler_config("1f1b", interleave="False")) == []
    assert found(pipeline_scheduler_config("seqpipe", interleave="False")) == [(2, 78, "pipeline-scheduler")]


# Rule `sequence-pieces`.


def sequence_pieces_config(parallel="pipeline_stage: 2, seq_split_num: 4", rest="", swap=ON):
    return f"{swap}parallel_config: {{{parallel}}}\n{rest}"


def test_pieces_of_a_pipeline_pass():
    assert found(sequence_pieces_config(rest="model: {model_config: {seq_length: 4096}}")) == []
    assert found(sequence_pieces_config("pipeline_stage: 1, seq_split_num: 1", "use_legacy: False")) == []
    halves = "model: {model_config: {fine_grain_interleave: 2}}"
    assert found(sequence_pieces_config("model_parallel: 2, use_seq_parallel: True", halves)) == []
    assert found(sequence_pieces_config("context_parallel: 2", halves)) == []


@pytest.mark.parametrize(
    ("parallel", "rest", "place"),
    [
        ("pipeline_stage: 1, seq_split_num: 4", "", (2, 53)),
        ("pipeline_stage: 2, seq_split_num: 4", "use_legacy: False", (2, 53)),
        ("pipeline_stage: 2, seq_split_num: 3", "model: {model_config: {seq_length: 4096}}", (2, 53)),
        ("pipeline_stage: 2, seq_split_num: 4", "model: {model_config: {use_flash_attention: False}}", (3, 45)),
        ("pipeline_stage: 2, seq_split_num: 4", "model: {model_config: {use_ring_attention: True}}", (3, 44)),
        ("pipeline_stage: 2, seq_split_num: 4", "runner_wrapper: {calculate_per_token_loss: True}", (3, 44)),
        ("model_parallel: 2", "model: {model_config: {fine_grain_interleave: 2}}", (3, 47)),
    ],
)
def test_what_mindformers_refuses(parallel, rest, place):
    assert found(sequence_pieces_config(parallel, rest)) == [(*place, "sequence-pieces")]


def test_recompute_of_whole_layers():
    """MindFormers refuses it; with swap on mindswap would let it pass, and gradients would be wrong."""
    text = sequence_pieces_config(rest="recompute_config: {recompute: [0, 1]}\nmodel: {model_config: {num_layers: 4}}")
    assert found(text) == [(1, 21, "recompute-wins"), (3, 31, "sequence-pieces")]
