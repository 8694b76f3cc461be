import os

import pytest

from mindswap.errors import LaunchError
from mindswap.training.launch.msrun import RUN_DIR_BYTES, describe_full, free_bytes, require_room


class Status:
    """What `statvfs` says: 10 of 100 blocks of 4 KiB are free."""

    f_bavail, f_frsize, f_blocks, f_files, f_favail = 10, 4096, 100, 50, 7


@pytest.fixture
def disk(monkeypatch):
    asked = []
    monkeypatch.setattr(os, "statvfs", lambda place: asked.append(place) or Status)
    return asked


def test_a_folder_that_is_not_there_yet_is_on_the_file_system_of_the_one_above(disk, tmp_path):
    assert free_bytes(tmp_path / "run" / "logs") == (40960, 409600)
    assert disk == [tmp_path]


def test_without_an_inode_nothing_is_free(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(Status, "f_favail", 0)
    assert free_bytes(tmp_path) == (0, 409600)


def test_what_is_missing_is_said(disk, tmp_path):
    assert describe_full(tmp_path, 40960, "a plan") == ""
    text = describe_full(tmp_path, 40960 + 1024, "a plan")
    assert text == f"{tmp_path}: 40.0 KiB of 400.0 KiB are free on its file system; a plan needs 41.0 KiB, 1.0 KiB more"


def test_a_run_stops_before_anything_is_planned(disk, tmp_path, monkeypatch):
    with pytest.raises(LaunchError, match="make room there"):
        require_room(tmp_path)
    monkeypatch.setattr(Status, "f_bavail", RUN_DIR_BYTES // 4096)
    require_room(tmp_path)
