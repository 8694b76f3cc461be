"""What a kept result depends on."""

import os
import shutil
from pathlib import Path

import pytest

from mindswap.api import cache

PACKAGE = Path(cache.__file__).parents[1]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the package, which the cache takes for the one that is installed."""
    shutil.copytree(PACKAGE, tmp_path / "mindswap", ignore=shutil.ignore_patterns("__pycache__", "data"))
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "mindswap" / "api" / "cache.py"))
    return tmp_path / "mindswap"


def test_a_checkout_beside_has_the_same_key(copy):
    path = copy / "graph" / "ops.py"
    os.utime(path, (1, 1))
    there = cache._versions()
    path.write_text(path.read_text() + "\n# another rule\n")
    assert there != cache._versions()


def test_the_installed_package_and_a_copy_agree(copy, monkeypatch):
    there = cache._versions()
    monkeypatch.undo()
    assert there == cache._versions()


@pytest.mark.parametrize("room", cache.NOT_IN_CACHE_KEY)
def test_a_room_without_a_say_exists_and_changes_nothing(copy, room):
    before = cache._versions()
    file = next(iter(sorted((copy / room).glob("*.py"))))
    file.write_text(file.read_text() + "\n# changed\n")
    assert cache._versions() == before


def test_variables_that_change_a_compile_count_and_those_that_a_compile_sets_do_not():
    asked = {"ENABLE_LAZY_INLINE_NO_PIPELINE": "0", "MS_DEV_RUNTIME_CONF": "switch_inline:False"}
    others = {"HOME": "/root", "MS_DEV_JIT_SYNTAX_LEVEL": "0", "MS_DEV_SAVE_GRAPHS": "1"}
    assert cache._compile_variables({**asked, **others}) == asked
