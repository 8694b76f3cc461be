"""`mindswap run` up to the point where MindFormers takes over; trainings are in tests/adapters/test_training.py."""

import importlib.util

import pytest

from mindswap import cli
from mindswap.features import run as training
from tests.builders import document


@pytest.fixture
def run(capsys):
    def run_command_line(*arguments):
        code = cli.main(["run", *map(str, arguments)])
        error = capsys.readouterr().err
        assert "a bug" not in error and "Traceback" not in error, error
        return code, error

    return run_command_line


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit('trained')")
    return path


def test_help_is_of_mindswap(capsys):
    assert cli.main(["run", "--help"]) == 0
    assert "put `mindswap run` in front of run_mindformer.py" in capsys.readouterr().out


def test_without_a_configuration_it_says_how(run):
    assert run("--run_mode", "train") == (
        1,
        "mindswap: error: --config is missing\n    fix: mindswap run --config CONFIG.yaml --run_mode train\n",
    )


@pytest.mark.parametrize("words", [("--config",), ("--config", "--run_mode", "train")])
def test_an_option_without_its_value_is_named(run, words):
    assert run(*words) == (1, "mindswap: error: --config: its value is missing\n    fix:     --config VALUE\n")


def test_a_wrong_option_of_an_adaptive_run_shows_its_usage(run):
    code, error = run("--adaptive-memory-optimization", "--max-restarts", "x", "--", "msrun")
    assert code == 1
    assert error.startswith("usage: mindswap run --adaptive-memory-optimization [OPTIONS] [--] COMMAND\n")
    assert "mindswap run: error: argument --max-restarts: 'x': expected an integer between" in error


@pytest.mark.parametrize(("ending", "code"), [("2", 2), ("77", 77), ("0", 0), ("", 0), ("'no data'", 1)])
def test_the_exit_code_is_that_of_the_script(monkeypatch, capsys, ending, code):
    """Also 2, with which argparse of a script leaves."""
    monkeypatch.setattr("mindswap.features.run.cli.run", lambda args: exec(f"raise SystemExit({ending})"))
    assert cli.main(["run", "train.py", "--config", "x.yaml"]) == code
    assert capsys.readouterr().err == ("no data\n" if code == 1 else "")


@pytest.mark.parametrize("words", [("--memory", "54GiB", "--", "msrun"), ("--config", "x.yaml")])
def test_another_spelling_of_the_adaptive_flag_is_named(run, words):
    assert run("--adaptive-memory-optimisation", *words) == (
        1,
        "mindswap: error: --adaptive-memory-optimisation: no such option\n    fix: --adaptive-memory-optimization\n",
    )


def test_a_missing_script_is_named(run, tmp_path):
    code, error = run(tmp_path / "no.py", "--config", "x.yaml")
    assert code == 1
    assert error.startswith(f"mindswap: error: no such script: {tmp_path / 'no.py'}\n")


@pytest.mark.parametrize("with_script", [False, True])
def test_a_missing_configuration_is_named_and_nothing_runs(run, tmp_path, script, with_script):
    path = tmp_path / "no.yaml"
    code, error = run(*[script] * with_script, "--config", path, "--run_mode", "train")
    assert code == 1
    assert error.startswith(f"{path}: error: ") and "the file does not exist [yaml-file]" in error


def test_a_relative_configuration_is_looked_for_beside_the_script(run, tmp_path, script, monkeypatch):
    """As upstream's run_mindformer.py does; without a script it is the working folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert run(script, "--config", "no.yaml")[1].startswith(f"{tmp_path / 'no.yaml'}: error: ")
    assert run("--config", "no.yaml")[1].startswith("no.yaml: error: ")


def test_a_relative_configuration_may_be_in_the_working_folder(run, tmp_path, script, monkeypatch):
    """Other scripts than upstream's open it there; beside the script comes first."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "own.yaml").write_text("a: [\n")
    monkeypatch.chdir(elsewhere)
    assert run(script, "--config", "own.yaml")[1].startswith("own.yaml:2:1: error: ")
    (tmp_path / "own.yaml").write_text("a: {\n")
    assert run(script, "--config", "own.yaml")[1].startswith(f"{tmp_path / 'own.yaml'}:2:1: error: ")


def test_the_configuration_may_follow_an_equals_sign(run, tmp_path):
    assert run(f"--config={tmp_path / 'no.yaml'}")[1].startswith(f"{tmp_path / 'no.yaml'}: error: ")


def test_what_is_no_yaml_stops_the_run_with_its_place(run, tmp_path, script):
    path = tmp_path / "x.yaml"
    path.write_text("seed: 0\nmodel: [1, 2\n")
    code, error = run(script, "--config", path)
    assert code == 1
    assert error.startswith(f"{path}:2:8: error: ") and "[yaml-syntax]" in error


def test_without_mindformers_it_says_what_to_install(run, tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    path.write_text("seed: 0\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, error = run("--config", path)
    assert code == 1
    assert error.startswith("mindswap: error: not installed: mindspore, mindformers\n    fix: pip install ")


def test_cpu_is_told_once_and_not_per_operator(monkeypatch):
    from tests.builders import document

    monkeypatch.delenv("MS_SUBMODULE_LOG_v", raising=False)
    training._quiet_cpu(document("context: {device_target: Ascend}"))
    assert "MS_SUBMODULE_LOG_v" not in training.os.environ
    training._quiet_cpu(document("context: {device_target: CPU}"))
    assert training.os.environ["MS_SUBMODULE_LOG_v"] == "{PARALLEL:3}"
    monkeypatch.delenv("MS_SUBMODULE_LOG_v")


def test_true_behind_options_is_refused_where_mindformers_reads_false(run, tmp_path, script):
    code, errors = run(str(script), "--config", "x.yaml", "--options", "swap_config.swap=True")
    assert code == 1
    assert "--swap_config.swap True" in errors


@pytest.mark.parametrize(
    ("text", "options", "has_hint"),
    [
        ("context: {device_target: Ascend}", [], True),
        ("seed: 0", [], True),
        ("context: {device_target: CPU}", [], False),
        ("context: {device_target: Ascend}", ["--device_target", "CPU"], False),
    ],
)
def test_a_failed_training_without_cards_says_so(text, options, has_hint, monkeypatch):
    monkeypatch.setattr(training, "has_cards", lambda: False)
    hint = training.hint_after_failure(document(text), options)
    assert ("no Ascend card was found" in hint) is has_hint


def test_a_failed_training_on_a_cpu_says_what_it_takes_there():
    model = "context: {device_target: CPU}\nmodel: {model_config: {use_rope_slice: True}}"
    assert training.hint_after_failure(document(model), []) == (
        "a CPU has no kernels for much of a network\n"
        "    fix: mindswap.cpu_stand_ins: True, model.model_config.fused_rms_norm: False; "
        "as in the file of `mindswap example`"
    )
    ready = model.replace("True", "True, fused_rms_norm: False") + "\nmindswap: {cpu_stand_ins: True}"
    assert training.hint_after_failure(document(ready), []) == ""


@pytest.mark.parametrize(
    ("section", "options", "has_hint"),
    [
        ("context: {device_target: CPU}", [], True),
        ("seed: 0", ["--device_target", "CPU"], True),
        ("context: {device_target: CPU}\nmindswap: {cpu_stand_ins: True}", [], False),
        ("context: {device_target: CPU}", ["--device_target", "Ascend"], False),
    ],
)
def test_of_a_configuration_of_mindformers_2x_the_device_is_that_of_the_option_or_the_file(
    section, options, has_hint, monkeypatch
):
    monkeypatch.setattr(training, "has_cards", lambda: True)
    text = f"training: {{steps: 1}}\nparallelism: {{}}\n{section}"
    assert ("a CPU lacks kernels" in training.hint_after_failure(document(text), options)) is has_hint


def test_with_cards_the_failure_speaks_for_itself(monkeypatch):
    monkeypatch.setattr(training, "has_cards", lambda: True)
    assert training.hint_after_failure(document("seed: 0"), []) == ""
