"""`mindswap run --adaptive-memory-optimization` up to the start of the loop; the loop is in tests/runtime/attempt."""

import pytest

from mindswap import cli
from mindswap.errors import LaunchError
from mindswap.features.adaptive import find_memory
from mindswap.features.run import adaptive_options as adaptive
from tests.builders import document

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "words", "size", "source"),
    [
        ("seed: 0", "54GiB", 54 * GIB, "--memory"),
        ("context: {device_target: Ascend}", "auto", 58 * GIB, "MindFormers' default of context.max_device_memory"),
        ("context: {max_device_memory: '60GB'}", "auto", 60 * GIB, "context.max_device_memory, <test>:1:30"),
    ],
)
def test_memory(text, words, size, source):
    found = find_memory(words, document(text), 8)
    assert found[0] == size and found[1].split(",")[0] == source.split(",")[0]


def test_memory_of_a_machine_without_cards_is_shared_by_its_workers(monkeypatch):
    """80 % of 100 GiB for 8 workers: 10 GiB each."""
    monkeypatch.setattr("mindswap.features.adaptive.host_memory", lambda: 100 * GIB)
    assert find_memory("auto", document("context: {device_target: CPU}"), 8)[0] == 10 * GIB


@pytest.mark.parametrize(("free", "message"), [(None, "cannot be read here"), (0, "no host memory is free here")])
def test_a_machine_without_free_memory_is_refused(monkeypatch, free, message):
    monkeypatch.setattr("mindswap.features.adaptive.host_memory", lambda: free)
    with pytest.raises(LaunchError, match=message):
        find_memory("auto", document("context: {device_target: CPU}"), 8)


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("seed: 0", "54", "write a number with its unit"),
        ("context: {max_device_memory: much}", "auto", "x.yaml:1:30: context.max_device_memory: 'much'"),
        ("context: {max_device_memory: 60MiB}", "auto", "allowed: a string such as"),  # MindSpore takes GB only
    ],
)
def test_memory_that_cannot_be_read(text, words, message):
    with pytest.raises(LaunchError, match=message):
        find_memory(words, document(text), 8)


@pytest.mark.parametrize(
    ("words", "own", "rest"),
    [
        ("F --memory 1GiB -- msrun --x python", {"memory": "1GiB"}, "msrun --x python"),
        ("--config c F --memory=1GiB --seed 1", {"memory": "1GiB"}, "--config c --seed 1"),
        (
            "F --replace msrun --worker_num=2 -- python --max",
            {"is_replaced": True},
            "msrun --worker_num=2 -- python --max",
        ),
        ("-- msrun F --x", {}, "-- msrun F --x"),
    ],
)
def test_options_of_mindswap_and_of_the_training(words, own, rest):
    args, command = adaptive.split_words(words.replace("F", adaptive.ADAPTIVE_FLAG).split())
    assert command == rest.replace("F", adaptive.ADAPTIVE_FLAG).split()
    expected = {"memory": "auto", "is_replaced": False, "max_restarts": 8, "nodes": None} | own
    assert {name: value for name, value in vars(args).items() if name in expected} == expected


@pytest.mark.parametrize(
    "words", [["--max-restarts", "x", "--"], ["--memroy", "1GiB", "--", "msrun"], ["--"], ["--", "msrun"]]
)
def test_wrong_calls_are_messages(words, capsys, monkeypatch):
    monkeypatch.delenv("MS_ROLE", raising=False)
    assert cli.main(["run", adaptive.ADAPTIVE_FLAG, *words]) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error and "a bug" not in error and error


@pytest.mark.parametrize("kept", ["1", "2"])
def test_one_checkpoint_is_too_few(kept, tmp_path, capsys, monkeypatch):
    """What is wrong with --memory ends the call afterwards."""
    monkeypatch.delenv("MS_ROLE", raising=False)
    path = tmp_path / "c.yaml"
    path.write_text(f"seed: 0\ncallbacks:\n  - type: CheckpointMonitor\n    keep_checkpoint_max: {kept}\n")
    assert cli.main(["run", adaptive.ADAPTIVE_FLAG, "--memory", "x", "--", "--config", str(path)]) == 1
    printed = capsys.readouterr()
    assert "--memory" in printed.err
    warning = (
        f"mindswap: {path}:4:26: warning: keep_checkpoint_max is 1: MindFormers deletes the old checkpoint before it "
        "writes the new one; killed in between, the training begins at step 0\n"
        "mindswap:     fix:     keep_checkpoint_max: 2\n"
    )
    assert printed.out == (warning if kept == "1" else "")


def test_inside_a_worker_it_says_where_it_belongs(capsys, monkeypatch):
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    assert cli.main(["run", "--config", "c.yaml", adaptive.ADAPTIVE_FLAG]) == 1
    assert "(in front of msrun)" in capsys.readouterr().err
