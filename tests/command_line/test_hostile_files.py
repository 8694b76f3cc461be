"""Small files that stand for huge amounts: every command answers within 2 s of CPU time and 500 MB."""

import os
import resource
import sys
from pathlib import Path

import pytest

from mindswap.cli import main
from mindswap.pynative.trace import SCHEMA, SCHEMA_VERSION

MODEL = "model:\n  model_config: {num_layers: 4, model_type: llama, type: LlamaConfig}\n"
ON = "swap_config:\n  swap: True\n"
pytestmark = pytest.mark.long

# Start of Python and of MindSpore is not measured: the process is a fork. Other tests run at the same time.
MAX_CPU_S, MAX_RSS_BYTES = 8, 500 << 20  # one or two seconds on an idle machine


def repeat(text, count, joint=", "):
    return joint.join(text.replace("#", str(number)) for number in range(count))


def ranges(text, count):
    return ", ".join([f"'{text}'"] * count)


def patterns(count):
    return repeat("'x#': True", count)


def in_model(**values):
    """A model of 4 layers with other numbers."""
    config = {"num_layers": 4, "model_type": "llama", "type": "LlamaConfig", **values}
    return f"model:\n  model_config: {{{', '.join(f'{key}: {value}' for key, value in config.items())}}}\n{ON}"


def in_entry(layers):
    return f"{MODEL}{ON}  op_swap:\n    - {{op_name: mlp, backward_prefetch: 1, layers: [{layers}]}}\n"


def entries(pattern, layers, count):
    line = f"    - {{op_name: '{pattern}', backward_prefetch: 1#, layers: {layers}}}"
    return f"{MODEL}{ON}  op_swap:\n{repeat(line, count, chr(10))}\n"


LAUGHS = (
    "a0: &a0 ["
    + repeat("x", 10)
    + "]\n"
    + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30))
)
HUGE = 10**9
# Numbers and lists that are refused, by where they are.
REFUSED = {
    "ranges": in_entry(ranges("0-9999", 1000)),
    "aliases of ranges": f"l: &l [{ranges('0-9999', 100)}]\n" + entries("mlp", "*l", 300),
    "layers": in_entry(repeat("0", 100_000)),
    "entries": entries("mlp", "[0]", 3000),
    "select": f"{MODEL}{ON}recompute_config:\n  select_recompute: {{{patterns(9000)}}}\n",
    "laughs in a section": f"{LAUGHS}{MODEL}{ON}  op_swap: *a29\n",
    "laughs off": f"{LAUGHS}{MODEL}recompute_config: {{recompute: *a29}}\n",
    "merges": "a: &a {" + repeat("k#: 0", 3000) + "}\n" + repeat("b#: {<<: *a}", 300, "\n") + f"\n{MODEL}",
    "depth": f"{MODEL}{ON}x: {'[' * 5000}{']' * 5000}\n",
    "values": f"{MODEL}{ON}x: [{repeat('1', 300_000)}]\n",
    "keys": f"{MODEL}{ON}x: {{{repeat('k#: 1', 100_000)}}}\n",
    "counts": f"{MODEL}recompute_config: {{recompute: [{repeat('1000000000', 50_000)}]}}\n",
    "bases": f"base_config: [{repeat('b#.yaml', 50_000)}]\n{MODEL}",
    "ignored rules": f"{MODEL}{ON}mindswap: {{ignore: [{repeat('r#', 50_000)}]}}\n",
    "num_layers": in_model(num_layers=HUGE),
    "offset": in_model(offset=f"[{repeat('1', 90_000)}]"),
    "pp_interleave_num": in_model(pp_interleave_num=HUGE),
    "num_experts": in_model(num_experts=HUGE),
    "mtp_depth": in_model(mtp_depth=HUGE),
    "vocab_size": in_model(vocab_size=10**12),
    "hidden_size": in_model(hidden_size=HUGE),
    "seq_length": in_model(seq_length=10**12),
    "expert_num": f"{MODEL}{ON}moe_config: {{expert_num: {HUGE}}}\n",
    "micro_batch_interleave_num": f"{MODEL}{ON}micro_batch_interleave_num: {HUGE}\n",
    "two forms": f"{MODEL}swap: {{enable: True, layer_swap: [{{layers: [{ranges('0-99999', 1000)}]}}]}}\n",
    "2.x ranges": "model: {num_layers: 4, model_type: qwen3}\nswap:\n  enable: True\n  layer_swap:\n"
    f"    - layers: [{ranges('0-9999', 1000)}]\nparallelism: {{}}\n",
    **{
        key: f"{MODEL}{ON}parallel_config: {{pipeline_stage: 2, {key}: {HUGE}}}\n"
        for key in ("data_parallel", "model_parallel", "context_parallel", "expert_parallel")
    },
    **{
        key: f"{MODEL}{ON}parallel_config: {{pipeline_stage: 2, {key}: {HUGE}}}\n"
        for key in ("micro_batch_num", "seq_split_num")
    },
    "pipeline_stage": f"{MODEL}{ON}parallel_config: {{pipeline_stage: {HUGE}}}\n",
    **{key: f"{MODEL}{ON}runner_config: {{{key}: {HUGE}}}\n" for key in ("batch_size", "gradient_accumulation_steps")},
}
# Just below the limits: a lot is looked at.
READ = {
    "equal layers": in_entry(repeat("0", 19_000)),
    "ranges": in_entry(ranges("0-9999", 5)),
    "entries": entries("mlp", "[0]", 450),
    "patterns": entries(r"mlp#.*", "True", 450),
    "select": f"{MODEL}{ON}recompute_config:\n  select_recompute: {{{patterns(1400)}}}\n",
    "equal keys": f"{MODEL}{ON}x: {{{repeat('k: 1', 9000)}}}\n",
    "ignored rules": f"{MODEL}{ON}mindswap: {{ignore: [{repeat('r#', 15_000)}]}}\n",
    "laughs": f"{LAUGHS}{MODEL}{ON}",
    "pattern": f"{MODEL}{ON}  op_swap: [{{op_name: '{'(a*)*' * 30}b', backward_prefetch: 1, layers: True}}]\n",
    "repeats": f"{MODEL}{ON}  op_swap: [{{op_name: '{'(' * 90}a{'){1,60000}' * 90}', layers: True}}]\n",
}


def run(arguments, output):
    """Exit code, CPU time and additional memory of a command in a fork that is killed above the limits."""
    before_bytes = (
        int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    )  # the fork begins with it
    process = os.fork()
    if process == 0:
        code = 70
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
            sys.stdout = sys.stderr = output.open("w")
            code = main([str(argument) for argument in arguments])
            sys.stdout.flush()
        finally:
            os._exit(code)
    _, status, usage = os.wait4(process, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, (usage.ru_maxrss << 10) - before_bytes


OTHER_COMMANDS = ("explain", "convert", "plan", "simulate", "inspect", "verify", "dryrun", "compare")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((name, "check") for name in REFUSED),
        *((name, command) for name in ("ranges", "micro_batch_num") for command in OTHER_COMMANDS),
    ],
)
def test_what_no_machine_could_build_is_refused_before_it_is_built(tmp_path, name, command):
    path, output = tmp_path / "x.yaml", tmp_path / "output"
    path.write_text(REFUSED[name])
    code, cpu_s, rss_bytes = run([command, path], output)
    text = output.read_text()
    assert code == 1, text[:2000]
    assert "error: " in text and len(text) < 60_000
    assert cpu_s < MAX_CPU_S and rss_bytes < MAX_RSS_BYTES


@pytest.mark.parametrize("name", READ)
def test_what_is_read_takes_seconds_and_little_memory(tmp_path, name):
    path, output = tmp_path / "x.yaml", tmp_path / "output"
    path.write_text(READ[name])
    code, cpu_s, rss_bytes = run(["check", path], output)
    assert code in (0, 1), output.read_text()[:2000]
    assert len(output.read_text()) < 60_000
    assert cpu_s < MAX_CPU_S and rss_bytes < MAX_RSS_BYTES


DEEP = "[" * 100_000 + "]" * 100_000
NOTHING = '"operators": [], "storages": [], "saves": [], "events": []'
TRACE = f'{{"schema": "{SCHEMA}", "version": {SCHEMA_VERSION}, {NOTHING}'
OTHER_INPUTS = {
    ("inspect", "step.json"): DEEP,
    ("simulate", "step.json"): f'{TRACE}, "num_layers": {HUGE}, "device": "", "layers": []}}',
    ("simulate", "digits.json"): f'{TRACE}, "num_layers": 1{"0" * 5000}}}',
    ("plan", "step.json"): f'{TRACE}, "config": {DEEP}}}',
    ("convert", "--from", "megatron", "--script", "train.sh"): "python pretrain.py " + "--a b " * 200_000,
    ("check", "/dev/zero"): "",
    ("simulate", "config.yaml", "--device", "device.yaml"): f"{LAUGHS}",
    ("calibrate", "profile"): "",
}


@pytest.mark.parametrize("arguments", OTHER_INPUTS, ids=" ".join)
def test_other_inputs_are_bounded_too(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile/communication.json").write_text(DEEP)
    (tmp_path / "config.yaml").write_text(in_model())
    if OTHER_INPUTS[arguments]:
        (tmp_path / arguments[-1]).write_text(OTHER_INPUTS[arguments])
    code, cpu_s, rss_bytes = run(arguments, tmp_path / "output")
    text = (tmp_path / "output").read_text()
    assert code == 1, text[:2000]
    assert "bug" not in text and len(text) < 60_000
    assert cpu_s < MAX_CPU_S and rss_bytes < MAX_RSS_BYTES
