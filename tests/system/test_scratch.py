"""Scratch folders: who made them, when they go, and that nothing else goes."""

import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from mindswap.errors import LaunchError
from mindswap.system import scratch
from mindswap.system.scratch import (
    KEPT_S,
    MARKER,
    forget_kept_folders,
    remove_abandoned,
    remove_kept_folders,
    scratch_folder,
)
from tests.adapters.graphs import ROOT

# Makes a folder, says its name, and waits to be killed, or fails with an error that names it.
MAKER = """
import sys, time
from mindswap.errors import LaunchError
from mindswap.system.scratch import scratch_folder
with scratch_folder("x", kept_on=(LaunchError,)) as folder:
    print(folder, flush=True)
    {}
"""


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path):
    """The temporary folder of a test alone, and no folders of other tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_folders", scratch._Folders())
    return tmp_path


def start_maker(then, folder):
    return subprocess.Popen(
        [sys.executable, "-c", MAKER.format(then)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(folder)}, text=True,
    )  # fmt: skip


def test_it_goes_with_all_that_is_in_it(temporary):
    with scratch_folder("x") as folder:
        (folder / "a" / "b").mkdir(parents=True)
        assert list(temporary.iterdir()) == [folder]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_it_goes_with_errors_that_name_no_log(temporary, error):
    with pytest.raises(error), scratch_folder("x", kept_on=(LaunchError,)):
        raise error
    assert list(temporary.iterdir()) == []


def test_after_an_error_it_stays_if_the_error_names_it(temporary):
    folders = []
    for _ in range(2):
        with pytest.raises(LaunchError), scratch_folder("x", kept_on=(LaunchError,)) as folder:
            folders.append(folder)
            raise LaunchError("x")
    remove_kept_folders(f"error, full log: {folders[1]}/compile.log")
    assert list(temporary.iterdir()) == [folders[1]] and forget_kept_folders() == []


def test_a_folder_of_a_killed_process_goes_and_one_in_use_stays(temporary):
    with scratch_folder("x") as own, start_maker("time.sleep(600)", temporary) as maker:
        name = maker.stdout.readline().strip()
        remove_abandoned()
        assert {str(path) for path in temporary.iterdir()} == {str(own), name}
        maker.send_signal(signal.SIGKILL)
        maker.wait()
        remove_abandoned()
        assert list(temporary.iterdir()) == [own]


def test_a_folder_that_an_error_left_goes_after_a_week(temporary):
    with start_maker("raise LaunchError", temporary) as maker:
        maker.wait()
    (folder,) = temporary.iterdir()
    for age_s, left in ((KEPT_S - 3600, [folder]), (KEPT_S + 3600, [])):
        os.utime(folder / MARKER, (time.time() - age_s,) * 2)
        remove_abandoned()
        assert list(temporary.iterdir()) == left


def test_what_others_made_stays_whatever_its_name_and_age(temporary):
    """As a checkout `mindswap-main` was deleted that had a file `compile.log`."""
    old = (time.time() - 9 * KEPT_S,) * 2
    for name in ("mindswap-main", "mindswap-compile-x", "mindswap-y", "mindswap-dryrun-z"):
        (temporary / name).mkdir()
    (temporary / "mindswap-main" / "compile.log").touch()
    (temporary / "mindswap-compile-x" / MARKER).write_text("scratch folder of somebody")
    (temporary / "mindswap-y" / MARKER).mkdir()
    with scratch_folder("x") as elsewhere:
        (temporary / "mindswap-dryrun-z" / MARKER).symlink_to(elsewhere / MARKER)
        (temporary / "mindswap-link").symlink_to(elsewhere)
        for path in temporary.glob("*/*"):
            os.utime(path, old, follow_symlinks=False)
        before = {path for path in temporary.iterdir() if path != elsewhere}
        remove_abandoned()
    remove_abandoned()
    assert set(temporary.iterdir()) == before


def killed_maker(folder):
    """A scratch folder whose maker was killed, with what MindSpore and MindFormers leave in one."""
    with start_maker("time.sleep(600)", folder) as maker:
        place = Path(maker.stdout.readline().strip())
        maker.kill()
    for name in ("compile.log", "output/log/rank_0/info.log", "rank_0/om/analyze_fail.ir", "layers_4/dryrun.yaml",
                 "layers_4/rank_0/tracker/rank_0/memory_block.csv", "strategy/ckpt_strategy_rank_0.ckpt",
                 "rank_0/kernel_meta/te_add_1.o", "kernel_meta/te_add_1.cce", "rank_table_8.txt"):  # fmt: skip
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch()
    return place


def test_a_copy_of_a_scratch_folder_is_the_users(temporary):
    """So is one with another name: the user put it there to keep it."""
    place = killed_maker(temporary)
    shutil.copytree(place, temporary / "mindswap-main")
    moved = killed_maker(temporary)
    moved.rename(temporary / "mindswap-results")
    copied = killed_maker(temporary)
    copied.rename(temporary / "elsewhere")
    shutil.copytree(temporary / "elsewhere", copied)  # as of a backup
    shutil.rmtree(temporary / "elsewhere")
    before = set(temporary.rglob("*")) - {place, *place.rglob("*")}
    remove_abandoned()
    assert set(temporary.rglob("*")) == before


@pytest.mark.parametrize("other", ["host", "boot"])
def test_a_folder_of_another_host_or_boot_stays(temporary, monkeypatch, other):
    """On a shared disk: its lock need not be seen from here, so nobody knows whether its maker lives."""
    place = killed_maker(temporary)
    (temporary / "boot_id").write_text("another\n")
    before = set(temporary.rglob("*"))
    with monkeypatch.context() as there:
        if other == "host":
            there.setattr(socket, "gethostname", lambda: "another")
        else:
            there.setattr(scratch, "_BOOT_ID", temporary / "boot_id")
        remove_abandoned()
        assert set(temporary.rglob("*")) == before
    remove_abandoned()
    assert not place.exists()


def test_the_lock_is_taken_with_a_descriptor_for_writing(temporary, monkeypatch):
    """NFS refuses an exclusive lock of one for reading."""
    place, lock = killed_maker(temporary), fcntl.flock

    def flock_of_nfs(descriptor, operation):
        if operation & fcntl.LOCK_EX and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    remove_abandoned()
    assert not place.exists()


def test_without_a_place_for_links_the_rest_is_removed(tmp_path, monkeypatch):
    folder = tmp_path / "with blank"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    place = killed_maker(folder)
    monkeypatch.setattr(os, "access", lambda *_: False)
    remove_abandoned()
    assert not place.exists()


def test_files_that_mindspore_does_not_write_stay(temporary):
    place, outside = killed_maker(temporary), temporary / "outside"
    outside.mkdir()
    (outside / "thesis.csv").touch()
    (place / "layers_4" / "notes.txt").touch()
    (place / "results").symlink_to(outside)
    remove_abandoned()
    left = {"layers_4", "layers_4/notes.txt", "results", MARKER}
    assert {str(path.relative_to(place)) for path in place.rglob("*")} == left
    assert (outside / "thesis.csv").exists()
    (place / "layers_4" / "notes.txt").unlink()
    (place / "results").unlink()
    remove_abandoned()
    assert not place.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_files_of_other_users_stay_even_for_root(temporary):
    theirs, mixed = killed_maker(temporary), killed_maker(temporary)
    for path in (theirs, *theirs.rglob("*")):
        os.chown(path, 12345, 12345)
    os.chown(mixed / "compile.log", 12345, 12345)
    before = {theirs, *theirs.rglob("*")}
    remove_abandoned()
    assert set(temporary.rglob("*")) == before | {mixed, mixed / "compile.log", mixed / MARKER}


def test_in_one_that_cannot_be_marked_nothing_is_left(temporary, monkeypatch):
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"), scratch_folder("x"):
        pass
    assert list(temporary.iterdir()) == []
