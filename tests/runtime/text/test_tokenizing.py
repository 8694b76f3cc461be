from array import array

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mindswap.errors import DataError
from mindswap.runtime.text.tokenizing import ByteTokenizer, TextTokenizer, decode_utf8, split_pieces
from tests.strength import examples


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def test_byte_tokens_are_byte_plus_three():
    (tokens,) = ByteTokenizer().tokens("x", [bytes(range(256))])
    assert tokens == array("i", range(3, 259))
    assert tokens.itemsize == 4
    assert ByteTokenizer.vocab_size == 259


def test_byte_tokens_skip_only_a_leading_byte_order_mark():
    mark = b"\xef\xbb\xbf"
    tokens = [list(tokens) for tokens in ByteTokenizer().tokens("x", [mark + b"a", mark])]
    assert tokens == [[ord("a") + 3], [0xEF + 3, 0xBB + 3, 0xBF + 3]]


@settings(max_examples=examples(40, 200))
@given(st.text(), st.integers(1, 9))
def test_decoding_blocks_gives_the_text(text, size):
    assert "".join(decode_utf8("x", cut(text.encode(), size))) == text.removeprefix("\ufeff")


@settings(max_examples=examples(40, 200))
@given(st.binary(), st.integers(1, 9))
@example(b"\xef", 1)
@example(b"\xef\xbb", 1)
@example("\ufeff".encode(), 2)
def test_decoding_fails_at_the_byte_where_python_does(data, size):
    try:
        expected = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        with pytest.raises(DataError, match=f"at offset {error.start} is not UTF-8"):
            list(decode_utf8("x", cut(data, size)))
    else:
        assert "".join(decode_utf8("x", cut(data, size))) == expected


@given(st.lists(st.text(alphabet="ab \n", min_size=1)))
def test_pieces_join_to_the_text(texts):
    assert "".join(split_pieces(texts)) == "".join(texts)


def test_a_document_in_one_block_is_one_piece():
    assert list(split_pieces(["one\ntwo\nthree"])) == ["one\ntwo\nthree"]


def test_long_documents_are_cut_at_lines_else_words_else_anywhere():
    assert list(split_pieces(["one\n\ntw", "o\n"])) == ["one\n\n", "two\n"]
    assert list(split_pieces(["one tw", "o"])) == ["one", " two"]
    assert list(split_pieces(["onetw", "o"])) == ["onetw", "o"]


def test_text_tokenizer_encodes_piece_by_piece():
    tokenizer = TextTokenizer("words", lambda text: [len(word) for word in text.split()], vocab_size=9, eos_id=0)
    tokens = [list(tokens) for tokens in tokenizer.tokens("x", [b"ab\n\xc3", b"\xa4b c"])]
    assert tokens == [[2], [2, 1]]
