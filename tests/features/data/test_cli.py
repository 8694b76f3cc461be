import io
import json
import signal
import subprocess
import sys
import time
import types
from array import array

import pytest

from mindswap import cli
from mindswap.errors import DataError
from mindswap.features import data
from mindswap.features.data import cli as prepare_data
from tests.schema import answer_of

TEXT = "Swap moves activations to the host, and back before they are needed.\n" * 20


class FakeWriter:
    """Writes the samples as they are, one per line."""

    def __init__(self, path, seq_length, is_legacy):
        assert is_legacy
        self.path, self.length, self.tokens = path, seq_length + 1, array("i")

    def write(self, samples):
        self.tokens.extend(samples)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        rows = [self.tokens[i : i + self.length].tolist() for i in range(0, len(self.tokens), self.length)]
        self.path.write_text(json.dumps(rows))
        self.path.with_name(self.path.name + ".db").write_text("index")


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(TEXT)
    return "book.txt"


@pytest.fixture
def fake_writer(monkeypatch):
    monkeypatch.setattr(data, "MindRecordWriter", FakeWriter)
    monkeypatch.setattr(data, "require_mindspore", lambda: None)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def run(*words):
    return prepare_data.run(cli.build_parser("prepare-data").parse_args(["prepare-data", *words]))


def test_result_names_what_the_yaml_needs(text, fake_writer, capsys, tmp_path):
    assert run(text, "-o", "x.mindrecord", "--seq-length", "9") == 0
    out, err = capsys.readouterr()
    num_tokens = len(TEXT) + 1
    assert f"x.mindrecord: {num_tokens // 10} samples of 10 tokens" in out
    assert f"the last {num_tokens % 10} tokens fill no sample" in out
    assert 'train_dataset.data_loader: {type: MindDataset, dataset_dir: "x.mindrecord"}' in out
    assert "model.model_config: {seq_length: 9, vocab_size: 259}" in out
    assert err == ""  # no progress bar where stderr is no terminal
    rows = json.loads((tmp_path / "x.mindrecord").read_text())
    assert bytes(token - 3 for token in rows[0]).decode() == TEXT[:10]


@pytest.mark.parametrize(("words", "bar"), [(["book.txt", "empty.txt"], "100%"), (["book.txt", "-"], "1.38kB")])
def test_progress_bar_on_a_terminal(text, fake_writer, tmp_path, monkeypatch, words, bar):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    (tmp_path / "empty.txt").touch()
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO()))
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    run(*words, "--output", "x.mindrecord", "--seq-length", "9")
    assert "x.mindrecord: " in terminal.getvalue() and bar in terminal.getvalue()


def test_json_result(text, fake_writer, capsys):
    run(text, "--output", "x.mindrecord", "--seq-length", "9", "--json")
    result = answer_of(capsys.readouterr().out)
    assert result["num_samples"] == (len(TEXT) + 1) // 10
    assert (result["vocab_size"], result["eos_token_id"], result["tokenizer"]) == (259, 2, "bytes")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.txt", r"names that end with 'mindrecord' and digits\n    fix:     --output x.mindrecord"),
        ("x", "fix:     --output x.mindrecord"),
        ("x.mindrecord.db", "fix:     --output x.mindrecord.mindrecord"),
        ("x.mindrecord\n", "digits"),
        (" x.mindrecord", "digits"),
        ("x&y.mindrecord", "MindRecord names have no &"),
        ("folder.mindrecord", "is a folder\n    fix:     --output folder.mindrecord/train.mindrecord"),
    ],
)
def test_names_that_would_not_be_found_are_refused(text, tmp_path, name, message):
    (tmp_path / "folder.mindrecord").mkdir()
    with pytest.raises(DataError, match=message):
        run(text, "--output", name, "--seq-length", "9")


@pytest.mark.parametrize("name", ["x.mindrecord", "x.mindrecord12", "mindrecord", "ä.mindrecord"])
def test_names_that_are_fine(text, fake_writer, tmp_path, name):
    assert run(text, "--output", name, "--seq-length", "9") == 0
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("length", ["0", "-1", str(2**20 + 1)])
def test_seq_length_range(text, length):
    with pytest.raises(DataError, match="allowed: 1 to 1048576"):
        run(text, "--output", "x.mindrecord", "--seq-length", length)


def test_too_little_text_names_the_largest_seq_length(text, fake_writer, tmp_path):
    num_tokens = len(TEXT) + 1
    with pytest.raises(
        DataError, match=f"{num_tokens} tokens, .* = {num_tokens + 1}\n.*--seq-length {num_tokens - 1} at"
    ):
        run(text, "--output", "x.mindrecord", "--seq-length", str(num_tokens))
    assert names(tmp_path) == ["book.txt"]
    assert run(text, "--output", "x.mindrecord", "--seq-length", str(num_tokens - 1)) == 0


def test_empty_text(fake_writer, tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="no text"):
        run(str(tmp_path / "empty.txt"), "--output", str(tmp_path / "x.mindrecord"), "--seq-length", "9")


@pytest.mark.parametrize("name", ["x.mindrecord", "x.mindrecord.db"])
def test_existing_files_stay_unless_overwrite(text, fake_writer, tmp_path, name):
    (tmp_path / name).write_text("old")
    with pytest.raises(DataError, match=f"already exists: {name}\n.*--overwrite"):
        run(text, "--output", "x.mindrecord", "--seq-length", "9")
    assert (tmp_path / name).read_text() == "old"
    assert run(text, "--output", "x.mindrecord", "--seq-length", "9", "--overwrite") == 0
    assert (tmp_path / name).read_text() != "old"


def test_a_bad_text_in_the_middle_leaves_nothing(text, fake_writer, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"abc\0")
    with pytest.raises(DataError, match=r"bad\.txt: a NUL byte at offset 3"):
        run(text, "bad.txt", "--output", "x.mindrecord", "--seq-length", "9")
    assert names(tmp_path) == ["bad.txt", "book.txt"]


def test_without_mindspore_the_message_says_what_to_install(text, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install mindspore==2\.9\.0"):
        run(text, "--output", "x.mindrecord", "--seq-length", "9")


def test_eos_token_without_tokenizer(text):
    with pytest.raises(DataError, match="--eos-token"):
        run(text, "--output", "x.mindrecord", "--seq-length", "9", "--eos-token", "</s>")


@pytest.mark.mindspore
def test_mindformers_reads_the_text_back(text, capfd):
    run(text, "--output", "x.mindrecord", "--seq-length", "16")
    assert capfd.readouterr().err == ""  # MindSpore is quiet
    from mindformers.dataset import CausalLanguageModelDataset
    from mindformers.tools.register import MindFormerConfig

    config = {
        "data_loader": {"type": "MindDataset", "dataset_dir": "x.mindrecord", "shuffle": False},
        "input_columns": ["input_ids"],
        "batch_size": 2,
        "drop_remainder": True,
        "num_parallel_workers": 1,
        "repeat": 1,
        "seed": 0,
        "prefetch_size": 1,
        "numa_enable": False,
        "eod_reset": False,
    }
    dataset = CausalLanguageModelDataset(MindFormerConfig(**config))
    batches = [batch[0] for batch in dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)]
    assert {batch.shape for batch in batches} == {(2, 17)}
    assert {str(batch.dtype) for batch in batches} == {"int32"}
    tokens = [token for batch in batches for row in batch.tolist() for token in row]
    assert len(tokens) == (len(TEXT) + 1) // 34 * 34
    assert bytes(token - 3 for token in tokens).decode() == TEXT[: len(tokens)]


@pytest.mark.mindspore
def test_a_full_disk_is_a_data_error_and_leaves_nothing(text, tmp_path):
    (tmp_path / "big.txt").write_text(TEXT * 4000)
    # RLIMIT_FSIZE stops MindSpore within the file, like a full disk.
    command = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (18 << 20, 18 << 20))
{RUN_COMMAND}
"""
    result = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert result.returncode == 1
    assert "mindswap: error: MindSpore cannot write the MindRecord: " in result.stderr
    assert "MiB" in result.stderr
    assert names(tmp_path) == ["big.txt", "book.txt"]


@pytest.mark.mindspore
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing(text, tmp_path, number):
    (tmp_path / "big.txt").write_text(TEXT * 40000)
    process = subprocess.Popen([sys.executable, "-c", RUN_COMMAND], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob(".x.mindrecord.*.tmp/x.mindrecord")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == (130 if number == signal.SIGINT else 143), out
    assert names(tmp_path) == ["big.txt", "book.txt"]


RUN_COMMAND = """
import sys
from mindswap import cli
sys.exit(cli.main(["prepare-data", "big.txt", "--output", "x.mindrecord", "--seq-length", "128"]))
"""
