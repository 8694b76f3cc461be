"""Which configurations stop a launch before it begins."""

import pytest

from mindswap.errors import PolicyError
from mindswap.training.launch.training import check_configuration

BAD = "swap_config:\n  swap: True\n  layer_swap: 3\n"


def command(path, *options):
    return ["-m", "mindswap", "run", "--config", str(path), *options]


@pytest.fixture
def bad(tmp_path):
    (tmp_path / "bad.yaml").write_text(BAD)
    return tmp_path / "bad.yaml"


@pytest.mark.parametrize("options", [(), ("--run_mode", "train"), ("--run_mode=finetune",)])
def test_a_wrong_configuration_stops_a_training(bad, options):
    with pytest.raises(PolicyError):
        check_configuration(command(bad, *options))


@pytest.mark.parametrize("options", [("--run_mode", "predict"), ("--run_mode=eval",), ("--swap_config.swap", "False")])
def test_other_runs_and_changed_configurations_go_on(bad, options):
    check_configuration(command(bad, *options))


def test_the_run_mode_of_the_file_counts(tmp_path):
    (tmp_path / "predict.yaml").write_text("run_mode: predict\n" + BAD)
    check_configuration(command(tmp_path / "predict.yaml"))


def test_operator_names_are_left_to_the_real_network(tmp_path):
    text = r"""
model: {arch: {type: LlamaForCausalLM}, model_config: {num_layers: 2}}
swap_config: {swap: True, op_swap: [{op_name: 'feed_forward\.router', backward_prefetch: 1, layers: [0]}]}
"""
    (tmp_path / "moe.yaml").write_text(text)
    check_configuration(command(tmp_path / "moe.yaml"))
