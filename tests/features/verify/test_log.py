"""`mindswap verify --log`: the logs count for the exit code. The compiler's side is put in by hand."""

import json
from types import SimpleNamespace

import pytest

from mindswap.cli import main
from mindswap.features import verify
from tests.builders import trees
from tests.runtime.logs.samples import SET, log_text

CONFIG = """\
model:
  model_config:
    num_layers: 4
swap_config:
  swap: {swap}
  op_swap:
    - op_name: 'attention'
      backward_prefetch: 20
      layers: [0, 1, 2]
    - op_name: 'attention'
      backward_prefetch: 10
      layers: [3]
    - op_name: 'feed_forward'
      backward_prefetch: 15
      layers: [1, 2]
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Exit code and output of `verify` with the logs of two workers, the second with these lines."""
    # Layers 1 and 2 are equal: one stands for both.
    layers = trees(3).layers
    graph = SimpleNamespace(swap_pairs=())
    swapped = SimpleNamespace(layers=layers, notes=(), graph=graph, sample=SimpleNamespace(layer_map=(0, 1, 1, 2)))
    effect = SimpleNamespace(layer_index=0, matches_policy=True, pairs=(1,))
    monkeypatch.setenv("MINDSWAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verify, "verify_policy", lambda *_: ((effect,), swapped))
    monkeypatch.setattr(verify, "format_effect", lambda *_: "the compiled graph")
    monkeypatch.setattr(verify, "effect_to_json", lambda *_: {"ok": True, "layers": []})

    def run(set_lines, *options, swap=True):
        config = tmp_path / "x.yaml"
        config.write_text(CONFIG.format(swap=swap))
        (tmp_path / "worker_0.log").write_text(log_text(None if swap else []))
        (tmp_path / "worker_1.log").write_text(log_text(set_lines))
        code = main(["verify", str(config), *options])
        return code, capsys.readouterr().out

    return run


def test_logs_that_agree(run, tmp_path):
    code, out = run(SET, "--log", str(tmp_path))
    assert (code, out) == (0, "the compiled graph\n\nlogs of 2 workers agree with the policy\n")


def test_logs_that_do_not(run, tmp_path):
    code, out = run(SET[:3], "--log", str(tmp_path))
    assert code == 1
    assert "worker 1: error: no line for layer 3, as 'Set op_swap at layer 3: .attention, value=10'" in out
    code, out = run(SET[:3], "--json", "--log", str(tmp_path))
    data = json.loads(out)
    assert (code, data["ok"], data["logs"]["findings"][0]["workers"]) == (1, False, [1])


def test_without_the_option_no_log_is_read(run):
    assert run(SET[:3]) == (0, "the compiled graph\n")
    assert "logs" not in json.loads(run(SET[:3], "--json")[1])


def test_with_swap_off_no_line_may_be_there(run, tmp_path):
    assert run([], "--log", str(tmp_path), swap=False)[0] == 0
    code, out = run(SET, "--log", str(tmp_path), swap=False)
    assert code == 1
    assert "worker 1: error: not in the policy, in layers 0-3" in out


def test_no_folder(run, tmp_path, capsys):
    assert run(SET, "--log", str(tmp_path / "none"))[0] == 1
