import os

import pytest

from mindswap.errors import DataError
from mindswap.files import file_name, staged, unique_labels, write_new


def write_pair(path, text):
    path.write_text(text)
    path.with_name(path.name + ".db").write_text(text)


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_both_files_appear_at_the_end_under_their_own_name(tmp_path):
    target = tmp_path / "new" / "x.mindrecord"
    with staged(target, (".db",)) as path:
        assert path.name == target.name
        write_pair(path, "new")
        assert not target.exists()
    assert contents(target.parent) == {"x.mindrecord": "new", "x.mindrecord.db": "new"}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, DataError, SystemExit])
def test_an_interruption_leaves_what_was_there(tmp_path, stop):
    write_pair(tmp_path / "x", "old")
    with pytest.raises(stop), staged(tmp_path / "x", (".db",), overwrite=True) as path:
        write_pair(path, "new")
        raise stop
    assert contents(tmp_path) == {"x": "old", "x.db": "old"}


def test_overwrite_replaces_both(tmp_path):
    write_pair(tmp_path / "x", "old")
    with staged(tmp_path / "x", (".db",), overwrite=True) as path:
        write_pair(path, "new")
    assert contents(tmp_path) == {"x": "new", "x.db": "new"}


def test_a_file_that_came_meanwhile_is_not_replaced(tmp_path):
    with pytest.raises(DataError, match=r"already exists: .*x\.db"), staged(tmp_path / "x", (".db",)) as path:
        write_pair(path, "new")
        (tmp_path / "x.db").write_text("other")
    assert contents(tmp_path) == {"x.db": "other"}


def test_if_one_file_is_missing_none_moves(tmp_path):
    write_pair(tmp_path / "x", "old")
    with (
        pytest.raises(DataError, match="cannot be written: No such file"),
        staged(tmp_path / "x", (".db",), overwrite=True) as path,
    ):
        path.write_text("new, without its index")
    assert contents(tmp_path) == {"x": "old", "x.db": "old"}


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(DataError, match="file/sub: cannot be written: Not a directory"),
        staged(tmp_path / "file/sub/x"),
    ):
        pass


def test_what_is_no_file_is_written_to_and_stays(tmp_path):
    """As with `--html /dev/stdout` into a pipe, a link that leads to no name of a file, and a named pipe."""
    os.mkfifo(tmp_path / "named")
    named = os.open(tmp_path / "named", os.O_RDWR)
    reads, writes = os.pipe()
    (tmp_path / "link").symlink_to(f"/proc/self/fd/{writes}")
    try:
        write_new(tmp_path / "named", "a", overwrite=True)
        write_new(tmp_path / "link", "b", overwrite=True)
        assert (os.read(named, 9), os.read(reads, 9)) == (b"a", b"b")
        write_new(tmp_path / "link", b"c", overwrite=True)
        assert os.read(reads, 9) == b"c"
    finally:
        for descriptor in (named, reads, writes):
            os.close(descriptor)
    assert (tmp_path / "named").is_fifo() and (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "named"]


def test_a_file_is_replaced_behind_its_link(tmp_path):
    (tmp_path / "x.json").write_text("old")
    (tmp_path / "link.json").symlink_to("x.json")
    write_new(tmp_path / "link.json", b"new", overwrite=True)
    assert contents(tmp_path) == {"x.json": "new", "link.json": "new"}
    assert (tmp_path / "link.json").is_symlink()


@pytest.mark.parametrize("path", [None, 5, [], {}, "\ud800", "a\0b"])
def test_what_is_no_name_of_a_file_is_refused(path):
    with pytest.raises(DataError, match=r"is not a file name\n    fix:     a text, or a pathlib\.Path"):
        file_name(path)


def test_links_in_a_circle_are_replaced_and_not_followed(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    write_new(tmp_path / "a", "x", overwrite=True)
    assert [path.read_text() for path in tmp_path.iterdir() if not path.is_symlink()] == ["x"]


def interrupt(path):
    (path / "x").write_text("half")
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (["a.yaml", "b.yaml"], ["a", "b"]),
        (["one/input.yaml", "two/input.yaml"], ["one/input", "two/input"]),
        (["x/one/input.yaml", "y/one/input.yaml", "b.yaml"], ["x/one/input", "y/one/input", "b"]),
        (["a.yaml", "a.yaml", "a.json"], ["a", "a (2)", "a (3)"]),
        (["run/none.yaml"], ["run/none"]),
    ],
)
def test_labels_tell_files_apart(paths, labels):
    """`none` is a baseline."""
    assert unique_labels(paths, {"none"}) == labels
