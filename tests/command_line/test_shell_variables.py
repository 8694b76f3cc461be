"""Variables of the shell that change the graph of a training mean the same to every command."""

from pathlib import Path

import pytest

from mindswap.cli import main

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "llama2_7b"
SWAP, NO_SWAP = CONFIGS / "case1_default_swap.yaml", CONFIGS / "pretrain_llama2_7b.yaml"
MESSAGE = "environment: error: ENABLE_LAZY_INLINE_NO_PIPELINE: 0 switches lazy inline off"


@pytest.mark.parametrize(
    "command",
    [
        ["check", SWAP],
        ["explain", SWAP],
        ["inspect", SWAP],
        ["simulate", SWAP],
        ["plan", SWAP],
        ["plan", NO_SWAP],  # its plan has swap
        ["verify", SWAP],
        ["dryrun", SWAP],
        ["compare", SWAP, NO_SWAP],
        ["convert", "--to", "2.x", SWAP],
    ],
    ids=lambda command: " ".join(map(str, command[:1])),
)
def test_lazy_inline_that_the_shell_switches_off_is_refused_by_every_command(
    command: list[object], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENABLE_LAZY_INLINE_NO_PIPELINE", "0")
    assert main([str(word) for word in command]) == 1
    out, err = capfd.readouterr()
    assert MESSAGE in out + err
