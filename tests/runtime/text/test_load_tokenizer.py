import pytest

from mindswap.errors import DataError
from mindswap.runtime.text.tokenizing import load_tokenizer


def make_json(path, special=("<unk>", "</s>")):
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: index for index, word in enumerate([*special, "real", "text"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=special[0]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(special))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(path))
    return path


def tokens(tokenizer, text):
    return [token for part in tokenizer.tokens("x", [text.encode()]) for token in part]


def test_json_is_read_without_its_truncation_and_padding(tmp_path):
    tokenizer = load_tokenizer(make_json(tmp_path / "tokenizer.json"))
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.name) == (4, 1, "tokenizer.json")
    assert tokens(tokenizer, "real text text real") == [2, 3, 3, 2]


def test_special_tokens_within_a_text_are_just_text(tmp_path):
    tokenizer = load_tokenizer(make_json(tmp_path / "tokenizer.json"))
    assert tokenizer.eos_id not in tokens(tokenizer, "real </s> text")


def test_eos_token_can_be_named_and_must_exist(tmp_path):
    path = make_json(tmp_path / "tokenizer.json", special=("<unk>", "<fin>"))
    assert load_tokenizer(path, "<fin>").eos_id == 1
    with pytest.raises(DataError, match=r"known to end a document\n.*special tokens are <unk>, <fin>\n.*--eos-token"):
        load_tokenizer(path)
    with pytest.raises(DataError, match="no token '<nix>'"):
        load_tokenizer(path, "<nix>")


def test_sentencepiece(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["real text", "more real text"] * 20),
        model_prefix=str(tmp_path / "t"),
        vocab_size=14,
        minloglevel=2,
    )
    tokenizer = load_tokenizer(tmp_path / "t.model")
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (14, 2)
    assert tokens(tokenizer, "real text")
    assert load_tokenizer(tmp_path / "t.model", "<s>").eos_id == 1


@pytest.mark.parametrize("content", [b'{"no": "tokenizer"}', b"\x00\x01 nonsense", b""])
def test_other_files_are_refused_with_the_formats(tmp_path, content):
    pytest.importorskip("tokenizers")
    pytest.importorskip("sentencepiece")
    path = tmp_path / "t.model"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"t\.model: .*\n    allowed: .*tokenizer\.json"):
        load_tokenizer(path)


def test_a_folder_names_the_file_in_it(tmp_path):
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(DataError, match=r"is a folder\n.*--tokenizer .*/tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        load_tokenizer(tmp_path / "nix.json")
