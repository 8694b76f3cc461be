"""Options of `mindswap run` for a configuration of MindFormers 2.x, up to the point where its trainer takes over."""

import pytest
import yaml

from mindswap import cli
from mindswap.config.source import load_document
from mindswap.errors import LaunchError
from mindswap.features.run import options_2x, pynative_2x
from mindswap.features.run.options_2x import refuse_without_effect, trainer_data
from tests.features.dryrun.test_trainer_on_backend import SMALL

OWN = {"mindswap": {"swap_engine": "mindswap"}}


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    monkeypatch.delenv("RANK_SIZE", raising=False)


def changed(folder, sections):
    file = folder / "changed.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(SMALL.read_text("utf-8")) | sections), encoding="utf-8")
    return load_document(str(file))


@pytest.mark.parametrize(
    ("words", "start", "allowed"),
    [
        (["--run_mode", "predict"], "--run_mode predict: has no effect", "train"),
        (["--run_mode=finetune"], "--run_mode finetune: has no effect", "train"),
        (["--mode", "0"], "--mode 0: has no effect", "1"),
        (["--device_target", "GPU"], "--device_target GPU: has no effect", "Ascend, CPU"),
        (["--use_parallel", "True"], "--use_parallel True: has no effect", "False"),
        (["--seed", "1"], "--seed: no option of", ", ".join(options_2x.KNOWN_OPTIONS)),
        (["--mode", "1", "predict"], "predict: no option of", ", ".join(options_2x.KNOWN_OPTIONS)),
    ],
)
def test_what_would_have_no_effect_is_refused_by_name(words, start, allowed, capsys):
    assert cli.main(["run", "--config", str(SMALL), *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"mindswap: error: {start}")
    assert f"\n    allowed: {allowed}\n    fix:     " in error


def test_what_agrees_with_the_training_is_accepted(tmp_path, monkeypatch):
    document = changed(tmp_path, {})
    words = ["--config", "x.yaml", "--device_target=CPU", "--mode", "1", "--run_mode", "train", "--output_dir", "out"]
    refuse_without_effect(document, [*words, "--use_parallel", "false"])
    monkeypatch.setenv("RANK_SIZE", "2")
    refuse_without_effect(document, [*words, "--use_parallel", "True"])
    with pytest.raises(LaunchError, match=r"--use_parallel False: has no effect(?s:.*)allowed: True"):
        refuse_without_effect(document, [*words, "--use_parallel", "False"])


def test_a_file_for_another_run_mode_trains_with_the_option_only(tmp_path):
    document = changed(tmp_path, {"run_mode": "predict"})
    with pytest.raises(LaunchError, match=r"changed\.yaml:\d+:\d+: run_mode is 'predict'"):
        refuse_without_effect(document, [])
    options = ["--run_mode", "train"]
    refuse_without_effect(document, options)
    assert trainer_data(document, options)["run_mode"] == "train"


def test_checkpoints_go_to_the_output_folder_unless_the_file_has_a_path(tmp_path):
    options = ["--output_dir", "out"]
    saved = {"save_max": 2, "save_path": "out/checkpoint"}
    assert trainer_data(changed(tmp_path, {"checkpoint": {"save_max": 2}}), options)["checkpoint"] == saved
    stated = changed(tmp_path, {"checkpoint": {"save_path": "elsewhere"}, **OWN})
    data = trainer_data(stated, options)
    assert data["checkpoint"] == {"save_path": "elsewhere"} and "mindswap" not in data
    assert trainer_data(stated, []) == {name: value for name, value in stated.data().items() if name != "mindswap"}


@pytest.mark.parametrize(
    ("parallelism", "num_ranks", "is_recorded"),
    [
        ({}, 1, True),
        ({"tensor_parallel": 2}, 1, False),
        ({"context_parallel": 2}, 1, False),
        ({"pipeline_parallel": 2}, 1, False),
        ({}, 2, False),
    ],
)
def test_a_step_is_recorded_before_the_training_only_if_one_process_has_all_of_it(
    parallelism, num_ranks, is_recorded, tmp_path, monkeypatch
):
    """The recording itself, half a minute, is in tests/features/dryrun/test_trainer_on_backend.py."""
    monkeypatch.setenv("RANK_SIZE", str(num_ranks))
    monkeypatch.setattr(pynative_2x, "record_own_swap_step", lambda document: "recorded")
    document = changed(tmp_path, {"parallelism": parallelism, **OWN})
    assert pynative_2x.recorded_step(document, "Ascend") == ("recorded" if is_recorded else None)
    assert pynative_2x.recorded_step(document, "CPU") is None
