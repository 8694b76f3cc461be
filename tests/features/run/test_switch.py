"""`MINDSWAP=1 python SCRIPT`: the hook as it is installed, in an environment of its own, with real processes."""

import shutil

import pytest

from tests.features.run.installed import ROOT, Environment

STARTED = "mindswap: on (MINDSWAP)"
# What a script finds instead of MindFormers: the hook acts when a package of this name has been imported.
LIBRARY = "print('imported')\n"
TRAINING = "import mindformers, sys\nprint('trained', sys.argv[1:])\n"
IS_LOADED = "import sys; print([name for name in ('mindswap_switch', 'mindswap') if name in sys.modules])"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    environment = Environment(tmp_path_factory.mktemp("installed"))
    (environment.folder / "mindformers.py").write_text(LIBRARY)
    (environment.folder / "train.py").write_text(TRAINING)
    (environment.folder / "bad.yaml").write_text("a: [\n")
    return environment


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """An installation whose package lacks files, as after a copy that was interrupted."""
    folder = tmp_path_factory.mktemp("broken")
    package = folder / "package"
    (package / "mindswap").mkdir(parents=True)
    (package / "mindswap" / "__init__.py").write_text("import mindswap_lost\n")
    shutil.copy(ROOT / "mindswap_switch.py", package)
    environment = Environment(folder, package)
    (folder / "mindformers.py").write_text(LIBRARY)
    (folder / "train.py").write_text(TRAINING)
    return environment


@pytest.mark.parametrize(("value", "loaded"), [(None, []), ("", []), ("0", ["mindswap_switch"])])
def test_without_the_variable_nothing_of_mindswap_is_imported(installed, value, loaded):
    assert installed.run("-c", IS_LOADED, switch=value).stdout == f"{loaded}\n"


@pytest.mark.parametrize("value", [None, "0", "False", "off"])
def test_a_training_without_the_variable_is_as_without_mindswap(installed, value):
    run = installed.run("train.py", "--config", "bad.yaml", switch=value)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "imported\ntrained ['--config', 'bad.yaml']\n"


def test_the_configuration_is_read_when_the_script_has_imported_mindformers(installed):
    run = installed.run("train.py", "--config", "bad.yaml")
    assert (run.returncode, run.stdout) == (1, "imported\n")
    assert "bad.yaml:2:1: error: " in run.stderr and "[yaml-syntax]" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_program_that_is_no_training_is_left_alone(installed):
    assert installed.run("-c", IS_LOADED).stdout == "['mindswap_switch']\n"
    assert installed.run("-c", "import mindformers", "--config", "bad.yaml").returncode == 0
    run = installed.run("train.py")
    assert (run.returncode, run.stdout) == (0, "imported\ntrained []\n")
    assert run.stderr == "mindswap: warning: MINDSWAP is set, but train.py has no --config: mindswap stays off\n"


def test_a_command_of_mindswap_installs_the_plugin_itself_if_at_all(installed):
    run = installed.run("-m", "mindswap", "--version")
    assert (run.returncode, run.stderr) == (0, "")
    run = installed.run("-m", "mindswap", "run", "train.py", "--config", "bad.yaml")
    assert "bad.yaml:2:1: error: " in run.stderr and STARTED not in run.stderr


def test_a_broken_installation_stops_trainings_only(broken):
    assert broken.run("-c", "print('alive')").stdout == "alive\n"
    assert broken.run("train.py", "--config", "x.yaml", switch=None).returncode == 0
    (broken.folder / "other.py").write_text("print('alive')\n")
    other = broken.run("other.py", "--config", "x.yaml")
    assert (other.returncode, other.stdout, other.stderr) == (0, "alive\n", "")
    run = broken.run("train.py", "--config", "x.yaml")
    assert (run.returncode, run.stdout) == (1, "imported\n")
    assert run.stderr.startswith("mindswap: error: MINDSWAP is set, but mindswap cannot be imported: ")
    assert "mindswap_lost" in run.stderr and "unset MINDSWAP" in run.stderr and "Traceback" not in run.stderr
