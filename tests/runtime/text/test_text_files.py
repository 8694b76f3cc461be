import io
import types

import pytest

from mindswap.errors import DataError
from mindswap.runtime.text.samples import TextSource, find_text_sources, read_blocks


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        "docs/b.md",
        "docs/wiki.train.tokens",
        "docs/a.txt",
        "docs/.git/x.txt",
        "docs/.hidden.txt",
        "docs/in/c.rst",
        "docs/d.bin",
        "e.log",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def names(sources):
    return [source.name for source in sources]


def test_folders_give_their_texts_sorted_without_hidden_and_binary_files(tree):
    assert names(find_text_sources(["docs"])) == [
        "docs/a.txt", "docs/b.md", "docs/wiki.train.tokens", "docs/in/c.rst",
    ]  # fmt: skip


def test_named_files_may_have_any_suffix_and_keep_their_order(tree):
    assert names(find_text_sources(["e.log", "-", "docs/a.txt", "e.log"])) == [
        "e.log",
        "<stdin>",
        "docs/a.txt",
        "e.log",
    ]


def test_all_missing_names_come_at_once(tree):
    (tree / "empty").mkdir()
    with pytest.raises(DataError) as error:
        find_text_sources(["no.txt", "e.log", "empty", "-", "-"])
    assert str(error.value).splitlines() == [
        "these texts cannot be read:",
        "    no.txt: No such file or directory",
        "    empty: no text in this folder; looked for *.txt, *.md, *.rst, *.py, *.tokens",
        "    -: the standard input can be read only once",
    ]


def test_blocks_join_to_the_file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    assert list(read_blocks(TextSource(path), block_bytes=4)) == [b"0123", b"4567", b"89"]


def test_a_nul_byte_is_refused_with_its_offset(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"0123456\x00")
    with pytest.raises(DataError, match="x: a NUL byte at offset 7: this is a binary file, or UTF-16"):
        list(read_blocks(TextSource(path), block_bytes=4))


def test_standard_input_is_read_and_stays_open(monkeypatch):
    stdin = types.SimpleNamespace(buffer=io.BytesIO(b"abc"))
    monkeypatch.setattr("sys.stdin", stdin)
    assert list(read_blocks(TextSource(None))) == [b"abc"]
    assert not stdin.buffer.closed


def test_a_file_that_went_away_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="gone: cannot be read at byte 0: No such file"):
        list(read_blocks(TextSource(tmp_path / "gone")))
