"""`mindswap inspect` on real MindFormers networks, against sums worked out by hand."""

import json
import os
import re
from pathlib import Path

import pytest

from tests import forked
from tests.schema import answer_of

ROOT = Path(__file__).resolve().parents[3]
CPU_CASE = ROOT / "configs" / "llama2_7b" / "cpu" / "case1_default_swap.yaml"
ASCEND_CASE = ROOT / "configs" / "llama2_7b" / "case1_default_swap.yaml"

pytestmark = pytest.mark.mindspore


def inspect(*arguments, check=True, cache=None):
    """The command as a user runs it: one network to a process."""
    command = ["-m", "mindswap", "inspect", *map(str, arguments)]
    command += [] if cache else ["--no-cache"]
    environment = {**os.environ, "MINDSWAP_CACHE": str(cache)}
    return forked.run(command, check=check, cwd=ROOT, env=environment)


def rewrite(source: Path, target: Path, **settings) -> Path:
    """A copy of a YAML with these `key: value` lines changed."""
    text = source.read_text()
    for key, value in settings.items():
        text, count = re.subn(rf"(?m)^(\s*){key}: .*$", rf"\g<1>{key}: {value}", text)
        assert count, key
    target.write_text(text)
    return target


@pytest.fixture(scope="module")
def seven_b():
    """Llama2-7B at sequence length 4096, swap of flash attention in all four layers."""
    return answer_of(inspect("--json", ASCEND_CASE).stdout)


def test_bytes_of_a_float32_block_without_flash_attention(tmp_path):
    # batch 2, seq 64, hidden 64, heads 4, ffn 192, everything float32, and what backward of each operator reads:
    #   hidden-sized (b s h = 8192 elements): x * rsqrt and the output of both norms (4), rotated q and k,
    #     transposed v (3), the merged attention output (1), both residual sums (2)       -> 10 x 8192
    #   ffn-sized (b s f = 24576): outputs of w1, w3, SiLU and their product               ->  4 x 24576
    #   attention probabilities (b heads s s)                                              ->  2 x 4 x 64 x 64
    #   rsqrt of both norms (b s)                                                          ->  2 x 128
    expected = 4 * (10 * 8192 + 4 * 24576 + 2 * 4 * 64 * 64 + 2 * 128)
    assert expected == 852_992
    config = rewrite(CPU_CASE, tmp_path / "off.yaml", swap="True", default_prefetch="1", use_flash_attention="False")
    config.write_text(config.read_text().replace("default_prefetch: 1", "op_swap: []"))
    report = answer_of(inspect("--json", config).stdout)
    assert [layer["kept_bytes"] for layer in report["layers"][:-1]] == [expected] * 4


def test_bytes_of_a_float16_block_with_flash_attention(seven_b):
    # batch 1, seq 4096, hidden 4096, heads 32, ffn 11008; weights float32, computed in float16.
    #   hidden-sized float16 (32 MiB): inputs of q/k/v and of the ffn after the cast (2), rotated q and k,
    #     transposed v (3), output of flash attention and the same merged (2), both residual sums (2)  -> 9
    #   ffn-sized float16 (86 MiB): w1, w3, SiLU, product                                              -> 4
    #   float16 casts of the weights: wq, wk, wv, wo (32 MiB each), w1, w2, w3 (86 MiB each)
    #   softmax max and sum of flash attention, float32, 8 per row and head: 2 x 32 x 4096 x 8
    #   rstd of both norms, float32: 2 x 4096; one empty float16 output of flash attention
    # The float32 outputs of the norms are handed over too, but no operator of backward reads them.
    hidden, ffn, weight, ffn_weight = 4096 * 4096 * 2, 4096 * 11008 * 2, 4096 * 4096 * 2, 4096 * 11008 * 2
    softmax, rstd, empty = 2 * 32 * 4096 * 8 * 4, 2 * 4096 * 4, 2
    total = 9 * hidden + 4 * ffn + 4 * weight + 3 * ffn_weight + softmax + rstd + empty
    swapped = hidden + softmax + empty  # all that flash attention gives
    for layer in seven_b["layers"][:-1]:
        assert layer["swapped_bytes"] == swapped
        assert layer["kept_bytes"] == total - swapped


def test_every_operator_is_named_as_op_swap_names_it(seven_b):
    paths = {operator["path"] for operator in seven_b["layers"][0]["operators"]}
    assert {"attention.flash_attention.flash_attention", "feed_forward.w1.activation.silu"} & paths
    assert "attention.apply_rotary_emb.add" in paths  # told apart from `mul`, `mul_inc`, ... of the same cell
    assert not any("|" in path for path in paths)


def test_only_what_op_swap_can_name_is_worth_swapping(seven_b):
    *layers, outside = seven_b["layers"]
    assert all(operator["swappable_bytes"] == 0 for operator in outside["operators"])
    # In a layer, everything: flash attention, which the case swaps already, and the casts of gathered weights, four of
    # 32 MiB and three of 86 MiB.
    assert sum(operator["swappable_bytes"] for operator in layers[0]["operators"]) == 1026 * 2**20 + 32770


def test_a_few_compiled_layers_tell_the_same_as_all(tmp_path):
    """Of five layers four are compiled under the policy, whose last layer is unlike the others, and three without."""
    config = rewrite(CPU_CASE, tmp_path / "five.yaml", num_layers="5", select_recompute="{'ffn_norm': [4]}")
    everywhere = "{op_name: 'attention', backward_prefetch: 3, layers: True}"
    last = "{op_name: 'feed_forward', backward_prefetch: 5, layers: [4]}"
    config.write_text(config.read_text().replace("default_prefetch: 10", f"op_swap: [{everywhere}, {last}]"))
    script = f"""
import json
from mindswap.adapters.quiet import quiet
from mindswap.features import inspect
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.rules.checker import load_policy
from mindswap.config.source import load_document
from mindswap.policy.model import Policy
from mindswap.features.inspect.report import memory_to_json
with quiet():
    from mindswap.adapters.graph import layer_choice, mindformers
policy, plain = load_policy({str(config)!r}), Policy(is_swap_enabled=True)
with quiet():
    built = mindformers.build_layers({str(config)!r})
    sizes = [len(mindformers.choose_layers(each, built).indices) for each in (policy, plain)]
sampled = memory_to_json(inspect.inspect_config(load_document({str(config)!r}), policy, use_cache=False))
layer_choice.choose_representative_layers = lambda *_: LayerSample(tuple(range(5)), tuple(range(5)))
whole = memory_to_json(inspect.inspect_config(load_document({str(config)!r}), policy, use_cache=False))
print(json.dumps([sizes, sampled, whole]))
"""
    result = forked.run(["-c", script], check=True, cwd=ROOT)
    sizes, sampled, whole = json.loads(result.stdout)
    assert sizes == [4, 3]
    assert sampled["layers"] == whole["layers"]
    assert sampled["total"] == whole["total"]
    assert sampled["peak"]["size_bytes"] == whole["peak"]["size_bytes"]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A folder with what is kept of a first answer, and that answer."""
    folder = tmp_path_factory.mktemp("cache")
    return folder, inspect("--json", CPU_CASE, cache=folder).stdout


def test_the_second_time_nothing_is_compiled(asked, tmp_path):
    folder, first = asked
    kept = {path: path.stat().st_ino for path in folder.iterdir()}  # written anew it would be another file
    assert len(kept) == 3  # the answer, the layers of the model, and the network without a policy
    assert inspect("--json", CPU_CASE, cache=folder).stdout == first
    assert {path: path.stat().st_ino for path in folder.iterdir()} == kept
    changed = rewrite(CPU_CASE, tmp_path / "changed.yaml", default_prefetch="11")
    inspect("--json", changed, cache=folder)
    assert len(list(folder.iterdir())) == 4  # another policy, another answer; layers and network are the same
    assert {path: path.stat().st_ino for path in kept} == kept


def test_a_picture_is_written(asked, tmp_path):
    inspect(CPU_CASE, "--by", "cell", "--layers", "0,2-3", "--plot", tmp_path / "saved.png", cache=asked[0])
    assert (tmp_path / "saved.png").read_bytes().startswith(b"\x89PNG")


def test_layers_that_do_not_exist_are_refused(asked):
    result = inspect(CPU_CASE, "--layers", "2-5", check=False, cache=asked[0])
    assert result.returncode == 1
    assert result.stderr == "mindswap: error: --layers: there are layers 0-3, not [4, 5]\n"
