"""Entries on disk: good ones are used, all others made anew; nobody else may write there."""

import errno
import itertools
import multiprocessing
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from mindswap.errors import DataError
from mindswap.graph.capture_cache import cached
from mindswap.system import disk_cache as cache
from mindswap.system.cache_permissions import find_danger, require_private
from mindswap.system.disk_cache import IN_USE_S, MANIFEST, cache_size, cached_folder, evict, read_entry, write_entry

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
CONTENT = {
    "lib/a.so": b"\x7fELF" + b"a" * 5000,
    "b.mindrecord": b"b" * 3000,
    "b.mindrecord.db": b"",
    "c/d/e.py": b"x = 1",
}


def make(folder):
    for name, content in CONTENT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "link").symlink_to("lib/a.so")


def read(folder):
    return {name: (folder / name).read_bytes() for name in CONTENT}


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def change(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def empty(path):
    path.write_bytes(b"")


def replace_by_json(path):
    path.write_bytes(b'{"a": [1, 2]}')


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


def replace_by_link(path):
    other = path.with_name("elsewhere")
    path.rename(other)
    path.symlink_to(other)


def replace_by_folder(path):
    path.unlink()
    path.mkdir()
    (path / "x").write_text("x")


def remove_it(path):
    path.unlink()


def give_away(path):
    os.chown(path, NOBODY, NOBODY)


DAMAGES = [
    *(truncate, change, empty, replace_by_json, replace_by_pipe, replace_by_link, replace_by_folder, remove_it),
    pytest.param(give_away, marks=needs_root),
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", cache.FOLDERS)
@pytest.mark.parametrize("name", ["lib/a.so", "b.mindrecord", ".manifest.json"])
def test_a_folder_with_a_damaged_file_is_made_anew(tmp_path, kind, name, damage):
    folder = cached_folder(tmp_path, kind, "key", make)
    damage(folder / name)
    made = []
    assert cached_folder(tmp_path, kind, "key", lambda place: (made.append(1), make(place))) == folder
    assert made == [1] and read(folder) == CONTENT
    assert cached_folder(tmp_path, kind, "key", pytest.fail) == folder
    assert [path.name for path in folder.parent.iterdir()] == ["key"]


@pytest.mark.parametrize(
    "place", ["file", "pipe", "link", "link to nothing", "empty folder", "another entry", "more files"]
)
def test_what_is_in_the_place_of_a_folder_is_replaced(tmp_path, place):
    folder = tmp_path / "samples" / "key"
    if place in ("another entry", "link"):
        shutil.move(cached_folder(tmp_path, "samples", "other", make), tmp_path / "other")
    folder.parent.mkdir(exist_ok=True)
    if place == "file":
        folder.write_text("x")
    elif place == "pipe":
        os.mkfifo(folder)
    elif place.startswith("link"):
        folder.symlink_to(tmp_path / ("other" if place == "link" else "nothing"))
    elif place == "empty folder":
        folder.mkdir()
    elif place == "another entry":
        shutil.move(tmp_path / "other", folder)
    else:
        cached_folder(tmp_path, "samples", "key", make)
    if place == "more files":
        (folder / "lib/preloaded.so").write_text("x")
    elif place == "a file less":
        (folder / "link").unlink()
    assert read(cached_folder(tmp_path, "samples", "key", make)) == CONTENT
    assert not folder.is_symlink() and not (folder / "lib/preloaded.so").exists()


def test_what_python_writes_beside_a_module_changes_nothing(tmp_path):
    folder = cached_folder(tmp_path, "stand_ins", "key", make)
    (folder / "c/d/__pycache__").mkdir()
    (folder / "c/d/__pycache__/e.pyc").write_bytes(b"x")
    cached_folder(tmp_path, "stand_ins", "key", pytest.fail)


def test_a_folder_that_is_not_finished_leaves_nothing(tmp_path):
    def interrupt(place):
        make(place)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_folder(tmp_path, "samples", "key", interrupt)
    assert [*(tmp_path / "samples").iterdir()] == []


def test_of_two_processes_that_make_a_folder_the_first_stays(tmp_path):
    def second(place):
        (place / "x").write_text("slow")
        cached_folder(tmp_path, "samples", "key", lambda other: (other / "x").write_text("fast"))

    folder = cached_folder(tmp_path, "samples", "key", second)
    assert (folder / "x").read_text() == "fast"


def test_a_folder_that_another_process_moves_aside_at_that_moment_is_no_failure(tmp_path, monkeypatch):
    """A third process installs a folder before the rename, and a fourth moves it aside after it."""
    rename, num_calls = Path.rename, itertools.count()

    def late(self, target):
        if next(num_calls) == 0:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    assert read(cached_folder(tmp_path, "samples", "key", make)) == CONTENT


def use_for_a_while(root, number):
    for turn in range(20):
        folder = cached_folder(root, "samples", "key", make)
        if number == 0 and turn % 5 == 0:
            change(folder / "b.mindrecord")
        write_entry(root, "key", b"y" * 10_000)
        assert read_entry(root, "key") in (b"y" * 10_000, None)


def test_processes_at_once_disturb_each_other_in_nothing(tmp_path):
    processes = [
        multiprocessing.get_context("fork").Process(target=use_for_a_while, args=(tmp_path, i)) for i in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)  # seconds; a moment on a quiet machine
    assert [process.exitcode for process in processes] == [0] * 4
    assert read(cached_folder(tmp_path, "samples", "key", make)) == CONTENT
    assert {path.name for path in tmp_path.iterdir()} == {"key.entry", "samples"}
    assert {path.name for path in (tmp_path / "samples").iterdir()} == {"key"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_anew(tmp_path, damage):
    assert cached(tmp_path, "key", {}, lambda: ("a", 1)) == ("a", 1)
    damage(tmp_path / "key.entry")
    assert read_entry(tmp_path, "key") is None
    assert cached(tmp_path, "key", {}, lambda: ("b", 2)) == ("b", 2)
    assert cached(tmp_path, "key", {}, pytest.fail) == ("b", 2)
    assert stat.S_ISREG((tmp_path / "key.entry").lstat().st_mode)


def test_a_file_of_another_entry_is_not_taken(tmp_path):
    cached(tmp_path, "other", {}, lambda: {"a": 1})
    (tmp_path / "other.entry").rename(tmp_path / "key.entry")
    assert cached(tmp_path, "key", {}, lambda: 5) == 5


# Who may write.


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    for path in (place, place.parent, tmp_path):
        path.chmod(0o755)
    return place


def test_a_folder_of_this_user_is_private_also_before_it_is_made(folder):
    assert find_danger(folder) == ""
    assert find_danger(folder / "new" / "mindswap") == ""


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(folder, mode):
    folder.chmod(mode)
    with pytest.raises(DataError, match=f"others can write to {folder} ") as caught:
        require_private(folder)
    assert "fix: " in str(caught.value)
    for use in (lambda: cached_folder(folder, "samples", "key", make), lambda: write_entry(folder, "key", b"")):
        with pytest.raises(DataError, match="others can write"):
            use()
    assert [*folder.iterdir()] == []


def test_a_folder_above_counts_but_for_one_with_the_sticky_bit(folder):
    folder.parent.chmod(0o777)
    assert f"others can write to {folder.parent} (mode 777)" in find_danger(folder)
    folder.parent.chmod(0o1777)
    assert find_danger(folder) == ""
    assert find_danger(folder.parent / "new") == ""


UNKNOWN_USER_FINDS = """
import os, sys
from pathlib import Path
from mindswap.system.cache_permissions import find_danger
from mindswap.system.disk_cache import cache_size
os.setuid(65534)
print(find_danger(Path(sys.argv[1])), cache_size(Path(sys.argv[1])))
"""


@needs_root
def test_a_folder_that_cannot_be_entered_is_a_danger_and_no_crash():
    """As MINDSWAP_CACHE=/root/cache of another user. The folders above must let that user in."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        done = subprocess.run(
            [sys.executable, "-c", UNKNOWN_USER_FINDS, place / "cache"], capture_output=True, text=True, check=False
        )
    finally:
        place.rmdir()
    assert (done.stdout, done.stderr) == (f"{place / 'cache'} cannot be read (Permission denied) 0\n", "")


def test_a_link_is_followed(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert find_danger(link) == ""
    folder.chmod(0o1777)
    assert "others can write" in find_danger(link)


@needs_root
def test_owners(folder):
    os.chown(folder, NOBODY, NOBODY)
    assert f"{folder} belongs to nobody" in find_danger(folder)
    os.chown(folder, 0, 0)
    os.chown(folder.parent, 12345, 0)
    assert f"{folder.parent} belongs to user 12345" in find_danger(folder)


@needs_root
def test_a_group_may_write_only_if_it_is_that_of_the_user(folder):
    folder.chmod(0o775)
    assert find_danger(folder) == ""  # root of group root
    os.chown(folder, 0, NOBODY)
    assert "others can write" in find_danger(folder)


def test_a_new_cache_is_for_this_user_alone(tmp_path):
    write_entry(tmp_path / "new" / "mindswap", "key", b"x")
    assert stat.S_IMODE((tmp_path / "new" / "mindswap").stat().st_mode) == 0o700


# What all of it takes.


A, B = "a" * 64, "b" * 64
STAND_IN = "c" * 16


def entries(root):
    """An entry of each kind and what killed writers left, 100 bytes each, used one second after the other."""
    names = [f"{A}.entry", f".{B}.entry.01234567.tmp", f"samples/{A}", f"stand_ins/{STAND_IN}"]
    names.append(f"samples/.{B}.01234567.tmp")
    for index, name in enumerate(names):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        if path.parent == root:
            path.write_bytes(b"x" * 100)
        else:
            path.mkdir()
            manifest = f'{{"name": "{path.name}"}}' if not path.name.startswith(".") else ""
            (path / MANIFEST).write_text(manifest)
            (path / "x").write_bytes(b"x" * (100 - len(manifest)))
        for each in {path, *path.glob("*")}:
            os.utime(each, (index, index))
    return [root / name for name in names]


def test_every_kind_counts_and_the_least_recently_used_go_first(tmp_path):
    paths = entries(tmp_path)
    assert cache_size(tmp_path) == 500
    evict(tmp_path, keep=paths[0], max_bytes=300)
    assert [path.exists() for path in paths] == [True, False, False, True, True]
    evict(tmp_path, keep=tmp_path / "none", max_bytes=0)
    assert cache_size(tmp_path) == 0


def test_files_of_the_user_in_the_folder_of_the_cache_stay(tmp_path):
    """With MINDSWAP_CACHE=/data, data sets in /data/samples were deleted, and recorded steps, which are .json.gz."""
    names = ["step.json.gz", f"{A}.json.gz", ".x.tmp", "my.entry", f"{A[1:]}.entry", f"{A.upper()}.entry"]
    names.append(f"{A}.entry/x")
    for kind in cache.FOLDERS:
        names += [f"{kind}/{name}" for name in ("file", "data/x", f"{A}/x", f"{STAND_IN}/x", ".x.tmp/x", f"{B}")]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 100)
    for name, text in (("data", '{"name": "data"}'), (A, '{"name": "b"}'), (STAND_IN, "[1]")):
        (tmp_path / "samples" / name / MANIFEST).write_text(text)
    (tmp_path / "samples" / ("d" * 64)).symlink_to(cached_folder(tmp_path / "other", "samples", "d" * 64, make))
    before = {*tmp_path.rglob("*")}
    for path in before:
        os.utime(path, (1, 1), follow_symlinks=False)
    assert cache_size(tmp_path) == 0
    evict(tmp_path, keep=tmp_path / "none", max_bytes=0)
    assert {*tmp_path.rglob("*")} == before


def test_a_folder_in_use_stays(tmp_path):
    paths = entries(tmp_path)
    for age_s, path in ((IN_USE_S - 60, paths[2]), (IN_USE_S + 60, paths[3])):
        os.utime(path, (time.time() - age_s,) * 2)
    evict(tmp_path, keep=tmp_path / "none", max_bytes=0)
    assert [path.exists() for path in paths] == [False, False, True, False, False]


def test_folders_in_use_leave_room_for_files(tmp_path):
    """Samples of a day were more than the limit alone: no captured step outlived the next one."""
    folder, name = cached_folder(tmp_path, "samples", A, lambda place: (place / "data").write_bytes(b"x" * 1000)), B
    for other in (A, name):
        write_entry(tmp_path, other, b"x" * 100)
    evict(tmp_path, keep=tmp_path / f"{name}.entry", max_bytes=800)
    assert folder.exists() and (tmp_path / f"{A}.entry").exists()


def test_holes_of_files_take_no_disk(tmp_path):
    """Each data set of made-up samples was counted as 48 MiB, and takes less than 1."""

    def make_sparse(place):
        with (place / "data").open("wb") as file:
            file.truncate(1 << 30)

    cached_folder(tmp_path, "samples", A, make_sparse)
    assert cache_size(tmp_path) < 10_000


def test_each_use_counts(tmp_path):
    folder = cached_folder(tmp_path, "samples", A, make)
    for path in (folder, folder / ".manifest.json"):
        os.utime(path, (1, 1))
    cached_folder(tmp_path, "samples", A, pytest.fail)
    assert (folder / ".manifest.json").stat().st_mtime > 1
    evict(tmp_path, keep=Path("none"), max_bytes=0)
    assert folder.exists()


def test_what_is_written_evicts(tmp_path, monkeypatch):
    monkeypatch.setattr(evict, "__defaults__", (25_000,))
    for number in range(4):
        write_entry(tmp_path, f"{number}" * 64, b"x" * 10_000)
        os.utime(tmp_path / f"{64 * str(number)}.entry", (number, number))
    assert {path.name for path in tmp_path.iterdir()} == {f"{64 * number}.entry" for number in "23"}
    assert cache_size(tmp_path) < 25_000
