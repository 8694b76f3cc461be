"""`mindswap plan FILE_2X --trace step.json`: on a trace made by hand, without MindSpore.

Each layer computes e = exp(x) and hands on y = e^2; e is saved, 4 MiB. `Mul` of backward reads e twice.
"""

import pytest

from mindswap import cli
from mindswap.config.parse import parse_document
from mindswap.config.source import load_document
from mindswap.features.dryrun import has_mindformers_2x
from mindswap.policy.cell_tree import CellNode
from mindswap.pynative.trace import (
    Event,
    EventKind,
    Operator,
    RecordedStep,
    Save,
    Trace,
    TracedStorage,
    Value,
    dump_trace,
)
from mindswap.rules.checker import check_pynative
from tests.schema import answer_of

NUM_LAYERS = 4
SIZE = 4 * 2**20
HEAD = """\
# mine
training: {steps: 10}
parallelism:
  pipeline_parallel: 1
model:
  model_type: qwen3
  num_hidden_layers: 4  # small
  hidden_size: 64
"""
STAGED = HEAD.replace("parallel: 1", "parallel: 2")
SECTIONS = """\
swap:  # first try
  enable: True
  op_swap:
    - op_name: 'mlp'
      layers: ['0']
recompute:
  mode: select  # for now
  select_module:
    mlp: ['2']
# the end
"""
OWN_SWAP = "mindswap: {swap_engine: mindswap}\n"
SOURCE = "trainer: {type: x}\nmodel: {model_config: {num_layers: 4, hidden_size: 64}}\noptimizer: {type: SGD}\n"


def hand_made(config=SOURCE):
    """A trace: memory 98 is a weight, 0 the input of layer 0, 2 i + 1 and 2 i + 2 are e and y of layer i.

    Gradients have memories from 100. `Neg` of a weight stands before the layers: what depends on none is shared by all.
    """

    def value(memory, weight=""):
        return Value(memory, SIZE, (SIZE // 4,), "float32", weight)

    operators, storages, saves, events = [], [], [], []
    operators.append(Operator("Neg", None, ("Neg",), True, (value(98, "w"),), (value(0),)))
    for i in range(NUM_LAYERS):
        events.append(Event(EventKind.FORWARD_BEGIN, i, len(operators)))
        x, e, y = value(2 * i), value(2 * i + 1), value(2 * i + 2)
        operators.append(Operator("Exp", i, ("mlp", "exp"), True, (x,), (e,)))
        operators.append(Operator("Square", i, ("mlp", "square"), True, (e,), (y,)))
        storages.append(TracedStorage(SIZE, 2 * i + 1, 2 * i + 2, "", 2 * i + 1))
        saves.append(Save(i, i, 2 * i + 2, (SIZE // 4,), "float32"))
        events += [Event(EventKind.SAVE, i, len(operators)), Event(EventKind.FORWARD_END, i, len(operators))]
    loss = value(2 * NUM_LAYERS)
    operators.append(Operator("Neg", None, ("Neg",), True, (loss,), (value(99),)))
    operators.append(Operator("Neg", None, ("Neg",), False, (), (value(100),)))
    for i in reversed(range(NUM_LAYERS)):
        e, given = value(2 * i + 1), value(100 + 2 * (NUM_LAYERS - 1 - i))
        events.append(Event(EventKind.BACKWARD_BEGIN, i, len(operators)))
        events.append(Event(EventKind.READ, i, len(operators)))
        middle, out = value(given.memory + 1), value(given.memory + 2)
        operators.append(Operator("Mul", i, ("Mul",), False, (e, given), (middle,)))
        operators.append(Operator("Mul", i, ("Mul",), False, (e, middle), (out,)))
    trace = Trace(NUM_LAYERS, tuple(operators), tuple(storages), tuple(saves), tuple(events))
    cell = CellNode("mlp", "MLP", children=(CellNode("exp", "Exp", True), CellNode("square", "Square", True)))
    return RecordedStep(trace, (CellNode("", "Layer", children=(cell,)),) * NUM_LAYERS, config)


@pytest.fixture
def plan(tmp_path, capsys):
    (tmp_path / "step.json").write_text(dump_trace(hand_made()))

    def run(*options, text=HEAD + SECTIONS, trace=True):
        (tmp_path / "x.yaml").write_text(text)
        given = ["--trace", str(tmp_path / "step.json")] if trace else []
        words = ["plan", str(tmp_path / "x.yaml"), "--device", "generic", *given, *map(str, options)]
        code = cli.main(words)
        out, err = capsys.readouterr()
        assert "a bug" not in err and "Traceback" not in err, err
        return code, out, err

    return run


def answer(plan, *options):
    code, out, err = plan("--json", *options)
    assert code == 0, err
    return answer_of(out)


def test_the_plan_is_written_into_the_file_and_comments_stay(plan, tmp_path):
    """A budget 2 MiB below what keeping needs: one of the four saved tensors has to go, by swap as asked."""
    kept = answer(plan, "--memory", "1GiB")["peak_bytes"]
    target = tmp_path / "planned.yaml"
    code, out, err = plan("--memory", f"{kept - 2 * 2**20}B", "--allow", "swap", "-o", target)
    assert code == 0, err
    assert "over the lower bound: no policy is faster than" in out
    text = target.read_text()
    assert text.startswith(HEAD) and text.endswith("# the end\n")
    assert "swap:  # first try\n  enable: True\n" in text and "# mindswap: plan for" in text
    checked = check_pynative(load_document(target))
    assert not checked.errors
    assert [layer.is_swapped for layer in checked.effect.layers].count(True) == 1
    assert not any(layer.swapped or layer.recomputed or layer.is_recomputed for layer in checked.effect.layers)
    assert cli.main(["check", str(target)]) == 0


def test_what_json_says_is_what_is_written(plan, tmp_path):
    kept = answer(plan, "--memory", "1GiB")["peak_bytes"]
    target = tmp_path / "planned.yaml"
    found = answer(plan, "--memory", f"{kept - 6 * 2**20}B", "-o", target)
    assert found["peak_bytes"] <= kept - 6 * 2**20
    assert found["lower_bound_ns"] <= found["step_time_ns"]
    assert "swap_config" not in found
    effect = check_pynative(load_document(target)).effect
    data = parse_document(target.read_bytes(), "x")
    for section in ("swap", "recompute"):
        assert set(found[section]) == {entry.key for entry in data.get(section).entries}
    assert any(layer.is_swapped or layer.is_recomputed for layer in effect.layers)


def test_sections_are_added_where_there_are_none(plan, tmp_path):
    kept = answer(plan, "--memory", "1GiB")["peak_bytes"]
    code, _, err = plan("--memory", f"{kept - 2 * 2**20}B", "--allow", "swap", "--in-place", text=HEAD)
    assert code == 0, err
    text = (tmp_path / "x.yaml").read_text()
    assert text.startswith(HEAD) and "\nswap:\n  enable: True\n  default_prefetch: " in text
    assert text.endswith("recompute:\n  mode: 'None'\n")


def test_where_all_fits_swap_is_off(plan, tmp_path):
    assert plan("--memory", "1GiB", "--in-place")[0] == 0
    checked = check_pynative(load_document(tmp_path / "x.yaml"))
    assert not checked.errors and not checked.effect.swaps_anything


@pytest.mark.skipif(has_mindformers_2x(), reason="MindFormers 2.x records the step")
def test_without_a_trace_it_says_how_to_make_one(plan):
    code, out, err = plan("--memory", "1GiB", trace=False, text=HEAD + "  seq_length: 8\n  vocab_size: 8\n")
    assert (code, out) == (1, "")
    assert "x.yaml:2:1: error: a configuration of MindFormers 2.x (PyNative), whose trainer this Python does not" in err
    assert "make .venv-2x/.installed" in err and "x.yaml -o step.json, and --trace step.json" in err


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (HEAD.replace("layers: 4", "layers: 8"), (), "x.yaml:7:22: model has 8 layers, "),
        (HEAD.replace("size: 64", "size: 128"), (), "x.yaml:8:16: model.hidden_size: 128; in the configuration of "),
        (STAGED, (), "parallelism.pipeline_parallel: 2 stages, but MindFormers 2.1.0 cannot divide qwen3"),
        (STAGED.replace("qwen3", "deepseek_v3"), (), "x.yaml:4:22: parallelism.pipeline_parallel: 2: "),
        (HEAD + "  mtp_num_layers: 1\n", (), "multi-token prediction"),
        (HEAD + "swap: {enable: maybe}\n", (), "x.yaml:9:16: error: swap.enable"),
        (
            HEAD + OWN_SWAP,
            (),
            "x.yaml:9:25: mindswap.swap_engine: mindswap: with a trace of MindFormers 1.9 plans are made for the swap",
        ),
        (
            HEAD + OWN_SWAP,
            ("--allow", "swap"),
            "fix:     leave --trace out, or --allow recompute, or swap_engine: upstream",
        ),
        (HEAD, ("--sweep",), "--sweep: not for files of MindFormers 2.x"),
        (HEAD, ("--explain",), "--explain: not for files of MindFormers 2.x"),
        (HEAD, ("--objective", "memory"), "--objective memory: not for files of MindFormers 2.x"),
        ("trainer: {type: x}\n", (), "--trace: is for files of MindFormers 2.x"),
    ],
)
def test_refusals(plan, text, options, message):
    code, out, err = plan("--memory", "1GiB", *options, text=text)
    assert (code, out) == (1, "")
    assert message in err


def test_recompute_is_planned_beside_the_swap_of_mindswap(plan):
    assert plan("--memory", "1GiB", "--allow", "recompute", text=HEAD + OWN_SWAP)[0] == 0
    assert plan("--memory", "1GiB", text=HEAD + "mindswap: {swap_engine: upstream}\n")[0] == 0


def test_a_budget_below_everything(plan):
    code, out, _ = plan("--memory", "1MiB")
    assert code == 1 and "nothing fits" in out and "fix: --memory" in out


def test_a_trace_of_another_architecture_is_told(plan, tmp_path):
    source = SOURCE.replace("hidden_size: 64}", "hidden_size: 64}, arch: {type: LlamaForCausalLM}")
    for name, is_told in (("Qwen3ForCausalLM", True), ("LlamaForCausalLM", False)):
        (tmp_path / "step.json").write_text(dump_trace(hand_made(source)))
        _, out, err = plan("--memory", "1GiB", text=HEAD + f"  architectures: [{name}]\n")
        assert ("note: the trace is of LlamaForCausalLM, this file of Qwen3ForCausalLM" in out) is is_told, err
