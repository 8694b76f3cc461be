"""`mindswap explain`: what it prints and its exit code, without MindSpore."""

import json
from pathlib import Path

import pytest

from mindswap import cli
from tests.policy.formats.mindformers1.test_stage_recompute import SPECIFICATION, document, expand_stage_recompute

ROOT = Path(__file__).resolve().parents[3]
CASE_4 = str(ROOT / "configs" / "llama2_7b" / "case4_swap_and_recompute.yaml")
LLAMA = "model: {arch: {type: LlamaForCausalLM}, model_config: {num_layers: 4}}\nparallel_config: {pipeline_stage: 2}\n"


@pytest.fixture
def explain(capsys, tmp_path):
    def run(text, *options):
        path = tmp_path / "x.yaml"
        path.write_text(text)
        code = cli.main(["explain", str(path), *options])
        captured = capsys.readouterr()
        assert "a bug" not in captured.err and "Traceback" not in captured.err, captured.err
        return code, captured.out, captured.err.replace(str(path), "x.yaml")

    return run


def dedented(text):
    return "\n".join(line[4:] for line in text.splitlines()[1:])


def test_the_example_of_the_specification(explain):
    code, out, error = explain(dedented(SPECIFICATION), "--num-layers", "48")
    lines = out.splitlines()
    assert (code, error) == (0, "")
    assert lines[0] == "MindFormers 1.9 (graph mode); swap is off: this is what MindFormers does by itself, 48 layers"
    assert lines[2:5] == list(expand_stage_recompute(document(SPECIFICATION), 48).formative_lines)
    # Chunk 0 has 4, 5, 5, 5, 5 layers, chunk 1 has 5, 5, 5, 5, 4; whole: 2 and 1 of chunk 0, 1 of chunk 1.
    assert [line.split() for line in lines[8:12]] == [
        ["0", "0", "0-3", "0-1", "2-3"],
        ["0", "1", "24-28", "24", "25-28"],
        ["1", "0", "4-8", "4", "5-8"],
        ["1", "1", "29-33", "-", "29-33"],
    ]
    # feed_forward\.w1\.matmul: layers 0, 24, 25 and 29, of which 0 and 24 are fully recomputed.
    assert [line for line in lines if line.startswith("[")] == [
        "[layers 0-1, 4, 24] (x4) on stages 0-1",
        "[layers 2-3, 5-23, 26-28, 30-47] (x42) on stages 0-4",
        "[layers 25, 29] (x2) on stages 0-1",
    ]


def test_operators_come_from_the_table_of_the_family(explain):
    text = LLAMA + r"recompute_config: {recompute: [1, 0], select_recompute: {'feed_forward\.w1': [[2, 1]]}}"
    code, out, _ = explain(text)
    assert code == 0
    assert out.endswith(
        """
stage  chunk  layers  fully recomputed  in part
-----  -----  ------  ----------------  -------
0          0     0-1                 0        1
1          0     2-3                 -        2

[layer 0] on stage 0
    recompute the full layer (65 operators)
[layers 1-2] (x2) on stages 0-1
    recompute feed_forward.w1 (5 operators)
[layer 3] on stage 1
    nothing is offloaded or recomputed
"""
    )


def test_an_excluded_cell_stays_recomputed_as_in_mindformers(explain):
    option = "recompute_config: {recompute: True, select_recompute_exclude: ['%s']}"
    _, out, _ = explain(LLAMA + option % "feed_forward")
    assert "names a cell, and MindFormers excludes operators only [stage-recompute]" in out
    assert "[layers 0-3] (x4) on stages 0-1\n    recompute the full layer" in out
    _, out, _ = explain(LLAMA + option % "add")
    assert "recompute the full layer" not in out and "recompute feed_forward (" in out
    assert "    recompute add\n" not in out


def test_with_swap_on_equal_layers_print_once(capsys):
    assert cli.main(["explain", CASE_4]) == 0
    out = capsys.readouterr().out
    assert out.startswith("MindFormers 1.9 (graph mode); swap is on, 4 layers; operators of table llama")
    assert "[layers 1-2] (x2)\n    offload attention (39 operators)     prefetch 20\n    offload feed_forward" in out
    assert "Formative" not in out


def test_json(explain):
    code, out, _ = explain(LLAMA + "recompute_config: {recompute: [9, 0]}", "--json")
    data = json.loads(out)
    assert (code, data["is_swap_enabled"], data["num_layers"]) == (0, False, 4)
    assert data["formative_lines"][0] == "Formative layer_recompute: [[2, 0]]"
    assert data["stages"] == [
        {"stage": 0, "chunk": 0, "layers": [0, 1]},
        {"stage": 1, "chunk": 0, "layers": [2, 3]},
    ]
    assert [group["layers"] for group in data["layers"]] == [[0, 1], [2, 3]]
    assert [problem["rule"] for problem in data["problems"]] == ["stage-recompute"]


def test_paths_name_every_cell_and_operator(capsys):
    assert cli.main(["explain", "--paths", CASE_4]) == 0
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [r"attention\.flash_attention", "cell FlashAttention"] in rows
    assert [r"feed_forward\.w1\.activation\.silu", "operator SiLU"] in rows
    assert cli.main(["explain", "--paths", "--json", CASE_4]) == 0
    assert len(json.loads(capsys.readouterr().out)["paths"]) == len(rows)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (LLAMA + "recompute_config: {recompute: [1, 1, 1]}", "x.yaml:3:38: error: recompute_config.recompute: "),
        ("swap_config: {swap: True, default_prefetch: 0}", "x.yaml:1:45: error: swap_config.default_prefetch: 0 "),
        ("seed: 0\n", "mindswap: error: the configuration does not say how many layers"),
        ("model: [1, 2\n", "x.yaml:1:8: error: "),
    ],
)
def test_what_check_refuses_is_printed_instead(explain, text, error):
    code, out, stderr = explain(text)
    assert (code, out) == (1, "")
    assert stderr.startswith(error)


def test_paths_of_a_model_that_nothing_knows(explain):
    code, out, error = explain("model: {model_config: {model_type: nothing}}", "--paths")
    assert (code, out) == (1, "")
    assert error.startswith("mindswap: error: ")


def test_which_entry_goes_before_which(explain):
    text = (
        LLAMA
        + r"""
swap_config:
  swap: True
  op_swap:
    - {op_name: feed_forward, backward_prefetch: 20, layers: [0, 1]}
    - {op_name: 'feed_forward.*', backward_prefetch: 9, layers: [0]}
recompute_config:
  recompute: [1, 2]
  select_recompute_exclude: {attention: [2]}
"""
    )
    code, out, _ = explain(text)
    assert code == 0
    # Layer 0: the later pattern; layer 1: recompute before swap; layer 2: the exclude option before recompute.
    assert out[out.index("[layer 0]") : out.index("[layer 2]")] == (
        "[layer 0]\n"
        "    offload feed_forward (17 operators)  prefetch 9\n"
        "        op_swap 'feed_forward.*' with prefetch 9 overrides op_swap 'feed_forward' with prefetch 20\n"
        "[layer 1]\n"
        "    recompute the full layer (65 operators)\n"
        "        recompute overrides op_swap 'feed_forward' with prefetch 20\n"
    )
    assert out.endswith(
        "    keep attention (38 operators)\n"
        "        select_recompute_exclude 'attention' overrides recompute\n"
        "[layer 3]\n"
        "    nothing is offloaded or recomputed\n"
    )
    groups = json.loads(explain(text, "--json")[1])["layers"]
    assert groups[1]["steps"] == [
        {
            "action": "recompute",
            "name": "",
            "num_operators": 65,
            "backward_prefetch": None,
            "reasons": ["recompute overrides op_swap 'feed_forward' with prefetch 20"],
        }
    ]
