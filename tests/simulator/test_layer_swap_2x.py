"""Swap as MindFormers 2.x does it, on `plan.models.small_model`: four layers of exp, mul, relu, tanh.

Operator 0 is what is before the layers. Forward of layer i is operators 4 i + 1 to 4 i + 4, 17 is the loss and 18 its
gradient, backward of layer 3 is 19 to 22, of layer 2 23 to 26, of layer 1 27 to 30, of layer 0 31 to 34. Each layer
keeps exp and relu, and tanh, which it returns and which no other layer saves.
"""

from benchmarks.reference.program_check import check_program
from mindswap.policy.model import Layers, LayerSwap, Policy
from mindswap.simulator.layer_swap_2x import LayerSwapModel2x
from mindswap.simulator.program import MemoryKind
from tests.planner.models import MB, small_model


def program(*layers, prefetch=1, again=(), **options):
    model = LayerSwapModel2x.of(small_model(**options))
    made = model.program(Policy(layer_swap=[LayerSwap(Layers(layers), prefetch)], layer_recompute=Layers(again)))
    check_program(made)
    return made


def events(made):
    """(layer, copy out after, waited for behind, copy in after, needed by), each once."""
    copies = made.copies
    columns = (copies.layer, copies.producer_op, copies.release_op, copies.prefetch_op, copies.first_user_op)
    return sorted({tuple(int(value) for value in row) for row in zip(*columns, strict=True)})


def test_copies_begin_and_end_with_the_passes_of_layers():
    """Out after forward of i; given back after i + 1; in behind the operator before backward of i + 1; then needed."""
    made = program(0, 1)
    assert events(made) == [(0, 4, 8, 26, 31), (1, 8, 12, 22, 27)]
    assert sorted(str(made.labels[label]) for label in made.copies.label) == ["attn.exp"] * 2 + ["mlp.relu"] * 2


def test_the_distance_is_in_layers():
    """With 2, layer 1 waits for layer 3: forward until 16, backward from 19."""
    assert events(program(1, prefetch=2)) == [(1, 8, 16, 18, 27)]


def test_each_micro_batch_has_its_own():
    """Two micro-batches of 35 operators: 1 before, 16 in layers, 2 for the loss, 16 in backward."""
    made = program(0, num_micro_batches=2)
    assert events(made) == [(0, 4, 8, 26, 31), (0, 39, 43, 61, 66)]


def test_all_memory_of_a_layer_is_taken_when_the_backward_that_fetches_begins():
    intervals = program(0, 1).intervals
    back = intervals.kind == MemoryKind.PREFETCHED
    assert sorted(zip(intervals.layer[back].tolist(), intervals.begin[back].tolist(), strict=True)) == [
        (0, 27), (0, 27), (1, 23), (1, 23),
    ]  # fmt: skip


def test_what_does_not_leave_is_kept_as_without_swap():
    """Of four layers with three kept tensors each two layers move two: 12 - 4 are kept."""
    kept = program(0, 1).intervals
    assert int((kept.kind == MemoryKind.KEPT).sum()) == 8
    none = LayerSwapModel2x.of(small_model()).program(Policy())
    assert int((none.intervals.kind == MemoryKind.KEPT).sum()) == 12


def test_a_recomputed_layer_moves_nothing():
    made = program(1, again=(0,))
    assert {layer for layer, *_ in events(made)} == {1}


def test_the_peak_falls_by_what_is_away():
    """All 12 MB are there when backward begins; of layers 0 and 1 exp and relu are not: 4 MB less."""
    model = LayerSwapModel2x.of(small_model())
    kept = model.simulate(Policy()).peak_bytes
    swapped = model.simulate(Policy(layer_swap=[LayerSwap(Layers(0, 1), 1)])).peak_bytes
    assert kept - swapped == 4 * MB
