"""Failures of files and streams are messages with exit code 1: each in a process of its own, as a shell starts it."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mindswap.runtime.attempt.model import Attempt, Corrections, Outcome, Settings, State, TrainingPlan
from mindswap.runtime.attempt.state import StateFile
from mindswap.system.streams import MessageFormatter, printable

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs/llama2_7b/case1_default_swap.yaml"
PROGRAM = [sys.executable, "-m", "mindswap"]
CANNOT = "mindswap: error: the standard output cannot be written: "


def shell(words, redirection="", before="", **variables):
    """`mindswap WORDS` with redirections of a shell, after commands of it."""
    script = f'{before}\nexec "$@" {redirection}'
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = ["bash", "-c", script, "bash", *PROGRAM, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environ, cwd=ROOT)


# An answer, an error, a usage error, help, a list of commands; as text and as JSON.
WORDS = [
    ["check", CONFIG], ["check", "--json", CONFIG], ["check", "--json", "missing.yaml"], ["check", "--json", "--bogus"],
    ["check", "--help"], ["--version"],
]  # fmt: skip


@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(map(str, words[:2]))[:20])
@pytest.mark.parametrize(("redirection", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file desc")])
def test_an_answer_that_cannot_be_written_is_an_error(words, redirection, why):
    done = shell(words, redirection)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    is_error = words[-1] in ("missing.yaml", "--bogus")  # which is on the standard error: nothing is lost
    assert lines and (is_error or [line.startswith(CANNOT + why) for line in lines] == [True])


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "<&-", "2>&- <&-"])
def test_the_answer_is_complete_without_the_other_streams(redirection):
    done = shell(["check", "--json", CONFIG], redirection)
    assert done.returncode == 0 and json.loads(done.stdout)["ok"]
    assert done.stderr == ""
    refused = shell(["check", "--json", "missing.yaml"], redirection)
    assert refused.returncode == 1 and not json.loads(refused.stdout)["ok"]


def test_where_nobody_reads_is_no_error():
    done = shell(["explain", CONFIG], "| true", before="set -o pipefail")
    assert (done.returncode, done.stderr) == (0, "")


def test_characters_that_the_output_has_not_are_escaped(tmp_path):
    config = tmp_path / "配置.yaml"
    config.write_bytes(b"swap_config: {swap: 3}\n")
    done = shell(["check", config], PYTHONIOENCODING="latin-1")
    assert done.returncode == 1 and done.stdout.startswith(f"{tmp_path}/\\u914d\\u7f6e.yaml:1:")
    undecodable = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.yaml"))
    config.rename(undecodable)
    done = shell(["check", undecodable])
    assert done.returncode == 1 and done.stdout.startswith(f"{tmp_path}/\\udcff.yaml:1:")


def test_progress_in_chinese_has_the_encoding_of_the_terminal():
    """As `report_progress` and the second thread of a search write it, past Python's buffers."""
    code = (
        "import os, sys; from mindswap.language import INHERITED, translate; os.environ[INHERITED] = '1'\n"
        "from mindswap.system.streams import prepare_streams, write_message; prepare_streams()\n"
        "from mindswap.command_line.progress import INTERRUPTED; write_message(2, translate(INTERRUPTED))"
    )
    texts = {}
    for encoding in ("utf-8", "gbk", "latin-1"):
        environ = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environ, check=True)
        texts[encoding] = done.stderr.decode(encoding)
    assert texts["utf-8"] == texts["gbk"] and any(character >= "\u4e00" for character in texts["utf-8"])
    assert texts["latin-1"] == texts["utf-8"].encode("latin-1", "backslashreplace").decode("latin-1")


def test_a_working_directory_that_is_gone(tmp_path):
    done = shell(["check", "--json", CONFIG], before=f"cd {tmp_path}; mkdir gone; cd gone; rmdir {tmp_path}/gone")
    message = "the working directory cannot be used: No such file or directory"
    assert (done.returncode, done.stderr) == (1, f"mindswap: error: {message}\n")
    assert json.loads(done.stdout)["error"] == message


@pytest.mark.parametrize("words", [["check", CONFIG], ["explain", "--help"], ["plan", "--help"], ["run", "--help"]])
def test_python_without_docstrings(words):
    done, usual = shell(words, PYTHONOPTIMIZE="2"), shell(words)
    assert done.returncode == 0 and done.stdout == usual.stdout and not done.stderr


def test_an_error_of_the_system_that_nobody_expected_is_a_message(tmp_path):
    """No place for a file: where it happened is in a log, or, if there is no place for that either, is left out."""
    code = "import tempfile; from mindswap import cli; cli._run = lambda *words: {}; raise SystemExit(cli.main())"
    fails = "open('/proc/self/nothing', 'w')"
    for folder in (str(tmp_path), "/proc/nowhere"):
        script = f"tempfile.tempdir = {folder!r}; " + code.format(fails)
        script = script.replace("import tempfile; ", "", 1)
        command = [sys.executable, "-c", f"import tempfile; {script}", "check", "x"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert done.stderr.startswith("mindswap: error: /proc/self/nothing: No such file or directory\n    details: ")
    (log,) = tmp_path.glob("mindswap-*.log")
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize(("option", "variables"), [("-u", {}), ("-s", {"PYTHONUNBUFFERED": "1"}), ("-s", {})])
def test_unbuffered_streams_stay_so(option, variables, tmp_path):
    """A training that is killed, or crashes, has printed what it did until then."""
    code = (
        "import os\nfrom mindswap.system.streams import prepare_streams\n"
        "prepare_streams(); print('步 1', end=''); os._exit(1)"
    )
    log = tmp_path / "worker_0.log"
    with log.open("wb") as file:
        environ = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"} | variables
        subprocess.run([sys.executable, option, "-c", code], stdout=file, cwd=ROOT, env=environ)
    is_unbuffered = option == "-u" or bool(variables)
    assert log.read_text("utf-8") == ("步 1" if is_unbuffered else "")


# Names, files and logs may clear the screen, set the title, hide text, write over the line, go right to left.
HOSTILE = "\x1b[2J\x1b]0;title\x07\x1b[8m\r\x9b2K\u202e"
SHOWN = r"\x1b[2J\x1b]0;title\x07\x1b[8m\r\x9b2K\u202e"


def controls(text: str) -> list[str]:
    """Characters that a terminal obeys."""
    return [character for character in text if not character.isprintable() and character != "\n"]


def test_blanks_stay_as_they_are():
    assert printable("a\tb\u00a0c\u3000d\ne\u2028\x0b") == "a\tb\u00a0c\u3000d\ne\\u2028\\x0b"


def test_text_of_a_log_is_shown_and_not_obeyed(tmp_path):
    """The reason of an attempt is a line of a worker's log."""
    state = State(
        Settings(1 << 30),
        (Attempt(1, TrainingPlan("p0", "", 1, 1, 1), 0, 0, 1, Outcome.FAILED, HOSTILE),),
        Corrections(),
        exit_reason=f"the training failed: {HOSTILE}",
    )
    StateFile(tmp_path).save(state, "key")
    done = shell(["status", tmp_path])
    assert (done.returncode, controls(done.stdout)) == (0, []) and SHOWN in done.stdout


def test_text_of_files_is_shown_and_not_obeyed(tmp_path):
    folder = tmp_path / HOSTILE
    folder.mkdir()
    config = folder / "c.yaml"
    config.write_text(json.dumps({"swap_config": {"swap": True, "op_swap": {HOSTILE: 1, "a": HOSTILE}}}))
    (tmp_path / "state").mkdir()
    for words in (
        ["check"],
        ["explain"],
        ["convert", "--to", "index"],
        ["status"],
        ["doctor"],
        ["simulate"],
        [HOSTILE],
    ):
        done = shell([*words, config])
        text = done.stdout + done.stderr
        assert controls(text) == [] and "Traceback" not in text, words
        assert words == ["doctor"] or SHOWN in text, words


def test_warnings_are_shown_and_not_obeyed(capsys):
    record = logging.makeLogRecord({"msg": "ignored %s", "args": (HOSTILE,)})
    assert MessageFormatter("%(message)s").format(record) == f"ignored {SHOWN}"
