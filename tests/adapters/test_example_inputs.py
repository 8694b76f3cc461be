"""What a network is given while it is compiled: the columns of its data set, in the lengths that the model takes."""

import pytest

pytestmark = pytest.mark.mindspore


def shapes(model_type: str, batch_size=2, **model_config):
    from mindformers.tools.register import MindFormerConfig

    from mindswap.adapters.graph.build import example_inputs

    config = MindFormerConfig(
        use_legacy=True,
        runner_config={"batch_size": batch_size},
        parallel_config={"seq_split_num": 1},
        model={"model_config": {"type": model_type, "seq_length": 8, **model_config}},
        train_dataset={"input_columns": ["input_ids", "labels"]},
    )
    return {name: tuple(tensor.shape) for name, tensor in example_inputs(config).items()}


def test_llama_cuts_one_token_more_into_inputs_and_labels():
    assert shapes("LlamaConfig") == {"input_ids": (2, 9)}
    assert shapes("LlamaConfig", input_sliced_sig=True) == {"input_ids": (2, 8), "labels": (2, 8)}


def test_chatglm2_takes_the_columns_as_they_are():
    assert shapes("ChatGLM2Config") == {"input_ids": (2, 8), "labels": (2, 8)}


def test_without_a_batch_size_there_is_one_sample():
    """MindFormers 1.9 sets `runner_config.batch_size` from `train_dataset` later, and 1 is its default there."""
    assert shapes("ChatGLM2Config", batch_size=None) == {"input_ids": (1, 8), "labels": (1, 8)}
