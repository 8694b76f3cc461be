import pytest

from mindswap.adapters.config_file import leave_out_checkpoint


def test_a_checkpoint_that_is_named_is_not_looked_for():
    config = {"model": {"model_config": {"num_layers": 2, "checkpoint_name_or_path": "/data/llama2.ckpt"}}}
    leave_out_checkpoint(config)
    assert config == {"model": {"model_config": {"num_layers": 2, "checkpoint_name_or_path": ""}}}


@pytest.mark.parametrize("config", [{}, {"model": None}, {"model": {}}, {"model": {"model_config": {"num_layers": 2}}}])
def test_nothing_is_added_where_none_is_named(config):
    before = repr(config)
    leave_out_checkpoint(config)
    assert repr(config) == before
