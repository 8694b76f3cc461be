"""Which layers a rank has."""

import pytest

from mindswap.config.parse import parse_document
from mindswap.config.pipeline_layout import Pipeline
from mindswap.config.source import load_document
from mindswap.config.weight_sharding import gathers_sequence, is_split, place_rank, shards_weights
from mindswap.errors import GraphError
from mindswap.rules.values import Values

CONFIG = """\
parallel: {parallel_mode: 1}
parallel_config: {data_parallel: 2, model_parallel: 2, pipeline_stage: 2, use_seq_parallel: True}
model: {model_config: {num_layers: 6, offset: [1, -1]}}
"""


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return load_document(str(path))


def test_ranks_are_numbered_stage_by_stage(document):
    # Six layers on two stages are three each; the offset moves one to the first stage.
    assert [place_rank(document, rank, 6).layers for rank in (0, 3, 4, 7)] == [
        (0, 1, 2, 3), (0, 1, 2, 3), (4, 5), (4, 5),
    ]  # fmt: skip
    last = place_rank(document, 7, 6)
    assert (last.num_ranks, last.num_stage_ranks, last.stage, last.is_last_stage) == (8, 4, 1, True)
    assert last.describe() == "rank 7 of 8, stage 1 of 2 (parallel: data 2, tensor 2 with sequence parallel)"


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_that_does_not_exist_is_refused(document, rank):
    with pytest.raises(GraphError, match=r"gives ranks 0-7"):
        place_rank(document, rank, 6)


def test_layers_that_do_not_fit_the_stages_are_refused(document):
    with pytest.raises(GraphError, match="7 layers cannot be spread"):
        place_rank(document, 0, 7)


def test_virtual_chunks_give_a_stage_several_runs_of_layers():
    interleaved = Pipeline(num_stages=2, num_chunks=2)
    assert [interleaved.stage_layers(stage, 8) for stage in (0, 1)] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    v_shaped = Pipeline(num_stages=2, num_chunks=2, scheduler="zero_bubble_v")
    assert [v_shaped.stage_layers(stage, 8) for stage in (0, 1)] == [(0, 1, 6, 7), (2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("section", "is_in_force"),
    [
        ("{}", True),  # MindFormers' default is 1
        ("{parallel_mode: 1}", True),
        ("{parallel_mode: SEMI_AUTO_PARALLEL}", True),
        ("{parallel_mode: semi_auto_parallel}", True),
        ("{parallel_mode: AUTO_PARALLEL}", True),
        ("{parallel_mode: 2}", True),
        ("{parallel_mode: 0}", False),
        ("{parallel_mode: DATA_PARALLEL}", False),
        ("{parallel_mode: True}", False),
    ],
)
def test_all_names_of_a_mode_are_read_alike(section, is_in_force):
    text = CONFIG.replace("{parallel_mode: 1}", section.replace("}", ", enable_parallel_optimizer: True}"))
    text = text.replace("{, ", "{")
    document = parse_document(text, "x.yaml")
    assert place_rank(document, 0, 6).has_strategies == is_in_force
    assert gathers_sequence(document) == shards_weights(document) == Values(document).is_split == is_in_force
    assert not is_split(parse_document("use_parallel: False\n" + text, "x.yaml"))
