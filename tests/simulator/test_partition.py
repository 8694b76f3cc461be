"""The step of `steps.py` cut into blocks and put together again."""

from dataclasses import replace

import pytest

from mindswap.errors import SimulationError
from mindswap.graph.analysis.saved_tensors import OperatorNames
from mindswap.graph.model import Saved
from mindswap.graph.passes.swap_recompute import rewrite_graph, settings_of_policy
from mindswap.policy.model import ALL_LAYERS, OpRecompute, OpSwap, Policy
from mindswap.policy.resolve import LayerDecisions, resolve_layer
from mindswap.simulator.captured_step import GradientRule
from mindswap.simulator.layer_block import Consumers, Source
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.partition import BlockBuilder
from mindswap.simulator.placing import TransferCosts
from mindswap.simulator.program import NO_OP, ONE_WAY, MemoryKind, OpKind
from mindswap.simulator.program_builder import build_program
from tests.graph.builders import KIB, copy_out, node
from tests.simulator.builders import cut_blocks
from tests.simulator.steps import TREE, hand_graph, placed

GRAPH = hand_graph()
NAMES = OperatorNames([TREE] * 3, GRAPH)
COSTS = TransferCosts(lambda size: size, lambda size: size, lambda size: 100)


def cut(step=GRAPH, **options):
    return cut_blocks(step, lambda node, work: 10, NAMES, **options)


def under(**policy):
    actions = [resolve_layer(Policy(True, **policy), 0, TREE)] * 3
    return cut(rewrite_graph(GRAPH, settings_of_policy(GRAPH, NAMES, actions)))


def labels(ops):
    return [str(op.label) for op in ops]


def assemble(blocks, num_layers=3, layout=None):
    layers = [blocks.layers[0], *[blocks.layers[1]] * (num_layers - 2), blocks.layers[2]]
    return build_program([blocks.prologue, *layers, blocks.epilogue], COSTS, layout)


def test_sections():
    blocks = cut()
    # Reading a weight is not a kernel.
    assert labels(blocks.prologue.forward) == ["embedding.Gather", "mask.Less"]
    assert labels(blocks.epilogue.forward) == ["loss.ReduceSum"]
    assert labels(blocks.epilogue.backward) == ["loss.LossGrad"]
    for block in blocks.layers:
        assert labels(block.forward) == ["mlp.matmul", "mlp.gelu", "mul", "add"]
        assert labels(block.backward) == ["mul", "mlp.gelu", "mlp.matmul", "add"]
        assert {op.kind for op in block.forward} == {OpKind.FORWARD}
        assert {op.kind for op in block.backward} == {OpKind.BACKWARD}
    assert labels(blocks.prologue.backward) == ["embedding.UnsortedSegmentSum"]


def test_the_operators_of_a_section_are_timed_when_it_is_asked_for():
    timed = []
    maker = BlockBuilder(GRAPH, lambda node, work: timed.append(node.layer_index) or 10, NAMES)
    assert timed == []
    block = maker.block(1)
    assert timed == [1] * (len(block.forward) + len(block.backward))


def test_what_hands_values_over_to_backward_is_in_no_layer():
    # ChatGLM2: the compiler gave it the scope of an operator of the last layer.
    boundary_tensors = node("boundary_tensors", "Partial", "loss", 0, layer=2)
    blocks = cut(replace(GRAPH, forward=(*GRAPH.forward, boundary_tensors)))
    assert labels(blocks.prologue.forward) == ["embedding.Gather", "mask.Less"]
    assert labels(blocks.epilogue.forward) == ["loss.ReduceSum"]


def test_what_backward_makes_and_nobody_reads_takes_no_memory():
    # The gradient of a weight goes to the sums of gradients, which are there all the time.
    position = next(i for i, n in enumerate(GRAPH.backward) if n.layer_index == 1) + 1
    unread = node("unread", "MatMul", GRAPH.backward[position - 1].name, layer=1)
    with_unread = replace(GRAPH, backward=(*GRAPH.backward[:position], unread, *GRAPH.backward[position:]))
    before, after = cut().layers[1], cut(with_unread).layers[1]
    assert (len(after.backward), len(after.tensors)) == (len(before.backward) + 1, len(before.tensors))


def test_tensors_of_a_layer():
    tensors = {(str(tensor.label), tensor.is_forward): tensor for tensor in cut().layers[1].tensors}
    assert {label for label, is_forward in tensors if is_forward} == {"mlp.matmul", "mlp.gelu", "mul", "add"}
    # gelu_grad, the second operator of backward, is the only one there that reads matmul.
    assert tensors["mlp.matmul", True].uses == uses(1, 1, 1)
    assert tensors["mlp.gelu", True].uses == uses(2, 0, 0)
    assert tensors["mlp.matmul", True].role is None
    # The output is read by the next layer; the layer itself does not read it.
    assert tensors["add", True].uses == Consumers()
    assert tensors["add", True].role is not None and tensors["add", True].role.is_forward


def test_what_a_layer_reads_of_others():
    reads = {(read.source, read.role.is_forward): read for read in cut().layers[1].reads}
    # h is read by matmul and add, and by matmul_grad.
    assert reads[Source.PREVIOUS, True].uses == uses(3, 2, 2)
    # Of the layer behind comes the gradient, for mul_grad and for the sum.
    assert reads[Source.NEXT, False].uses == uses(NO_OP, 0, 3)
    assert reads[Source.SHARED, True].uses == uses(2, 0, 0)
    assert len(reads) == 3


def test_the_mask_is_shared_and_the_embedding_is_not():
    roles = {str(tensor.label): tensor.role for tensor in cut().prologue.tensors}
    assert roles["mask.Less"].is_shared
    assert not roles["embedding.Gather"].is_shared


def test_layers_of_the_sample_are_alike():
    first, middle, _ = cut().layers
    assert (first.forward, first.backward, first.tensors) == (middle.forward, middle.backward, middle.tensors)
    assert set(first.reads) == set(middle.reads)


def test_recomputed_operators_and_their_tensors():
    block = under(select_recompute=(OpRecompute(r"mlp\.gelu", ALL_LAYERS),)).layers[1]
    assert labels(block.backward) == ["mlp.gelu", "mul", "mlp.gelu", "mlp.matmul", "add"]
    assert block.backward[0].kind is OpKind.RECOMPUTE
    (again,) = [tensor for tensor in block.tensors if tensor.is_recomputed]
    assert (str(again.label), again.producer_op_index, again.uses) == ("mlp.gelu", 0, uses(NO_OP, 1, 1))


def test_what_reads_weights_only_does_not_run_again_in_a_step_without_swap():
    """Witnesses: 12 casts of 5.5 MiB and 16 of 2 at the peak of `llama optimizer_whole full` of benchmarks/dryrun; none
    of those that run again at the peak of `qwen3_moe select_mlp mlp_10`.
    """
    forward, backward = [], []
    for made in GRAPH.forward:
        index = made.layer_index
        if made.op == "MatMul":
            cast = node(f"cast{index}", "Cast", f"load{index}", layer=index, cell_path="mlp")
            forward += [node(f"load{index}", "Load", f"▸CR_w{index}", layer=index), cast]
            made = replace(made, inputs=(*made.inputs, cast.name))
        forward.append(made)
    for made in GRAPH.backward:
        if made.op == "MatMul":
            index = made.layer_index
            again = node(f"cast{index}_again", "Cast", f"◂CR_w{index}", layer=index, is_duplicate=True)
            backward.append(replace(again, origin=f"cast{index}"))
            made = replace(made, inputs=(*made.inputs, again.name))
        backward.append(made)
    step = replace(GRAPH, forward=tuple(forward), backward=tuple(backward))
    block = cut(step).layers[1]
    assert labels(block.backward) == ["mul", "mlp.gelu", "mlp.matmul", "add"]
    (cast,) = [tensor for tensor in block.tensors if "Cast" in str(tensor.label)]
    assert cast.uses == uses(1, 2, 2)  # from the matmul of forward to its gradient

    swapping = cut(step, is_swapping=True).layers[1]
    assert labels(swapping.backward) == ["mul", "mlp.gelu", "mlp.Cast", "mlp.matmul", "add"]
    assert [tensor.is_recomputed for tensor in swapping.tensors if "Cast" in str(tensor.label)] == [False, True]


def test_copies():
    block = under(op_swap=(OpSwap("mlp", ALL_LAYERS, 3),)).layers[1]
    copied = {str(t.label): (t.prefetch, t.num_copies, t.is_resident) for t in block.tensors if t.num_copies}
    assert copied == {"mlp.matmul": (3, 1, False), "mlp.gelu": (3, 1, False)}
    assert labels(block.forward) == ["mlp.matmul", "mlp.gelu", "mul", "add"]  # a copy is no operator


def test_what_ties_distant_layers_together_is_an_error():
    late = replace(GRAPH.forward[-2], inputs=("mul2", "gelu0"))
    step = replace(GRAPH, forward=(*GRAPH.forward[:-2], late, GRAPH.forward[-1]))
    with pytest.raises(SimulationError, match=r"mlp\.gelu would be read two or more layers away"):
        cut(step)


def test_a_step_without_lazy_inline_or_layers_is_an_error():
    with pytest.raises(SimulationError, match="without lazy_inline"):
        cut(replace(GRAPH, has_lazy_inline=False))
    with pytest.raises(SimulationError, match="no transformer layers"):
        cut(replace(GRAPH, forward=(node("alone", "Mul", "x", layer=None),), backward=(), saved=()))


# -- put together -------------------------------------------------------------------------------


def test_operators_of_a_model_put_together():
    # 2 + 4 n + 1 forward, 1 + 4 n + 1 backward.
    for num_layers in (3, 5, 80):
        assert len(assemble(cut(), num_layers).ops) == 5 + 8 * num_layers


def test_bytes_kept_by_a_model_put_together():
    for num_layers in (3, 7):
        intervals = assemble(cut(), num_layers).intervals
        # Three tensors for each layer (matmul, gelu, its output), the embedding and the mask.
        assert intervals.size_bytes[intervals.kind == MemoryKind.KEPT].sum() == (3 * num_layers + 2) * KIB


def uses(last_forward, first_backward, last_backward):
    """No product of these graphs gives a gradient of a weight."""
    return Consumers(last_forward, first_backward, last_backward, first_input=first_backward, last_input=last_backward)


def test_uses_of_a_tensor_that_the_next_layer_reads():
    program = assemble(cut())
    # Forward is 0-14 (2, 4, 4, 4, 1), backward 15-28 (1, 4, 4, 4, 1). add of layer 0 is 5; layer 1 begins at 6
    # and reads it with its last operator, 9; backward of layer 1 is 20-23, where matmul_grad is 22.
    position = {str(label): index for index, label in enumerate(program.labels)}
    spans = {
        (int(layer), int(begin)): int(end)
        for layer, label, begin, end, kind in zip(
            program.intervals.layer, program.intervals.label, program.intervals.begin, program.intervals.end,
            program.intervals.kind, strict=True,
        )
        if label == position["add"] and kind == MemoryKind.KEPT
    }  # fmt: skip
    assert spans == {(0, 5): 22, (1, 9): 18, (2, 13): 15}


def test_two_stages_hand_over_hidden_states_and_gradients():
    layout = StageLayout((((0, 1, 2),), ((3, 4),)))
    program = assemble(cut(), 3, layout)
    kinds = [OpKind(kind).name for kind in program.ops.kind if kind >= OpKind.COLLECTIVE]
    assert kinds == ["SEND", "RECEIVE", "RECEIVE", "SEND"]  # stage 0 forward, backward; stage 1 forward, backward
    sends = [i for i, kind in enumerate(program.ops.kind) if kind == OpKind.SEND]
    receives = [i for i, kind in enumerate(program.ops.kind) if kind == OpKind.RECEIVE]
    assert program.ops.wait_op[receives[1]] == sends[0] and program.ops.wait_op[receives[0]] == sends[1]
    assert [program.ops.duration_ns[i] for i in sends] == [100, 100]
    received = program.intervals.begin == receives[1]
    assert program.intervals.size_bytes[received].tolist() == [KIB]
    assert (program.ops.wait_op != NO_OP).sum() == 2 * 2 + 2  # sends and receives, and what needs a receive


def test_actions_that_set_nothing():
    assert settings_of_policy(GRAPH, NAMES, [LayerDecisions(0, TREE)] * 3).recomputed == frozenset()


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("has_several", [True, False])
def test_each_of_several_micro_batches_has_a_copy_of_a_weight_that_backward_reads(has_several, is_saved):
    # Witness: `llama_gqa pp2 bf16_weights optimizer_whole` of benchmarks/dryrun: 35 copies at the peak, one stage none.
    forward, backward = [], []
    for made in GRAPH.forward:
        index = made.layer_index
        if made.op == "MatMul":
            forward += [
                node(f"load{index}", "Load", f"▸CR_w{index}", layer=index),
                node(f"move{index}", "TensorMove", f"load{index}", layer=index),
            ]
            made = replace(made, inputs=(*made.inputs, f"move{index}"))
        forward.append(made)
    for made in GRAPH.backward:
        if made.op == "MatMul":
            made = replace(made, inputs=(*made.inputs, f"move{made.layer_index}_b"))
        backward.append(made)
    saved = [Saved(f"move{index}", f"move{index}_b") for index in range(3)] if is_saved else []
    step = replace(GRAPH, forward=tuple(forward), backward=tuple(backward), saved=(*GRAPH.saved, *saved))
    block = cut(step, rule=GradientRule(is_summed=has_several)).layers[1]
    copies = [tensor for tensor in block.tensors if "TensorMove" in str(tensor.label)]
    assert len(copies) == (has_several and is_saved)
    assert all(tensor.size_bytes == KIB and tensor.uses.last_backward != NO_OP for tensor in copies)


@pytest.mark.parametrize("is_fused", [True, False])
def test_a_cast_of_a_gathered_weight_is_launched_first_in_later_micro_batches_and_one_of_a_product_with_it_is_not(
    is_fused,
):
    """Fused, the product is within the kernel of its cast, which then reads the weight and an activation."""
    forward = []
    for made in GRAPH.forward:
        index = made.layer_index
        if made.op == "MatMul":
            forward += [
                node(f"load{index}", "Load", f"▸CR_w{index}", layer=index),
                node(f"gather{index}", "AllGather", f"load{index}", layer=index),
                node(f"weight{index}", "Cast", f"gather{index}", layer=index, cell_path="weight"),
                node(f"scaled{index}", "Mul", f"{made.inputs[0]} gather{index}", layer=index),
                node(f"half{index}", "Cast", f"scaled{index}", layer=index, cell_path="half"),
            ]
            made = replace(made, inputs=(f"half{index}", f"weight{index}"))
        forward.append(made)
    per_step_operators = frozenset(f"gather{index}" for index in range(3))
    block = cut(
        replace(GRAPH, forward=tuple(forward)), is_fused=is_fused, per_step_operators=per_step_operators
    ).layers[1]
    casts = {
        str(tensor.label): tensor.is_live_from_later_starts for tensor in block.tensors if "Cast" in str(tensor.label)
    }
    assert casts == {"weight.Cast": True, "half.Cast": False}


def test_durations_of_pieces_are_one_column_where_sequences_are_whole():
    arrays = cut().layers[0].arrays
    assert [part.piece_ns.shape for part in (arrays.forward, arrays.backward, arrays.per_step_operators)] == [
        (4, 1),
        (4, 1),
        (0, 1),
    ]


@pytest.mark.parametrize(("is_saved", "num_copies"), [(True, 0), (False, ONE_WAY)])
def test_a_copy_that_never_comes_back_counts_where_backward_does_not_read_the_value(is_saved, num_copies):
    """`gelu` of layer 0, which layer 1 reads in forward alone; backward of layer 0 reads it, or x in its place."""
    by_name = {made.name: made for made in GRAPH.forward}
    late = {"gelu0": copy_out("out", "gelu0"), "mul1": placed("late", "Mul", "gelu0", 1, "")}
    forward = [each for name, made in by_name.items() for each in (made, *filter(None, [late.get(name)]))]
    step = replace(GRAPH, forward=tuple(forward))
    if not is_saved:
        step = replace(step, saved=tuple(entry for entry in step.saved if entry.forward_name != "gelu0"))
    (tensor,) = (each for each in cut(step).layers[0].tensors if str(each.label) == "mlp.gelu" and each.is_forward)
    assert tensor.num_copies == num_copies


def positions(ops):
    return [op.positions for op in ops]


def test_a_fused_kernel_has_one_position_in_the_execution_order():
    plain, fused = cut().layers[1], cut(is_fused=True).layers[1]
    assert positions(plain.forward) == [1, 1, 1, 1]
    assert positions(fused.forward) == [1, 1, 0, 1]  # the sum computes the product before it


def test_a_reshape_has_a_position_which_counts_with_the_next_operator():
    forward = list(GRAPH.forward)
    at = next(i for i, n in enumerate(forward) if n.name == "add1")
    view = node("view", "Reshape", "mul1", layer=1, cell_path="")
    forward[at : at + 1] = [view, forward[at].with_renamed_inputs({"mul1": "view"})]
    blocks = cut(replace(GRAPH, forward=tuple(forward)), is_fused=True)
    assert positions(blocks.layers[1].forward) == [1, 1, 1, 2]  # kernels before and after a Reshape are not fused
    assert blocks.layers[1].arrays.forward.positions.tolist() == [1, 1, 1, 2]


def test_a_reshape_that_ends_a_layer_counts_with_its_last_operator():
    forward = list(GRAPH.forward)
    at = next(i for i, n in enumerate(forward) if n.name == "add1")
    forward.insert(at + 1, node("view", "Reshape", "add1", layer=1, cell_path=""))
    assert positions(cut(replace(GRAPH, forward=tuple(forward))).layers[1].forward) == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("rule", "count"), [(GradientRule(), 1), (GradientRule(is_shared=True), 2), (GradientRule(is_summed=True), 2)]
)
def test_the_reduction_or_the_sum_of_a_gradient_has_a_position(rule, count):
    at = next(i for i, n in enumerate(GRAPH.backward) if n.layer_index == 1) + 2
    gradient = node("weight_grad", "MatMul", GRAPH.backward[at - 1].name, layer=1)
    returned = node("gradients", "MakeTuple", "weight_grad", layer=None, cell_path="")
    backward = (*GRAPH.backward[:at], gradient, *GRAPH.backward[at:], returned)
    block = cut(replace(GRAPH, backward=backward), rule=rule).layers[1]
    assert positions(block.backward) == [1, 1, 1, count, 1]
