"""The command on the machine that runs the tests; what it finds on others is in tests/rules/machine."""

import json

import pytest

from mindswap import cli
from tests.schema import answer_of

SMALL = "configs/llama2_7b/case2_layer_swap.yaml"


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    monkeypatch.setenv("MINDSWAP_CACHE", str(tmp_path / "cache"))
    for name in ("ENABLE_LAZY_INLINE_NO_PIPELINE", "MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_WORKER_NUM"):
        monkeypatch.delenv(name, raising=False)


def test_a_variable_that_forbids_lazy_inline(capsys, monkeypatch):
    monkeypatch.setenv("ENABLE_LAZY_INLINE_NO_PIPELINE", "0")
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "error: ENABLE_LAZY_INLINE_NO_PIPELINE=0 [lazy-inline-env]" in out
    assert "    fix:     unset ENABLE_LAZY_INLINE_NO_PIPELINE" in out


def test_for_machines(capsys, monkeypatch):
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    assert cli.main(["doctor", "--json", SMALL]) == 1
    data = answer_of(capsys.readouterr().out)
    assert (data["schema"], data["version"], data["ok"]) == ("mindswap.doctor", 1, False)
    assert "worker-variables" in [finding["check"] for finding in data["findings"]]
    assert data["job"]["swaps"] is True


def test_a_file_that_is_not_there_is_an_error_of_the_configuration(capsys):
    assert cli.main(["doctor", "--json", "no_such.yaml"]) == 1
    assert "configuration" in [finding["check"] for finding in json.loads(capsys.readouterr().out)["findings"]]
