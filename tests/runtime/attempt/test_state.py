import contextlib
import hashlib
import json
import os

import pytest

from mindswap.errors import LaunchError
from mindswap.runtime.attempt.model import Attempt, Corrections, Outcome, Settings, State, TrainingPlan
from mindswap.runtime.attempt.state import FORMAT, StateError, StateFile, is_locked, locked
from tests.strength import examples

PLAN = TrainingPlan("keep-1", "a: 1\n# é\n", 10, 9, 8, 7, Corrections(1, 2, 3))
STATE = State(
    Settings(10, 3),
    (Attempt(1, PLAN, 0, 5, 12, Outcome.OUT_OF_MEMORY, "x", 4, 9, None),),
    Corrections(-5),
    ("keep-1",),
    limit_bytes=4,
    tried=("keep-1",),
    candidate=PLAN,
    ignored_checkpoints=("rank_0/a:1:2:3",),
)


@pytest.fixture
def file(tmp_path):
    return StateFile(tmp_path / "run")


def test_what_is_written_is_read(file):
    file.save(STATE, "key")
    assert file.load("key") == STATE
    assert file.load() == STATE
    assert file.load().attempts[0].outcome is Outcome.OUT_OF_MEMORY


def test_no_file_is_no_state(file):
    assert file.load("key") is None


def test_another_key_is_not_trusted(file):
    file.save(STATE, "key")
    with pytest.raises(StateError, match="of another configuration, version or device"):
        file.load("other")


def test_every_damage_is_noticed(file):
    """Bytes of the file changed, and the file cut at them (nightly: each): never another state, never another error."""
    file.save(STATE, "key")
    content = file.path.read_bytes()
    for index in range(0, len(content), examples(5, 1)):
        for damaged in (content[:index], content[:index] + b"7" + content[index + 1 :]):
            file.path.write_bytes(damaged)
            with contextlib.suppress(StateError):
                assert file.load("key") == STATE  # white space, or a 7 that was there


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 1}', b'{"format": 1, "state": {"kind": "Plan"}}'])
def test_what_is_no_state(file, content):
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(content)
    with pytest.raises(StateError):
        file.load()


@pytest.mark.parametrize(
    "state", [None, 7, {"kind": "Plan"}, {"kind": "os"}, {"kind": "State", "settings": None, "x": 1}]
)
def test_a_digest_does_not_make_a_foreign_file_a_state(file, state):
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    file.path.parent.mkdir(parents=True)
    file.path.write_text(json.dumps({"format": FORMAT, "key": "key", "digest": digest, "state": state}))
    with pytest.raises(StateError):
        file.load("key")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_state_and_nothing_else(file, monkeypatch, call):
    file.save(STATE, "key")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail) if call == "fsync" else monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        file.save(State(Settings(1)), "key")
    monkeypatch.undo()
    assert file.load("key") == STATE
    assert [path.name for path in file.path.parent.iterdir()] == ["state.json"]


def test_a_folder_in_its_place_is_a_message(file):
    file.path.mkdir(parents=True)
    with pytest.raises(StateError, match="cannot be read: Is a directory"):
        file.load("key")


def test_fifty_runs_one_after_the_other_have_the_lock(tmp_path):
    for _ in range(50):
        with locked(tmp_path):
            assert is_locked(tmp_path)
            with pytest.raises(LaunchError, match="already running here"), locked(tmp_path):
                pass
