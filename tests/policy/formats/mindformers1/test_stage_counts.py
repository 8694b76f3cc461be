import pytest

from mindswap.config.pipeline_layout import Pipeline
from mindswap.policy.formats.mindformers1.stage_counts import CountsError, layers_of_stage_counts, read_counts
from tests.builders import document

# 8 layers: cells 0-1, 2-3 of the first chunk, 4-5, 6-7 of the second.
CHUNKS = Pipeline(2, num_chunks=2).layout(8)


def counts(text, layout=CHUNKS):
    return read_counts(document(f"x: {text}").get("x"), layout)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("True", ((2, 2), (2, 2))),
        ("False", ((0, 0), (0, 0))),
        ("[3, 1]", ((2, 1), (1, 0))),  # dealt out chunk by chunk: 1 1 1 of stage 0
        ("[True, 0]", ((2, 0), (2, 0))),
        ("[[1, 0], [0, 2]]", ((1, 0), (0, 2))),
        ("[[1, 0], True]", ((1, 0), (2, 2))),
    ],
)
def test_rows_per_chunk(text, rows):
    assert counts(text).rows == rows


def test_what_is_too_large_or_missing_is_said():
    assert counts("[9, 1]").warnings == ("9 for stage 0, which has 4 layers",)
    assert counts("[9, 1]").rows == ((2, 1), (2, 0))
    assert counts("[1]").warnings == ("[1] has no count for the 1 last stage, which gets 0",)
    cut = counts("[[3, 0], [0, 0]]")
    assert cut.warnings == ("3 counts as 2: position 0 of chunk 0 has 2 layers",)
    assert cut.is_rewritten


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("3", "3 is an integer"),
        ("[1, -1]", "loop forever"),
        ("[1, 1, 1]", "3 counts for 2 stages"),
        ("[[1, 1], [1, 1], [1, 1]]", "3 lists for 2 chunks"),
        ("[[1, 1], 2]", "2 is an integer, among lists"),
        ("[[1, 1], [1]]", "no count for chunk 1, stage 1, where layer 6 is"),
        ("[[1, a], [1, 1]]", "'a' is a string"),
    ],
)
def test_what_mindformers_refuses(text, reason):
    with pytest.raises(CountsError, match=reason):
        counts(text)


def test_zero_bubble_v_turns_the_second_row():
    """Its second chunk begins at stage 1: one of stage 0 there is one of its last cell."""
    layout = Pipeline(2, num_chunks=2, scheduler="zero_bubble_v").layout(8)
    assert counts("[[0, 0], [1, 0]]", layout).rows == ((0, 0), (0, 1))


def test_layers_that_counts_stand_for():
    node = document("x: [2, 1]").get("x")
    assert layers_of_stage_counts(node, Pipeline(2), 8) == (0, 1, 4)
    assert layers_of_stage_counts(node, Pipeline(2), 7) is None
    assert layers_of_stage_counts(node, Pipeline(2), None) is None
