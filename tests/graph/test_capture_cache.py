"""Captures on disk: the same value back, once made, never trusted."""

import gzip
import json
import logging
import multiprocessing
import os
import pwd
import stat
import tempfile
from pathlib import Path

import pytest

from mindswap.errors import DataError
from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.capture_cache import (
    CodecError,
    _warn_once,
    cache_folder,
    cached,
    from_plain,
    make_key,
    open_cache,
    open_data_cache,
    open_samples_cache,
    to_plain,
)
from mindswap.graph.model import Graph, Node, Saved, TensorType
from tests.graph.builders import copy_in, copy_out, graph, node

CLASSES = {cls.__name__: cls for cls in (Graph, Node, Saved, TensorType)}


def step():
    return graph(
        [node("mul", "Mul", "x", recompute=True, in_strategy=((1, 2), (2,))), copy_out("out", "mul")],
        [copy_in("back", "out")],
        saved="out",
        zero=0,
    )


def as_tuple(value: Graph):
    return value.forward, value.backward, value.saved, value.has_lazy_inline, dict(value.constants)


def test_a_graph_comes_back_equal():
    assert as_tuple(from_plain(json.loads(json.dumps(to_plain(step()))), CLASSES)) == as_tuple(step())


def test_a_field_may_be_called_kind():
    collective = Collective("AllReduce", 1024, 8)
    assert from_plain(to_plain(collective), {"Collective": Collective}) == collective


@pytest.mark.parametrize("value", [object(), {1: 2}, {"class": 1}])
def test_what_json_could_not_give_back_is_refused(value):
    with pytest.raises(CodecError):
        to_plain(value)


def test_the_folder_is_what_the_user_says_else_in_the_cache_of_the_user(tmp_path, monkeypatch):
    assert cache_folder({"MINDSWAP_CACHE": "/mine", "XDG_CACHE_HOME": "/xdg"}) == Path("/mine")
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "mindswap"
    assert cache_folder({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "mindswap"
    assert cache_folder({}) == Path(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "mindswap")
    monkeypatch.chdir(tmp_path)
    assert cache_folder({"MINDSWAP_CACHE": "mine"}) == tmp_path / "mine"
    assert cache_folder({"XDG_CACHE_HOME": "xdg"}) == tmp_path / "xdg/mindswap"


def test_where_the_home_cannot_be_written_or_others_can_it_is_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    expected = tmp_path / f"mindswap-user-{os.geteuid()}" / "cache"
    for home in ("/proc/self", str(tmp_path / "file"), str(tmp_path / "open")):
        assert cache_folder({"HOME": home}) == expected
    assert stat.S_IMODE(expected.parent.stat().st_mode) == 0o700
    expected.parent.chmod(0o777)
    with pytest.raises(DataError, match="is no folder of this user alone"):
        cache_folder({"HOME": "/proc/self"})


@pytest.mark.parametrize("data", [[1], {"class": "Path"}, {"class": "Node"}, {"class": "Saved", "a": 1}, {}])
def test_foreign_data_is_refused(data):
    with pytest.raises(CodecError):
        from_plain(data, CLASSES)


def test_a_value_is_made_once(tmp_path):
    made = []

    def make():
        made.append(1)
        return step()

    first = cached(tmp_path, "key", CLASSES, make)
    second = cached(tmp_path, "key", CLASSES, make)
    assert as_tuple(first) == as_tuple(second)
    assert len(made) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["key.entry"]


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", gzip.compress(b"no json"), gzip.compress(b'{"class": "os.system"}')],
    ids=["empty", "no gzip", "no json", "foreign class"],  # gzip writes the time: workers would see other names
)
def test_a_broken_file_is_ignored_and_replaced(tmp_path, content):
    (tmp_path / "key.entry").write_bytes(content)
    assert as_tuple(cached(tmp_path, "key", CLASSES, step)) == as_tuple(step())
    assert as_tuple(cached(tmp_path, "key", CLASSES, pytest.fail)) == as_tuple(step())


def test_no_bit_that_flips_makes_more_of_a_file_than_one_to_ignore(tmp_path):
    """Each of 300 bits: the value itself, made anew where the file cannot be read. zlib has an error of its own."""
    cached(tmp_path, "key", CLASSES, step)
    path = tmp_path / "key.entry"
    content = path.read_bytes()
    made = []
    for bit in range(0, len(content) * 8, len(content) * 8 // 300):
        path.write_bytes(content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :])
        assert as_tuple(cached(tmp_path, "key", CLASSES, lambda: made.append(1) or step())) == as_tuple(step())
    assert len(made) > 200


def test_what_is_read_counts_as_used(tmp_path):
    cached(tmp_path, "key", CLASSES, step)
    os.utime(tmp_path / "key.entry", (1, 1))
    cached(tmp_path, "key", CLASSES, pytest.fail)
    assert (tmp_path / "key.entry").stat().st_mtime > 1


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    assert as_tuple(cached(tmp_path / "file" / "cache", "key", CLASSES, step)) == as_tuple(step())


@pytest.fixture
def warnings(caplog):
    _warn_once.cache_clear()
    yield caplog
    _warn_once.cache_clear()


def test_a_chosen_cache_that_others_can_change_is_not_used_for_data_and_refused_for_libraries(
    tmp_path, monkeypatch, warnings
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    chosen = tmp_path / "open"
    chosen.mkdir()
    chosen.chmod(0o777)
    monkeypatch.setenv("MINDSWAP_CACHE", str(chosen))
    for _ in range(2):
        assert open_data_cache() is None
        assert cached(open_data_cache(), "key", CLASSES, lambda: (1, 2)) == (1, 2)
        assert open_samples_cache() == tmp_path / f"mindswap-user-{os.geteuid()}" / "cache"
    (record,) = warnings.records
    assert f"others can write to {chosen} (mode 777)" in record.message and "fix:     " in record.message
    with pytest.raises(DataError, match="others can write"):
        open_cache()
    assert [*chosen.iterdir()] == []


def test_the_cache_in_the_temporary_folder_is_told_once_with_the_reason(tmp_path, monkeypatch, warnings):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)
    for name in ("MINDSWAP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    expected = tmp_path / f"mindswap-user-{os.geteuid()}" / "cache"
    for use in (open_cache, open_data_cache, open_samples_cache):
        assert use() == expected
    (record,) = warnings.records
    assert f"the cache is in {expected}" in record.message and f"write to {tmp_path / 'home'}" in record.message
    (tmp_path / "home").chmod(0o700)
    assert open_cache() == tmp_path / "home/.cache/mindswap" and len(warnings.records) == 1


def warn_in_pool(folder):
    logging.getLogger("mindswap").addHandler(logging.FileHandler(folder / "log"))
    open_data_cache()


def test_processes_of_a_pool_leave_the_warning_to_the_one_that_started_them(tmp_path, monkeypatch, warnings):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("MINDSWAP_CACHE", str(tmp_path / "open"))
    process = multiprocessing.get_context("fork").Process(target=warn_in_pool, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0 and (tmp_path / "log").read_text() == ""
    open_data_cache()
    assert len(warnings.records) == 1


def test_keys_tell_values_apart():
    assert make_key(a=1, b=[2]) == make_key(b=[2], a=1)
    assert make_key(a=1) != make_key(a="1")
