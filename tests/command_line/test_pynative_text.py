"""`check`, `explain` and `convert` on files of MindFormers 2.x, and what the other commands say of them."""

import pytest

from mindswap import cli
from mindswap.config.source import load_document
from mindswap.rules.checker import check_pynative, load_policy
from tests.schema import answer_of

HEADER = """\
training: {steps: 1}
parallelism: {pipeline_parallel: 1}
model: {model_type: qwen3, num_hidden_layers: 4}
"""
GOOD = """\
swap:   # the first two layers
  enable: True
  layer_swap: [{layers: ['0-1']}]
  op_swap: [{op_name: 'mlp', layers: [2]}]
recompute: {mode: select, select_module: {self_attention: [2]}}
"""


@pytest.fixture
def run(capsys, tmp_path):
    def run_command(*arguments, text=HEADER + GOOD):
        path = tmp_path / "x.yaml"
        path.write_text(text)
        code = cli.main([str(path) if word == "CONFIG" else str(word) for word in arguments])
        captured = capsys.readouterr()
        assert "a bug" not in captured.err and "Traceback" not in captured.err, captured.err
        return code, captured.out, captured.err

    return run_command


def test_check_says_which_form_it_read(run):
    code, out, _ = run("check", "CONFIG")
    assert (code, out.splitlines()[1]) == (0, "no problems; read as MindFormers 2.x (PyNative)")
    assert run("check", "--json", "CONFIG")[1].count('"form": "2.x"') == 1
    assert '"form": "1.9"' in run("check", "--json", "CONFIG", text="trainer: {}\n")[1]


def test_check_names_the_release_that_frees_what_layers_share(run, monkeypatch):
    """A note where no MindFormers 2.x is installed, a warning with 2.0.0, nothing with 2.1.0."""
    note = "note: train it with mindformers 2.1.0 or later: 2.0.0 frees rotary cos and sin, which all layers read"
    for version, told, fix in (("1.9.0", True, False), ("2.0.0", False, True), ("2.1.0", False, False)):
        monkeypatch.setattr("mindswap.features.check.installed_version", lambda name, v=version: v)
        code, out, _ = run("check", "CONFIG")
        assert (code, note in out, "fix:     pip install mindformers==2.1.0" in out) == (0, told, fix)
    monkeypatch.setattr("mindswap.features.check.installed_version", lambda name: "")
    of_mlp = HEADER + "swap: {enable: True, op_swap: [{op_name: mlp, layers: [2]}]}\n"
    assert note in run("check", "CONFIG")[1] and note not in run("check", "CONFIG", text=of_mlp)[1]


def test_check_finds_mistakes(run):
    code, out, _ = run(
        "check", "CONFIG", text=HEADER + "swap: {enable: True, op_swap: [{op_name: attention, layers: [0]}]}\n"
    )
    assert code == 1
    assert "x.yaml:4:42: error: swap.op_swap[0].op_name: 'attention' matches nothing in table qwen3" in out
    assert "fix:     write 'self_attention'" in out


def test_the_number_of_layers_can_be_given(run):
    text = HEADER.replace(", num_hidden_layers: 4", "") + "swap: {enable: True, layer_swap: [{layers: [3]}]}\n"
    assert (
        "note: the number of layers is not known: there is no model.num_hidden_layers"
        in run("check", "CONFIG", text=text)[1]
    )
    code, out, _ = run("check", "--num-layers", "4", "CONFIG", text=text)
    assert code == 1 and "layer 3 cannot be swapped" in out


def test_explain(run):
    code, out, err = run("explain", "CONFIG")
    assert (code, err) == (0, "")
    assert out.startswith("MindFormers 2.x (PyNative), 4 layers; names of table qwen3")
    assert "[layers 0-1] (x2)\n    swap       the full layer: what it saves for backward\n" in out
    assert "[layer 2]\n    recompute  self_attention\n    swap       mlp: what it saves for backward\n" in out
    assert "[layer 3]\n    keep       every activation\n" in out
    assert "    Set layer swap at layer 0\n    Set layer swap at layer 1\n    Set select swap at layer 2: mlp\n" in out


def test_explain_says_what_upstream_drops(run):
    text = HEADER + (
        "recompute: {mode: full, full_recompute_layer: [0]}\n"
        "swap: {enable: True, layer_swap: [{layers: [1]}, {layers: [2]}], op_swap: [{op_name: mlp, layers: [0]}]}\n"
    )
    code, out, err = run("explain", "CONFIG", text=text)
    assert code == 1 and "later-layer-swap" in err
    assert "swap.layer_swap[1]: only the first entry of layer_swap acts" in out
    assert "dropped    op_swap 'mlp': the layer is fully recomputed" in out


def test_explain_json_and_paths(run):
    data = answer_of(run("explain", "--json", "CONFIG")[1])
    assert data["layers"][2] == {
        "layer": 2,
        "is_recomputed": False,
        "recompute": ["self_attention"],
        "recompute_comm": [],
        "not_recomputed": [],
        "is_swapped": False,
        "swap": ["mlp"],
        "fetch_at_backward_of": 3,
        "dropped": [],
    }
    out = run("explain", "--paths", "CONFIG")[1]
    assert r"self_attention\.core_attention  " in out and "cell" in out


@pytest.mark.parametrize("command", ["simulate", "plan", "inspect", "compare", "verify"])
def test_other_commands_say_what_they_need_to_record_the_step(run, command):
    arguments = {"plan": ["--memory", "24GiB"], "compare": ["none"]}.get(command, [])
    code, out, err = run(command, "CONFIG", *arguments)
    assert (code, out) == (1, "")
    assert "model.seq_length is missing" in err


def test_run_says_so_too(run):
    code, _, err = run("run", "--config", "CONFIG")
    assert code == 1 and "[form-2x]" in err


def test_convert_to_1_9_and_back(run, tmp_path):
    code, _, err = run("convert", "CONFIG", "--to", "1.9", "-o", tmp_path / "old.yaml")
    assert code == 0 and "only swap and recompute are converted" in err
    old = (tmp_path / "old.yaml").read_text()
    assert old.startswith(HEADER) and "# the first two layers\n" in old and "swap_config:" in old
    code, _, err = run("convert", "CONFIG", "--to", "2.x", "-o", tmp_path / "new.yaml", text=old)
    assert code == 0, err
    first, second = (
        check_pynative(load_document(path)).effect for path in (tmp_path / "x.yaml", tmp_path / "new.yaml")
    )
    assert second.layers[:3] and not check_pynative(load_document(tmp_path / "new.yaml")).errors
    run("convert", "CONFIG", "--to", "1.9")  # x.yaml is the 2.x file again
    first = check_pynative(load_document(tmp_path / "x.yaml")).effect
    assert second.layers == first.layers


def test_convert_a_1_9_file(run, tmp_path):
    text = (
        "trainer: {}\nmodel: {arch: {type: LlamaForCausalLM}, model_config: {type: LlamaConfig, num_layers: 4}}\n"
        "swap_config:  # mine\n  swap: True\n  layer_swap: [{backward_prefetch: 1, layers: [0, 1]}]\n"
    )
    code, out, err = run("convert", "CONFIG", "--to", "2.x", text=text)
    assert code == 0 and out.index("# mine\n# mindswap:") < out.index("swap:\n  enable: True\n")
    assert "the rest of the file is of MindFormers 1.9 (graph mode)" in err
    back = tmp_path / "back.yaml"
    assert run("convert", "CONFIG", "--to", "1.9", "--ops-per-layer", "1", "-o", back, text=out)[0] == 0
    policy = load_policy(back)
    assert [(swap.layers.indices, swap.prefetch) for swap in policy.layer_swap] == [((0, 1), 1)]


def test_nothing_to_convert_and_both_forms(run):
    assert "nothing to convert to 2.x" in run("convert", "CONFIG", "--to", "2.x")[2]
    text = HEADER + GOOD + "swap_config: {swap: True}\n"
    code, _, err = run("convert", "CONFIG", "--to", "2.x", text=text)
    assert code == 1 and "delete swap_config; or, if that is what you mean, delete swap" in err
    # `swap` may stay where only recompute_config is converted.
    text = HEADER + "swap: {enable: False}\nrecompute_config: {recompute: True}\n"
    code, out, _ = run("convert", "CONFIG", "--to", "2.x", text=text)
    assert code == 0 and out.endswith("recompute:\n  mode: 'full'\n  full_recompute_layer: ['0-3']\n")
    assert "[form-2x]" in run("convert", "CONFIG", "--to", "index")[2]
