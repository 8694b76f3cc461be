"""`recompute_config` with swap off: layers worked out by hand, and the example of the specification to the byte."""

import pytest

from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute
from mindswap.policy.model import Layers
from tests.builders import document

# The example of the specification, with what MindFormers needs besides to count two chunks.
SPECIFICATION = r"""
    model: {model_config: {num_layers: 48, pp_interleave_num: 2, offset: [[0,1,1,1,1],[1,1,1,1,0]]}}
    parallel_config: {pipeline_stage: 5}
    parallel: {pipeline_config: {pipeline_interleave: True, pipeline_scheduler: '1f1b'}}
    recompute_config:
      recompute: [[2,1,0,0,0],[1,0,0,0,0]]
      select_recompute:
        'feed_forward\.w1\.activation\.silu': True
        'feed_forward\.mul': True
        'feed_forward\.w1\.matmul': [[1,0,0,0,0],[2,1,0,0,0]]
        'feed_forward\.w3\.matmul': [2,1,0,0,0]
      select_comm_recompute: ['ffn_norm\.norm','attention_norm\.norm']
"""
EVERYWHERE = "[[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]]"


def expand(text, num_layers):
    return expand_stage_recompute(document(text), num_layers)


def config(num_layers, recompute, stages=2, chunks=1, offset=0, scheduler="1f1b"):
    """A whole configuration, and its number of layers."""
    text = f"""
        model: {{model_config: {{pp_interleave_num: {chunks}, offset: {offset}}}}}
        parallel_config: {{pipeline_stage: {stages}}}
        parallel: {{pipeline_config: {{pipeline_interleave: True, pipeline_scheduler: {scheduler}}}}}
        recompute_config: {recompute}
    """
    return text, num_layers


def recomputed(*args, **options):
    """Layers that are fully recomputed; there must be no error."""
    result = expand(*config(*args, **options))
    assert result.formative_lines, result.problems
    return result.policy.layer_recompute.indices


def problems(text, num_layers):
    return [(p.level.value, p.location.line, p.location.column, p.message) for p in expand(text, num_layers).problems]


def test_the_example_of_the_specification_to_the_byte():
    assert expand(SPECIFICATION, 48).formative_lines == (
        "Formative layer_recompute: [[2, 1, 0, 0, 0], [1, 0, 0, 0, 0]]",
        r"Formative select_recompute: {'feed_forward\.w1\.activation\.silu': "
        rf"{EVERYWHERE}, 'feed_forward\.mul': {EVERYWHERE}, "
        r"'feed_forward\.w1\.matmul': [[1, 0, 0, 0, 0], [2, 1, 0, 0, 0]], "
        r"'feed_forward\.w3\.matmul': [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]}",
        rf"Formative select_comm_recompute: {{'ffn_norm\.norm': {EVERYWHERE}, 'attention_norm\.norm': {EVERYWHERE}}}",
    )


def test_the_layers_of_that_example():
    # Chunk 0: 4+5+5+5+5 layers from 0, 4, 9, 14, 19; chunk 1: 5+5+5+5+4 from 24, 29, 34, 39, 44.
    policy = expand(SPECIFICATION, 48).policy
    assert not policy.is_swap_enabled
    assert policy.layer_recompute == Layers((0, 1, 4, 24))
    layers = {entry.pattern: entry.layers.indices for entry in policy.select_recompute}
    assert layers[r"feed_forward\.w1\.matmul"] == (0, 24, 25, 29)
    assert layers[r"feed_forward\.w3\.matmul"] == (0, 4, 24)
    assert layers[r"feed_forward\.mul"] == tuple(range(48))


def test_without_the_pipeline_section_two_rows_say_that_chunks_count():
    without = "\n".join(line for line in SPECIFICATION.splitlines() if "parallel:" not in line)
    result = expand(without, 48)
    assert result.formative_lines == expand(SPECIFICATION, 48).formative_lines
    assert [p.message for p in result.problems] == [
        "model.model_config.pp_interleave_num: acts only with pipeline_interleave: True; 2 chunks are counted here"
    ]


def test_interleave_that_is_off_counts_one_chunk():
    text, num_layers = config(8, "{recompute: [3, 0]}", chunks=2)
    text = text.replace("pipeline_interleave: True", "pipeline_interleave: False")
    # One chunk of 4 layers a stage: the first three. With two chunks it would be 0, 1 and 4.
    assert expand(text, num_layers).policy.layer_recompute == Layers((0, 1, 2))
    assert recomputed(8, "{recompute: [3, 0]}", chunks=2) == (0, 1, 4)


@pytest.mark.parametrize(
    ("recompute", "layers"),
    [
        ("True", tuple(range(8))),
        ("False", ()),
        ("[]", ()),
        ("[1, 2]", (0, 4, 5)),
        ("[True, 1]", (0, 1, 2, 3, 4)),
        ("[[2, True]]", (0, 1, 4, 5, 6, 7)),
        ("[9, 0]", (0, 1, 2, 3)),
    ],
)
def test_forms_of_recompute(recompute, layers):
    # 8 layers on 2 stages: 0-3 and 4-7.
    assert recomputed(8, f"{{recompute: {recompute}}}") == layers


def test_offset_moves_the_stages():
    # 11 layers on 3 stages, 3 each and one more on the first two: 0-3, 4-7, 8-10.
    assert recomputed(11, "{recompute: [1, 2, 3]}", stages=3, offset="[1, 1, 0]") == (0, 4, 5, 8, 9, 10)


def test_zero_bubble_runs_the_second_chunk_backwards():
    # 9 layers, 2 chunks on 2 stages, 2 each; the rest goes to chunk 1, stage 0, which comes last: 0-1, 2-3 | 4-5, 6-8.
    options = {"chunks": 2, "offset": "[[0, 0], [1, 0]]", "scheduler": "zero_bubble_v"}
    assert recomputed(9, "{recompute: [[1, 0], [2, 1]]}", **options) == (0, 4, 6, 7)
    layout = expand(*config(9, "{}", **options)).layout
    assert [(cell.chunk, cell.stage, list(cell.layers)) for cell in layout.cells()] == [
        (0, 0, [0, 1]),
        (0, 1, [2, 3]),
        (1, 1, [4, 5]),
        (1, 0, [6, 7, 8]),
    ]


def test_default_operators():
    text, num_layers = config(4, "{select_recompute: [1, 0], select_comm_recompute: True}")
    policy = expand(text, num_layers).policy
    assert [(e.pattern, e.layers.indices) for e in policy.select_recompute] == [
        (r"feed_forward\.mul", (0,)),
        (r"feed_forward\.w1\.activation\.silu", (0,)),
    ]
    assert [(e.pattern, e.layers.indices) for e in policy.select_comm_recompute] == [(r".*\.norm", (0, 1, 2, 3))]
    newer = expand("\n        use_legacy: False" + text, num_layers).policy
    assert r"mlp\.mul" in [entry.pattern for entry in newer.select_recompute]


def test_an_exclude_option_takes_the_name_out_in_every_layer():
    text = r"""
        recompute_config:
          select_recompute: {'feed_forward\.mul': True, 'feed_forward\.w1': True}
          select_recompute_exclude: {'feed_forward\.m.*': [1]}
    """
    result = expand(text, 4)
    assert [entry.pattern for entry in result.policy.select_recompute] == [r"feed_forward\.w1"]
    assert result.policy.select_recompute_exclude[0].layers == Layers((0,))
    assert result.formative_lines[1:] == (
        r"Formative select_recompute: {'feed_forward\.w1': [[4]]}",
        r"Formative select_comm_recompute: {'.*\.norm': [[0]]}",
        r"Formative select_recompute_exclude: {'feed_forward\.m.*': [[1]]}",
    )
    assert [(p.level.value, p.location.line) for p in result.problems] == [("warning", 3)]


# What MindFormers refuses.


@pytest.mark.parametrize(
    ("recompute", "message"),
    [
        ("'(2, 1)'", "'(2, 1)' is a string"),
        ("3", "3 is an integer"),
        ("null", "null is null"),
        ("[2, 1, 1]", "[2, 1, 1] has 3 counts for 2 stages"),
        ("[-1, 1]", "-1 is negative, and MindFormers would loop forever"),
        ("[1.0, 1]", "1.0 is a float, among lists"),
        ("[[1, 1], [1, 1]]", "[[1, 1], [1, 1]] has 2 lists for 1 chunk"),
        ("[[1, 1, 1]]", "3 counts for 2 stages"),
        ("[[1]]", "[[1]] has no count for chunk 0, stage 1, where layer 4 is"),
        ("[[1, '1']]", "'1' is a string"),
        ("[1, [1]]", "1 is an integer, among lists"),
        ("{a: 1}", "{'a': 1} is a mapping"),
    ],
)
def test_counts_that_stop_mindformers(recompute, message):
    result = expand(*config(8, f"{{recompute: {recompute}}}"))
    assert result.formative_lines == ()
    [problem] = result.problems
    assert (problem.level.value, problem.rule, problem.location.line) == ("error", "stage-recompute", 4)
    assert problem.message == f"recompute_config.recompute: {message}"
    assert problem.allowed and problem.fix


def test_rows_that_mindformers_rewrites_for_the_first_default_operator():
    # It puts NumPy numbers in place of True and of 9, and refuses those at the second operator.
    for row in ("[True, 0]", "[9, 0]"):
        [problem] = [
            p for p in expand(*config(8, f"{{select_recompute: [{row}]}}")).problems if p.level.value == "error"
        ]
        assert "for the second operator" in problem.message
    assert expand(*config(8, "{select_recompute: [[2, False]]}")).problems == ()
    assert expand(*config(8, "{select_comm_recompute: [[True, 0]]}")).problems == ()


@pytest.mark.parametrize(
    ("stages", "chunks", "offset", "reason"),
    [
        (2, 1, "[1, 0]", "adds up to 1, but 8 layers on 2 stages x 1 chunks leave a remainder of 0"),
        (2, 1, "[0, 0, 0]", "has 3 numbers, not one per stage"),
        (2, 2, "[[0, 0]]", "has 1 lists, not one for each of 2 chunks"),
        (2, 1, "'x'", "is not a number"),
        (3, 1, "[1, -2, 3]", "leave [3, 0, 5] layers; only the first and the last may have none"),
    ],
)
def test_an_offset_that_does_not_fit(stages, chunks, offset, reason):
    [problem] = expand(*config(8, "{}", stages=stages, chunks=chunks, offset=offset)).problems
    assert (problem.level.value, problem.location.line) == ("error", 1)
    assert reason in problem.message and problem.message.startswith("model.model_config.offset: ")


def test_zero_bubble_takes_one_list_for_each_chunk():
    options = {"chunks": 2, "scheduler": "zero_bubble_v"}
    [problem] = expand(*config(8, "{recompute: [1, 1]}", **options)).problems
    assert "zero_bubble_v takes one list for each chunk" in problem.message
    [problem] = expand(*config(8, "{recompute: True}", chunks=1, scheduler="zero_bubble_v")).problems
    assert "zero_bubble_v takes pp_interleave_num: 2" in problem.message


def test_keys_and_flags_that_stop_mindformers():
    text = """
        use_legacy: False
        recompute_config:
          recompute: True
          recomputes: 1
          mp_comm_recompute: 1
          recompute_slice_activation: True
    """
    assert [(line, message) for *_, line, _, message in problems(text, 4)] == [
        (4, "recompute_config.recomputes: unknown key"),
        (5, "recompute_config.mp_comm_recompute: 1 is an integer"),
        (6, "recompute_config.recompute_slice_activation: not supported with use_legacy: False"),
    ]
    assert problems("recompute_config: [1]", 4) == [("error", 1, 19, "recompute_config: [1] is a list")]


# What it accepts without doing it.


@pytest.mark.parametrize(
    ("recompute", "message"),
    [
        ("{recompute: [9, 0]}", "recompute: 9 for stage 0, which has 4 layers"),
        ("{recompute: [1]}", "recompute: [1] has no count for the 1 last stage, which gets 0"),
        ("{recompute: [[5, 0]]}", "recompute: 5 counts as 4: position 0 of chunk 0 has 4 layers"),
        ("{recompute: [[-1, 0]]}", "recompute: -1 counts as 0: position 0 of chunk 0 has 4 layers"),
        (
            "{select_recompute: {add: ['0-3']}}",
            "select_recompute['add']: MindFormers takes a list of strings here as True, whatever they say",
        ),
        (
            "{select_recompute_exclude: True}",
            "select_recompute_exclude: True names no operator, so nothing is excluded",
        ),
        ("{mp_comm_recompute: False}", "mp_comm_recompute: MindFormers 1.9.0 ignores it with swap off"),
        ("{recompute_slice_activation: True}", "recompute_slice_activation: acts only with recompute: True"),
    ],
)
def test_what_is_left_out_is_a_warning(recompute, message):
    assert [(level, text) for level, _, _, text in problems(*config(8, recompute))] == [
        ("warning", f"recompute_config.{message}")
    ]


def test_an_offset_written_once_for_every_chunk_makes_too_many_layers():
    # 9 layers, 2 chunks on 2 stages: the rest of 1 is added in both chunks, 3 + 2 + 3 + 2 = 10. The last cell gets one.
    result = expand(*config(9, "{recompute: True}", chunks=2, offset="[1, 0]"))
    assert result.formative_lines[0] == "Formative layer_recompute: [[3, 2], [3, 2]]"
    assert [list(cell.layers) for cell in result.layout.cells()] == [[0, 1, 2], [3, 4], [5, 6, 7], [8]]
    [problem] = result.problems
    assert "makes 10 layers of 9" in problem.message


def test_a_section_that_aliases_blow_up_is_refused_at_once():
    # 7 levels of 10 aliases each stand for 10 million values.
    levels = "\n".join(
        f"        l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10) if i else '1, 1, 1, 1, 1, 1, 1, 1, 1, 1'}]"
        for i in range(7)
    )
    result = expand(f"\n{levels}\n        recompute_config: {{recompute: *l6}}\n", 4)
    assert [problem.message for problem in result.problems] == ["recompute_config: the section is too large"]


def test_layers_without_an_offset_name_the_missing_key():
    text = "parallel_config: {pipeline_stage: 4}\nmodel: {model_config: {num_layers: 9}}"
    (problem,) = expand_stage_recompute(document(text), 9).problems
    assert "model.model_config.offset is missing" in problem.message and "adds up" not in problem.message
    assert problem.fix == "offset: [1, 0, 0, 0]"
