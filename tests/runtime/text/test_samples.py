from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindswap.config.render import document_from_data
from mindswap.runtime.text.samples import (
    NEWER_COLUMNS,
    SampleCounts,
    TextSource,
    cut_columns,
    data_columns,
    read_samples,
    vocabulary_size,
)
from mindswap.runtime.text.tokenizing import ByteTokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("texts")


def write(folder, texts):
    for index, text in enumerate(texts):
        (folder / str(index)).write_bytes(text)
    return [TextSource(folder / str(index)) for index in range(len(texts))]


def ids(text):
    return [byte + 3 for byte in text]


def test_documents_end_with_eos_and_are_cut_into_samples(folder):
    counts = SampleCounts()
    samples = list(read_samples(write(folder, [b"abcd", b"", b"ef"]), ByteTokenizer(), 3, counts))
    # a b c | d eos e | f eos: the last two fill no sample
    assert [token for part in samples for token in part] == [*ids(b"abcd"), 2, *ids(b"e")]
    assert counts == SampleCounts(num_documents=2, num_text_bytes=6, num_tokens=8, num_samples=2)


@settings(max_examples=50)
@given(st.lists(st.binary().map(lambda data: data.replace(b"\0", b"")), max_size=4), st.integers(1, 9))
def test_nothing_is_lost_but_the_last_tokens(folder, texts, length):
    counts, seen = SampleCounts(), []
    texts = [text.removeprefix(b"\xef\xbb\xbf") for text in texts]
    samples = list(read_samples(write(folder, texts), ByteTokenizer(), length, counts, seen.append))
    everything = [token for text in texts if text for token in [*ids(text), 2]]
    kept = len(everything) // length * length
    assert [token for part in samples for token in part] == everything[:kept]
    assert (counts.num_tokens, counts.num_samples * length) == (len(everything), kept)
    assert sum(seen) == counts.num_text_bytes == sum(map(len, texts))


def test_the_four_columns_of_the_newer_models():
    """Three of four tokens are read, the next ones are the labels, every loss counts, positions from 0."""
    tokens = array("i", [7, 8, 9, 5])
    assert list(cut_columns(tokens, 4)) == [7, 8, 9, 8, 9, 5, 1, 1, 1, 0, 1, 2]
    assert list(cut_columns(tokens, 2)) == [7, 8, 9, 8, 9, 5]
    assert list(cut_columns(tokens, 1)) == [7, 8, 9, 5]


def test_columns_that_a_model_reads():
    def columns(**model):
        return data_columns(document_from_data({"model": {"model_config": model}}, "x"))

    assert columns(type="LlamaConfig") == ("input_ids",)
    assert (
        columns(type="LlamaConfig", input_sliced_sig=True) == columns(type="ChatGLM2Config") == ("input_ids", "labels")
    )
    assert data_columns(document_from_data({"use_legacy": False}, "x")) == NEWER_COLUMNS


def test_tokens_that_a_model_knows():
    def size(**model):
        return vocabulary_size(document_from_data({"model": {"model_config": model}}, "x"))

    assert (size(vocab_size=9), size(padded_vocab_size=7), size()) == (9, 7, 1)
