"""`tools/upstream_checks.yaml` against the installed packages, against the refusals, and against its pages."""

import subprocess
import sys
from pathlib import Path

import pytest

from mindswap.rules.mindformers1 import find_rules
from tests.rules.refusal_cases import MODULES, OTHERS, read_cases, refusals
from tools import upstream_checks

CONTENT = upstream_checks.read_list()
LINES = [line for *_, line in upstream_checks.entries(CONTENT)] + CONTENT["compiled"] + CONTENT["native"]


def test_every_check_has_a_refusal_a_rule_or_a_reason() -> None:
    assert all(sum(key in line for key in ("refusal", "rule", "reason")) == 1 for line in LINES)
    assert {line["reason"] for line in LINES if "reason" in line} == set(CONTENT["reasons"])


def test_every_refusal_is_that_of_a_check() -> None:
    named = {name for line in LINES for name in line.get("refusal", ())}
    assert named == {name for module in MODULES for name in refusals(module)}


def test_rules_without_a_table_exist_and_have_cases() -> None:
    named = {line["rule"] for line in LINES if "rule" in line}
    assert named <= set(find_rules())
    assert named == {case.name.partition(" ")[0] for case in read_cases(OTHERS)}


@pytest.mark.long
def test_the_pages_show_the_list() -> None:
    command = [sys.executable, "tools/upstream_checks.py", "--check"]
    result = subprocess.run(command, cwd=upstream_checks.ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.mindspore
@pytest.mark.parametrize("file", CONTENT["checks"])
def test_a_file_has_the_checks_of_the_list_and_no_other(file: str) -> None:
    """With another release of MindFormers or MindSpore this names what is new."""
    listed = {key: count for key, count in upstream_checks.listed_checks(CONTENT).items() if key[0] == file}
    missing, gone = upstream_checks.differences(list(upstream_checks.scan(file)), upstream_checks.Counter(listed))
    assert (missing, gone) == ([], [])


@pytest.mark.mindspore
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if dp * mp * cp * pp != device_num", "if dp * mp * pp != device_num"),
        ("if pipeline_scheduler != 'seqvpp'", "if pipeline_scheduler != 'seqpipe'"),  # returns before the check
        ("if seq_split_num not in (1, None)", "if seq_split_num != 1"),
    ],
)
def test_a_change_of_a_condition_is_noticed(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = "mindformers/tools/check_rules.py"
    text = (upstream_checks.package_folder("mindformers") / file).read_text("utf-8")
    assert text.count(old) == 1
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text.replace(old, new))
    monkeypatch.setattr(upstream_checks, "package_folder", lambda package: tmp_path)
    before = {key: count for key, count in upstream_checks.listed_checks(CONTENT).items() if key[0] == file}
    missing, gone = upstream_checks.differences(list(upstream_checks.scan(file)), upstream_checks.Counter(before))
    assert {site.function for site in missing} == {"_check_parallel"} and len(missing) == len(gone)


@pytest.mark.mindspore
def test_the_compiler_has_the_messages() -> None:
    library = upstream_checks.package_folder("mindspore") / "mindspore" / "lib" / "libmindspore_frontend.so"
    content = library.read_bytes()
    assert [line["says"] for line in CONTENT["compiled"] if line["says"].encode() not in content] == []
