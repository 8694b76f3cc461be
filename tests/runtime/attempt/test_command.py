import sys
from pathlib import Path

import pytest

from mindswap.errors import LaunchError
from mindswap.runtime.attempt import command as command_module
from mindswap.runtime.attempt.command import SAFE_PATH, checkpoint_folder, is_parallel, parse_command, saves_checkpoints
from mindswap.runtime.attempt.state import with_absolute_bases
from tests.builders import document

MSRUN = ["msrun", "--worker_num=2", "--local_worker_num", "2", "--log_dir=logs", "--master_port=9000", "--join=False"]
TRAINING = ["--config", "c.yaml", "--run_mode", "train"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run_mindformer.py").touch()
    monkeypatch.setattr(command_module, "find_msrun", lambda: ["MSRUN"])
    monkeypatch.setattr(command_module, "find_python", lambda: "python")


@pytest.mark.parametrize("worker", [["python", "-m", "mindswap", "run"], ["--", "python", "-m", "mindswap", "run"]])
def test_msrun(worker, tmp_path):
    command = parse_command([*MSRUN, *worker, *TRAINING])
    assert (command.num_workers, command.log_dir, command.master_port) == (2, Path("logs"), 9000)
    assert command.config_path == tmp_path / "c.yaml"
    words = command.words(Path("/plan.yaml"), Path("/run/attempt_1"), 9001, is_resumed=False)
    assert words[:7] == ["MSRUN", *MSRUN[1:]]
    assert words[7:] == [
        "--log_dir=/run/attempt_1", "--master_port=9001", "--join=True", "--tail_worker_log=2", "--",
        "python", *SAFE_PATH, "-m", "mindswap", "run", "--config", "/plan.yaml", "--run_mode", "train",
    ]  # fmt: skip


@pytest.mark.parametrize("worker", [["run_mindformer.py"], ["python", "run_mindformer.py"]])
def test_a_script_gets_the_plugin_and_its_config_from_beside_it(worker, tmp_path):
    command = parse_command([*MSRUN, *worker, *TRAINING])
    words = command.words(Path("/plan.yaml"), Path("/x"), 1, is_resumed=False)
    assert words[-8:-2] == ["-m", "mindswap", "run", "run_mindformer.py", "--config", "/plan.yaml"]
    assert command.config_path == tmp_path / "c.yaml"


def test_without_msrun():
    command = parse_command(["mindswap", "run", *TRAINING])
    assert command.words(Path("/plan.yaml"), Path("/x"), 1, is_resumed=False) == [
        sys.executable, *SAFE_PATH, "-m", "mindswap", "run", "--config", "/plan.yaml", "--run_mode", "train",
    ]  # fmt: skip


def test_a_restart_leaves_out_what_its_configuration_says():
    resumed = ["--load_checkpoint", "a", "--resume_training=True", "--load_ckpt_format", "ckpt"]
    command = parse_command(["--config=c.yaml", *resumed, "--seed", "1"])
    assert command.words(Path("/p"), Path("/x"), 1, is_resumed=False)[-7:-2] == resumed
    assert command.words(Path("/p"), Path("/x"), 1, is_resumed=True)[-4:] == ["--config", "/p", "--seed", "1"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "no training command"),
        (["msrun", "--worker_num=2"], "msrun has nothing to start"),
        (["msrun", "--worker_num=16", "--local_worker_num=8", "python", *TRAINING], "all workers on one machine"),
        (["msrun", "--worker_num=2", "python", *TRAINING], "fix:     add --local_worker_num=2$"),
        (["msrun", "--worker_num=x", "python", "-m", "mindswap", "run", *TRAINING], "msrun --worker_num is 'x'"),
        (["msrun", "--worker_num=8", "python", "nix.py", *TRAINING], "the training command: no script 'nix.py'"),
        (["--run_mode", "train"], "--config is missing"),
    ],
)
def test_what_cannot_be_run(words, text):
    with pytest.raises(LaunchError, match=text):
        parse_command(words)


def test_where_checkpoints_are(tmp_path):
    command = parse_command(TRAINING)
    assert checkpoint_folder(command, document("seed: 0"), tmp_path) == tmp_path / "output/checkpoint"
    assert checkpoint_folder(command, document("output_dir: x"), tmp_path) == tmp_path / "x/checkpoint"
    text = "callbacks: [{type: CheckpointMonitor, directory: /d}]"
    assert checkpoint_folder(command, document(text), tmp_path) == Path("/d/checkpoint")
    for empty in ("", ", directory: ", ", directory: ''"):
        text_of_none = f"callbacks: [{{type: CheckpointMonitor{empty}}}]"
        assert checkpoint_folder(command, document(text_of_none), tmp_path) == tmp_path / "output/checkpoint"
    assert saves_checkpoints(document(text)) and not saves_checkpoints(document("callbacks: [{type: A}]"))
    command = parse_command([*TRAINING, "--output_dir", "/o"])
    assert checkpoint_folder(command, document("output_dir: x"), tmp_path) == Path("/o/checkpoint")


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ([], "seed: 0", False),  # MindFormers' own default, also for workers of msrun
        ([], "use_parallel: True", True),
        ([], "use_parallel: False", False),
        (["--use_parallel", "False"], "use_parallel: True", False),
        (["--use_parallel=true"], "use_parallel: False", True),
    ],
)
def test_several_processes_are_one_training_where_mindformers_takes_them_so(options, text, expected):
    for words in (TRAINING, [*MSRUN, "python", "-m", "mindswap", "run", *TRAINING]):
        assert is_parallel(parse_command([*words, *options]), document(text)) is expected


def test_bases_hold_from_any_folder():
    text = "# c\nbase_config: [a.yaml, 'sub/b.yaml']  # d\nseed: 1\n"
    assert with_absolute_bases(text, Path("/w")) == '# c\nbase_config: ["/w/a.yaml", "/w/sub/b.yaml"]  # d\nseed: 1\n'
    assert with_absolute_bases("seed: 1\n", Path("/w")) == "seed: 1\n"
