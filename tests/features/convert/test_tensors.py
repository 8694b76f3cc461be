"""Conversion between versions by the tensors of a trace: three layers made by hand.

Layer i has three operators, `w1` makes A, `mul` reads it and makes M, `w2` reads that and makes the input X of the next
layer; each saves what it reads. X and A have 1 KiB, M has 2 KiB.
"""

import pytest

from mindswap import cli
from mindswap.policy.cell_tree import CellNode
from mindswap.pynative.trace import Event, EventKind, Operator, RecordedStep, Save, Trace, TracedStorage, dump_trace

NUM_LAYERS = 3
OLD = """\
# mine
context: {mode: 0, memory_optimize_level: "O0"}
model:
  arch: {type: MyForCausalLM}
  model_config: {type: MyConfig, num_layers: 3}
swap_config:  # kept
"""
NEW = """\
training: {steps: 1}
parallelism: {}
model: {num_hidden_layers: 3}
"""


def tree(cells):
    """A cell tree from {path of a cell: names of its primitives}."""
    primitive = {name: CellNode(name, "Op", True) for names in cells.values() for name in names}
    w1, w2 = (CellNode(name, "Linear", children=(primitive["matmul"],)) for name in ("w1", "w2"))
    return CellNode(
        "", "Layer", children=(CellNode("feed_forward", "FeedForward", children=(w1, w2, primitive["mul"])),)
    )


LAYER = tree({"feed_forward.w1": ["matmul"], "feed_forward": ["mul"], "feed_forward.w2": ["matmul"]})
PATHS = (("feed_forward", "w1", "matmul"), ("feed_forward", "mul"), ("feed_forward", "w2", "matmul"))


@pytest.fixture
def convert(tmp_path, capsys):
    operators, storages, saves, events = [], [], [], []
    for layer in range(NUM_LAYERS):
        events.append(Event(EventKind.FORWARD_BEGIN, layer, len(operators)))
        for position, path in enumerate(PATHS):
            index = len(operators)
            operators.append(Operator("Op", layer, path, True))
            # The first layer reads an input of the network.
            size, protection = 2048 if position == 2 else 1024, "" if index else "input"
            storages.append(TracedStorage(size, index - 1 if index else None, index, protection))
            saves.append(Save(index, layer, index, (size // 4,), "float32"))
            events.append(Event(EventKind.SAVE, index, len(operators)))
        events.append(Event(EventKind.FORWARD_END, layer, len(operators)))
    operators += [Operator("Grad", layer, ("Grad",), False) for layer in (2, 1, 0) for _ in range(4)]
    trace = Trace(NUM_LAYERS, tuple(operators), tuple(storages), tuple(saves), tuple(events))
    path = tmp_path / "step.json"
    path.write_text(dump_trace(RecordedStep(trace, (LAYER,) * NUM_LAYERS, "seed: 0\n")))

    def run(text, version, *options):
        file = tmp_path / "x.yaml"
        file.write_text(text)
        code = cli.main(["convert", str(file), "--to", version, "--trace", str(path), *options])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


def test_a_product_goes_with_the_cell_that_saves_it(convert):
    """`feed_forward\\.mul` moves M in 1.9; in 2.x `mlp\\.mul` would move A, and `mlp\\.linear_fc2` moves M. Backward
    has four operators to a layer: 4 are one layer, so the last one stays."""
    text = OLD + "  swap: True\n  op_swap:\n    - {op_name: 'feed_forward\\.mul', backward_prefetch: 4, layers: True}\n"
    code, out, err = convert(text, "2.x")
    assert code == 0, err
    assert (
        r"""  default_prefetch: 1
  op_swap:
    - op_name: 'mlp\.linear_fc2'
      layers: ['0-1']
"""
        in out
    )
    assert "# kept" in out and "mlp\\.mul" not in out
    assert "moved 6.0 KiB before, 4.0 KiB now" in out
    assert "2.x no longer moves feed_forward.mul, 2.0 KiB, layer 2" in err
    assert "step.json: 4 operators of a layer in backward" in err


def test_a_cell_is_taken_apart_where_it_would_move_much_more(convert):
    """feed_forward of layer 1 makes A, M and X of layer 2. `mlp` of layer 1 saves A, M and X of layer 1, which was not
    asked for: 1 KiB beside 3 KiB, more than a tenth. `mlp.mul` saves A, `linear_fc2` M; X of layer 2 is saved where no
    layer can be swapped."""
    text = OLD + "  swap: True\n  op_swap:\n    - {op_name: 'feed_forward', backward_prefetch: 4, layers: [1]}\n"
    code, out, err = convert(text, "2.x")
    assert code == 0, err
    assert (
        r"""  op_swap:
    - op_name: 'mlp\.mul'
      layers: ['1']
    - op_name: 'mlp\.linear_fc2'
      layers: ['1']
"""
        in out
    )
    assert "2.x no longer moves feed_forward.w2.matmul, 1.0 KiB, layer 1" in err and "now also" not in err


def test_a_cell_stays_whole_where_only_its_rim_differs(convert):
    """All that the layers make is asked for: layers 0 and 1 save nothing else. Of layer 2, which cannot be swapped, A
    and M stay, and X that layer 1 makes for it."""
    text = OLD + "  swap: True\n  op_swap:\n    - {op_name: 'feed_forward', backward_prefetch: 4, layers: True}\n"
    code, out, err = convert(text, "2.x")
    assert code == 0, err
    assert "  layer_swap:\n    - layers: ['0-1']\n" in out
    assert "2.x no longer moves 2 tensors of feed_forward, 3.0 KiB, layer 2" in err
    assert "2.x no longer moves feed_forward.w2.matmul, 1.0 KiB, layer 1" in err


def test_back_to_1_9_a_cell_that_saves_becomes_the_operator_that_makes(convert):
    text = NEW + "swap:\n  enable: True\n  op_swap:\n    - {op_name: 'mlp\\.linear_fc2', layers: ['0-1']}\n"
    code, out, err = convert(text, "1.9")
    assert code == 0, err
    assert (
        r"""  op_swap:
    - op_name: 'feed_forward\.mul'
      backward_prefetch: 4
      layers: [0, 1]
"""
        in out
    )
    assert "moved 4.0 KiB before, 4.0 KiB now" in out and "no longer" not in err and "now also" not in err


def test_recompute_is_compared_too(convert):
    """The product is made again in both; nothing is lost."""
    text = OLD + "  swap: True\n  op_swap: []\nrecompute_config:\n  select_recompute: {'feed_forward\\.mul': [0]}\n"
    code, out, err = convert(text, "2.x")
    assert code == 0, err
    assert "recomputed 2.0 KiB before, 2.0 KiB now" in out
    assert "mode: 'select'" in out and "now also" not in err


def test_a_trace_of_another_model_is_refused(convert):
    code, _, err = convert(OLD.replace("num_layers: 3", "num_layers: 4") + "  swap: True\n", "2.x")
    assert code == 1 and "has 3 layers, the configuration 4" in err


def test_a_trace_is_for_versions_only(convert):
    code, _, err = convert(OLD + "  swap: True\n", "index")
    assert code == 1 and "--trace: is for --to 2.x and --to 1.9" in err


def test_a_trace_in_which_nothing_moves_is_of_another_model(convert):
    """`attention` is in none of its layers. Without the error the result would be a swap that is off."""
    text = OLD + "  swap: True\n  op_swap:\n    - {op_name: 'attention', backward_prefetch: 4, layers: True}\n"
    code, out, err = convert(text, "2.x")
    assert (code, out) == (1, "")
    assert "nothing that the configuration swaps is saved in this step" in err and "a trace of the same model" in err
