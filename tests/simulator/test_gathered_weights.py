"""Gathered weights in simulated steps: the step of `steps.py`, in which each product reads a weight of its own.

`w_i` of layer i: 64 KiB of float32, cast to 32 KiB of float16. Everything else has 1 KiB. Each layer keeps three
tensors of 1 KiB besides; the embedding and the mask are kept, too.
"""

from dataclasses import replace

import numpy as np
import pytest
from other_systems.saved import find_turns

from benchmarks.reference.program_check import check_program
from mindswap.config.pipeline_layout import Pipeline
from mindswap.config.weight_sharding import WeightSharding
from mindswap.graph.model import TensorType
from mindswap.planner.candidates import find_activation_groups
from mindswap.planner.lower_bound import collect_bound_inputs, least_budget_bytes, min_step_ns
from mindswap.planner.problem import Allow
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import ALL_LAYERS, NO_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.engine import run_program
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.program import MemoryKind, OpKind
from mindswap.simulator.step_model import StepModel
from tests.graph.builders import KIB, node
from tests.simulator.cost.builders import device
from tests.simulator.steps import SETTINGS, TREE, captured, placed

WHOLE = TensorType((64, 256), "float32", 64 * KIB)
CUT = WeightSharding(8)
RELEASED = WeightSharding(8, is_released=True)
KEEP_ALL = Policy(True)
CAST = r"mlp\.cast"


def with_cast(tree: CellNode) -> CellNode:
    mlp = tree.children[0]
    return replace(
        tree, children=(replace(mlp, children=(*mlp.children, CellNode("cast", "Cast", True))), *tree.children[1:])
    )


def weighted(num_layers: int):
    """`captured` with a weight in each layer."""
    step = captured(num_layers)
    graph = step.graph
    forward = []
    for each in graph.forward:
        if each.op == "MatMul":
            i = each.layer_index
            load = node(f"load{i}", "Load", f"▸CR_layers.{i}.w u", layer=i, cell_path="mlp")
            cast = placed("cast", "Cast", f"load{i}", i, "mlp")
            half = TensorType(WHOLE.shape, "float16", 32 * KIB)
            forward += [replace(load, outputs=(WHOLE,)), replace(cast, outputs=(half,))]
            each = replace(each, inputs=(*each.inputs, f"cast{i}"))
        forward.append(each)
    backward = [
        replace(each, inputs=(*each.inputs, f"cast{each.layer_index}_b")) if each.op == "MatMul" else each
        for each in graph.backward
    ]
    saved = (
        *graph.saved,
        *(replace(graph.saved[0], forward_name=f"cast{i}", backward_name=f"cast{i}_b") for i in range(3)),
    )
    trees = (with_cast(TREE),) * 3
    return replace(
        step, trees=trees, graph=replace(graph, forward=tuple(forward), backward=tuple(backward), saved=saved)
    )


def model(num_layers: int = 3, sharding: WeightSharding = CUT, **settings) -> StepModel:
    """On a device of 1 TB/s memory and 100 GB/s between cards."""
    return StepModel(weighted(num_layers), CostTable(device()), replace(SETTINGS, sharding=sharding, **settings))


def kept_bytes(program):
    return int(program.intervals.size_bytes[program.intervals.kind == MemoryKind.KEPT].sum())


def gathers(program):
    """Durations of the AllGathers."""
    is_gather = np.array(["AllGather" in str(label) for label in program.labels])[program.ops.label]
    return program.ops.duration_ns[is_gather & (program.ops.kind == OpKind.COLLECTIVE)].tolist()


@pytest.mark.parametrize(
    "policy",
    [
        KEEP_ALL,
        Policy(True, select_recompute=(OpRecompute(CAST, ALL_LAYERS),)),
        Policy(True, op_swap=(OpSwap(CAST, ALL_LAYERS, 1),)),
    ],
)
def test_no_policy_for_the_cast_frees_anything(policy):
    program = model(6).program(policy)
    check_program(program)
    # Three tensors for each of six layers, the embedding, the mask, and six weights of 32 KiB.
    assert kept_bytes(program) == 20 * KIB + 6 * 32 * KIB
    assert len(program.copies) == 0


def test_without_the_parallel_optimizer_recompute_of_it_frees_nothing_either():
    """The backend merges both casts of a weight: `llama optimizer_whole full` of benchmarks/dryrun."""
    own = model(6, WeightSharding())
    for policy in (KEEP_ALL, Policy(True, select_recompute=(OpRecompute(CAST, ALL_LAYERS),))):
        assert kept_bytes(own.program(policy)) == 20 * KIB + 6 * 32 * KIB


def test_in_a_step_that_swaps_it_does():
    """In any layer: `llama optimizer_whole mixed` of benchmarks/dryrun."""
    own, again = model(6, WeightSharding()), (OpRecompute(CAST, ALL_LAYERS),)
    swap = Policy(True, op_swap=(OpSwap(r"mlp\.gelu", Layers(0), 1),))
    moved = kept_bytes(own.program(KEEP_ALL)) - kept_bytes(own.program(swap))
    assert moved > 0
    assert kept_bytes(own.program(replace(swap, select_recompute=again))) == 20 * KIB - moved
    pinned = own.with_fixed_policy(Policy(True, op_swap=(OpSwap(r"mlp\.gelu", ALL_LAYERS, 1),)))
    assert kept_bytes(pinned.program(Policy(True, select_recompute=again))) == 20 * KIB - 6 * moved
    assert kept_bytes(own.with_fixed_policy(Policy(True, select_recompute=again)).program(swap)) == 20 * KIB - moved
    void = Policy(True, op_swap=(OpSwap("mlp.*", ALL_LAYERS, 1),), layer_recompute=ALL_LAYERS)
    assert kept_bytes(own.program(void)) == kept_bytes(own.program(replace(void, op_swap=())))
    named_without_layers = Policy(True, op_swap=(OpSwap(r"mlp\.gelu", NO_LAYERS, 1),), select_recompute=again)
    assert kept_bytes(own.program(named_without_layers)) == 20 * KIB + 6 * 32 * KIB


def test_in_a_step_compiled_with_swap_it_does_though_nothing_is_swapped():
    """`swap: True` sets lazy_inline. Llama of 6 layers, 32k tokens, tensor parallel 8, full recompute: `op_swap: []`
    and entries without effect take 650 MiB in the dry run, `swap: False` 739."""
    own = model(6, WeightSharding(is_cast_after_gather=True))
    assert kept_bytes(own.program(KEEP_ALL)) == 20 * KIB + 6 * 32 * KIB
    for policy in (
        Policy(True, select_recompute=(OpRecompute(CAST, ALL_LAYERS),)),
        Policy(
            True,
            op_swap=(OpSwap("cross_attention.*", ALL_LAYERS, 1),),
            select_recompute=(OpRecompute(CAST, ALL_LAYERS),),
        ),
    ):
        assert kept_bytes(own.program(policy)) == 20 * KIB


def test_with_several_micro_batches_it_stays():
    """Llama2-7B of 4 layers, 2 stages, 4 micro-batches: it takes 8956 MiB with w1.cast and w3.cast named or not."""
    policy = Policy(True, op_swap=(OpSwap(r"mlp\.gelu", ALL_LAYERS, 1),))
    again = replace(policy, select_recompute=(OpRecompute(CAST, ALL_LAYERS),))
    own = model(6, WeightSharding(), num_micro_batches=4)
    assert kept_bytes(own.program(again)) == kept_bytes(own.program(policy))


def test_weights_stay_under_full_recompute_and_full_swap():
    own = model(6)
    # Whole layers: the outputs of six layers, the embedding and the mask (`test_step_model.py`), and the weights.
    assert kept_bytes(own.program(Policy(True, layer_recompute=ALL_LAYERS))) == 8 * KIB + 6 * 32 * KIB
    assert kept_bytes(own.program(Policy(True, layer_swap=(LayerSwap(ALL_LAYERS, 1),)))) == 2 * KIB + 6 * 32 * KIB


def test_level3_keeps_no_weight_and_gathers_twice():
    program = model(6, RELEASED).program(KEEP_ALL)
    check_program(program)
    assert kept_bytes(program) == 20 * KIB
    # 7/8 of 32 KiB at 100 GB/s: 286.72 ns; in forward and in backward of each layer.
    assert gathers(program) == [287] * 12
    assert len(gathers(model(6).program(KEEP_ALL))) == 6


def test_level3_with_recompute_gathers_no_third_time():
    program = model(6, RELEASED).program(Policy(True, layer_recompute=ALL_LAYERS))
    assert kept_bytes(program) == 8 * KIB
    assert len(gathers(program)) == 12


def test_all_micro_batches_share_one_copy():
    own = model(6, num_micro_batches=4)
    program = own.program(KEEP_ALL)
    check_program(program)
    assert len(gathers(program)) == 6
    sizes, labels = program.intervals.size_bytes, program.intervals.label
    is_gradient = program.intervals.kind == MemoryKind.GRADIENT  # the optimizer gets all of them at once
    assert sorted(sizes[~is_gradient].tolist())[-6:] == [32 * KIB] * 6
    assert int((sizes == 32 * KIB).sum()) == 6
    # From the AllGather to the gradient of the last micro-batch.
    whole = np.flatnonzero(sizes == 32 * KIB)
    assert {str(program.labels[label]) for label in labels[whole]} == {"mlp.AllGather"}
    assert set(program.ops.micro_batch[program.intervals.begin[whole]].tolist()) == {0}
    assert set(program.ops.micro_batch[program.intervals.end[whole]].tolist()) == {3}
    assert set(program.ops.kind[program.intervals.end[whole]].tolist()) == {OpKind.BACKWARD}


def test_with_level3_each_micro_batch_gathers_for_itself():
    assert len(gathers(model(6, RELEASED, num_micro_batches=4).program(KEEP_ALL))) == 4 * 12


def test_stages_of_a_pipeline_gather_their_own_layers():
    program = model(6, pipeline=Pipeline(num_stages=3), num_micro_batches=5).program(KEEP_ALL)
    check_program(program)
    whole = program.intervals.size_bytes == 32 * KIB
    assert program.intervals.stage[whole].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_reader_waits_for_its_weight_and_later_micro_batches_do_not():
    timeline = run_program(model(3, num_micro_batches=2).program(KEEP_ALL))
    ops = timeline.program.ops
    is_product = (ops.kind == OpKind.FORWARD) & (
        np.array([str(label) for label in timeline.program.labels])[ops.label] == "mlp.matmul"
    )
    first = is_product & (ops.micro_batch == 0)
    # The cast of the part (8 KiB read, 4 KiB written: 12.288 ns) ends, then 287 ns of AllGather.
    assert timeline.op_start_ns[first][0] >= 287
    assert not timeline.stall_ns[is_product & (ops.micro_batch == 1)].any()


def test_turns_begin_behind_what_runs_once():
    own = model(6, num_micro_batches=2)
    # Before the first turn of layer 0: the embedding, the mask, then the cast and the AllGather of its weight.
    first, second = find_turns(own, own.program(KEEP_ALL), 0)[0]
    assert first.forward == 2 + 2
    # Forward: 6 layers of 4, what 5 of them do once (2 each), the loss; backward: 1 + 24 + 1; again 2 before layer 0.
    assert second.forward == first.forward + (24 + 10 + 1) + 26 + 2


def test_a_cast_behind_a_gather_is_nothing_to_choose():
    def labels(own):
        return {
            str(item.label) for item in find_activation_groups(own.captured.graph, own.names, 1, own.captured.trees[1])
        }

    assert "mlp.cast" in labels(model(3, WeightSharding()))
    assert not [label for label in labels(model()) if "cast" in label or "AllGather" in label]


@pytest.mark.parametrize("sharding", [CUT, RELEASED])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_micro_batches": 3},
        {"num_micro_batches": 60},  # what runs once takes 12 ns a layer, which must not count 60 times
        {"pipeline": Pipeline(num_stages=2), "num_micro_batches": 4},
    ],
)
def test_the_bound_is_below_every_policy(sharding, settings):
    own = model(6, sharding, **settings)
    bound_inputs = collect_bound_inputs(own, own.simulate(KEEP_ALL))
    allow = Allow()
    for policy in (
        KEEP_ALL,
        Policy(True, layer_recompute=ALL_LAYERS),
        Policy(True, layer_swap=(LayerSwap(ALL_LAYERS, 2),)),
        Policy(True, select_recompute=(OpRecompute("mlp", ALL_LAYERS),), op_swap=(OpSwap("mul", ALL_LAYERS, 3),)),
    ):
        step = own.simulate(policy)
        assert least_budget_bytes(bound_inputs, 10**12, allow) <= step.peak_bytes
        bound = min_step_ns(bound_inputs, step.peak_bytes, 10**12, allow)
        assert bound is not None and bound <= step.step_time_ns
    if own.layout.num_stages == 1 and sharding is CUT:
        # Nothing comes between: the first backward waits for all gathering, and nothing is gathered behind it.
        keep = own.simulate(KEEP_ALL)
        assert min_step_ns(bound_inputs, keep.peak_bytes, 10**12, allow) == keep.step_time_ns


@pytest.mark.parametrize("sharding", [WeightSharding(8, is_cast_after_gather=True), WeightSharding()])
def test_casts_of_weights_are_gathered_weights_and_no_activations(sharding):
    program = model(sharding=sharding).simulate(KEEP_ALL).timeline.program
    parts: dict[str, set[MemoryPart]] = {}
    for label, part in zip(program.intervals.label.tolist(), program.intervals.part.tolist(), strict=True):
        parts.setdefault(str(program.labels[label]), set()).add(MemoryPart(part))
    assert MemoryPart.GATHERED_WEIGHTS in parts["mlp.cast"]
    assert MemoryPart.SAVED_ACTIVATIONS not in parts["mlp.cast"]


def test_casts_of_gathered_weights_run_first_in_later_micro_batches():
    program = model(sharding=WeightSharding(8, is_cast_after_gather=True), num_micro_batches=3).program(KEEP_ALL)
    labels = np.array([str(label) for label in program.labels])[program.intervals.label]
    begins = program.intervals.begin[labels == "mlp.cast"].reshape(3, 3)  # micro-batch, layer
    first_op = np.array([np.flatnonzero(program.ops.micro_batch == number)[0] for number in range(3)])
    assert len(set(begins[0].tolist())) == 3
    assert begins[1:].tolist() == [[begin] * 3 for begin in first_op[1:].tolist()]
